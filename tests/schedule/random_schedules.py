"""Random expressions with random schedules, for tests of what holds for all of them.

Everything is drawn from a `random.Random`, so a test may hand over hypothesis's, which shrinks.
Elements are integers: results are compared exactly, whatever the order of a reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tilewright import te
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12)


@dataclass
class Case:
    """An expression: tensors for `te.lower`, and the outputs among them."""

    name: str
    inputs: list[te.Tensor]
    outputs: list[te.Tensor]

    @property
    def arguments(self) -> list[te.Tensor]:
        return [*self.inputs, *self.outputs]


def expression(rng: Random, dtype: str = "i64") -> Case:
    """One of several kinds of expression, of small random shape."""
    return rng.choice(EXPRESSIONS)(rng, dtype)


def _size(rng: Random) -> int:
    return rng.choice(EXTENTS)


def elementwise(rng: Random, dtype: str) -> Case:
    m, n = _size(rng), _size(rng)
    a, b = (te.placeholder((m, n), dtype, name=x) for x in "AB")
    d = te.compute((m, n), lambda i, j: a[i, j] + b[i, j], name="D")
    e = te.compute((m, n), lambda i, j: d[i, j] * 2 - b[i, j], name="E")
    f = te.compute((n, m), lambda j, i: e[i, j] + d[i, n - 1 - j], name="F")
    return Case("elementwise", [a, b], [f])


def matmul(rng: Random, dtype: str) -> Case:
    m, n, k = _size(rng), _size(rng), _size(rng)
    a, b = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    r = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    if rng.random() < 0.5:
        return Case("matmul", [a, b], [c])
    bias = te.placeholder((n,), dtype, name="bias")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0), name="D")
    return Case("matmul_bias", [a, b, bias], [d])


def convolution(rng: Random, dtype: str) -> Case:
    h, w, f, stride = _size(rng), _size(rng), rng.choice((1, 2, 3)), rng.choice((1, 2))
    pad = f // 2
    a = te.placeholder((h, w), dtype, name="A")
    weights = te.placeholder((f, f), dtype, name="W")
    padded = te.compute(
        (h + 2 * pad, w + 2 * pad),
        lambda i, j: te.if_then_else(
            te.all(i >= pad, i < h + pad, j >= pad, j < w + pad), a[i - pad, j - pad], 0
        ),
        name="P",
    )
    oh, ow = (h + 2 * pad - f) // stride + 1, (w + 2 * pad - f) // stride + 1
    if oh < 1 or ow < 1:
        return matmul(rng, dtype)
    y, x = te.reduce_axis(f, "y"), te.reduce_axis((0, f), "x")
    c = te.compute(
        (oh, ow),
        lambda i, j: te.sum(padded[i * stride + y, j * stride + x] * weights[y, x], axis=[y, x]),
        name="C",
    )
    return Case("convolution", [a, weights], [c])


def rows(rng: Random, dtype: str) -> Case:
    m, n = _size(rng), _size(rng)
    a = te.placeholder((m, n), dtype, name="A")
    k1, k2 = te.reduce_axis(n, "k1"), te.reduce_axis(n, "k2")
    top = te.compute((m,), lambda i: te.max(a[i, k1], axis=k1), name="M")
    shifted = te.compute((m, n), lambda i, j: a[i, j] - top[i], name="E")
    total = te.compute((m,), lambda i: te.sum(shifted[i, k2], axis=k2), name="S")
    out = te.compute((m, n), lambda i, j: shifted[i, j] * 3 + total[i], name="O")
    return Case("rows", [a], [out])


def argmax(rng: Random, dtype: str) -> Case:
    m, n = _size(rng), _size(rng)
    a = te.placeholder((m, n), dtype, name="A")
    k = te.reduce_axis(n, "k")

    def combine(x: Any, y: Any) -> Any:
        # Ties go to the smaller index, so that the order of combination does not show.
        first = te.any(x[1] > y[1], te.all(x[1].equal(y[1]), x[0] < y[0]))
        return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])

    reducer = te.comm_reducer(
        combine, lambda t0, t1: (te.max_value(t0), te.min_value(t1)), name="argmax"
    )
    where, value = te.compute((m,), lambda i: reducer((k, a[i, k]), axis=k), name="T")
    return Case("argmax", [a], [where, value])


def gathered(rng: Random, dtype: str) -> Case:
    m, n = _size(rng), _size(rng)
    a = te.placeholder((2 * m + 1, n), dtype, name="A")
    b = te.compute((2 * m + 1, n), lambda i, j: a[i, j] + i, name="B")
    k = te.reduce_axis((1, n + 1), "k")
    c = te.compute((m,), lambda i: te.sum(b[2 * i + 1, k - 1] - b[i, 0] * k, axis=k), name="C")
    d = te.compute((m * n,), lambda i: c[i // n] + b[i // n, i % n], name="D")
    return Case("gathered", [a], [c, d])


EXPRESSIONS = (elementwise, matmul, matmul, convolution, rows, argmax, gathered)


# -- schedules -------------------------------------------------------------------------------------


class Scheduler:
    """Applies random primitives to a schedule; those that do not fit raise ScheduleError, which is
    left for the next to be tried."""

    def __init__(self, rng: Random, case: Case, gpu: bool = False) -> None:
        self.rng = rng
        self.case = case
        self.gpu = gpu
        self.schedule = te.create_schedule([t.op for t in case.outputs])
        self.refused = 0

    def stage(self) -> Stage:
        return self.rng.choice([s for s in self.schedule.stages if not s.is_placeholder])

    def axis(self, stage: Stage, reduction: bool | None = None) -> te.IterVar:
        axes = [
            a for a in stage.leaf_iter_vars if reduction is None or (a.kind == REDUCE) == reduction
        ]
        if not axes:
            raise te.ScheduleError("no such axis")
        return self.rng.choice(axes)

    def apply(self, count: int) -> None:
        actions = [
            self.split,
            self.split,
            self.reorder,
            self.fuse,
            self.tile,
            self.mark,
            self.mark,
            self.compute_at,
            self.compute_at,
            self.inline,
            self.cache_read,
            self.cache_write,
            self.rfactor,
            self.align,
            self.align_extent,
            self.pragma,
            self.prefetch,
            self.scope,
            self.group,
        ]
        if self.gpu:
            actions += [self.bind, self.bind, self.bind]
        for _ in range(count):
            try:
                self.rng.choice(actions)()
            except te.ScheduleError:
                self.refused += 1

    def split(self) -> None:
        stage = self.stage()
        factor = self.rng.choice((1, 2, 3, 4, 5, 8))
        if self.rng.random() < 0.7:
            stage.split(self.axis(stage), factor=factor)
        else:
            stage.split(self.axis(stage), nparts=factor)

    def reorder(self) -> None:
        stage = self.stage()
        axes = list(stage.leaf_iter_vars)
        self.rng.shuffle(axes)
        stage.reorder(*axes[: self.rng.randint(1, len(axes))])

    def fuse(self) -> None:
        stage = self.stage()
        leaves = stage.leaf_iter_vars
        if len(leaves) > 1:
            at = self.rng.randrange(len(leaves) - 1)
            stage.fuse(leaves[at], leaves[at + 1])

    def tile(self) -> None:
        stage = self.stage()
        axes = [a for a in stage.leaf_iter_vars if a.kind != REDUCE]
        if len(axes) > 1:
            x, y = self.rng.sample(axes, 2)
            stage.tile(x, y, self.rng.choice((2, 3, 4)), self.rng.choice((2, 3, 4)))

    def mark(self) -> None:
        stage = self.stage()
        kind = self.rng.choice(("vectorize", "unroll", "parallel"))
        getattr(stage, kind)(self.axis(stage))

    def compute_at(self) -> None:
        stage, parent = self.stage(), self.stage()
        stage.compute_at(parent, self.axis(parent))

    def inline(self) -> None:
        self.stage().compute_inline()

    def cache_read(self) -> None:
        stage = self.rng.choice(self.schedule.stages)
        readers = self.schedule.readers(stage)
        if readers:
            some = self.rng.sample(readers, self.rng.randint(1, len(readers)))
            tensor = self.rng.choice(stage.op.outputs)
            scope = self.rng.choice(("global", "shared", "local"))
            self.schedule.cache_read(tensor, scope, some)

    def cache_write(self) -> None:
        stage = self.stage()
        outputs = list(stage.op.outputs)
        scope = self.rng.choice(("global", "local", "shared"))
        self.schedule.cache_write(outputs if len(outputs) > 1 else outputs[0], scope)

    def rfactor(self) -> None:
        stage = self.stage()
        rank = len(stage.op.axis)
        self.schedule.rfactor(
            stage.op.output(0), self.axis(stage, reduction=True), self.rng.randint(0, rank)
        )

    def align(self) -> None:
        stage = self.stage()
        axis = self.rng.choice(stage.op.axis)
        stage.storage_align(axis, self.rng.choice((2, 8, 16)), self.rng.choice((0, 1, 3)))

    def align_extent(self) -> None:
        stage = self.stage()
        stage.align_extent(self.rng.choice(stage.op.axis), self.rng.choice((2, 4, 8)))

    def pragma(self) -> None:
        stage = self.stage()
        name, value = self.rng.choice((("unroll", None), ("auto_unroll_max_step", 16)))
        stage.pragma(self.axis(stage), name, value)

    def prefetch(self) -> None:
        stage = self.stage()
        reads = self.schedule.reads_of(stage)
        if reads:
            tensor = self.rng.choice(reads).tensor
            stage.prefetch(tensor, self.axis(stage), self.rng.choice((0, 1, 2)))

    def scope(self) -> None:
        self.stage().set_scope(self.rng.choice(("local", "shared", "global")))

    def group(self) -> None:
        made = self.schedule.create_group(
            self.stage(), self.rng.choice(self.schedule.stages), include_inputs=True
        )
        parent = self.stage()
        made.compute_at(parent, self.axis(parent))

    def bind(self) -> None:
        stage = self.stage()
        tag = self.rng.choice(
            ("threadIdx.x", "threadIdx.x", "threadIdx.y", "blockIdx.x", "vthread")
        )
        axis = self.axis(stage)
        if self.rng.random() < 0.7 and tag.startswith("thread"):
            # One extent for all, or most kernels would have threads that do not agree.
            extent = 4 if tag == "threadIdx.x" else 2
            _, inner = stage.split(axis, factor=extent)
            axis = inner
        stage.bind(axis, te.thread_axis(tag))
