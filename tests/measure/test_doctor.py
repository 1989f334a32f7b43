"""What the checks of a machine say, and what they advise."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.errors import UserError
from tilewright.measure import doctor
from tilewright.measure.doctor import Finding, Health, core_speeds, examine, steadiness
from tilewright.measure.machine import Machine

QUIET = Machine(
    cpu="a processor", architecture="x86_64", cores=4, threads=4, caches=(), memory_bytes=2**36,
    features=(), governor="performance", frequency_mhz=3000.0, load=0.1, virtual=False,
    system="Linux 6", python="3.12",
)  # fmt: skip


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever this machine is, nothing."""
    monkeypatch.setattr(doctor, "core_speeds", lambda: ())
    monkeypatch.setattr(doctor, "_pieces", lambda clock: [1.0, 1.01, 1.02])
    monkeypatch.setattr(doctor, "check_versions", lambda: None)
    memory = SimpleNamespace(available=2**36)
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=2**36))
    monkeypatch.setattr(doctor, "huge_pages_on_request", lambda: True)


def found(machine: Machine, database: Path) -> dict[str, Finding]:
    return {one.name: one for one in examine(machine, database)}


def test_a_good_machine_needs_nothing(tmp_path: Path) -> None:
    all_found = found(QUIET, tmp_path / "new" / "t.db")
    assert {one.health for one in all_found.values()} == {Health.OK}
    assert not any(one.advice for name, one in all_found.items() if name != "extras")
    assert not (tmp_path / "new").exists(), "nothing is made"


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        ({"load": 3.0}, "load", "3.0 on 4 processors"),
        ({"governor": "powersave"}, "frequency", "governor powersave"),
    ],
)
def test_what_makes_times_doubtful(
    tmp_path: Path, change: dict[str, object], name: str, told: str
) -> None:
    all_found = found(replace(QUIET, **change), tmp_path / "t.db")  # type: ignore[arg-type]
    assert all_found[name].health is Health.DOUBT
    assert told in all_found[name].text
    assert all_found[name].advice
    assert [n for n, one in all_found.items() if one.health is not Health.OK] == [name]


def test_siblings_are_no_cores(tmp_path: Path) -> None:
    told = found(replace(QUIET, threads=8), tmp_path / "t.db")["cores"]
    assert told.text.startswith("8 usable, 4 cores: one thread for each core")


def test_slow_cores_beside_fast_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "core_speeds", lambda: (1024, 1024, 400, 400))
    told = found(QUIET, tmp_path / "t.db")["cores"]
    assert (told.health, told.text) == (Health.DOUBT, "2 fast and 2 slow processors")
    assert "--threads 2" in told.advice
    monkeypatch.setattr(doctor, "core_speeds", lambda: (5_200_000, 5_000_000))
    assert found(QUIET, tmp_path / "t.db")["cores"].health is Health.OK


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_speeds_are_read_of_the_processors_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    for number, speed in ((0, 5000), (1, 1), (2, 3000)):
        place = tmp_path / f"cpu{number}" / "cpufreq"
        place.mkdir(parents=True)
        (place / "cpuinfo_max_freq").write_text(f"{speed}\n")
    assert core_speeds(tmp_path) == (5000, 3000)
    for number in (0, 2):
        (tmp_path / f"cpu{number}" / "cpu_capacity").write_text(f"{1024 >> number}\n")
    assert core_speeds(tmp_path) == (1024, 256)
    assert core_speeds(tmp_path / "none") == ()


def test_equal_work_that_takes_different_times() -> None:
    assert steadiness(QUIET, [1.0] * 8).health is Health.OK
    told = steadiness(QUIET, [1.0] * 4 + [1.5] * 4)
    assert told.health is Health.DOUBT
    assert "50.0%" in told.text
    virtual = steadiness(replace(QUIET, virtual=True), [1.0, 2.0, 2.0])
    assert "virtual machine" in virtual.advice
    busy = steadiness(replace(QUIET, virtual=True, load=9.0), [1.0, 2.0, 2.0])
    assert busy.advice.startswith("see above")


def test_what_a_run_would_fail_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise UserError("tilewright needs x 3.13; installed: x 3.1; run: pip install x")

    monkeypatch.setattr(doctor, "check_versions", wrong)
    told = found(QUIET, Path("/proc/t.db"))
    assert told["versions"].health is Health.BAD
    assert told["versions"].advice == "pip install x"
    assert told["database"].health is Health.BAD
    assert "--db" in told["database"].advice


def test_little_room_and_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=2**20))
    monkeypatch.setattr(doctor, "huge_pages_on_request", lambda: False)
    told = found(QUIET, tmp_path / "t.db")
    assert (told["room"].health, "TMPDIR" in told["room"].advice) == (Health.DOUBT, True)
    assert "transparent_hugepage" in told["huge pages"].advice


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert doctor._EXTRAS.keys() <= project["project"]["optional-dependencies"].keys()
