"""Convolutions of f32 from parts of bf16, without a copy for each window."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate
from sketch_cases import arrays as arrays_of
from sketch_cases import unscheduled
from test_dot_tiles import UNIT, VNNI
from window_cases import convolution, depthwise

from tilewright import te
from tilewright.schedule.codegen.machine import host_features
from tilewright.sketch.generators import sketches
from tilewright.sketch.split_windows import (
    Bf16MatrixWindowsSketch,
    Bf16x3WindowsSketch,
    Bf16x6WindowsSketch,
    F16MatrixWindowsSketch,
)
from tilewright.space.pipeline import Unfit
from tilewright.trial import Configuration

needs_unit = pytest.mark.skipif("amx-bf16" not in host_features(), reason="no matrix unit")
# Of images of these sizes; lines that are pieces, and columns that fill no tile; steps between
# points that are read, and between windows; channels that fill no group.
CASES = {
    "lines": convolution((4, 7), 32, 20, pad=1),
    "a line": convolution((19,), 32, 16, kernel=5, pad=2),
    "dilated": convolution((6, 9), 32, 16, dilation=2),
    "strided": convolution((6, 9), 32, 33, stride=2, pad=1),
    "far strided": convolution((7, 13), 32, 16, kernel=2, stride=3),
    "a line of the result": convolution((3, 6), 32, 16),
    "few channels": convolution((4, 5), 24, 16, pad=1),
    "more channels": convolution((3, 5), 80, 16, pad=1),
    "space": convolution((3, 3, 4), 32, 16, kernel=2),
    "filters that are arguments": convolution((3, 4), 64, 32, constant=False, pad=1),
}


def given(kernel: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [
        kernel.packings[i].of(one) if i in kernel.packings else one for i, one in enumerate(arrays)
    ]


@pytest.mark.parametrize("name", ["dilated", "far strided", "space", "filters that are arguments"])
def test_convolutions(name: str) -> None:
    site = CASES[name]
    sketch = Bf16x6WindowsSketch(site, UNIT)
    rng = np.random.default_rng(0)
    assert np.isfinite(sketch.space.prior_many(sketch.space.sample(rng, 8))).all()
    arrays = arrays_of(site)
    kernel = sketch.schedule(sketch.space.default)
    (found,) = evaluate(kernel.lower().program, given(kernel, arrays), "random")
    np.testing.assert_allclose(found, unscheduled(site, arrays), rtol=1e-4, atol=1e-4)


def computed(sketch: Any, configuration: Configuration, arrays: list[np.ndarray]) -> np.ndarray:
    kernel = sketch.schedule(configuration)
    built = te.build(kernel.schedule, kernel.arguments, threads=2)
    assert "tdpbf16ps" in built.assembly()
    found: np.ndarray = built(*given(kernel, arrays))
    return found


@needs_unit
@pytest.mark.parametrize("name", CASES)
def test_what_the_unit_computes(name: str) -> None:
    site = CASES[name]
    arrays = arrays_of(site)
    wanted = unscheduled(site, arrays)
    for kind, bound in ((Bf16x6WindowsSketch, 2e-6), (Bf16x3WindowsSketch, 2e-4)):
        sketch = kind(site, UNIT)
        for configuration in (
            sketch.space.default,
            *sketch.space.sample(np.random.default_rng(0), 1),
        ):
            found = computed(sketch, configuration, arrays)
            assert np.max(np.abs(found - wanted)) < bound * np.max(wanted), configuration


@needs_unit
@pytest.mark.parametrize(
    ("kind", "dtype"), [(F16MatrixWindowsSketch, "f16"), (Bf16MatrixWindowsSketch, "bf16")]
)
@pytest.mark.parametrize("more", [{"stride": 2}, {"constant": False}, {"narrow": True}])
def test_images_and_filters_of_two_bytes(kind: Any, dtype: str, more: Any) -> None:
    """Also where the program adds them up in as many bytes; the kernel does so in f32."""
    more = dict(more)
    narrow = more.pop("narrow", False)
    site = convolution((6, 5), 64, 32, pad=1, dtype=dtype, sums=dtype if narrow else None, **more)
    sketch = kind(site, UNIT)
    assert sketch.is_exact
    arrays = arrays_of(site)
    exact = convolution((6, 5), 64, 32, pad=1, dtype=dtype, **more) if narrow else site
    wanted = unscheduled(
        exact, [one.astype("f4") if n == 2 else one for n, one in enumerate(arrays)]
    )
    bound = 2.0**-8 if narrow else 2e-6
    for configuration in (sketch.space.default, *sketch.space.sample(np.random.default_rng(0), 1)):
        found = computed(sketch, configuration, arrays)
        off = np.abs(found.astype("f4") - wanted)
        assert np.max(off) < bound * np.max(wanted), configuration
    with pytest.raises(Unfit, match=r"numbers? of (f32|the image)"):
        Bf16x6WindowsSketch(site, UNIT)


@needs_unit
def test_a_piece_has_all_lines_or_a_part_of_them() -> None:
    site = convolution((6, 5), 64, 32, pad=1)
    sketch = Bf16x6WindowsSketch(site, UNIT)
    arrays = arrays_of(site)
    wanted = unscheduled(site, arrays)
    default = dict(sketch.space.default.items)
    for lines, groups, pieces in ((6, 2, 1), (3, 1, 2), (1, 2, 2)):
        values = {**default, "columns": 16, "lines": lines, "groups": groups}
        configuration = Configuration.of({**values, "column_pieces": pieces})
        assert not sketch.space.violations(configuration)
        found = computed(sketch, configuration, arrays)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@needs_unit
@pytest.mark.parametrize("panels", ["first", "by block"])
def test_filters_that_are_arguments_are_split_first_or_by_each_piece(panels: str) -> None:
    site = convolution((6, 5), 64, 64, constant=False, pad=1)
    sketch = Bf16x6WindowsSketch(site, UNIT)
    arrays = arrays_of(site)
    values = {"columns": 16, "lines": 3, "groups": 1, "column_pieces": 2, "rows": 16}
    configuration = Configuration.of({**values, "panels": panels})
    assert not sketch.space.violations(configuration)
    program = sketch.schedule(configuration).lower().program
    assert bool(program.temporaries) == (panels == "first")
    found = computed(sketch, configuration, arrays)
    np.testing.assert_allclose(found, unscheduled(site, arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("site", "target", "why"),
    [
        (CASES["lines"], VNNI, "no matrix unit"),
        (convolution((4, 4), 32, 16, kernel=1), UNIT, "no operand is read through sliding"),
        (convolution((4, 4), 32, 16, last=False), UNIT, "not innermost in the result"),
        (convolution((4, 4), 2048, 4096), UNIT, "grow by 150994944 bytes"),
        (convolution((4, 4), 32, 8), UNIT, "fewer than 16"),
        (convolution((4, 4), 3, 16), UNIT, "a point has 3 channels"),
        (convolution((4, 4), 32, 20, constant=False), UNIT, "neither constant nor whole vectors"),
        (convolution((4, 4), 24, 16, constant=False), UNIT, "neither constant nor whole vectors"),
        (convolution((4, 4), 32, 16, dtype="i8"), UNIT, "products of two numbers of f32"),
        (depthwise((4, 4), 32), UNIT, "have several dimensions"),
    ],
)
def test_what_it_is_not_for(site: Any, target: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        Bf16x6WindowsSketch(site, target)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels ask Linux for the unit")
def test_two_parts_are_for_relaxed_accuracy() -> None:
    strict, relaxed = (
        {one.name for one in sketches(CASES["lines"], UNIT, exact=exact)} for exact in (True, False)
    )
    assert "bf16x6-windows" in strict
    assert relaxed - strict >= {"bf16x3-windows"}
