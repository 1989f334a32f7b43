"""Products of f32 by a matrix unit for bf16: as exact as those of f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refused_unit import without_the_unit

from tilewright import te
from tilewright.schedule.codegen.machine import host_features
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.splitting import Taps, part_of, split_array

needs_unit = pytest.mark.skipif("amx-bf16" not in host_features(), reason="no matrix unit")
# Rows, columns and depth that tests multiply, and groups of the depth that are multiplied at once.
M, N, K, GROUPS = 64, 64, 192, 3


def product(parts: int, tile: tuple[int, int] = (32, 32), **more: Any) -> Any:
    """Rows that are split in the kernel times columns that are split and packed."""
    rows, lanes = tile
    a = te.placeholder((M, K), "f32", name="a")
    b = te.placeholder((N // lanes, K // 32, parts, lanes // 16, 16, 16, 2), "bf16", name="b")

    def part(g: Any, s: Any, row: Any, e: Any) -> Any:
        return part_of(a[row, g * 32 + e].astype("f32"), parts, s)

    left = te.compute((K // 32, parts, M, 32), part, name="left")
    axes = [te.reduce_axis(n, name) for n, name in ((K // 32, "g"), (16, "q"), (2, "e"))]
    axes += [te.reduce_axis(parts, name) for name in "st"]
    g, q, e, s, t = axes

    def element(panel: Any, row: Any, lane: Any) -> Any:
        one = left[g, s, row, q * 2 + e].astype("f32")
        other = b[panel, g, t, lane // 16, q, lane % 16, e]
        return te.sum(one * other.astype("f32"), axis=axes)

    sums = te.compute((N // lanes, M, lanes), element, name="sums")
    c = te.compute((M, N), lambda i, j: sums[j // lanes, i, j % lanes], name="c")
    schedule = te.create_schedule(c)
    stage = schedule[sums]
    panel, row, lane = stage.op.axis
    outer, row = stage.split(row, rows)
    reduced = dict(zip("gqest", stage.op.reduce_axis, strict=True))
    block, inner = stage.split(reduced["g"], GROUPS)
    rest = [reduced[name] for name in "qest"]
    stage.reorder(block, panel, outer, row, lane, inner, *rest)
    stage.tensorize(row, te.intrinsics.split_matrix(lanes, GROUPS, rows, parts, **more))
    return schedule, [a, b, c]


def packed(b: np.ndarray, parts: int, lanes: int = 32) -> np.ndarray:
    """Columns as `product` reads them."""
    pieces = split_array(b, parts).reshape(parts, K // 32, 16, 2, N // lanes, lanes // 16, 16)
    return np.ascontiguousarray(pieces.transpose(4, 1, 0, 5, 2, 6, 3))


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("f4") for shape in ((M, K), (K, N)))
    return a, b


@needs_unit
@pytest.mark.parametrize(
    ("parts", "bound", "tile"),
    [(3, 2e-7, (32, 32)), (3, 2e-7, (16, 16)), (3, 2e-7, (16, 32)), (2, 1e-5, (32, 32))],
)
def test_products(parts: int, bound: float, tile: tuple[int, int]) -> None:
    """Errors of three parts are those of f32; 2^-24 is 6e-8."""
    a, b = operands()
    found = te.build(*product(parts, tile), threads=2)(a, packed(b, parts, tile[1]))
    exact, size = a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b)
    assert np.max(np.abs(found - exact) / size) < bound


@needs_unit
def test_all_products_of_two_parts_are_those_of_numbers_of_f16() -> None:
    """Errors are those of adding up in f32."""
    a, b = (one.astype("f2").astype("f4") for one in operands())
    found = te.build(*product(2, every=True), threads=2)(a, packed(b, 2))
    exact, size = a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b)
    assert np.max(np.abs(found - exact) / size) < 2e-7


@needs_unit
def test_a_process_that_may_not_use_the_unit_computes_the_same() -> None:
    without_the_unit(
        "test_split_products",
        """
