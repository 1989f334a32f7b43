"""Numbers of f32 in parts of bf16, in the orders in which a matrix unit takes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.splitting import part_of, split_array


@pytest.mark.parametrize("pairs", [False, True])
def test_kernels_split_numbers_as_arrays_are(pairs: bool) -> None:
    """Also what is infinite, no number, or too large for bf16."""
    shape = (2, 32) if pairs else (1, 32)
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    x[0, :5] = np.inf, -np.inf, np.nan, 3.4e38, -3.4e38
    a = te.placeholder(shape, name="a")
    if pairs:
        axes = 3, 2, 1, 16, 2
        c = te.compute(axes, lambda s, v, _, i, e: part_of(a[e, v * 16 + i], 3, s), name="c")
    else:
        c = te.compute((3, 1, 32), lambda s, r, i: part_of(a[r, i], 3, s), name="c")
    plain = te.create_schedule(c)
    fast = te.create_schedule(c)
    intrinsic = te.intrinsics.split_pairs if pairs else te.intrinsics.split_rows
    row = c.op.axis[2 if pairs else 1]
    fast[c].reorder(row, *(axis for axis in c.op.axis if axis is not row))
    fast[c].tensorize(c.op.axis[0], intrinsic(32, 3))
    wanted = split_array(x.T if pairs else x[0], 3).reshape(c.shape)
    for schedule in (plain, fast):
        found = te.build(schedule, [a, c], threads=1)(x).astype("f4")
        largest, second, third = wanted.astype("f4")
        if pairs and schedule is fast:
            # Halves are rounded either way, which the next part makes up for.
            np.testing.assert_allclose(found[1], second, rtol=2**-7)
            np.testing.assert_array_equal(found[2] + found[1], third + second)
            np.testing.assert_array_equal(found[0], largest)
        else:
            np.testing.assert_array_equal(found, wanted.astype("f4"))
    assert wanted[2, 0].astype("f4").reshape(32, -1)[0, 0] == np.inf


@pytest.mark.parametrize("parts", [2, 3])
def test_what_is_no_number_stays_so_in_pairs(parts: int) -> None:
    """Also where all its bits are ones, to which nothing can be added."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001], "u4")
    x = np.zeros((2, 16), "f4")
    x[:, :4] = bits.view("f4")
    a = te.placeholder(x.shape, name="a")
    axes = parts, 1, 1, 16, 2
    c = te.compute(axes, lambda s, v, _, i, e: part_of(a[e, v * 16 + i], parts, s), name="c")
    schedule = te.create_schedule(c)
    row = c.op.axis[2]
    schedule[c].reorder(row, *(axis for axis in c.op.axis if axis is not row))
    schedule[c].tensorize(c.op.axis[0], te.intrinsics.split_pairs(16, parts))
    found = te.build(schedule, [a, c], threads=1)(x).astype("f4").sum(axis=0)[0, 0]
    assert np.isnan(found[:4]).all()
    assert (found[4:] == 0).all()


@pytest.mark.parametrize(("dtype", "parts"), [("f16", 2), ("bf16", 1)])
@pytest.mark.parametrize("pairs", [False, True])
def test_smaller_floats_are_the_sums_of_fewer_parts(dtype: str, parts: int, pairs: bool) -> None:
    """Also those that are too small for other numbers of f16, or infinite."""
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
    shape = (2, 32) if pairs else (1, 32)
    x = np.random.default_rng(0).standard_normal(shape).astype(kind)
    x[0, :4] = 6e-8, 65504, np.inf, -np.inf
    a = te.placeholder(shape, dtype, name="a")
    sizes = (parts, 2, 1, 16, 2) if pairs else (parts, 1, 32)

    def part(s: Any, v: Any, *axes: Any) -> Any:
        at = a[axes[2], v * 16 + axes[1]] if pairs else a[v, axes[0]]
        return part_of(at.astype("f32"), parts, s)

    c = te.compute(sizes, part, name="c")
    schedule = te.create_schedule(c)
    intrinsic = te.intrinsics.split_pairs if pairs else te.intrinsics.split_rows
    row = c.op.axis[2 if pairs else 1]
    schedule[c].reorder(row, *(axis for axis in c.op.axis if axis is not row))
    schedule[c].tensorize(c.op.axis[0], intrinsic(32, parts, dtype))
    found = te.build(schedule, [a, c], threads=1)(x).astype("f4").sum(axis=0)
    np.testing.assert_array_equal(found.reshape(-1), (x.T if pairs else x).reshape(-1).astype("f4"))


def test_parts_are_the_number() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype("f4")
    parts = split_array(x, 3).astype("f4")
    assert np.array_equal(parts[2] + parts[1] + parts[0], x)


@pytest.mark.parametrize("name", ["split_rows", "split_pairs"])
@pytest.mark.parametrize("given", [{"lanes": 24}, {"lanes": 0}, {"parts": 4}])
def test_other_numbers_are_refused(name: str, given: dict[str, int]) -> None:
    with pytest.raises(ScheduleError, match=f"{name}: .*a multiple of 16, parts 1 to 3"):
        getattr(te.intrinsics, name)(**given)
