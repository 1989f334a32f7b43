"""The peak that kernels are judged by."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tilewright.kernels.operation import ElementTypes
from tilewright.measure.peak import Peak
from tilewright.profiler import peaks
from tilewright.target import parse_target

F32 = ElementTypes("f32", "f32")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, float]]:
    """What the machine's peak is asked with; its f32 peak is 100, when asked again 120."""
    found: list[Mapping[str, float]] = []

    def machine_peak(threads: int, *, at_least: Mapping[str, float] | None = None) -> Peak:
        found.append(at_least or {})
        compute = {"f32": 120.0 if at_least else 100.0, "f16": 100.0}
        return Peak(threads, "", compute, {"read": 10.0}, {}, "", 0.0)

    monkeypatch.setattr(peaks, "machine_peak", machine_peak)
    return found


def test_peaks_by_the_type_of_the_operands(asked: list[Mapping[str, float]]) -> None:
    known = peaks.Peaks(2)
    assert known.gflops(F32, 50.0) == 100.0
    assert known.gflops(ElementTypes("f16", "f32"), 50.0) == 100.0
    assert known.gflops(ElementTypes("i8", "i32"), 50.0) is None
    assert asked == [{}], "measured once"


def test_a_kernel_above_the_peak_has_it_measured_once_more(
    asked: list[Mapping[str, float]],
) -> None:
    known = peaks.Peaks(2)
    assert known.gflops(F32, 110.0) == 120.0
    assert known.gflops(F32, 123.0) == 120.0, "within the noise"
    assert asked == [{}, {"f32": 110.0}]


@pytest.mark.usefixtures("asked")
def test_a_right_kernel_above_the_peak_is_the_peak() -> None:
    known = peaks.Peaks(2)
    assert known.gflops(F32, 130.0, verified=False) == 120.0
    assert known.gflops(F32, 130.0) == 130.0
    assert known.gflops(F32, 50.0) == 130.0
    assert known.gflops(ElementTypes("f16", "f32"), 50.0) == 100.0


def test_the_instructions_of_another_processor_are_its_name() -> None:
    assert peaks.vector_instructions(parse_target("cpu:znver4")) == "znver4"
    assert peaks.vector_instructions(parse_target("cpu"))
