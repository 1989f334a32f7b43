"""Intrinsics for `tensorize`: products of f32 matrices by a matrix unit for bf16 (AMX).

An f32 number is the sum of three of bf16, whose significands have 8 bits each (`split`), but for
what is smaller than a 2^-24th of it. Of the nine products of their parts those count that are
larger than a 2^-24th of the first: six; of two parts, with a 2^-16th, three; of one, which has all
of a number of bf16, one. All are added up in f32, as the products of f32 would be. What operands
are split by stands in `split_operands`.

Source: G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

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
    further,
    granted,
    in_memory,
    number,
    prefetch,
    shaped,
    word,
)
from tilewright.schedule.splitting import GROUP, PAIR, PRODUCTS, Taps, products
from tilewright.schedule.tensor import compute, placeholder, reduce_axis

__all__ = ["split_matrix"]

_INSTRUCTION = "llvm.x86.tdpbf16ps"
# Taps of the last dimension of a window that are written out, each with its own products.
_UNROLLED = 8
# A number that is known, or a value.
Place: TypeAlias = "int | ir.Value"


def split_matrix(
    lanes: int = 32,
    groups: int = 1,
    m: int = 32,
    parts: int = 3,
    window: Sequence[Taps] = (),
    *,
    every: bool = False,
) -> TensorIntrinsic:
    """`c[r, 16 v + i] += sum of a[g, s, r, 2 q + e] * b[g, t, v, q, i, e]` of the parts `s` and `t`
    of f32 numbers, which are bf16, added up in f32, by AMX; of the pairs of parts those whose
    products matter (see the module) are multiplied. With a window, b has a dimension for each of
    its taps behind g, and they, too, are summed over: a is read as many rows further on as their
    offsets are together.

    Parts and products smaller than 1.2e-38 are taken for 0. Products of parts, not of numbers, are
    rounded to f32: where a product of numbers overflows, the sum may be NaN instead of infinite.

    Args:
        lanes: of c: a multiple of 16.
        groups: of 32 elements, that the sums are over.
        m: rows: 2 to 16, or equal parts of up to 16 each.
        parts: that each number is split into: 1 to 3.
        window: for each of its dimensions its taps.
        every: whether the products of all parts are added up.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers, or for more than the unit's registers hold.

        s[C].tensorize(row, te.intrinsics.split_matrix(32, 4, 32))
    """
    if lanes % SUMS or lanes < SUMS or m < 2 or m % -(-m // ROWS) or groups < 1:
        raise ScheduleError(
            f"split_matrix: lanes={lanes}, groups={groups}, m={m}; lanes must be a multiple of "
            f"{SUMS}, m from 2 to {ROWS} or equal parts of up to {ROWS}, and groups at least 1"
        )
    if parts not in PRODUCTS:
        raise ScheduleError(f"split_matrix: {parts} parts (allowed: 1 to 3)")
    taken = split_tiles_taken(m, lanes)
    if taken > MOST_TILES:
        raise ScheduleError(
            f"split_matrix: {m}x{lanes} sums and what they are computed from take {taken} "
            f"registers of {MOST_TILES}"
        )
    reach, taps = sum(one.most for one in window), [one.count for one in window]
    a = placeholder((groups, parts, m + reach, GROUP), "bf16", name="a")
    wide = lanes // SUMS
    b = placeholder((groups, *taps, parts, wide, GROUP // PAIR, SUMS, PAIR), "bf16", name="b")
    g, q, e = reduce_axis(groups, "g"), reduce_axis(GROUP // PAIR, "q"), reduce_axis(PAIR, "e")
    s, t = reduce_axis(parts, "s"), reduce_axis(parts, "t")
    over = [reduce_axis(count, f"w{i}") for i, count in enumerate(taps)]

    def element(row: Expr, lane: Expr) -> Expr:
        for one, tap in zip(window, over, strict=True):
            row = row + one.offset(tap)
        left, right = a[g, s, row, q * PAIR + e], b[(g, *over, t, lane // SUMS, q, lane % SUMS, e)]
        axes = [g, *over, q, e, s, t]
        total: Expr = functions.sum(cast("f32", left) * cast("f32", right), axis=axes)
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
        tile = _SplitTile(builder, left, right, out, (m, lanes), groups, parts, window, every)
        adds = phase == UPDATE
        builder.branch(granted(builder), lambda: tile.by_unit(adds), lambda: tile.in_vectors(adds))

    name = f"split_matrix_{m}x{lanes}x{groups}_{parts}{'e' * every}"
    for one in window:
        name += f"_{one.count}d{one.dilation}s{one.stride}x{one.step}p{one.phase}"
    return decl_tensor_intrin(c.op, emit, name=name)


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
        window: Sequence[Taps],
        every: bool,
    ) -> None:
        self._builder, self._left, self._right, self._out = builder, left, right, out
        self._m, self._lanes = shape
        self._groups, self._parts, self._window = groups, parts, tuple(window)
        self._products_of = products(parts, every)
        self._high = self._m // -(-self._m // ROWS)
        rows, columns = range(0, self._m, self._high), range(0, self._lanes, SUMS)
        self._sums = {(r, i): n for n, (r, i) in enumerate((r, i) for r in rows for i in columns)}
        first = len(self._sums)
        self._rows = {r: first + n for n, r in enumerate(rows)}
        self._columns = {i: first + len(rows) + n for n, i in enumerate(columns)}

    def by_unit(self, adds: bool) -> None:
        """Emit the code for the unit.

        Args:
            adds: to what is in memory.
        """
        shape = self._high, ROW_BYTES
        of_rows = dict.fromkeys([*self._sums.values(), *self._rows.values()], shape)
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
        self._builder.loop(self._groups, 1, [], lambda at, _: self._taps(at, [], self._products))
        for place, register in self._sums.items():
            where = self._out.pointer(*place)
            call("tilestored64", number(register), where, self._row_bytes(self._out))
        if before != registers:
            call("ldtilecfg", in_memory(self._builder, before))

    def _taps(
        self,
        group: ir.Value,
        taps: Sequence[Place],
        each: Callable[[ir.Value, Sequence[Place], Sequence[ir.Value]], Sequence[ir.Value]],
        sums: Sequence[ir.Value] = (),
    ) -> Sequence[ir.Value]:
        """What is done for each tap of the dimensions that are left, with what it makes of sums."""
        left = self._window[len(taps) :]
        if not left:
            return each(group, taps, sums)
        if len(left) > 1 or left[0].count > _UNROLLED:
            return self._builder.loop(
                left[0].count,
                1,
                list(sums),
                lambda tap, now: self._taps(group, [*taps, tap], each, now),
            )
        for tap in range(left[0].count):
            sums = each(group, [*taps, tap], sums)
        return sums

    def _row(self, first: Place, taps: Sequence[Place]) -> Place:
        """The row of the left operand that taps read for a row of the sums."""
        for one, tap in zip(self._window, taps, strict=True):
            offset = one.offset(tap) if isinstance(tap, int) else self._offset(one, tap)
            if isinstance(first, int) and isinstance(offset, int):
                first += offset
            else:
                first = arith.AddIOp(self._index(first), self._index(offset)).result
        return first

    def _offset(self, taps: Taps, tap: ir.Value) -> ir.Value:
        def times(value: ir.Value, by: int) -> ir.Value:
            return arith.MulIOp(value, self._index(by)).result

        if taps.stride == 1:
            return times(tap, taps.dilation * taps.step)
        place, stride = times(tap, taps.dilation), self._index(taps.stride)
        phase = times(arith.RemUIOp(place, stride).result, taps.phase)
        return arith.AddIOp(phase, times(arith.DivUIOp(place, stride).result, taps.step)).result

    def _index(self, value: Place) -> ir.Value:
        return self._builder.index(value) if isinstance(value, int) else value

    def _products(
        self, group: ir.Value, taps: Sequence[Place], _: Sequence[ir.Value]
    ) -> Sequence[ir.Value]:
        """What a group of elements adds to the sums at a tap."""
        before: tuple[int | None, int | None] = (None, None)
        lines = self._lines_ahead(group, taps)
        each = -(-len(lines) // len(self._products_of) // len(self._sums))
        ahead = iter(lines)
        for mine, its in self._products_of:
            if mine != before[0]:
                for first, register in self._rows.items():
                    self._load(register, self._left, group, mine, self._row(first, taps), 0)
            if its != before[1]:
                for first, register in self._columns.items():
                    vector_ = first // SUMS
                    self._load(register, self._right, group, *taps, its, vector_, 0, 0, 0)
            before = mine, its
            for (row, column), register in self._sums.items():
                factors = self._rows[row], self._columns[column]
                call("tdpbf16ps", *map(number, (register, *factors)))
                for pointer, size in itertools.islice(ahead, each):
                    prefetch(further(pointer, size))
        return ()

    def _lines_ahead(self, group: ir.Value, taps: Sequence[Place]) -> list[tuple[ir.Value, int]]:
        """Where what is multiplied next begins, by the lines of the cache: the unit has too few
        registers to load it from the second one while it multiplies. The columns of the next group
        or tap lie behind these; rows of the next tap are mostly those of this one."""
        size = self._parts * GROUP * self._lanes * 2
        here = self._right.pointer(group, *taps, 0, 0, 0, 0, 0)
        lines = [(here, size + place) for place in range(0, size, ROW_BYTES)]
        if not self._window:
            step = self._left.strides[-4] * 2
            for part in range(self._parts):
                rows = self._left.pointer(group, part, 0, 0)
                lines += [(rows, step + place * ROW_BYTES) for place in range(self._m)]
        return lines

    def _load(self, register: int, view: BufferView, *place: Place) -> None:
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

        def group(
            g: ir.Value, taps: Sequence[Place], sums: Sequence[ir.Value]
        ) -> Sequence[ir.Value]:
            own_row = self._row(row, taps)

            def pair(q: ir.Value, sums: list[ir.Value]) -> Sequence[ir.Value]:
                (total,) = sums
                place = arith.MulIOp(q, builder.index(PAIR)).result
                for e in range(PAIR):
                    at = arith.AddIOp(place, builder.index(e)).result
                    one = builder.splat(self._number(g, own_row, at), SUMS)
                    own = builder.multiply(one, self._numbers((g, *taps), q, first, e), "f32")
                    total = builder.add(total, own, "f32")
                return [total]

            return builder.loop(GROUP // PAIR, 1, list(sums), pair)

        (made,) = builder.loop(
            self._groups, 1, [start], lambda g, sums: self._taps(g, [], group, sums)
        )
        return made

    def _number(self, group: ir.Value, row: Place, at: ir.Value) -> ir.Value:
        """A number of the left operand."""
        parts = [self._left.load(group, s, row, at) for s in range(self._parts)]
        return self._sum([self._builder.cast(one, "bf16", "f32") for one in parts])

    def _numbers(self, where: Sequence[Place], pair: ir.Value, first: int, e: int) -> ir.Value:
        """Numbers of a row of the right operand, of a group at a tap."""
        parts = []
        for t in range(self._parts):
            both = self._right.load(*where, t, first // SUMS, pair, 0, 0, lanes=PAIR * SUMS)
            own = vector.ShuffleOp(both, both, list(range(e, PAIR * SUMS, PAIR))).result
            parts.append(self._builder.cast(own, "bf16", "f32"))
        return self._sum(parts)

    def _sum(self, parts: Sequence[ir.Value]) -> ir.Value:
        # From the smallest on, which is exact.
        *more, total = parts
        for one in reversed(more):
            total = self._builder.add(total, one, "f32")
        return total
