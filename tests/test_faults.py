"""Some of the faults that `benchmarks/faults.py` makes: the part that every CI run has."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import key, run_record, trial

import fault_candidates
import fault_commands
import fault_inputs
import fault_kills
import fault_seeds
import warm_start
from fault_mutations import mutated
from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.measure.encoding import Files, decode
from tilewright.measure.input_syntax import parse_input
from tilewright.replay.recording import read_recording, shipped
from tilewright.schedule.trace import from_json, from_python
from tilewright.store import Database
from tilewright.tuning.config_file import read_config
from tilewright.tuning.event_log import read_line
from tilewright.tuning.project import read_project

pytestmark = pytest.mark.skipif(not warm_start.AVAILABLE, reason="processes are forked on Linux")

SCRIPT = Path(fault_inputs.__file__).with_name("faults.py")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "seeds"
    fault_seeds.make_seeds(folder, runs=False)
    return folder


# The other parts are slow.
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_hostile_files_end_in_one_line(seeds: Path, tmp_path: Path, part: int) -> None:
    """Every file made by hand with one command that reads it, and some made by chance."""
    made = list(fault_inputs.cases(seeds, 220, seed=3))
    first = {case.source: case for case in reversed(made) if case.given is not None}
    drawn = [case for case in made if case.given is None][:4]
    assert len(first) > 20
    for case in (*first.values(), *drawn)[part::3]:
        found = fault_inputs.run_case(case, seeds, tmp_path / "case")
        assert not found.faults, (case, found.message)


def test_what_a_case_finds_is_found(seeds: Path, tmp_path: Path) -> None:
    """A file that is touched, a traceback, a hang: the script must see each."""
    script = tmp_path / "bad.py"
    script.write_text(
        "import os, pathlib\npathlib.Path.home().joinpath('private.txt').unlink()\n1/0\n"
    )
    ended = fault_commands.run_command([], tmp_path, tmp_path, 60, script=str(script))
    assert ended.status == 1
    assert "printed 'Traceback (most recent call last)'" in fault_inputs._faults_of_end(ended, (0,))
    script.write_text("import time\ntime.sleep(60)\n")
    ended = fault_commands.run_command([], tmp_path, tmp_path, 0.5, script=str(script))
    assert fault_inputs._faults_of_end(ended, (0,))[0].startswith("hung")
    home = tmp_path / "home"
    home.mkdir()
    (home / "private.txt").write_text("a")
    before = fault_inputs._snapshot([home], seeds)
    (home / "private.txt").write_text("b")
    assert fault_inputs._snapshot([home], seeds) != before


def test_candidates_that_do_harm_are_statuses(tmp_path: Path) -> None:
    lines = list(fault_candidates.run(tmp_path / "run", seed=5, count=12))
    assert [line["faults"] for line in lines] == [[]] * 12, lines
    harmful = [line for line in lines if line["group"] != "does no harm"]
    assert harmful
    assert any(line["status"] == "ok" for line in lines if line["group"] == "does no harm")


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    lines = list(fault_kills.kills(tmp_path / "killed", 1, list(range(4)), trials=6))
    assert [line["case"] for line in lines] == list(range(4))
    assert [line["faults"] for line in lines] == [[]] * 4, lines


def read_database(path: Path) -> None:
    with Database.open(path) as store:
        store.runs()
        store.trials()
        store.listing()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small one, with a run and trials, in one file."""
    path = tmp_path_factory.mktemp("database") / "trials.db"
    with Database.open(path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key(), 1.0)
        for n in range(5):
            store.record_trial(run_id, task_id, trial(n))
    return path.read_bytes()


CONFIG = Path(__file__).parent.parent / "examples" / "auto-scheduler.cfg"
RECORDED = shipped()["row_sums_1024x4096"]
ARRAY = b"\x93NUMPY\x01\x00v\x00" + (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".ljust(117) + b"\n" + b"\0" * 24
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 1 << 60))
def test_readers_take_anything(tmp_path: Path, database: bytes, seed: int) -> None:
    """In this process: what reads texts says so where they are none."""
    chance = random.Random(seed)
    trace = b'{"format": 1, "steps": [{"primitive": "split", "stage": "C", "arguments": {}}]}'
    event = b'{"event": "note", "t": 1.0, "text": "a", "warning": false}'
    for data, suffix, read in (
        (trace, ".json", lambda path: from_json(path.read_text(errors="replace"))),
        (trace, ".json", lambda path: parse_json(path.read_bytes())),
        (b"def schedule(s):\n    s['C'].unroll(s['C'].op.axis[0])\n", ".txt",
         lambda path: from_python(path.read_text(errors="replace"))),
        (event, ".json", lambda path: read_line(path.read_bytes())),
        (fault_seeds.PROJECT.encode(), ".toml", read_project),
        (CONFIG.read_bytes(), ".cfg",
         lambda path: read_config(path, known_tuners=("RandomTuner",))),
        (ARRAY, ".npy", lambda path: parse_input(f"@{path}")),
        (RECORDED.read_bytes(), ".npz", read_recording),
        (database, ".db", read_database),
    ):  # fmt: skip
        for left in tmp_path.glob("file*"):
            left.unlink()
        path = tmp_path / f"file{suffix}"
        path.write_bytes(mutated(data, chance, suffix))
        with contextlib.suppress(UserError, ValueError):
            read(path)


def test_a_row_that_nobody_wrote_is_damage(tmp_path: Path, database: bytes) -> None:
    path = tmp_path / "trials.db"
    for name, value in (("configuration", "{"), ("status", "odd"), ("samples", "7")):
        path.write_bytes(database)
        with contextlib.closing(sqlite3.connect(path)) as opened, opened:
            opened.execute(f"UPDATE trials SET {name} = ? WHERE id = 1", (value,))
        with pytest.raises(UserError, match="damaged: a row of trials"):
            read_database(path)


@pytest.mark.parametrize(
    "header", [b"{'descr': (((", b"\0" * 40, b"{'descr': '<f4', 'shape': (1<<80,)}"]
)
def test_headers_that_numpy_trips_over(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(ARRAY[:10] + header.ljust(118) + ARRAY[128:])
    with pytest.raises(UserError, match=r"a\.npy"):
        parse_input(f"@{path}")


@pytest.mark.parametrize(
    "data", [{"tuple": 3}, {"class": "Measurement"}, {"class": []}, {}, {"file": "a" * 9000}]
)
def test_requests_that_are_none(tmp_path: Path, data: object) -> None:
    with pytest.raises(UserError):
        decode(data, Files(tmp_path))


def test_the_script_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    line = {"seed": 0, "case": 0, "group": "main process", "status": "killed", "faults": ["lost"]}
    (tmp_path / "kills-0-1.jsonl").write_text(json.dumps(line) + "\n" + '{"seed": 0, "ca')
    run = [sys.executable, str(SCRIPT), "--cases", "kills", "--table", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 1, found.stderr
    assert "| Kills | main process | 1 | 1 killed | 1 |" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", ["candidates", "kills", "system", "inputs"])
def test_more_of_each(part: str, tmp_path: Path) -> None:
    run = [sys.executable, str(SCRIPT), "--cases", part, "--quick", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
