"""Dot products of bytes in groups of four: VNNI on x86, `sdot` on Arm."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, vector

from tilewright.schedule import reducers
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, cast
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.tensor import compute, placeholder, reduce_axis

_GROUP = 4
# By lanes: the instruction, and the extensions any of which brings it.
_X86 = {
    16: ("llvm.x86.avx512.vpdpbusd.512", ("avx512vnni",)),
    8: ("llvm.x86.avx512.vpdpbusd.256", ("avx512vnni", "avxvnni")),
}
_ARM = {4: ("llvm.aarch64.neon.sdot.v4i32.v16i8", ("dotprod",))}


def byte_dot(lanes: int = 16, k: int = 4, m: int = 1) -> TensorIntrinsic:
    """`c[r, i] += sum of a[r, 4 g + e] * b[g, i, e]` of i8 values, added up in i32, exactly.

    VNNI multiplies unsigned bytes by signed ones: 128 is added to a's, and what that adds to the
    sums is taken off again, by one more instruction for each group.

    Args:
        lanes: of c: 16 (AVX-512 VNNI), 8 (VNNI), 4 (Arm).
        k: length of the sums, a multiple of 4; with k = 4, b has no dimension g.
        m: rows; with m = 1, c and a have no dimension r.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[C].tensorize(ji, te.intrinsics.byte_dot(16))
    """
    if lanes not in (*_X86, *_ARM):
        raise ScheduleError(f"byte_dot: {lanes} lanes (allowed: 16, 8, 4)")
    if k < 1 or k % _GROUP or m < 1:
        raise ScheduleError(f"byte_dot: k={k}, m={m}; k must be a multiple of 4 and m at least 1")
    groups = k // _GROUP
    a = placeholder((k,) if m == 1 else (m, k), "i8", name="a")
    b = placeholder((lanes, _GROUP) if groups == 1 else (groups, lanes, _GROUP), "i8", name="b")
    group, element = reduce_axis(groups, "g"), reduce_axis(_GROUP, "e")

    def product(row: Sequence[Expr], i: Expr) -> Expr:
        at = element if groups == 1 else group * _GROUP + element
        left = cast("i32", a[(*row, at)])
        right = cast("i32", b[(i, element) if groups == 1 else (group, i, element)])
        total: Expr = reducers.sum(left * right, axis=element if groups == 1 else [group, element])
        return total

    if m == 1:
        c = compute((lanes,), lambda i: product((), i), name="c")
    else:
        c = compute((m, lanes), lambda r, i: product((r,), i), name="c")
    name = f"byte_dot_{m}x{lanes}x{k}"

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        instruction, is_signed = _instruction(builder, name, lanes)
        (out,) = outputs
        zero = builder.constant(0, "i32", lanes)
        if phase == "reset":
            for row in range(m):
                out.store(zero, *_row(m, row), 0)
            return
        left, right = inputs
        start = [
            out.load(*_row(m, row), 0, lanes=lanes) if phase == UPDATE else zero for row in range(m)
        ]

        def step(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            weights = right.load(*(() if groups == 1 else (at,)), 0, 0, lanes=_GROUP * lanes)
            place = arith.MulIOp(at, builder.index(_GROUP)).result
            made = []
            for row, total in enumerate(sums):
                four = left.load(*_row(m, row), place, lanes=_GROUP)
                made.append(_dot(builder, instruction, is_signed, total, four, weights, lanes))
            return made

        for row, total in enumerate(builder.loop(groups, 1, start, step)):
            out.store(total, *_row(m, row), 0)

    return decl_tensor_intrin(c.op, emit, name=name)


def _row(m: int, row: int) -> tuple[int, ...]:
    return () if m == 1 else (row,)


def _instruction(builder: IntrinsicBuilder, name: str, lanes: int) -> tuple[str, bool]:
    """The instruction for so many lanes, and whether it takes signed bytes on both sides."""
    for table, is_signed in ((_X86, False), (_ARM, True)):
        if lanes in table:
            instruction, features = table[lanes]
            if builder.machine.features & frozenset(features):
                return instruction, is_signed
    raise builder.unsupported(name, "byte dot products (AVX-512 VNNI, AVX-VNNI, Arm dotprod)")


def _dot(
    builder: IntrinsicBuilder,
    instruction: str,
    is_signed: bool,
    total: ir.Value,
    four: ir.Value,
    weights: ir.Value,
    lanes: int,
) -> ir.Value:
    """The sums with the products of four bytes, the same for all lanes, and the weights."""
    word = vector.BitCastOp(builder.vector_type("i32", 1), four).result
    spread = builder.splat(vector.ExtractOp(word, [], [0]).result, lanes)
    bytes_ = vector.BitCastOp(builder.vector_type("i8", _GROUP * lanes), spread).result

    def call(accumulator: ir.Value, left: ir.Value) -> ir.Value:
        return llvm.CallIntrinsicOp(
            accumulator.type, instruction, [accumulator, left, weights], [], []
        ).results[0]

    if is_signed:
        return call(total, bytes_)
    offset = builder.constant(-128, "i8", _GROUP * lanes)
    unsigned = arith.XOrIOp(bytes_, offset).result
    excess = call(builder.constant(0, "i32", lanes), offset)
    return arith.SubIOp(call(total, unsigned), excess).result
