"""Packing: what NumPy makes of it, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from expression_evaluator import evaluate_expression

from tilewright import te
from tilewright.sketch.packing import Packing


def test_panels_of_columns_are_padded_with_zeros() -> None:
    b = np.arange(12.0, dtype="f").reshape(3, 4)
    packed = Packing((0, 2), ((3,), (2, 3)), (1, 0, 2))
    found = packed.of(b)
    assert found.shape == packed.shape == (2, 3, 3)
    assert np.array_equal(found[1], [[3, 0, 0], [7, 0, 0], [11, 0, 0]])


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 3\) instead of \(3, 4\)"):
        Packing((0, 2), ((3,), (2, 3)), (1, 0, 2)).of(np.zeros((4, 3), "f"))


def test_an_order_that_names_a_part_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="do not agree"):
        Packing((0, 0), ((3,), (4,)), (0, 0))


def test_numbers_are_split_into_parts() -> None:
    packed = Packing((0, 0), ((3,), (4,)), (1, 0), terms=(3, 1))
    b = np.random.default_rng(0).standard_normal((3, 4)).astype("f")
    found = packed.of(b)
    assert found.shape == packed.shape == (4, 3, 3)
    assert found.dtype.name == packed.dtype("f32").replace("bf", "bfloat") == "bfloat16"
    assert packed.moves
    assert packed.added("f32") == 24
    assert np.array_equal(found.astype("f").sum(1), b.T)
    with pytest.raises(ValueError, match="known ahead"):
        packed.stage(te.placeholder((3, 4), name="b"))


def test_smaller_numbers_are_split_into_fewer_parts() -> None:
    packed = Packing((0, 0), ((3,), (4,)), (1, 0), terms=(2, 1))
    b = np.random.default_rng(0).standard_normal((3, 4)).astype("f2")
    assert packed.added("f16") == 24
    assert np.array_equal(packed.of(b).astype("f").sum(1), b.T.astype("f"))


def test_dimensions_are_multiplied_by_matrices_first() -> None:
    sums = ((1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 1.0))
    packed = Packing((0, 0), ((4,), (2, 2)), (1, 0, 2), (sums, None))
    b = np.arange(12.0, dtype="f").reshape(3, 4)
    found = packed.of(b)
    assert packed.unpacked_shape == b.shape
    assert found.shape == packed.shape == (2, 4, 2)
    assert packed.added("f32") == 16
    assert found.dtype == b.dtype
    assert np.array_equal(found[0], (np.array(sums) @ b)[:, :2])
    with pytest.raises(ValueError, match="known ahead"):
        packed.stage(te.placeholder((3, 4), name="b"))


def test_parts_are_joined() -> None:
    """What NumPy makes is what a stage computes, and where `read` finds it."""
    packed = Packing((0, 1), ((3, 2), (2, 3)), (2, 0, 1, 3), joined=(1, 2, 1))
    b = np.arange(30.0, dtype="f").reshape(6, 5)
    found = packed.of(b)
    assert found.shape == packed.shape == (2, 6, 3)
    tensor = te.placeholder((6, 5), name="b")
    stage = packed.stage(tensor)
    (computed,) = evaluate_expression([tensor], [stage], [b])
    assert np.array_equal(computed, found)
    back = te.compute((6, 5), lambda i, j: packed.read(stage, (i, j)), name="back")
    (again,) = evaluate_expression([tensor], [back], [b])
    assert np.array_equal(again, b)
    with pytest.raises(ValueError, match="joined parts are not all"):
        Packing((0, 0), ((3,), (4,)), (0, 1), joined=(1,))
