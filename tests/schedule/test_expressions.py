"""Expressions: types, operators, functions, reducers, shapes; the nests against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate

from tilewright import te
from tilewright.schedule.types import ELEMENTS, canonical, numpy_type, promoted


def run(outputs: Any, inputs: list[Any], *arrays: Any) -> Any:
    made = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    schedule = te.create_schedule(made)
    results = evaluate(te.lower(schedule, [*inputs, *made]).program, arrays)
    return results if len(results) > 1 else results[0]


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_every_element_type_is_copied(dtype: str) -> None:
    a = te.placeholder((5, 3), dtype, name="A")
    b = te.compute((3, 5), lambda j, i: a[i, j], name="B")
    assert b.dtype == dtype
    values = np.arange(15).reshape(5, 3).astype(numpy_type(dtype))
    result = run(b, [a], values)
    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, values.T)


def test_names_of_types() -> None:
    assert [canonical(t) for t in ("float32", "f32", np.float32, np.dtype("int8"), "bool")] == [
        *("f32", "f32", "f32", "i8", "bool")
    ]
    assert promoted("i8", "f16") == "f16"
    assert promoted("f16", "bf16") == "f32"
    assert promoted("index", "i32") == "i32"
    assert promoted("bool", "i8") == "i8"


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "neg": lambda x, y: -x,
    "not": lambda x, y: ~x,
    "number": lambda x, y: 3 * x + 2,
    "reversed": lambda x, y: 100 - x,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_integer_arithmetic_is_numpys(name: str, dtype: str) -> None:
    operator = OPERATORS[name]
    a, b = te.placeholder((8,), dtype, name="A"), te.placeholder((8,), dtype, name="B")
    c = te.compute((8,), lambda i: operator(a[i], b[i]), name="C")
    x = np.array([-128, -7, -1, 0, 1, 5, 100, 127]).astype(numpy_type(dtype))
    y = np.array([3, -2, 7, 1, -1, 2, 100, 127]).astype(numpy_type(dtype))
    with np.errstate(all="ignore"):
        wanted = operator(x, y)
    np.testing.assert_array_equal(run(c, [a, b], x, y), wanted.astype(x.dtype))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: (getattr(te, name), getattr(np, name))
    for name in ("exp", "exp2", "log", "log1p", "sqrt", "tanh", "sin", "cos", "floor", "ceil")
} | {
    "erf": (te.erf, np.vectorize(math.erf)),
    "sigmoid": (te.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "rsqrt": (te.rsqrt, lambda x: 1 / np.sqrt(x)),
    "abs": (lambda x: te.abs(-x), lambda x: x),
    "power": (lambda x: te.power(x, 1.5), lambda x: x**1.5),
    "if": (lambda x: te.if_then_else(x > 1, x, 0.0), lambda x: np.where(x > 1, x, 0)),
    "select": (
        lambda x: te.select(te.any(x < 0.5, x > 2), 1.0, x),
        lambda x: np.where((x < 0.5) | (x > 2), 1, x),
    ),
    "cast": (lambda x: x.astype("i32").astype("f64"), np.trunc),
    "maximum": (lambda x: te.maximum(x, 1), lambda x: np.maximum(x, 1)),
    "division": (lambda x: 1 / x, lambda x: 1 / x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    a = te.placeholder((9,), "f64", name="A")
    b = te.compute((9,), lambda i: ours(a[i]), name="B")
    x = np.linspace(0.1, 3.1, 9)
    np.testing.assert_allclose(run(b, [a], x), theirs(x), rtol=1e-12)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_reducers(reducer: str) -> None:
    a = te.placeholder((3, 4, 5), "f64", name="A")
    j, k = te.reduce_axis(4, "j"), te.reduce_axis((1, 5), name="k")
    b = te.compute((3,), lambda i: getattr(te, reducer)(a[i, j, k], axis=[j, k]), name="B")
    x = np.random.default_rng(0).random((3, 4, 5))
    wanted = getattr(x[:, :, 1:], reducer)(axis=(1, 2))
    np.testing.assert_allclose(run(b, [a], x), wanted)


def test_a_reducer_with_a_condition_and_a_start() -> None:
    a = te.placeholder((6,), "i64", name="A")
    k = te.reduce_axis(6, "k")
    plain = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="plain")
    b = te.compute((2,), lambda i: plain(a[k], axis=k, where=k % 2 == i, init=100), name="B")
    np.testing.assert_array_equal(run(b, [a], np.arange(6)), [100 + 0 + 2 + 4, 100 + 1 + 3 + 5])


def test_argmax_has_two_outputs() -> None:
    a = te.placeholder((4, 7), "f32", name="A")
    k = te.reduce_axis(7, "k")
    argmax = te.comm_reducer(
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    where, value = te.compute((4,), lambda i: argmax((k, a[i, k]), axis=k), name="T")
    x = np.random.default_rng(0).random((4, 7), np.float32)
    index, top = run((where, value), [a], x)
    np.testing.assert_array_equal(index, x.argmax(1))
    np.testing.assert_array_equal(top, x.max(1))


def test_no_dimension_and_many() -> None:
    a = te.placeholder((2, 3, 1, 2, 2), "i32", name="A")
    scale = te.placeholder((), "i32", name="scale")
    b = te.compute((2, 2, 1, 3, 2), lambda *i: a[i[4], i[3], i[2], i[1], i[0]] * scale(), name="B")
    axes = [te.reduce_axis(e) for e in b.shape]
    total = te.compute((), lambda: te.sum(b[tuple(axes)], axis=axes), name="total")
    x = np.arange(24, dtype=np.int32).reshape(a.shape)
    transposed, added = run((b, total), [a, scale], x, np.array(3, np.int32))
    np.testing.assert_array_equal(transposed, x.transpose() * 3)
    assert added.reshape(()) == x.sum() * 3


def test_padding_gathering_and_indices_as_values() -> None:
    a, where = te.placeholder((5,), "f32", name="A"), te.placeholder((4,), "i32", name="W")
    padded = te.compute(
        (9,), lambda i: te.if_then_else(te.all(i >= 2, i < 7), a[i - 2], -1.0), name="P"
    )
    gathered = te.compute((4,), lambda i: a[where[i]] + i, name="G")
    ramp = te.compute((3, 2), lambda i, j: i * 10 + j, name="R")
    x, w = np.arange(5, dtype=np.float32), np.array([4, 0, 2, 2], np.int32)
    p, g, r = run((padded, gathered, ramp), [a, where], x, w)
    np.testing.assert_array_equal(p, np.pad(x, 2, constant_values=-1))
    np.testing.assert_array_equal(g, x[w] + np.arange(4))
    np.testing.assert_array_equal(r, [[0, 1], [10, 11], [20, 21]])
    assert ramp.dtype == "i32"


def test_functions_with_defaults_keep_what_they_hold() -> None:
    a = te.placeholder((3,), "f32", name="A")
    made = [te.compute((3,), lambda i, f=f: a[i] * f, name=f"T{f}") for f in (2.0, 3.0)]
    two, three = run(made, [a], np.ones(3, np.float32))
    assert two[0] == 2
    assert three[0] == 3


def test_conditions_of_a_reduction_stand_at_the_loops_that_they_depend_on() -> None:
    a = te.placeholder((4, 6, 8), "f32", name="A")
    j, k = te.reduce_axis(6, "j"), te.reduce_axis(8, "k")
    held = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="held")
    b = te.compute(
        (4,), lambda i: held(a[i, j, k], axis=[j, k], where=te.all(j >= i, k < 7)), name="B"
    )
    lines = str(te.lower(te.create_schedule(b.op), [a, b])).splitlines()
    loops = [line.strip().split(" ")[0:2] for line in lines if line.strip()[:3] in ("for", "if ")]
    assert [name for word, name in loops] == ["i", "j", "j", "k", "k"]
    x = np.random.default_rng(0).random((4, 6, 8), np.float32)
    wanted = [sum(x[i, j, :7].sum() for j in range(6) if j >= i) for i in range(4)]
    np.testing.assert_allclose(run(b, [a], x), wanted, rtol=1e-5)
