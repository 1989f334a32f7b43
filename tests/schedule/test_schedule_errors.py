"""Every misuse is a ScheduleError that names stage and axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright import te


class Setup:
    """A chain of stages and a matmul to misuse."""

    def __init__(self) -> None:
        n = 16
        self.A, self.B = (te.placeholder((n, n), name=x) for x in "AB")
        self.D = te.compute((n, n), lambda i, j: self.A[i, j] + self.B[i, j], name="D")
        self.k = te.reduce_axis(n, "k")
        self.C = te.compute(
            (n, n),
            lambda i, j: te.sum(self.D[i, self.k] * self.B[self.k, j], axis=self.k),
            name="C",
        )
        self.E = te.compute((n, n), lambda i, j: self.C[i, j] * 2.0, name="E")
        self.s = te.create_schedule(self.E)
        self.i, self.j = self.C.op.axis

    def lower(self) -> Any:
        return te.lower(self.s, [self.A, self.B, self.E])


def _vectorized_attach(x: Setup) -> None:
    x.s[x.E].vectorize(x.E.op.axis[1])
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[1])
    x.lower()


def _outside(x: Setup) -> None:
    # D is read by C, which stays at root level.
    x.s[x.D].compute_at(x.s[x.E], x.E.op.axis[0])
    x.lower()


def _cycle(x: Setup) -> None:
    x.s[x.D].compute_at(x.s[x.C], x.i)
    x.s[x.D].compute_at(x.s[x.D], x.D.op.axis[0])


def _global_in_blocks(x: Setup) -> None:
    x.s[x.E].bind(x.E.op.axis[0], te.thread_axis("blockIdx.x"))
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[0])
    x.s[x.C].set_scope("global")
    x.lower()


def _extents(x: Setup) -> None:
    x.s[x.E].bind(x.E.op.axis[1], te.thread_axis("threadIdx.x"))
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[0])
    x.s[x.C].bind(x.s[x.C].split(x.j, 8)[1], te.thread_axis("threadIdx.x"))
    x.lower()


def _thread_extent(x: Setup) -> None:
    x.s[x.E].bind(x.E.op.axis[1], te.thread_axis((0, 8), "threadIdx.x"))
    x.lower()


def _prefetch_inside(x: Setup) -> None:
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[1])
    x.s[x.E].prefetch(x.C, x.E.op.axis[0], 1)
    x.lower()


def _data_inside(x: Setup) -> None:
    x.s[x.C].reorder(x.k, x.i, x.j)
    _, ki = x.s[x.C].split(x.k, 4)
    x.s[x.C].bind(ki, te.thread_axis("threadIdx.x"))
    x.lower()


def _marked_rfactor(x: Setup) -> None:
    x.s[x.C].unroll(x.k)
    x.s.rfactor(x.C, x.k)


def _inline_argument(x: Setup) -> None:
    x.s[x.D].compute_inline()
    te.lower(x.s, [x.A, x.B, x.D, x.E])


def _half_read() -> tuple[te.Schedule, Any, Any, Any]:
    """Every second element of D is read where it is computed."""
    A = te.placeholder((16,), name="A")
    D = te.compute((16,), lambda i: A[i] + 1.0, name="D")
    E = te.compute((8,), lambda i: D[i * 2], name="E")
    s = te.create_schedule(E)
    s[D].compute_at(s[E], E.op.axis[0])
    return s, A, D, E


def _attached_argument(x: Setup) -> None:
    s, A, D, E = _half_read()
    te.lower(s, [A, D, E])


def _attached_argument_of_many_workers(x: Setup) -> None:
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[1])
    x.s[x.D].compute_at(x.s[x.C], x.k)
    x.s[x.E].parallel(x.E.op.axis[1])
    te.lower(x.s, [x.A, x.B, x.D, x.E])


def _attached_argument_of_threads(x: Setup) -> None:
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[0])
    x.s[x.E].bind(x.E.op.axis[0], te.thread_axis("blockIdx.x"))
    x.s[x.E].bind(x.E.op.axis[1], te.thread_axis("threadIdx.x"))
    te.lower(x.s, [x.A, x.B, x.C, x.E])


def _stale_attach(x: Setup) -> None:
    x.s[x.C].compute_at(x.s[x.E], x.E.op.axis[0])
    x.s[x.E].split(x.E.op.axis[0], 4)
    x.lower()


MISUSES: dict[str, tuple[Callable[[Setup], Any], str]] = {
    "foreign axis": (lambda x: x.s[x.C].split(x.D.op.axis[0], 4), "'i' is not a loop of stage 'C'"),
    "split axis": (
        lambda x: (x.s[x.C].split(x.i, 4), x.s[x.C].split(x.i, 4)),
        "'i' of stage 'C' was split into 'i.outer' and 'i.inner'",
    ),
    "fused axis": (
        lambda x: (x.s[x.C].fuse(x.i, x.j), x.s[x.C].unroll(x.j)),
        "'j' of stage 'C' was fused into",
    ),
    "no factor": (lambda x: x.s[x.C].split(x.i), "stage 'C', axis 'i': give either factor"),
    "both factors": (lambda x: x.s[x.C].split(x.i, 4, 4), "give either factor"),
    "factor 0": (lambda x: x.s[x.C].split(x.i, 0), "axis 'i': factor is 0"),
    "factor -2": (lambda x: x.s[x.C].split(x.i, nparts=-2), "axis 'i': nparts is -2"),
    "factor text": (lambda x: x.s[x.C].split(x.i, "4"), "factor is '4'"),
    "fuse apart": (lambda x: x.s[x.C].fuse(x.i, x.k), "'i' and 'k' are not one directly inside"),
    "fuse nothing": (lambda x: x.s[x.C].fuse(), "no axis given"),
    "reorder twice": (lambda x: x.s[x.C].reorder(x.i, x.i), "'i' is given twice"),
    "tile one": (lambda x: x.s[x.C].tile(x.i, x.i, 2, 2), "one and the same"),
    "tile factor": (lambda x: x.s[x.C].tile(x.i, x.j, 2, 0), "axis 'j': y_factor is 0"),
    "vectorize reduction": (lambda x: x.s[x.C].vectorize(x.k), "'k' of stage 'C'.*rfactor"),
    "virtual threads of a reduction": (
        lambda x: x.s[x.C].bind(x.k, te.thread_axis("vthread")),
        "vthread: axis 'k' of stage 'C'.*rfactor",
    ),
    "bind to axis": (lambda x: x.s[x.C].bind(x.i, x.j), "te.thread_axis only"),
    "bind twice": (
        lambda x: [x.s[x.C].bind(a, te.thread_axis("threadIdx.x")) for a in (x.i, x.j)],
        "'i' is bound to threadIdx.x already, so 'j'",
    ),
    "bind unrolled": (
        lambda x: (x.s[x.C].unroll(x.i), x.s[x.C].bind(x.i, te.thread_axis("threadIdx.x"))),
        "'i' is unrolled already",
    ),
    "split marked": (
        lambda x: (x.s[x.C].unroll(x.i), x.s[x.C].split(x.i, 2)),
        "axis 'i' is unrolled already, which split would undo; call split before that",
    ),
    "unknown thread": (lambda x: te.thread_axis("threadIdx.w"), "unknown tag 'threadIdx.w'"),
    "not read": (
        lambda x: x.s[x.E].compute_at(x.s[x.C], x.i),
        "'E': it is an output",
    ),
    "consumer does not read": (
        lambda x: x.s[x.C].compute_at(x.s[x.D], x.D.op.axis[0]),
        "'C': 'D' does not read it",
    ),
    "outside": (_outside, "compute_at of 'D': 'C' reads it, but runs outside of axis 'i'"),
    "in itself": (_cycle, "inside of itself"),
    "vectorized attach": (_vectorized_attach, "'j' of 'E' is in the vectorized loop 'j'"),
    "inline argument": (_inline_argument, "compute_inline of 'D': it is among the arguments"),
    "attached argument": (_attached_argument, "compute_at of 'D': it is among the .* as a whole"),
    "attached argument of many": (
        _attached_argument_of_many_workers,
        "compute_at of 'D': it is among the arguments.*'j' of 'E' would compute it several times",
    ),
    "attached argument of threads": (
        _attached_argument_of_threads,
        "compute_at of 'C': it is among the arguments.* the threads of threadIdx.x do not wait",
    ),
    "stale attach": (_stale_attach, "'i' of stage 'E' was split"),
    "inline reduction": (lambda x: x.s[x.C].compute_inline(), r"'C': it is a reduction \(over k\)"),
    "inline output": (lambda x: x.s[x.E].compute_inline(), "'E': it is an output"),
    "scope": (lambda x: x.s[x.C].set_scope("textures"), "unknown scope 'textures'"),
    "scope of output": (lambda x: x.s[x.E].set_scope("local"), "'E': it is an output"),
    "align reduction": (lambda x: x.s[x.C].storage_align(x.k, 8, 0), "'k' is not an axis of the"),
    "align factor": (lambda x: x.s[x.C].storage_align(x.i, 0, 0), "axis 'i': factor is 0"),
    "align output": (
        lambda x: x.s[x.E].storage_align(x.E.op.axis[0], 8, 0),
        "'E', axis 'i': it is an output",
    ),
    "extent of reduction": (lambda x: x.s[x.C].align_extent(x.k, 8), "'k' is not an axis of the"),
    "extent factor": (lambda x: x.s[x.C].align_extent(x.i, 0), "axis 'i': factor is 0"),
    "extent of output": (
        lambda x: x.s[x.E].align_extent(x.E.op.axis[0], 8),
        "'E', axis 'i': it is an output of the schedule, whose layout and extents are the caller's",
    ),
    "cache_read not a reader": (
        lambda x: x.s.cache_read(x.A, "shared", [x.C]),
        "'C' does not read it .it is read by D",
    ),
    "cache_read scope": (lambda x: x.s.cache_read(x.A, "l2", [x.D]), "unknown scope 'l2'"),
    "cache_write placeholder": (lambda x: x.s.cache_write(x.A, "local"), "'A' is a placeholder"),
    "placeholder stage": (lambda x: x.s[x.A].compute_root(), "'A' is a placeholder"),
    "rfactor data": (lambda x: x.s.rfactor(x.C, x.i), "'i' is not a reduction axis .allowed: k"),
    "rfactor no reduction": (lambda x: x.s.rfactor(x.D, x.D.op.axis[0]), "'D': it is no reduction"),
    "rfactor place": (lambda x: x.s.rfactor(x.C, x.k, 5), "factor_axis 5 .allowed: -3 to 2"),
    "rfactor marked": (_marked_rfactor, "axis 'k' is unrolled already, which rfactor would undo"),
    "pragma": (lambda x: x.s[x.C].pragma(x.i, 3), "3 is no name of a pragma"),
    "pragma text": (lambda x: x.s[x.C].pragma(x.i, "import_c", 3), "'import_c' needs a text"),
    "own pragma": (lambda x: x.s[x.C].pragma(x.i, "mine", [3]), "no number and no text"),
    "pragma value": (lambda x: x.s[x.C].pragma(x.i, "auto_unroll_max_step", -1), "integer from 0"),
    "prefetch unread": (lambda x: x.s[x.C].prefetch(x.A, x.i, 1), "does not read tensor 'A'"),
    "prefetch outside": (_prefetch_inside, "'C' is computed at axis 'j'"),
    "predicate": (lambda x: x.s[x.C].set_store_predicate(x.i + 1), "not a condition"),
    "tensorize": (lambda x: x.s[x.C].tensorize(x.i, "gemv"), "not made by te.decl_tensor_intrin"),
    "group outputs": (
        lambda x: x.s.create_group(x.E, x.A),
        "'E' is an output of the schedule",
    ),
    "group empty": (lambda x: x.s.create_group(x.D, x.E), "nothing between"),
    "global in blocks": (_global_in_blocks, "'C' has scope global, but is computed inside"),
    "thread extents": (_extents, "threadIdx.x has 16 iterations elsewhere.*has 8"),
    "thread dom": (_thread_extent, "16 iterations, the thread axis threadIdx.x .* 8"),
    "data in reduction": (_data_inside, "axis 'i' of the result cannot be inside"),
    "foreign tensor": (
        lambda x: x.s[te.placeholder((1,), name="Z")],
        "'Z' is not part of this schedule",
    ),
    "unknown stage": (lambda x: x.s["Q"], "unknown stage 'Q'"),
    "no output": (lambda x: te.build(x.s, [x.A, x.B]), "none of its arguments is computed"),
    "missing input": (lambda x: te.lower(x.s, [x.A, x.E]), "reads placeholder 'B'"),
    "argument": (lambda x: te.lower(x.s, [x.A, x.B, "E"]), "'E' is no tensor"),
    "arguments": (lambda x: x.s[x.C].split(), "split of 'C': missing a required argument"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str) -> None:
    misuse, message = MISUSES[name]
    with pytest.raises(te.ScheduleError, match=message):
        misuse(Setup())


def test_a_refused_primitive_leaves_no_trace() -> None:
    x = Setup()
    before = str(x.lower())
    for misuse in (
        lambda: x.s[x.C].tile(x.i, x.j, 4, 0),
        lambda: x.s[x.C].fuse(x.i, x.k),
        lambda: x.s[x.C].vectorize(x.k),
    ):
        with pytest.raises(te.ScheduleError):
            misuse()
    assert str(x.lower()) == before
    assert len(x.s.trace()) == 0


EXPRESSIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "indices": (lambda: te.placeholder((4, 4), name="A")[1, 2, 3], "'A' has 2 dimensions"),
    "float index": (lambda: te.placeholder((4,), name="A")[te.const(1.0)], "not an integer"),
    "slice": (lambda: te.placeholder((4,), name="A")[0:2], "is a slice"),
    "shape": (lambda: te.placeholder((4, 0)), "positive integers"),
    "type": (lambda: te.placeholder((4,), "f31"), "did you mean 'f3"),
    "truth": (lambda: bool(te.var("x") < 3), "te.if_then_else instead of if"),
    "integer division": (lambda: te.const(1, "i32") / te.const(2, "i32"), "no one meaning"),
    "zero": (lambda: te.var("x") % 0, "division by zero"),
    "exp of integers": (lambda: te.exp(te.const(1, "i32")), "te.exp needs a float"),
    "bits of floats": (lambda: te.const(1.0) & te.const(2.0), "needs integers"),
    "axes": (lambda: te.compute((4, 4), lambda i: i), "2 dimensions, its function takes 1"),
    "empty range": (lambda: te.reduce_axis((3, 3), "k"), "'k': the range from 3 to 3 is empty"),
    "data reduced": (
        lambda: te.compute((4,), lambda i: te.sum(i, axis=i)),
        "'i' is not made by te.reduce_axis",
    ),
    "nested reduction": (
        lambda: te.compute((4,), lambda i: te.sum(i, axis=te.reduce_axis(4, "k")) + 1),
        "a reduction is part of a larger expression",
    ),
    "condition": (lambda: te.if_then_else(1, 2, 3), "needs a condition"),
    "no expression": (lambda: te.const(1) + "x", "is no expression"),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_misuse_of_expressions(name: str) -> None:
    misuse, message = EXPRESSIONS[name]
    with (
        pytest.raises(te.ScheduleError, match=message)
        if name != "type"
        else pytest.raises(Exception, match=message)
    ):
        misuse()
