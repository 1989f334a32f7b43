"""A packed matrix product, as BLAS libraries compute it: C = A B, f32, at their speed.

    python examples/schedule/packed_matmul.py 1024

Operands are copied so that the inner loops read memory in the order in which it lies there (K. Goto
and R. A. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008):

* B is packed once into panels of NR columns, by a stage of its own at root level;
* A can be packed for every block of MC x KC, by `cache_read` at the loop over k, which keeps it in
  the second-level cache; on processors that fetch rows ahead well it is as fast without;
* a tile of MR x NR of C stays in vector registers over the innermost loop.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from tilewright import te


@dataclass(frozen=True)
class Blocks:
    """mc, nc, kc: rows, columns and depth of a block; mr, nr: of the tile in registers; unroll:
    steps of the innermost loop that are written out; pack_a: whether A is packed as well."""

    mc: int = 256
    nc: int = 512
    kc: int = 256
    mr: int = 8
    nr: int = 32
    unroll: int = 1
    pack_a: bool = False


def packed_matmul(n: int, blocks: Blocks | None = None) -> tuple[te.Schedule, list[te.Tensor]]:
    """The schedule of an n x n product, and its tensors [A, B, C]."""
    b = blocks or Blocks()
    A = te.placeholder((n, n), "f32", name="A")
    B = te.placeholder((n, n), "f32", name="B")
    k = te.reduce_axis(n, "k")
    panels = te.compute((n // b.nr, n, b.nr), lambda p, r, c: B[r, p * b.nr + c], name="panels")
    C = te.compute(
        (n, n), lambda i, j: te.sum(A[i, k] * panels[j // b.nr, k, j % b.nr], axis=k), name="C"
    )

    s = te.create_schedule(C)
    panel, _, column = s[panels].op.axis
    s[panels].vectorize(column)
    s[panels].parallel(panel)

    io, jo, ii, ji = s[C].tile(*s[C].op.axis, b.mc, b.nc)
    ko, ki = s[C].split(s[C].op.reduce_axis[0], b.kc)
    im, ir = s[C].split(ii, b.mr)
    jm, jr = s[C].split(ji, b.nr)
    ku, kr = s[C].split(ki, b.unroll)
    s[C].reorder(io, jo, ko, jm, im, ku, kr, ir, jr)
    s[C].vectorize(jr)
    s[C].unroll(ir)
    s[C].unroll(kr)
    s[C].parallel(s[C].fuse(io, jo))
    if b.pack_a:
        block = s.cache_read(A, "shared", [C])
        s[block].compute_at(s[C], ko)
        rows, depth = s[block].op.axis
        outer, inner = s[block].split(rows, b.mr)
        s[block].reorder(outer, depth, inner)
        s[block].vectorize(inner)
    return s, [A, B, C]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", type=int, nargs="?", default=512)
    parser.add_argument("--threads", type=int, default=1)
    n, threads = (lambda a: (a.size, a.threads))(parser.parse_args())
    schedule, tensors = packed_matmul(n)
    print(te.lower(schedule, tensors))
    f = te.build(schedule, tensors, target="cpu", threads=threads)
    f.verify(lambda a, b: a @ b)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    print(f"{n} x {n} x {n}: right; {f.benchmark(a, b)}")


if __name__ == "__main__":
    main()