a, b = operands()
found = te.build(*product(3), threads=1)(a, packed(b, 3))
np.testing.assert_allclose(found, a.astype("f8") @ b, rtol=1e-5, atol=1e-5)
""",
    )


@needs_unit
def test_infinite_numbers_give_what_they_give_in_f32() -> None:
    a, b = operands()
    a[0, 3], a[1, 5], a[2, 7], b[9, 4] = np.inf, -np.inf, np.nan, np.inf
    found = te.build(*product(3), threads=1)(a, packed(b, 3))
    with np.errstate(invalid="ignore"):
        wanted = a.astype("f8") @ b.astype("f8")
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-4, atol=1e-4)


@needs_unit
def test_tiles_of_two_shapes_in_a_kernel() -> None:
    """The unit is told the shapes of the second one's registers, and the first one's again."""
    a = te.placeholder((2, 3, 32, 32), "bf16", name="a")
    b = te.placeholder((2, 3, 2, 16, 16, 2), "bf16", name="b")

    def sums(columns: int) -> Any:
        axes = [te.reduce_axis(n, name) for n, name in ((2, "g"), (16, "q"), (2, "e"))]
        g, q, e, s, t = axes = [*axes, te.reduce_axis(3, "s"), te.reduce_axis(3, "t")]

        def element(i: Any, j: Any) -> Any:
            one = a[g, s, i, q * 2 + e].astype("f32")
            return te.sum(one * b[g, t, j // 16, q, j % 16, e].astype("f32"), axis=axes)

        return te.compute((32, columns), element, name=f"sums{columns}")

    wide, narrow = sums(32), sums(16)
    c = te.compute((32, 32), lambda i, j: wide[i, j] - narrow[i, j // 2], name="c")
    schedule = te.create_schedule(c)
    outer, _ = schedule[c].split(c.op.axis[0], 16)
    for one in (wide, narrow):
        schedule[one].compute_at(schedule[c], outer)
        schedule[one].set_scope("local")
        schedule[one].tensorize(one.op.axis[0], te.intrinsics.split_matrix(one.shape[1], 2, 16, 3))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("f4") for shape in ((32, 64), (64, 32)))
    left = split_array(x, 3).reshape(3, 32, 2, 32).transpose(2, 0, 1, 3)
    right = split_array(y, 3).reshape(3, 2, 16, 2, 2, 16).transpose(1, 0, 4, 2, 5, 3)
    built = te.build(schedule, [a, b, c], threads=1)
    assert built.assembly().count("ldtilecfg") == 3
    exact = x.astype("f8") @ y
    found = built(np.ascontiguousarray(left), np.ascontiguousarray(right))
    np.testing.assert_allclose(found, exact - exact[:, :16].repeat(2, 1), rtol=1e-5, atol=1e-5)


# Windows of 3x2 points over lines of 9, of 3 with steps of 2 between them, of 11, and of 3x3 over
# every second point of lines of 10: points by the rests of their places, 40 each.
WINDOWS = [
    (Taps(3, step=9), Taps(2)),
    (Taps(3, dilation=2),),
    (Taps(11),),
    (Taps(3, stride=2, step=5, phase=80), Taps(3, stride=2, phase=40)),
]


def sliding(window: tuple[Taps, ...]) -> Any:
    """Tiles of 32 rows of an operand with windows that slide over it, times columns; both split."""
    taps, rows = [one.count for one in window], 32 + sum(one.most for one in window)
    a = te.placeholder((2, 3, rows, 32), "bf16", name="a")
    b = te.placeholder((2, *taps, 3, 1, 16, 16, 2), "bf16", name="b")
    over = [te.reduce_axis(count, f"w{i}") for i, count in enumerate(taps)]
    axes = [te.reduce_axis(n, name) for n, name in ((2, "g"), (16, "q"), (2, "e"))]
    g, q, e, s, t = axes = [*axes, te.reduce_axis(3, "s"), te.reduce_axis(3, "t")]

    def element(row: Any, lane: Any) -> Any:
        for one, tap in zip(window, over, strict=True):
            row = row + one.offset(tap)
        left = a[g, s, row, q * 2 + e].astype("f32")
        right = b[(g, *over, t, lane // 16, q, lane % 16, e)].astype("f32")
        return te.sum(left * right, axis=[g, *over, *axes[1:]])

    c = te.compute((32, 16), element, name="c")
    schedule = te.create_schedule(c)
    schedule[c].tensorize(c.op.axis[0], te.intrinsics.split_matrix(16, 2, 32, 3, window))
    return schedule, [a, b, c]


def windows(window: tuple[Taps, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `sliding` takes, and its sums."""
    rng, taps = np.random.default_rng(0), [one.count for one in window]
    x = rng.standard_normal((64, 32 + sum(one.most for one in window))).astype("f4")
    y = rng.standard_normal((64, *taps, 16)).astype("f4")
    sums = np.zeros((32, 16))
    for place in np.ndindex(*taps):
        first = sum(one.offset(tap) for one, tap in zip(window, place, strict=True))
        sums += x[:, first : first + 32].T.astype("f8") @ y[(slice(None), *place)]
    left = split_array(x, 3).reshape(3, 2, 32, -1).transpose(1, 0, 3, 2)
    right = np.moveaxis(split_array(y, 3).reshape(3, 2, 16, 2, *taps, 1, 16), 0, 3 + len(taps))
    # Of groups, pairs, ones, taps, parts, vectors and lanes.
    right = np.moveaxis(np.moveaxis(right, 1, -2), 1, -1)
    return np.ascontiguousarray(left), np.ascontiguousarray(right), sums


@needs_unit
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_slide_over_rows(window: tuple[Taps, ...]) -> None:
    left, right, sums = windows(window)
    found = te.build(*sliding(window), threads=1)(left, right)
    np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-4)


@needs_unit
def test_windows_without_the_unit() -> None:
    without_the_unit(
        "test_split_products",
        """
for window in WINDOWS:
    left, right, sums = windows(window)
    found = te.build(*sliding(window), threads=1)(left, right)
    np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-4)
""",
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lanes": 24}, "lanes must be a multiple of 16"),
        ({"m": 27}, "m from 2 to 16 or equal parts of up to 16"),
        ({"parts": 4}, "4 parts"),
        ({"m": 32, "lanes": 48}, "take 11 registers of 8"),
    ],
)
def test_other_tiles_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        te.intrinsics.split_matrix(**given)
