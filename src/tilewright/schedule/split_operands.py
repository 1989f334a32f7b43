"""Intrinsics for `tensorize`: numbers of f32 split into parts of bf16 (`splitting`), in the orders
in which a matrix unit takes them (`split_products`)."""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, vector

from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import cast
from tilewright.schedule.intrinsic import TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.matrix_shapes import SUMS
from tilewright.schedule.matrix_unit import further, prefetch
from tilewright.schedule.splitting import LARGEST, PAIR, PRODUCTS, part_of
from tilewright.schedule.tensor import Tensor, compute, placeholder
from tilewright.schedule.types import bits

__all__ = ["split_pairs", "split_rows"]

# Rows further on whose numbers of the same columns are fetched.
_ROWS_AHEAD = 8
_CONVERSION, _CONVERSION_FEATURE = "llvm.x86.avx512bf16.cvtneps2bf16.512", "avx512bf16"


def split_rows(lanes: int = 32, parts: int = 3, dtype: str = "f32") -> TensorIntrinsic:
    """`c[s, 0, i]` are the parts `s` of the numbers `a[i]`: what `split_matrix` takes as `a`.

    Args:
        lanes: numbers that lie beside each other: a multiple of 16.
        parts: that each is split into: 1 to 3.
        dtype: of the numbers: `f32`, or floats that it has.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[A].tensorize(part, te.intrinsics.split_rows(32))
    """
    _check("split_rows", lanes, parts)
    a = placeholder((lanes,), dtype, name="a")
    c = compute((parts, 1, lanes), lambda s, _, i: part_of(cast("f32", a[i]), parts, s), name="c")

    def split(builder: IntrinsicBuilder, source: BufferView, out: BufferView) -> None:
        for first in range(0, lanes, SUMS):
            value = builder.cast(source.load(first, lanes=SUMS), dtype, "f32")
            for part, one in enumerate(_parts(builder, value, parts)):
                out.store(one, part, 0, first)

    return _declared(f"split_rows_{lanes}_{parts}_{dtype}", c, split)


def split_pairs(lanes: int = 32, parts: int = 3, dtype: str = "f32") -> TensorIntrinsic:
    """`c[s, v, 0, i, e]` are the parts `s` of the numbers `a[e, 16 v + i]` of two rows: what
    `split_matrix` takes as `b`. A part halfway between two numbers of bf16 may be rounded away from
    0, which the next part makes up for.

    Args:
        lanes: numbers of a row: a multiple of 16.
        parts: that each is split into: 1 to 3.
        dtype: of the numbers: `f32`, or floats that it has.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[B].tensorize(part, te.intrinsics.split_pairs(32))
    """
    _check("split_pairs", lanes, parts)
    a = placeholder((PAIR, lanes), dtype, name="a")
    c = compute(
        (parts, lanes // SUMS, 1, SUMS, PAIR),
        lambda s, v, _, i, e: part_of(cast("f32", a[e, v * SUMS + i]), parts, s),
        name="c",
    )

    def split(builder: IntrinsicBuilder, source: BufferView, out: BufferView) -> None:
        # Of each row few numbers are read, which the processor does not see coming.
        further_on = _ROWS_AHEAD * source.strides[0] * bits(dtype) // 8
        for e in range(PAIR):
            for first in range(0, lanes, SUMS):
                prefetch(further(source.pointer(e, first), further_on))
        for first in range(0, lanes, SUMS):
            low, high = (
                builder.cast(source.load(e, first, lanes=SUMS), dtype, "f32") for e in range(PAIR)
            )
            for part, both in enumerate(_pairs(builder, low, high, parts)):
                out.store(both, part, first // SUMS, 0, 0, 0)

    return _declared(f"split_pairs_{lanes}_{parts}_{dtype}", c, split)


def _declared(
    name: str, c: Tensor, split: Callable[[IntrinsicBuilder, BufferView, BufferView], None]
) -> TensorIntrinsic:
    """The intrinsic that computes `c` of one operand, as `split` emits it."""
    return decl_tensor_intrin(
        c.op,
        lambda builder, _, inputs, outputs: split(builder, inputs[0], outputs[0]),
        name=name,
    )


def _check(name: str, lanes: int, parts: int) -> None:
    if lanes < SUMS or lanes % SUMS or parts not in PRODUCTS:
        raise ScheduleError(
            f"{name}: lanes={lanes}, parts={parts}; lanes must be a multiple of {SUMS}, parts 1 "
            "to 3"
        )


def _parts(builder: IntrinsicBuilder, value: ir.Value, parts: int) -> list[ir.Value]:
    """The parts of a vector of numbers; see `splitting.split`."""
    made = []
    for left in reversed(range(parts)):
        made.append(_rounded(builder, _held(builder, value) if left else value))
        value = arith.SubFOp(value, builder.cast(made[-1], "bf16", "f32")).result
    return made


def _pairs(builder: IntrinsicBuilder, low: ir.Value, high: ir.Value, parts: int) -> list[ir.Value]:
    """The parts of two vectors of numbers, those of the same place beside each other.

    Numbers halfway between two of bf16 are rounded away from 0, which takes an addition of
    integers; the parts have the same sum.
    """
    words, numbers = (builder.vector_type(dtype, SUMS) for dtype in ("i32", "f32"))
    half, upper = (builder.constant(number, "i32", SUMS) for number in (1 << 15, -1 << 16))
    split: list[list[ir.Value]] = []
    for value in (low, high):
        made: list[ir.Value] = []
        for left in reversed(range(parts)):
            if left:
                held = arith.BitcastOp(words, _held(builder, value)).result
                held = arith.AddIOp(held, half).result
            else:
                # The third part is exact; what is no number is to stay so.
                exact = parts > 2
                last = value if exact else builder.cast(_rounded(builder, value), "bf16", "f32")
                held = arith.BitcastOp(words, last).result
            made.append(arith.AndIOp(held, upper).result)
            value = arith.SubFOp(value, arith.BitcastOp(numbers, made[-1]).result).result
        split.append(made)
    both = []
    for mine, its in zip(*split, strict=True):
        below = arith.ShRUIOp(mine, builder.constant(16, "i32", SUMS)).result
        pair = arith.OrIOp(its, below).result
        both.append(vector.BitCastOp(builder.vector_type("bf16", PAIR * SUMS), pair).result)
    return both


def _held(builder: IntrinsicBuilder, value: ir.Value) -> ir.Value:
    """A vector of numbers within what bf16 has."""
    for kind, bound in (("OLT", -LARGEST), ("OGT", LARGEST)):
        most = builder.constant(bound, "f32", SUMS)
        beyond = arith.CmpFOp(getattr(arith.CmpFPredicate, kind), value, most)
        value = arith.SelectOp(beyond.result, most, value).result
    return value


def _rounded(builder: IntrinsicBuilder, value: ir.Value) -> ir.Value:
    """A vector rounded to bf16; by the processor's own instruction what is below 1.2e-38 becomes 0,
    as which the unit takes it."""
    if _CONVERSION_FEATURE not in builder.machine.features:
        return builder.cast(value, "f32", "bf16")
    kind = builder.vector_type("bf16", SUMS)
    return llvm.CallIntrinsicOp(kind, _CONVERSION, [value], [], []).results[0]
