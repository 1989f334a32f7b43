"""One small schedule for each of the primitives, of any size, with what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright import te


@dataclass
class Example:
    """A schedule, the tensors of its function, and the NumPy function of the inputs."""

    schedule: te.Schedule
    arguments: list[te.Tensor]
    reference: Callable[..., Any]


EXAMPLES: dict[str, Callable[[int], Example]] = {}
# What the MLIR of the schedule has, by primitive, that the unscheduled program's does not have.
MARKS: dict[str, str] = {}


def example(name: str, mark: str = "") -> Callable[[Any], Any]:
    def register(function: Callable[[int], Example]) -> Callable[[int], Example]:
        EXAMPLES[name] = function
        MARKS[name] = mark
        return function

    return register


def _matmul(n: int, dtype: str = "f32") -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, n), dtype, name="A"), te.placeholder((n, n), dtype, name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return a, b, c


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _rows(n: int) -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((n, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    return a, te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")


def _row_sums(a: Any) -> Any:
    return a.sum(axis=1)


def _chain(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    d = te.compute((n, n), lambda i, j: a[i, j] + b[i, j], name="D")
    e = te.compute((n, n), lambda i, j: d[i, j] * 2.0, name="E")
    return a, b, d, e


def _twice(a: Any, b: Any) -> Any:
    return (a + b) * 2


@example("cache_read")
def cache_read(n: int) -> Example:
    a, b = _rows(n)
    s = te.create_schedule(b.op)
    s.cache_read(a, "shared", [b])
    return Example(s, [a, b], _row_sums)


@example("cache_write", "memref.alloc")
def cache_write(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    cached = s.cache_write(c, "local")
    s[cached].compute_at(s[c], c.op.axis[0])
    return Example(s, [a, b, c], _product)


@example("set_scope", "memref.alloc")
def set_scope(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    s[d].compute_at(s[e], e.op.axis[0])
    s[d].set_scope("local")
    return Example(s, [a, b, e], _twice)


@example("storage_align")
def storage_align(n: int) -> Example:
    a, b = _rows(n)
    s = te.create_schedule(b.op)
    copy = s.cache_read(a, "shared", [b])
    s[copy].storage_align(copy.op.axis[0], 100, 8)
    return Example(s, [a, b], _row_sums)


@example("align_extent", "memref.alloc")
def align_extent(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    _, jo, _, _ = s[e].tile(*e.op.axis, x_factor=4, y_factor=6)
    s[d].compute_at(s[e], jo)
    s[d].align_extent(d.op.axis[1], 4)
    s[d].vectorize(d.op.axis[1])
    return Example(s, [a, b, e], _twice)


@example("compute_at", "memref.alloc")
def compute_at(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    io, _ = s[e].split(e.op.axis[0], factor=4)
    s[d].compute_at(s[e], io)
    return Example(s, [a, b, e], _twice)


@example("compute_inline")
def compute_inline(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    s[d].compute_inline()
    return Example(s, [a, b, e], _twice)


@example("compute_root")
def compute_root(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    s[d].compute_at(s[e], e.op.axis[0])
    s[d].compute_root()
    return Example(s, [a, b, e], _twice)


@example("split")
def split(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    s[c].split(c.op.reduce_axis[0], factor=16)
    s[c].split(c.op.axis[0], nparts=5)
    return Example(s, [a, b, c], _product)


@example("fuse")
def fuse(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    s[e].fuse(*e.op.axis)
    s[d].compute_inline()
    return Example(s, [a, b, e], _twice)


@example("reorder")
def reorder(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    (k,) = c.op.reduce_axis
    s[c].reorder(c.op.axis[0], k, c.op.axis[1])
    return Example(s, [a, b, c], _product)


@example("tile")
def tile(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    return Example(s, [a, b, c], _product)


@example("unroll")
def unroll(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=4)
    s[c].unroll(inner)
    return Example(s, [a, b, c], _product)


@example("vectorize", "vector<")
def vectorize(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=16)
    s[c].reorder(c.op.axis[0], s[c].leaf_iter_vars[1], c.op.reduce_axis[0], inner)
    s[c].vectorize(inner)
    return Example(s, [a, b, c], _product)


@example("bind", "hal.interface.workgroup.id")
def bind(n: int) -> Example:
    a, b, d, e = _chain(n)
    s = te.create_schedule(e.op)
    s[d].compute_inline()
    bx, tx = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    _, inner = s[e].split(e.op.axis[1], factor=8)
    s[e].bind(e.op.axis[0], bx)
    s[e].bind(inner, tx)
    return Example(s, [a, b, e], _twice)


@example("parallel", "hal.interface.workgroup.id")
def parallel(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    s[c].parallel(c.op.axis[0])
    return Example(s, [a, b, c], _product)


@example("pragma")
def pragma(n: int) -> Example:
    a, b, c = _matmul(n)
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.reduce_axis[0], factor=4)
    s[c].pragma(outer, "auto_unroll_max_step", 16)
    s[c].pragma(outer, "unroll_explicit", True)
    return Example(s, [a, b, c], _product)


@example("prefetch", "memref.prefetch")
def prefetch(n: int) -> Example:
    a, b = _rows(n)
    s = te.create_schedule(b.op)
    s[b].prefetch(a, b.op.reduce_axis[0], 1)
    return Example(s, [a, b], _row_sums)


@example("tensorize", "vector<")
def tensorize(n: int) -> Example:
    # The matrix has rows of 16 for the intrinsic, n of them.
    from tilewright.schedule.intrinsics import gemv

    x = te.placeholder((n, 16), name="A")
    y = te.placeholder((16, 16), name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((n, 16), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    s[c].tensorize(c.op.axis[1], gemv(16, 16))
    return Example(s, [x, y, c], lambda a, b: a @ b.T)


@example("rfactor")
def rfactor(n: int) -> Example:
    a, b = _rows(n)
    s = te.create_schedule(b.op)
    _, inner = s[b].split(b.op.reduce_axis[0], factor=8)
    factored = s.rfactor(b, inner)
    tx = te.thread_axis("threadIdx.x")
    s[b].bind(s[b].op.reduce_axis[0], tx)
    s[factored].compute_at(s[b], s[b].op.reduce_axis[0])
    return Example(s, [a, b], _row_sums)


@example("set_store_predicate", "scf.if")
def set_store_predicate(n: int) -> Example:
    a, b = _rows(n)
    s = te.create_schedule(b.op)
    _, inner = s[b].split(b.op.reduce_axis[0], factor=8)
    factored = s.rfactor(b, inner)
    tx = te.thread_axis("threadIdx.x")
    s[b].bind(s[b].op.reduce_axis[0], tx)
    s[factored].compute_at(s[b], s[b].op.reduce_axis[0])
    s[b].set_store_predicate(tx.var.equal(0))
    return Example(s, [a, b], _row_sums)


@example("create_group")
def create_group(n: int) -> Example:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    d = te.compute((n, n), lambda i, j: a[i, j] + b[i, j], name="D")
    e = te.compute((n, n), lambda i, j: d[i, j] + b[i, j], name="E")
    f = te.compute((n,), lambda i: te.sum(e[i, k], axis=k), name="F")
    s = te.create_schedule(f.op)
    group = s.create_group(outputs=e, inputs=[a, b], include_inputs=True)
    group.compute_at(s[f], f.op.reduce_axis[0])
    return Example(s, [a, b, f], lambda x, y: (x + y + y).sum(axis=1))
