"""The inner kernel of a matrix product: a tile of accumulators, one outer product a step."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import vector

from tilewright.schedule import reducers
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import as_expr
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.tensor import compute, placeholder, reduce_axis
from tilewright.schedule.types import bits

# What has vector registers and an instruction that multiplies and adds.
_FEATURES = ("fma", "avx512f", "neon")


def outer_product(
    m: int, n: int, k: int, dtype: str = "f32", *, a_rows: bool = False
) -> TensorIntrinsic:
    """A tile `C[m, n] += sum over k of A[k, m] * B[k, n]` whose accumulators stay in registers,
    for processors with AVX2, AVX-512 or Neon.

    m rows of n elements must fit the registers: 6 x 16 (AVX2), 8 x 32 (AVX-512) and 8 x 8 (Neon)
    are good for f32.

    Args:
        m, n: the tile.
        k: the length of the panels.
        dtype: `f32` or `f64`.
        a_rows: A is read as `A[m, k]`, which is slower unless k is short.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other types; where code is written, for a tile that the registers do
            not hold.

        s[C].tensorize(ii, te.intrinsics.outer_product(8, 32, 256))
    """
    if dtype not in ("f32", "f64"):
        raise ScheduleError(f"outer_product: element type {dtype} (allowed: f32, f64)")
    a = placeholder((m, k) if a_rows else (k, m), dtype, name="a")
    b = placeholder((k, n), dtype, name="b")
    axis = reduce_axis(k, "k")
    c = compute(
        (m, n),
        lambda i, j: reducers.sum(
            as_expr(a[i, axis] if a_rows else a[axis, i]) * as_expr(b[axis, j]), axis=axis
        ),
        name="c",
    )
    name = f"outer_product_{m}x{n}x{k}_{dtype}{'_rows' if a_rows else ''}"

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        _check(builder, name, m, n, dtype)
        (out,) = outputs
        zero = builder.constant(0.0, dtype, n)
        if phase == "reset":
            for row in range(m):
                out.store(zero, row, 0)
            return
        left, right = inputs
        start = [out.load(row, 0, lanes=n) if phase == UPDATE else zero for row in range(m)]

        def step(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            line = right.load(at, 0, lanes=n)
            column = [left.load(row, at) if a_rows else left.load(at, row) for row in range(m)]
            return [
                vector.FMAOp(builder.splat(one, n), line, total).result
                for one, total in zip(column, sums, strict=True)
            ]

        for row, total in enumerate(builder.loop(k, 1, start, step)):
            out.store(total, row, 0)

    return decl_tensor_intrin(c.op, emit, name=name)


def _check(builder: IntrinsicBuilder, name: str, m: int, n: int, dtype: str) -> None:
    machine = builder.machine
    if machine.is_gpu or not machine.features & frozenset(_FEATURES):
        raise builder.unsupported(name, "AVX2, AVX-512 or Neon")
    lanes = machine.widths.register * 8 // bits(dtype)
    used = m * -(-n // lanes)
    if used > machine.registers - 2:
        raise ScheduleError(
            f"tensorize: intrinsic '{name}' needs {used} accumulators; {machine.name} has "
            f"{machine.registers} vector registers of {lanes} elements, two of which are for the "
            "operands; use a smaller tile"
        )
