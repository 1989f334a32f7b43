"""The comparison with a reference: lets right results pass, and nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.measure.verify import compare, tolerance

RNG = np.random.default_rng(11)
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def product(k: int, element: str, m: int = 48, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """(computed, exact): a matrix product whose every step is rounded to the element type."""
    dtype = DTYPES[element]
    a = RNG.standard_normal((m, k)).astype(dtype)
    b = RNG.standard_normal((k, n)).astype(dtype)
    total = np.zeros((m, n), dtype)
    for i in range(k):
        total = total + a[:, i : i + 1] * b[i : i + 1]
    return total, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("k", [1, 16, 256, 2048])
def test_sequential_sums_in_the_type_itself_pass(element: str, k: int) -> None:
    if element == "bf16" and k == 2048:
        pytest.skip("bf16 holds two digits: such a sum is not right by any standard")
    computed, exact = product(k, element)
    result = compare(computed, exact, element, k)
    assert result.ok, result
    assert result.error <= result.tolerance


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_a_missing_stretch_of_a_sum_fails(element: str) -> None:
    """What a wrong tile does: the last 16 of 256 terms are left out, in all or in one element."""
    a, b = RNG.standard_normal((48, 256)), RNG.standard_normal((256, 40))
    exact = a @ b
    short = a[:, :240] @ b[:240]
    adding = "f32"
    assert not compare(short, exact, element, 256, adding).ok
    one = exact.copy()
    place = np.unravel_index(np.argmax(np.abs(short - exact)), exact.shape)
    one[place] = short[place]
    result = compare(one, exact, element, 256, adding)
    assert not result.ok
    assert result.worst_index == place
    assert result.error == pytest.approx(abs(short[place] - exact[place]))
    assert result.actual == short[place]
    assert result.expected == exact[place]


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16", "f8E4M3FN"])
@pytest.mark.parametrize("k", [1, 4096, 10**8])
def test_garbage_fails_however_long_the_sum(element: str, k: int) -> None:
    expected = RNG.standard_normal((32, 32)) * 5
    for garbage in (
        np.zeros_like(expected),
        np.full_like(expected, expected.mean()),
        np.full_like(expected, 3.0),
        -expected,
        np.roll(expected, 1, axis=1),
        expected.T,
        2 * expected,
        np.full_like(expected, np.nan),
        np.full_like(expected, np.inf),
    ):
        assert not compare(garbage, expected, element, k).ok


def test_one_nan_fails() -> None:
    expected = RNG.standard_normal(1000)
    actual = expected.copy()
    actual[123] = np.nan
    result = compare(actual, expected, "f32")
    assert not result.ok
    assert result.worst_index == (123,)
    assert result.error == np.inf
    actual[123] = -np.inf
    assert compare(actual, expected, "f32").worst_index == (123,)


def test_nan_and_infinity_where_they_belong() -> None:
    expected = np.array([1.0, np.nan, np.inf, -np.inf, 2.0])
    assert compare(expected.copy(), expected, "f32").ok
    for i, wrong in ((1, 1.0), (2, -np.inf), (2, 3.4e38), (3, np.nan)):
        actual = expected.copy()
        actual[i] = wrong
        assert not compare(actual, expected, "f32").ok


def test_overflow_of_the_type_is_its_infinity() -> None:
    expected = np.array([1.0, 70000.0, -1e6, 65519.0])
    assert compare(np.array([1.0, np.inf, -np.inf, 65504.0]), expected, "f16").ok
    assert compare(np.array([1.0, np.inf, -np.inf, np.inf]), expected, "f16").ok
    assert not compare(np.array([np.inf, np.inf, -np.inf, 65504.0]), expected, "f16").ok
    assert not compare(np.array([1.0, -np.inf, -np.inf, 65504.0]), expected, "f16").ok


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min), -1e30])
def test_mask_values_do_not_excuse_errors(mask: float) -> None:
    expected = np.where(np.tri(64, dtype=bool), RNG.standard_normal((64, 64)), mask)
    actual = expected.copy()
    assert compare(actual, expected, "f32", 64).ok
    actual[40, 3] += 0.01
    assert not compare(actual, expected, "f32", 64).ok


def test_cancelled_elements_are_judged_by_the_size_of_the_output() -> None:
    computed, exact = product(512, "f32")
    place = np.unravel_index(np.argmin(np.abs(exact)), exact.shape)
    assert abs(computed[place] - exact[place]) > 1e-6 * abs(exact[place])
    assert compare(computed, exact, "f32", 512).ok


def test_integers_are_exact() -> None:
    expected = RNG.integers(-(2**31), 2**31, (50, 50))
    assert compare(expected.astype(np.int32), expected, "i32").ok
    off = expected.copy()
    off[4, 9] ^= 1
    result = compare(off, expected, "i32")
    assert not result.ok
    assert result.worst_index == (4, 9)
    assert result.error == 1
    large = np.array([2**62, -(2**62)])
    assert not compare(large + 1, large, "i64").ok


def test_integers_may_be_read_unsigned() -> None:
    expected = np.array([-1, -128, 127, 0])
    assert compare(expected.astype(np.int8).view(np.uint8), expected, "i8").ok
    assert not compare(np.array([254, 128, 127, 0], np.uint8), expected, "i8").ok


def test_booleans_are_exact() -> None:
    expected = RNG.integers(0, 2, 100).astype(np.bool_)
    assert compare(expected.astype(np.int8), expected, "i1").ok
    assert not compare(~expected, expected, "i1").ok


def test_integer_slack_is_for_a_few_elements_only() -> None:
    expected = RNG.integers(-100, 100, 10_000)
    few = expected.copy()
    few[:5] += 1
    assert not compare(few, expected, "i8").ok
    assert compare(few, expected, "i8", integer_slack=1).ok
    assert not compare(expected + 1, expected, "i8", integer_slack=1).ok
    few[0] += 1
    assert not compare(few, expected, "i8", integer_slack=1).ok


def test_shapes_must_agree() -> None:
    result = compare(np.zeros((2, 3)), np.zeros((3, 2)), "f32")
    assert not result.ok
    assert "[2, 3]" in result.reason
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), "f32").ok


def test_scalars() -> None:
    assert compare(np.float32(2.0), np.array(2.0), "f32").ok
    assert not compare(np.float32(2.1), np.array(2.0), "f32").ok


def test_expected_zeros_must_be_zeros() -> None:
    expected = np.zeros(100)
    assert compare(np.zeros(100), expected, "f32").ok
    assert not compare(np.full(100, 1e-20), expected, "f32").ok


def test_tolerance_grows_with_length_and_coarseness_and_is_capped() -> None:
    assert tolerance("i32", 100) == (0.0, 0.0)
    for finer, coarser in (("f64", "f32"), ("f32", "f16"), ("f16", "bf16")):
        assert all(a < b for a, b in zip(tolerance(finer, 64), tolerance(coarser, 64), strict=True))
    assert tolerance("f32", 64)[1] < tolerance("f32", 4096)[1] < 1e-4
    assert tolerance("f16", 4096, "f32")[1] < tolerance("f16", 4096)[1]
    assert max(tolerance("bf16", 10**9)) <= 0.25
    with pytest.raises(ValueError, match="f33"):
        tolerance("f33", 1)


def test_what_is_wrong_in_words() -> None:
    expected = np.ones((3, 4), np.float32)
    actual = expected.copy()
    assert str(compare(actual, expected, "f32")) == "right"
    actual[2, 1] = 7
    text = str(compare(actual, expected, "f32"))
    assert "1 of 12 elements" in text
    assert "worst at [2, 1]: 7 where 1 is expected" in text
