"""Values are shown so that `--input` reads them back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.argument import ArgumentType
from tilewright.measure.input_syntax import parse_input
from tilewright.modules.running import format_value

ARRAYS = [
    np.array([1.0, -2.5, 0.1, 1e-30, 3e38, -0.0, np.inf, -np.inf], np.float32),
    np.array([[1, -2, 3], [4, 5, 127]], np.int8),
    np.arange(24, dtype=np.uint64).reshape(2, 3, 4) + np.uint64(1 << 63),
    np.array([0.1, 1 / 3, 1e300]),
    np.array([[True, False]]),
    np.array(2.5, np.float16),
    np.array([1.5, -3.0], ml_dtypes.bfloat16),
    np.array([1 + 2j, -0.5j, 3], np.complex64),
    np.zeros((2, 0), np.float32),
    np.zeros((0,), np.int32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}-{a.shape}")
def test_what_is_shown_is_read_back(array: np.ndarray) -> None:
    (given,) = parse_input(format_value(array))
    assert given.values is not None
    assert given.values.dtype == array.dtype
    assert np.array_equal(given.values, array)
    assert np.array_equal(np.signbit(given.values.real), np.signbit(array.real))


def test_the_forms() -> None:
    assert format_value(np.array([[1, 2], [3, 4]], np.int32)) == "2x2xi32=[1 2][3 4]"
    assert format_value(np.arange(4.0, dtype=np.float32)) == "4xf32=0 1 2 3"
    assert format_value(np.array(1.5, np.float32)) == "f32=1.5"
    cube = np.arange(8, dtype=np.int8).reshape(2, 2, 2)
    assert format_value(cube) == "2x2x2xi8=[[0 1][2 3]][[4 5][6 7]]"


def test_a_scalar_is_a_plain_number() -> None:
    assert format_value(np.array(7), ArgumentType("i32", None)) == "7"
    assert format_value(np.array(float(np.float32(0.1))), ArgumentType("f32", None)) == "0.1"


def test_nan_is_shown_as_such() -> None:
    (given,) = parse_input(format_value(np.array([np.nan, 1], np.float32)))
    assert given.values is not None
    assert np.isnan(given.values[0])


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (0, "2x3xi32=[...]"),
        (2, "2x3xi32=[0 1 ...]"),
        (3, "2x3xi32=[0 1 2][...]"),
        (4, "2x3xi32=[0 1 2][3 ...]"),
        (6, "2x3xi32=[0 1 2][3 4 5]"),
        (7, "2x3xi32=[0 1 2][3 4 5]"),
    ],
)
def test_large_values_are_cut(limit: int, shown: str) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert format_value(array, max_elements=limit) == shown
