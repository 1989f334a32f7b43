import itertools

import numpy as np
import pytest

from tilewright.space import Constraint, product_at_most


def test_violation_carries_name_and_numbers():
    rule = Constraint(
        "vector_registers",
        ("m", "n"),
        lambda m, n: m * n // 16 < 32,
        lambda m, n: f"{m}x{n} f32 accumulators need {m * n // 16} of 32 registers",
    )
    assert rule.violation({"m": 4, "n": 16, "other": "x"}) is None
    found = rule.violation({"m": 8, "n": 64})
    assert str(found) == "vector_registers: 8x64 f32 accumulators need 32 of 32 registers"


def test_scalar_and_vectorised_masks_agree():
    columns = [np.array([1, 2, 8, 8]), np.array([1, 64, 4, 64])]
    scalar = Constraint("c", ("a", "b"), lambda a, b: a * b <= 64 and a < b + 9, lambda a, b: "")
    fast = Constraint(
        "c", ("a", "b"), lambda a, b: (a * b <= 64) & (a < b + 9), lambda a, b: "", vectorised=True
    )
    assert (
        scalar.mask(columns).tolist() == fast.mask(columns).tolist() == [True, False, True, False]
    )


def test_product_at_most_is_the_product_even_far_beyond_the_limit():
    rule = product_at_most("stack", ["a", "b", "c"], 32768, factor=4, unit="bytes")
    for values in itertools.product((0, 1, 3, 64, 8192, 2**40), repeat=3):
        expected = 4 * values[0] * values[1] * values[2] <= 32768
        assert rule.holds(dict(zip("abc", values, strict=True))) is expected
    found = rule.violation({"a": 64, "b": 64, "c": 4})
    assert str(found) == "stack: 4 * a 64 * b 64 * c 4 = 65536 bytes, more than 32768 bytes"


def test_scope_must_name_different_knobs():
    with pytest.raises(ValueError, match="different knobs"):
        Constraint("c", ("a", "a"), lambda a, b: True, lambda a, b: "")
