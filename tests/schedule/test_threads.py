"""Threads: barriers where they are needed and nowhere else, reductions, threads as loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from nest_evaluator import EvaluationError, evaluate

from tilewright import te
from tilewright.schedule.nest import Barrier, For, LoopProgram, Seq, Stmt, ThreadReduce, statements
from tilewright.schedule.threads import expand_reductions, serialize
from tilewright.schedule.walk import transform

N = 16


def matmul(double: bool = False) -> tuple[te.Schedule, list[te.Tensor]]:
    """Tiles in shared memory, read by other threads than those that wrote them."""
    a, b = te.placeholder((N, N), "f64", name="A"), te.placeholder((N, N), "f64", name="B")
    k = te.reduce_axis(N, "k")
    c = te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    local = s.cache_write(c, "local")
    shared = [s.cache_read(t, "shared", [local]) for t in (a, b)]
    io, jo, ii, ji = s[c].tile(*c.op.axis, 8, 8)
    it, ii = s[c].split(ii, nparts=4)
    jt, ji = s[c].split(ji, nparts=4)
    s[c].reorder(io, jo, it, jt, ii, ji)
    tags = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
    by, bx, ty, tx = (te.thread_axis(t) for t in tags)
    for axis, thread in ((io, by), (jo, bx), (it, ty), (jt, tx)):
        s[c].bind(axis, thread)
    s[local].compute_at(s[c], jt)
    ko, ki = s[local].split(local.op.reduce_axis[0], 4)
    s[local].reorder(ko, ki, *local.op.axis)
    for copy in shared:
        s[copy].compute_at(s[local], ko)
        _, inner = s[copy].split(s[copy].fuse(*copy.op.axis), 16)
        y, x = s[copy].split(inner, 4)
        s[copy].bind(y, ty)
        s[copy].bind(x, tx)
    return s, [a, b, c]


def barriers(body: Stmt) -> list[Barrier]:
    return [s for s in statements(body) if isinstance(s, Barrier)]


def without(program: LoopProgram, gone: Barrier) -> LoopProgram:
    (kernel,) = program.kernels
    body = transform(kernel.body, lambda s: Seq(()) if s is gone else None)
    return replace(program, kernels=(replace(kernel, body=body),))


def is_right(program: LoopProgram) -> bool:
    rng = np.random.default_rng(0)
    a, b = rng.random((N, N)), rng.random((N, N))
    for order in ("forward", "backward", "random"):
        try:
            (result,) = evaluate(program, [a, b], order)
        except EvaluationError:
            return False
        if not np.allclose(result, a @ b):
            return False
    return True


def test_barriers_are_where_they_are_needed_and_nowhere_else() -> None:
    s, tensors = matmul()
    program = te.lower(s, tensors).program
    placed = barriers(program.kernels[0].body)
    # One before the tiles are written anew, one before they are read.
    assert len(placed) == 2
    assert is_right(program)
    for one in placed:
        assert not is_right(without(program, one))


def test_no_barrier_for_what_each_thread_keeps_for_itself() -> None:
    a = te.placeholder((N,), "f32", name="A")
    b = te.compute((N,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((N,), lambda i: b[i] + 1.0, name="C")
    s = te.create_schedule(c)
    tx, bx = te.thread_axis("threadIdx.x"), te.thread_axis("blockIdx.x")
    io, ii = s[c].split(c.op.axis[0], 8)
    s[c].bind(io, bx)
    s[c].bind(ii, tx)
    s[b].compute_at(s[c], io)
    s[b].set_scope("shared")
    s[b].bind(b.op.axis[0], tx)
    program = te.lower(s, [a, c]).program
    assert barriers(program.kernels[0].body) == []
    x = np.arange(N, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(program, [x], "random")[0], x * 2 + 1)


def test_threads_as_loops_compute_the_same() -> None:
    s, tensors = matmul()
    program = serialize(te.lower(s, tensors).program)
    (kernel,) = program.kernels
    kinds = {stmt.kind for stmt in statements(kernel.body) if isinstance(stmt, For)}
    assert "thread" not in kinds
    assert not barriers(kernel.body)
    assert is_right(program)


@pytest.mark.parametrize("threads", [1, 3, 4, 7])
def test_reductions_over_threads(threads: int) -> None:
    a = te.placeholder((5, 23), "f64", name="A")
    k = te.reduce_axis(23, "k")
    b = te.compute((5,), lambda i: te.max(a[i, k], axis=k), name="B")
    s = te.create_schedule(b)
    _, inner = s[b].split(b.op.reduce_axis[0], threads)
    s[b].bind(inner, te.thread_axis("threadIdx.x"))
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.y"))
    program = te.lower(s, [a, b]).program
    x = np.random.default_rng(0).random((5, 23))
    trees = replace(program, kernels=tuple(expand_reductions(k) for k in program.kernels))
    for made in (program, trees, serialize(program)):
        for order in ("forward", "backward"):
            np.testing.assert_array_equal(evaluate(made, [x], order)[0], x.max(1))
    assert not any(isinstance(s, ThreadReduce) for s in statements(trees.kernels[0].body))


def test_a_reduction_that_several_threads_would_disturb_is_done_by_one() -> None:
    a = te.placeholder((4, 8), "f64", name="A")
    k = te.reduce_axis(8, "k")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((4, 8), lambda i, j: a[i, j] / b[i], name="C")
    s = te.create_schedule(c)
    s[c].bind(c.op.axis[1], te.thread_axis("threadIdx.x"))
    s[c].bind(c.op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].compute_at(s[c], c.op.axis[0])
    program = te.lower(s, [a, c]).program
    assert "if threadIdx.x == 0" in str(te.lower(s, [a, c]))
    x = np.random.default_rng(0).random((4, 8))
    wanted = x / x.sum(1, keepdims=True)
    for order in ("forward", "backward", "random"):
        np.testing.assert_allclose(evaluate(program, [x], order)[0], wanted)


def test_virtual_threads_go_inside_of_what_threads_share() -> None:
    a = te.placeholder((8, 8), "f64", name="A")
    b = te.compute((8, 8), lambda i, j: a[i, j] + a[i, 7 - j], name="B")
    s = te.create_schedule(b)
    copy = s.cache_read(a, "shared", [b])
    i, j = b.op.axis
    v, ji = s[b].split(j, nparts=2)
    s[b].reorder(i, v, ji)
    s[b].bind(v, te.thread_axis("vthread"))
    s[b].bind(i, te.thread_axis("blockIdx.x"))
    s[b].bind(ji, te.thread_axis("threadIdx.x"))
    s[copy].compute_at(s[b], v)
    s[copy].bind(s[copy].split(copy.op.axis[1], 4)[1], te.thread_axis("threadIdx.x"))
    lowered = te.lower(s, [a, b])
    text = str(lowered)
    # The copy is made once, before the virtual threads' loop.
    assert text.index("A.shared[") < text.index("unrolled(2)")
    x: Any = np.random.default_rng(0).random((8, 8))
    for made in (lowered.program, serialize(lowered.program)):
        np.testing.assert_allclose(evaluate(made, [x], "random")[0], x + x[:, ::-1])


def test_each_thread_keeps_the_whole_of_a_reduction_over_threads() -> None:
    """A local result of a reduction that is bound to threads: all of them hold it."""
    a = te.placeholder((4, 32), "i64", name="A")
    k = te.reduce_axis(32, "k")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((4,), lambda i: b[i] * 2, name="C")
    s = te.create_schedule(c)
    (i,) = c.op.axis
    s[c].bind(i, te.thread_axis("blockIdx.x"))
    s[b].compute_at(s[c], i)
    s[b].set_scope("local")
    _, ki = s[b].split(k, 8)
    s[b].bind(ki, te.thread_axis("threadIdx.x"))
    program = te.lower(s, [a, c]).program
    x = np.arange(128).reshape(4, 32)
    for made in (program, serialize(program)):
        np.testing.assert_array_equal(evaluate(made, [x], "random")[0], x.sum(1) * 2)


def test_what_is_each_threads_own_cannot_be_spread_over_threads() -> None:
    a = te.placeholder((N,), "f32", name="A")
    b = te.compute((N,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((N,), lambda i: b[i] + 1.0, name="C")
    s = te.create_schedule(c)
    io, ii = s[c].split(c.op.axis[0], 8)
    tx = te.thread_axis("threadIdx.x")
    s[c].bind(io, te.thread_axis("blockIdx.x"))
    s[c].bind(ii, tx)
    s[b].compute_at(s[c], io)
    s[b].set_scope("local")
    s[b].bind(b.op.axis[0], tx)
    with pytest.raises(te.ScheduleError, match="spreads what has scope local"):
        te.lower(s, [a, c])
