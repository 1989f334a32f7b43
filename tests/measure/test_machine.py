"""Machine facts: read from files that a test can write."""

import json
from dataclasses import replace

from tilewright.measure.machine import describe, warnings
from tilewright.target import _count_cpus, caches


def test_describe_is_complete_enough_for_a_manifest():
    machine = describe()
    assert machine.cpu
    assert machine.threads >= 1
    assert json.loads(json.dumps(machine.to_json()))["threads"] == machine.threads


def test_caches_are_read_with_their_units(tmp_path):
    for index, (level, kind, size, shared) in enumerate(
        [
            ("1", "Data", "48K", "0"),
            ("1", "Instruction", "32K", "0"),
            ("3", "Unified", "32M", "0-7,16-23"),
        ]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (
            ("level", level),
            ("type", kind),
            ("size", size),
            ("shared_cpu_list", shared),
        ):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()
    data, code, last = caches(str(tmp_path))
    assert (data.bytes, code.kind, last.bytes, last.shared_by) == (
        48 << 10,
        "Instruction",
        32 << 20,
        16,
    )
    assert caches(str(tmp_path / "missing")) == ()
    assert _count_cpus("0-3,8") == 5


def test_what_makes_times_doubtful_is_told():
    quiet = replace(describe(), governor="performance", load=0.1, threads=4)
    assert warnings(quiet) == ()
    assert warnings(replace(quiet, governor=None, load=None)) == ()
    (scaling,) = warnings(replace(quiet, governor="powersave"))
    assert "governor powersave" in scaling
    (busy,) = warnings(replace(quiet, load=3.9))
    assert "load 3.9 on 4 processors" in busy
    assert len(warnings(replace(quiet, governor="ondemand", load=9.0))) == 2
