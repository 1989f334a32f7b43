"""Tensorize: patterns that match wherever they should, refusals that say what differs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_evaluator import evaluate

from tilewright import te
from tilewright.schedule.nest import Intrinsic, statements
from tilewright.schedule.threads import serialize


def row_times_matrix(
    columns: int, depth: int, phases: Any = ("body", "reset", "update"), swapped: bool = False
) -> te.TensorIntrinsic:
    """c[j] = sum over k of a[k] * b[k, j]."""
    a, b = (
        te.placeholder((depth,), "i64", name="a"),
        te.placeholder((depth, columns), "i64", name="b"),
    )
    k = te.reduce_axis(depth, "k")
    product = (lambda j: b[k, j] * a[k]) if swapped else (lambda j: a[k] * b[k, j])
    c = te.compute((columns,), lambda j: te.sum(product(j), axis=k), name="c")
    return te.decl_tensor_intrin(c.op, lambda *_: None, name="row", phases=phases)


def matmul(m: int, n: int, depth: int) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.IterVar]:
    a, b = te.placeholder((m, depth), "i64", name="A"), te.placeholder((depth, n), "i64", name="B")
    k = te.reduce_axis(depth, "k")
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C"), k


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**40))
def test_tensorized_tiles_compute_the_same(seed: int) -> None:
    rng = Random(seed)
    columns, depth = rng.choice((1, 2, 4)), rng.choice((1, 3, 4))
    m, n, length = rng.randint(1, 5), columns * rng.randint(1, 3), depth * rng.randint(1, 3)
    a, b, c, k = matmul(m, n, length)
    s = te.create_schedule(c)
    stage = c
    if rng.random() < 0.4:
        stage = s.cache_write(c, rng.choice(("local", "shared")))
        s[stage].compute_at(s[c], rng.choice(c.op.axis))
    readers = [stage]
    copies = [s.cache_read(t, "local", readers) for t in (a, b) if rng.random() < 0.4]
    i, j = s[stage].op.axis
    jo, ji = s[stage].split(j, columns)
    ko, ki = s[stage].split(k, depth)
    outer = [i, jo, ko]
    rng.shuffle(outer)
    s[stage].reorder(*outer, ji, ki)
    phases = rng.choice((("body", "reset", "update"), ("update",), ("reset", "update"), ("body",)))
    s[stage].tensorize(ji, row_times_matrix(columns, depth, phases, rng.random() < 0.5))
    for copy in copies:
        s[copy].compute_at(s[stage], rng.choice(outer))
    try:
        program = te.lower(s, [a, b, c]).program
    except te.ScheduleError as error:
        # Without the phase that the loops ask for, or where a cached tile is not whole.
        if "'row' does not fit axis" not in str(error):
            raise
        return
    assert any(
        isinstance(x, Intrinsic) for kernel in program.kernels for x in statements(kernel.body)
    )
    values = np.random.default_rng(seed)
    x, y = values.integers(-9, 9, (m, length)), values.integers(-9, 9, (length, n))
    for made in (program, serialize(program)):
        np.testing.assert_array_equal(evaluate(made, [x, y])[0], x @ y)


def _other_operation(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    a, b = te.placeholder((8,), "i64", name="a"), te.placeholder((8, 4), "i64", name="b")
    r = te.reduce_axis(8, "r")
    t = te.compute((4,), lambda j: te.sum(a[r] + b[r, j], axis=r), name="t")
    ji = s[c].split(c.op.axis[1], 4)[1]
    s[c].tensorize(ji, te.decl_tensor_intrin(t.op, lambda *_: None, name="row"))


def _other_layout(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    a, b = te.placeholder((8,), "i64", name="a"), te.placeholder((4, 8), "i64", name="b")
    r = te.reduce_axis(8, "r")
    t = te.compute((4,), lambda j: te.sum(a[r] * b[j, r], axis=r), name="t")
    ji = s[c].split(c.op.axis[1], 4)[1]
    s[c].tensorize(ji, te.decl_tensor_intrin(t.op, lambda *_: None, name="row"))


def _other_type(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    a, b = te.placeholder((8,), "f32", name="a"), te.placeholder((8, 4), "f32", name="b")
    r = te.reduce_axis(8, "r")
    t = te.compute((4,), lambda j: te.sum(a[r] * b[r, j], axis=r), name="t")
    ji = s[c].split(c.op.axis[1], 4)[1]
    s[c].tensorize(ji, te.decl_tensor_intrin(t.op, lambda *_: None, name="row"))


def _size(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    s[c].tensorize(s[c].split(c.op.axis[1], 2)[1], row_times_matrix(4, 8))


def _depth(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    s[c].tensorize(s[c].split(c.op.axis[1], 4)[1], row_times_matrix(4, 4))


def _tail(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    s[c].tensorize(s[c].split(c.op.axis[1], 5)[1], row_times_matrix(5, 8))


def _no_update(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    ji = s[c].split(c.op.axis[1], 4)[1]
    ko, ki = s[c].split(k, 4)
    s[c].reorder(ko, ji, ki)
    s[c].tensorize(ji, row_times_matrix(4, 4, ("body",)))


def _marked_inside(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    ji = s[c].split(c.op.axis[1], 4)[1]
    s[c].unroll(k)
    s[c].tensorize(ji, row_times_matrix(4, 8))


def _maximum(s: te.Schedule, c: te.Tensor, k: te.IterVar) -> None:
    a, b = te.placeholder((8,), "i64", name="a"), te.placeholder((8, 4), "i64", name="b")
    r = te.reduce_axis(8, "r")
    t = te.compute((4,), lambda j: te.max(a[r] * b[r, j], axis=r), name="t")
    ji = s[c].split(c.op.axis[1], 4)[1]
    s[c].tensorize(ji, te.decl_tensor_intrin(t.op, lambda *_: None, name="row"))


REFUSED: dict[Callable[..., None], str] = {
    _other_operation: "it computes",
    _other_layout: "it computes",
    _other_type: "it computes",
    _maximum: "it computes",
    _size: "it takes 4 of axis 'j', the tensorized loops have 2",
    _depth: r"it reduces \[4\] values, the tensorized loops \[8\]",
    _tail: "the tile passes the end of an axis",
    _no_update: "takes the phase 'update' .declared: body",
    _marked_inside: "loop 'k' inside of it is unrolled",
}


def test_of_an_axis_that_an_intrinsic_takes_all_of_all_is_computed() -> None:
    """Five of eight columns are read of each row."""
    a, b, c, k = matmul(3, 8, 4)
    d = te.compute((3, 5), lambda i, j: c[i, j] + 1, name="D")
    s = te.create_schedule(d)
    s[c].compute_at(s[d], d.op.axis[0])
    s[c].reorder(*c.op.axis, k)
    s[c].tensorize(c.op.axis[1], row_times_matrix(8, 4))
    program = te.lower(s, [a, b, d]).program
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 9, t.shape) for t in (a, b))
    (found,) = evaluate(program, [x, y], "random")
    assert np.array_equal(found, (x @ y)[:, :5] + 1)
    kernels = [one for kernel in program.kernels for one in statements(kernel.body)]
    assert any(isinstance(one, Intrinsic) for one in kernels)


@pytest.mark.parametrize("misfit", REFUSED, ids=lambda f: f.__name__.strip("_"))
def test_a_pattern_that_does_not_fit_is_refused(misfit: Callable[..., None]) -> None:
    a, b, c, k = matmul(4, 8, 8)
    s = te.create_schedule(c)
    misfit(s, c, k)
    with pytest.raises(te.ScheduleError, match=REFUSED[misfit]):
        te.lower(s, [a, b, c])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": ()}, "phases"),
        ({"phases": ("begin",)}, "allowed: body, reset, update"),
    ],
)
def test_declarations_are_checked(arguments: Any, message: str) -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="b")
    with pytest.raises(te.ScheduleError, match=message):
        te.decl_tensor_intrin(b.op, lambda *_: None, **arguments)
    with pytest.raises(te.ScheduleError, match="is no computation"):
        te.decl_tensor_intrin(a.op, lambda *_: None)
    c = te.compute((4,), lambda i: b[i] * 2.0, name="c")
    with pytest.raises(te.ScheduleError, match="reads 'b', which is computed"):
        te.decl_tensor_intrin(c.op, lambda *_: None)
    with pytest.raises(te.ScheduleError, match="'none' is not declared"):
        te.intrinsic("none")
