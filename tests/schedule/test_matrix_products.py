"""Products by a matrix unit, and what computes them where a process may not use it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refused_unit import without_the_unit

from tilewright import te
from tilewright.schedule.codegen.machine import host_features
from tilewright.schedule.intrinsics import byte_value

UNIT = "cpu:sapphirerapids"
HAS_UNIT = "amx-int8" in host_features()
needs_unit = pytest.mark.skipif(not HAS_UNIT, reason="no matrix unit")


def product(
    m: int, n: int, k: int, tile: tuple[int, int], zero: int = 0, unsigned: bool = False
) -> Any:
    """Rows of bytes times packed columns, in tiles of rows and columns."""
    rows, lanes = tile
    a = te.placeholder((m, k), "i8", name="a")
    b = te.placeholder((n // lanes, k // 4, lanes, 4), "i8", name="b")
    g, e = te.reduce_axis(k // 4, "g"), te.reduce_axis(4, "e")

    def element(panel: Any, row: Any, lane: Any) -> Any:
        value = byte_value(a[row, g * 4 + e].astype("i32"), zero, unsigned)
        return te.sum(value * b[panel, g, lane, e].astype("i32"), axis=[g, e])

    sums = te.compute((n // lanes, m, lanes), element, name="sums")
    c = te.compute((m, n), lambda i, j: sums[j // lanes, i, j % lanes], name="c")
    s = te.create_schedule(c)
    i, j = s[c].op.axis
    (i, ii), (j, jj) = s[c].split(i, rows), s[c].split(j, lanes)
    s[c].reorder(i, j, ii, jj)
    s[c].parallel(i)
    s[sums].compute_at(s[c], j)
    s[sums].set_scope("local")
    s[sums].tensorize(sums.op.axis[1], te.intrinsics.byte_matrix(lanes, k, rows, zero, unsigned))
    return s, [a, b, c]


def operands(m: int, n: int, k: int, lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, shape).astype("i1") for shape in ((m, k), (k, n)))
    packed = b.reshape(k // 4, 4, n // lanes, lanes).transpose(2, 0, 3, 1)
    return a, b, np.ascontiguousarray(packed)


@needs_unit
@pytest.mark.parametrize(
    ("size", "tile", "zero", "unsigned"),
    [
        ((64, 64, 128), (32, 32), 0, True),
        # Four tiles of 13 rows for 49; 48 bytes at once.
        ((98, 32, 96), (49, 16), 0, False),
        ((98, 32, 96), (49, 16), -7, False),
        # One tile of rows times four of columns; what stands for 0 in bytes without a sign.
        ((14, 64, 36), (14, 64), 0, True),
        ((28, 32, 64), (14, 32), 200, True),
        ((64, 16, 4), (64, 16), 3, True),
    ],
)
def test_bytes(size: Any, tile: Any, zero: int, unsigned: bool) -> None:
    a, b, packed = operands(*size, tile[1])
    numbers = (a.astype("i4") & 255 if unsigned else a.astype("i4")) - zero
    built = te.build(*product(*size, tile, zero, unsigned), threads=2)
    np.testing.assert_array_equal(built(a, packed), numbers @ b.astype("i4"))


@needs_unit
def test_a_process_that_may_not_use_the_unit_computes_the_same() -> None:
    without_the_unit(
        "test_matrix_products",
        """
a, b, packed = operands(64, 64, 128, 16)
built = te.build(*product(64, 64, 128, (32, 16), 5, True), threads=1)
assert np.array_equal(built(a, packed), ((a.astype("i4") & 255) - 5) @ b.astype("i4"))
""",
    )


@pytest.mark.skipif("amx-bf16" not in host_features(), reason="no matrix unit")
def test_bf16() -> None:
    a, b = (
        te.placeholder(shape, "bf16", name=n) for n, shape in (("a", (32, 64)), ("b", (32, 32, 2)))
    )
    g, e = te.reduce_axis(32, "g"), te.reduce_axis(2, "e")
    c = te.compute(
        (32, 32),
        lambda i, j: te.sum(a[i, g * 2 + e].astype("f32") * b[g, j, e].astype("f32"), axis=[g, e]),
        name="c",
    )
    s = te.create_schedule(c)
    s[c].tensorize(c.op.axis[0], te.intrinsics.bf16_matrix(32, 64, 32))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((32, 64), (64, 32)))
    packed = np.ascontiguousarray(y.reshape(32, 2, 32).transpose(0, 2, 1))
    found = te.build(s, [a, b, c], threads=1)(x, packed)
    np.testing.assert_allclose(found, x.astype("f8") @ y.astype("f8"), rtol=1e-5, atol=1e-5)


@needs_unit
def test_tiles_of_two_shapes_in_a_kernel() -> None:
    """The unit is told the shapes of the second one's registers, and the first one's again."""
    a = te.placeholder((64, 64), "i8", name="a")
    b = te.placeholder((16, 32, 4), "i8", name="b")

    def sums(columns: int) -> Any:
        g, e = te.reduce_axis(16, f"g{columns}"), te.reduce_axis(4, f"e{columns}")
        return te.compute(
            (64, columns),
            lambda i, j: te.sum(
                a[i, g * 4 + e].astype("i32") * b[g, j, e].astype("i32"), axis=[g, e]
            ),
            name=f"sums{columns}",
        )

    wide, narrow = sums(32), sums(16)
    c = te.compute((64, 32), lambda i, j: wide[i, j] - narrow[i, j // 2], name="c")
    s = te.create_schedule(c)
    outer, _ = s[c].split(c.op.axis[0], 16)
    for one in (wide, narrow):
        s[one].compute_at(s[c], outer)
        s[one].set_scope("local")
        # As much of b as each of them reads lies in rows of 32.
        s[one].tensorize(one.op.axis[0], te.intrinsics.byte_matrix(one.shape[1], 64, 16))
    x, y, packed = operands(64, 32, 64, 32)
    exact = x.astype("i4") @ y.astype("i4")
    built = te.build(s, [a, b, c], threads=1)
    assert built.assembly().count("ldtilecfg") == 3
    np.testing.assert_array_equal(built(x, packed[0]), exact - exact[:, :16].repeat(2, 1))


def test_the_instructions_are_in_the_code_and_what_is_there_without() -> None:
    code = te.build(*product(64, 64, 128, (32, 32)), target=UNIT).assembly()
    for instruction in ("ldtilecfg", "tdpbssd", "tilerelease", "syscall", "vpdpbusd"):
        assert instruction in code


def test_it_needs_the_extension() -> None:
    with pytest.raises(te.ScheduleError, match=r"needs a matrix unit \(AMX\)"):
        te.build(*product(64, 64, 128, (32, 32)), target="cpu:znver4")


@pytest.mark.parametrize(
    ("lanes", "k", "m", "zero", "said"),
    [
        (8, 64, 16, 0, "lanes must be a multiple of 16"),
        (16, 64, 1, 0, "m at least 2"),
        (32, 64, 48, 0, "48x32 sums and what they are computed from take 9 registers of 8"),
        (32, 64, 32, 1, "take 10 registers of 8"),
        (16, 6, 16, 0, "k must be a multiple of 4"),
    ],
)
def test_what_does_not_fit_is_told(lanes: int, k: int, m: int, zero: int, said: str) -> None:
    with pytest.raises(te.ScheduleError, match=said):
        te.intrinsics.byte_matrix(lanes, k, m, zero)
