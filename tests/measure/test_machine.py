"""Machine facts: read from files that a test can write, and measured peaks that make sense."""

import json

import pytest

from tilewright.errors import TilewrightError
from tilewright.measure.machine import _caches, _count_cpus, describe, measure_peak


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
    data, code, last = _caches(tmp_path)
    assert (data.bytes, code.kind, last.bytes, last.shared_by) == (
        48 << 10,
        "Instruction",
        32 << 20,
        16,
    )
    assert _caches(tmp_path / "missing") == ()
    assert _count_cpus("0-3,8") == 5


@pytest.mark.slow
def test_measured_peaks_are_positive():
    peak = measure_peak(1)
    assert peak.gflops > 0
    assert peak.gbytes_per_s > 0
    assert "NumPy" in peak.method


def test_a_failing_measurement_is_an_error():
    with pytest.raises(TilewrightError, match="cannot be measured"):
        measure_peak(1, timeout_s=0.001)
