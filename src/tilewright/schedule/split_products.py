"""Intrinsics for `tensorize`: products of f32 matrices by a matrix unit for bf16 (AMX).

An f32 number is the sum of three of bf16, whose significands have 8 bits each (`split`), but for
what is smaller than a 2^-24th of it. Of the nine products of their parts those count that are
larger than a 2^-24th of the first: six; of two parts, with a 2^-16th, three. All are added up in
f32, as the products of f32 would be.

Source: G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from tilewright.schedule import functions
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, cast
from tilewright.schedule.intrinsic import RESET, UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.matrix_products import MATRIX_EXTENSIONS
from tilewright.schedule.matrix_shapes import MOST_TILES, ROW_BYTES, ROWS, SUMS, split_tiles_taken
from tilewright.schedule.matrix_unit import (
    call,
    configuration,
    granted,
    in_memory,
    number,
    shaped,
    word,
)
from tilewright.schedule.splitting import GROUP, LARGEST, PAIR, PRODUCTS, part_of
from tilewright.schedule.tensor import compute, placeholder, reduce_axis

__all__ = ["split_matrix", "split_pairs", "split_rows"]

_INSTRUCTION = "llvm.x86.tdpbf16ps"


def split_matrix(lanes: int = 32, groups: int = 1, m: int = 32, parts: int = 3) -> TensorIntrinsic:
    """`c[r, i] += sum of a[g, s, r, 2 q + e] * b[g, t, q, i, e]` of the parts `s` and `t` of f32
    numbers, which are bf16, added up in f32, by AMX; of the pairs of parts those whose products
    matter (see the module) are multiplied.

    Products smaller than 1.2e-38 are taken for 0. Products of parts, not of numbers, are rounded
    to f32: where a product of numbers overflows, the sum may be NaN instead of infinite.

    Args:
        lanes: of c: a multiple of 16.
        groups: of 32 elements, that the sums are over.
        m: rows: a multiple of 16, or fewer.
        parts: that each number is split into: 2 or 3.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers, or for more than the unit's registers hold.

        s[C].tensorize(row, te.intrinsics.split_matrix(32, 4, 32))
    """
    if lanes % SUMS or lanes < SUMS or m < 2 or (m > ROWS and m % ROWS) or groups < 1:
        raise ScheduleError(
            f"split_matrix: lanes={lanes}, groups={groups}, m={m}; lanes and m must be "
            f"multiples of {SUMS} (m may be from 2 to {ROWS - 1}, too), and groups at least 1"
        )
    if parts not in PRODUCTS:
        raise ScheduleError(f"split_matrix: {parts} parts (allowed: 2 or 3)")
    taken = split_tiles_taken(m, lanes)
    if taken > MOST_TILES:
        raise ScheduleError(
            f"split_matrix: {m}x{lanes} sums and what they are computed from take {taken} "
            f"registers of {MOST_TILES}"
        )
    a = placeholder((groups, parts, m, GROUP), "bf16", name="a")
    b = placeholder((groups, parts, GROUP // PAIR, lanes, PAIR), "bf16", name="b")
    g, q, e = reduce_axis(groups, "g"), reduce_axis(GROUP // PAIR, "q"), reduce_axis(PAIR, "e")
    s, t = reduce_axis(parts, "s"), reduce_axis(parts, "t")

    def element(row: Expr, lane: Expr) -> Expr:
        one, other = a[g, s, row, q * PAIR + e], b[g, t, q, lane, e]
        total: Expr = functions.sum(cast("f32", one) * cast("f32", other), axis=[g, q, e, s, t])
        return total

    c = compute((m, lanes), element, name="c")

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        (out,) = outputs
        if phase == RESET:
            _clear(builder, out, m, lanes)
            return
        if not builder.machine.features & frozenset(MATRIX_EXTENSIONS[_INSTRUCTION]):
            raise builder.unsupported("split_matrix", "a matrix unit (AMX)")
        left, right = inputs
        tile = _SplitTile(builder, left, right, out, (m, lanes), groups, parts)
        adds = phase == UPDATE
        builder.branch(granted(builder), lambda: tile.by_unit(adds), lambda: tile.in_vectors(adds))

    return decl_tensor_intrin(c.op, emit, name=f"split_matrix_{m}x{lanes}x{groups}_{parts}")


def split_rows(lanes: int = 32, parts: int = 3) -> TensorIntrinsic:
    """`c[s, 0, i]` are the parts `s` of the numbers `a[i]`: what `split_matrix` takes as `a`.

    Args:
        lanes: numbers that lie beside each other: a multiple of 16.
        parts: that each is split into: 2 or 3.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[A].tensorize(part, te.intrinsics.split_rows(32))
    """
    return _splitting("split_rows", lanes, parts, 1)


def split_pairs(lanes: int = 32, parts: int = 3) -> TensorIntrinsic:
    """`c[s, 0, i, e]` are the parts `s` of the numbers `a[e, i]` of two rows: what `split_matrix`
    takes as `b`.

    Args:
        lanes: numbers of a row: a multiple of 16.
        parts: that each is split into: 2 or 3.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[B].tensorize(part, te.intrinsics.split_pairs(32))
    """
    return _splitting("split_pairs", lanes, parts, PAIR)


def _splitting(name: str, lanes: int, parts: int, rows: int) -> TensorIntrinsic:
    """The intrinsic that splits so many rows, and puts their elements beside each other."""
    if lanes < SUMS or lanes % SUMS or parts not in PRODUCTS:
        raise ScheduleError(
            f"{name}: lanes={lanes}, parts={parts}; lanes must be a multiple of {SUMS}, parts 2 "
            "or 3"
        )
    beside = () if rows == 1 else (rows,)
    a = placeholder((*beside, lanes), "f32", name="a")

    def part(*axes: Expr) -> Expr:
        s, _, i, *e = axes
        return part_of(cast("f32", a[(*e, i)]), parts, s)

    c = compute((parts, 1, lanes, *beside), part, name="c")

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        (source,), (out,) = inputs, outputs
        for first in range(0, lanes, SUMS):
            places = [(first,)] if rows == 1 else [(e, first) for e in range(rows)]
            numbers = [source.load(*place, lanes=SUMS) for place in places]
            split = [_parts(builder, one, parts) for one in numbers]
            for part, (one, *others) in enumerate(zip(*split, strict=True)):
                if not others:
                    out.store(one, part, 0, first)
                    continue
                mask = [n + SUMS * e for n in range(SUMS) for e in range(PAIR)]
                out.store(vector.ShuffleOp(one, others[0], mask).result, part, 0, first, 0)

    return decl_tensor_intrin(c.op, emit, name=f"{name}_{lanes}_{parts}")


def _parts(builder: IntrinsicBuilder, value: ir.Value, parts: int) -> list[ir.Value]:
    """The parts of a vector of numbers; see `splitting.split`."""
    most, least = (builder.constant(sign * LARGEST, "f32", SUMS) for sign in (1.0, -1.0))
    made = []
    for left in reversed(range(parts)):
        held = value
        if left:
            for kind, bound in (("olt", least), ("ogt", most)):
                beyond = arith.CmpFOp(getattr(arith.CmpFPredicate, kind.upper()), value, bound)
                held = arith.SelectOp(beyond.result, bound, held).result
        made.append(builder.cast(held, "f32", "bf16"))
        value = arith.SubFOp(value, builder.cast(made[-1], "bf16", "f32")).result
    return made


def _clear(builder: IntrinsicBuilder, out: BufferView, m: int, lanes: int) -> None:
    zeros = builder.constant(0, "f32", SUMS)

    def row(at: ir.Value, _: list[ir.Value]) -> Sequence[ir.Value]:
        for first in range(0, lanes, SUMS):
            out.store(zeros, at, first)
        return ()

    builder.loop(m, 1, [], row)


class _SplitTile:
    """A tile of sums over so many groups of elements."""

    def __init__(
        self,
        builder: IntrinsicBuilder,
        left: BufferView,
        right: BufferView,
        out: BufferView,
        shape: tuple[int, int],
        groups: int,
        parts: int,
    ) -> None:
        self._builder, self._left, self._right, self._out = builder, left, right, out
        self._m, self._lanes = shape
        self._groups, self._parts = groups, parts
        rows, columns = range(0, self._m, ROWS), range(0, self._lanes, SUMS)
        self._sums = {(r, i): n for n, (r, i) in enumerate((r, i) for r in rows for i in columns)}
        first = len(self._sums)
        self._rows = {r: first + n for n, r in enumerate(rows)}
        self._columns = {i: first + len(rows) + n for n, i in enumerate(columns)}

    def by_unit(self, adds: bool) -> None:
        """Emit the code for the unit.

        Args:
            adds: to what is in memory.
        """
        high = min(self._m, ROWS)
        of_rows = dict.fromkeys([*self._sums.values(), *self._rows.values()], (high, ROW_BYTES))
        of_columns = dict.fromkeys(self._columns.values(), (GROUP // PAIR, ROW_BYTES))
        registers = configuration({**of_rows, **of_columns})
        before = shaped(self._builder, registers)
        if before != registers:
            call("ldtilecfg", in_memory(self._builder, registers))
        for place, register in self._sums.items():
            if adds:
                self._load(register, self._out, *place)
            else:
                call("tilezero", number(register))
        self._builder.loop(self._groups, 1, [], lambda at, _: self._group(at))
        for place, register in self._sums.items():
            where = self._out.pointer(*place)
            call("tilestored64", number(register), where, self._row_bytes(self._out))
        if before != registers:
            call("ldtilecfg", in_memory(self._builder, before))

    def _group(self, at: ir.Value) -> Sequence[ir.Value]:
        """What a group of elements adds to the sums."""
        before: tuple[int | None, int | None] = (None, None)
        for mine, its in PRODUCTS[self._parts]:
            if mine != before[0]:
                for first, register in self._rows.items():
                    self._load(register, self._left, at, mine, first, 0)
            if its != before[1]:
                for first, register in self._columns.items():
                    self._load(register, self._right, at, its, 0, first, 0)
            before = mine, its
            for (row, column), register in self._sums.items():
                factors = self._rows[row], self._columns[column]
                call("tdpbf16ps", *map(number, (register, *factors)))
        return ()

    def _load(self, register: int, view: BufferView, *place: int | ir.Value) -> None:
        call("tileloadd64", number(register), view.pointer(*place), self._row_bytes(view))

    def _row_bytes(self, view: BufferView) -> ir.Value:
        """Bytes from a row of a register to the next one."""
        by, size = (3, 2) if view is self._right else (2, 2 if view is self._left else 4)
        return word(view.strides[-by] * size)

    def in_vectors(self, adds: bool) -> None:
        """Emit the code without the unit: sums of parts, which are the numbers again, multiplied.

        Args:
            adds: to what is in memory.
        """
        columns = range(0, self._lanes, SUMS)

        def tile(row: ir.Value, _: list[ir.Value]) -> Sequence[ir.Value]:
            for first in columns:
                zeros = self._builder.constant(0, "f32", SUMS)
                start = self._out.load(row, first, lanes=SUMS) if adds else zeros
                self._out.store(self._in_vector(row, first, start), row, first)
            return ()

        self._builder.loop(self._m, 1, [], tile)

    def _in_vector(self, row: ir.Value, first: int, start: ir.Value) -> ir.Value:
        """A vector of sums of a row, from its first column on."""
        builder = self._builder

        def group(g: ir.Value, sums: list[ir.Value]) -> Sequence[ir.Value]:
            def pair(q: ir.Value, sums: list[ir.Value]) -> Sequence[ir.Value]:
                (total,) = sums
                place = arith.MulIOp(q, builder.index(PAIR)).result
                for e in range(PAIR):
                    at = arith.AddIOp(place, builder.index(e)).result
                    one = builder.splat(self._number(g, row, at), SUMS)
                    own = builder.multiply(one, self._numbers(g, q, first, e), "f32")
                    total = builder.add(total, own, "f32")
                return [total]

            return builder.loop(GROUP // PAIR, 1, sums, pair)

        (made,) = builder.loop(self._groups, 1, [start], group)
        return made

    def _number(self, group: ir.Value, row: ir.Value, at: ir.Value) -> ir.Value:
        """A number of the left operand."""
        parts = [self._left.load(group, s, row, at) for s in range(self._parts)]
        return self._sum([self._builder.cast(one, "bf16", "f32") for one in parts])

    def _numbers(self, group: ir.Value, pair: ir.Value, first: int, e: int) -> ir.Value:
        """Numbers of a row of the right operand."""
        parts = []
        for t in range(self._parts):
            both = self._right.load(group, t, pair, first, 0, lanes=PAIR * SUMS)
            own = vector.ShuffleOp(both, both, list(range(e, PAIR * SUMS, PAIR))).result
            parts.append(self._builder.cast(own, "bf16", "f32"))
        return self._sum(parts)

    def _sum(self, parts: Sequence[ir.Value]) -> ir.Value:
        # From the smallest on, which is exact.
        *more, total = parts
        for one in reversed(more):
            total = self._builder.add(total, one, "f32")
        return total
