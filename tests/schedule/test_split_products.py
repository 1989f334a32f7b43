"""Products of f32 by a matrix unit for bf16: as exact as those of f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.codegen.machine import host_features
from tilewright.schedule.splitting import split, split_array

needs_unit = pytest.mark.skipif("amx-bf16" not in host_features(), reason="no matrix unit")
# Rows, columns and depth that tests multiply, and groups of the depth that are multiplied at once.
M, N, K, GROUPS = 64, 64, 192, 3


def product(parts: int, tile: tuple[int, int] = (32, 32)) -> Any:
    """Rows that are split in the kernel times columns that are split and packed."""
    rows, lanes = tile
    a = te.placeholder((M, K), "f32", name="a")
    b = te.placeholder((N // lanes, K // 32, parts, 16, lanes, 2), "bf16", name="b")

    def part(g: Any, s: Any, row: Any, e: Any) -> Any:
        *some, made = split(a[row, g * 32 + e], parts)
        for number, one in reversed([*enumerate(some)]):
            made = te.select(s.equal(number), one, made)
        return made

    left = te.compute((K // 32, parts, M, 32), part, name="left")
    axes = [te.reduce_axis(n, name) for n, name in ((K // 32, "g"), (16, "q"), (2, "e"))]
    axes += [te.reduce_axis(parts, name) for name in "st"]
    g, q, e, s, t = axes

    def element(panel: Any, row: Any, lane: Any) -> Any:
        one = left[g, s, row, q * 2 + e].astype("f32")
        return te.sum(one * b[panel, g, t, q, lane, e].astype("f32"), axis=axes)

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
    stage.tensorize(row, te.intrinsics.split_matrix(lanes, GROUPS, rows, parts))
    return schedule, [a, b, c]


def packed(b: np.ndarray, parts: int, lanes: int = 32) -> np.ndarray:
    """Columns as `product` reads them."""
    pieces = split_array(b, parts).reshape(parts, K // 32, 16, 2, N // lanes, lanes)
    return np.ascontiguousarray(pieces.transpose(4, 1, 0, 2, 5, 3))


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("f4") for shape in ((M, K), (K, N)))
    return a, b


@needs_unit
@pytest.mark.parametrize(
    ("parts", "bound", "tile"),
    [(3, 2e-7, (32, 32)), (3, 2e-7, (16, 16)), (3, 2e-7, (16, 48)), (2, 1e-5, (32, 32))],
)
def test_products(parts: int, bound: float, tile: tuple[int, int]) -> None:
    if N % tile[1]:
        tile = (tile[0], 32)
    a, b = operands()
    found = te.build(*product(parts, tile), threads=2)(a, packed(b, parts, tile[1]))
    exact, size = a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b)
    assert np.max(np.abs(found - exact) / size) < bound
