"""Intrinsics for `tensorize`: products of small matrices by a processor's matrix unit (AMX of x86).

Where a process may not use the unit a kernel computes the same by dot products in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm

from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.dot_products import (
    BF16,
    BYTES,
    Dot,
    bf16_dot,
    byte_dot,
    dot_computation,
    tile_name,
)
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.intrinsic import RESET, UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.matrix_shapes import MOST_TILES, ROW_BYTES, ROWS, SUMS, tiles_taken
from tilewright.schedule.matrix_unit import (
    call,
    configuration,
    granted,
    in_memory,
    number,
    shaped,
    word,
)

__all__ = ["MATRIX_EXTENSIONS", "bf16_matrix", "byte_matrix"]

#: By LLVM's name of an instruction the extensions of a processor, any of which brings it.
MATRIX_EXTENSIONS: dict[str, tuple[str, ...]] = {
    "llvm.x86.tdpbusd": ("amx-int8",),
    "llvm.x86.tdpbssd": ("amx-int8",),
    "llvm.x86.tdpbf16ps": ("amx-bf16",),
}


def byte_matrix(
    lanes: int = 16,
    k: int = 64,
    m: int = 16,
    zero: int = 0,
    unsigned: bool = False,
    window: tuple[int, int] | None = None,
) -> TensorIntrinsic:
    """What `byte_dot` computes, by AMX, which multiplies bytes with and without a sign.

    Args:
        lanes: of c: a multiple of 16.
        k: length of the sums, a multiple of 4; fastest where a multiple of 64.
        m: rows, two at least.
        zero: of a byte: what stands for 0 in a.
        unsigned: whether a's bytes are without a sign.
        window: lines of a window, and how far neighbouring rows are apart in a line of a.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers, or for more than the unit's registers hold.

        s[C].tensorize(row, te.intrinsics.byte_matrix(32, 64, 32))
    """
    _check("byte_matrix", BYTES, lanes, k, m, zero)
    one = byte_dot(_vector(lanes), k, 1, zero, unsigned, window)
    instruction = "llvm.x86.tdpbusd" if unsigned else "llvm.x86.tdpbssd"
    unit = _Unit("byte_matrix", instruction, BYTES, one)
    return _matrix(unit, lanes, k, m, zero, unsigned, window)


def bf16_matrix(lanes: int = 16, k: int = 32, m: int = 16) -> TensorIntrinsic:
    """What `bf16_dot` computes, by AMX.

    Args:
        lanes: of c: a multiple of 16.
        k: length of the sums, a multiple of 2; fastest where a multiple of 32.
        m: rows, two at least.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers, or for more than the unit's registers hold.

        s[C].tensorize(row, te.intrinsics.bf16_matrix(32, 64, 32))
    """
    _check("bf16_matrix", BF16, lanes, k, m)
    unit = _Unit("bf16_matrix", "llvm.x86.tdpbf16ps", BF16, bf16_dot(_vector(lanes), k))
    return _matrix(unit, lanes, k, m)


@dataclass(frozen=True)
class _Unit:
    """What multiplies: the intrinsic's name, LLVM's name of the instruction, what it computes, and
    the intrinsic that computes one or two vectors of sums of a row without the unit."""

    name: str
    instruction: str
    dot: Dot
    row: TensorIntrinsic

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 // self.dot.group


def _vector(lanes: int) -> int:
    return 2 * SUMS if lanes % (2 * SUMS) == 0 else SUMS


def _check(name: str, dot: Dot, lanes: int, k: int, m: int, zero: int = 0) -> None:
    """Raise ScheduleError for a tile that is none of the unit's."""
    if lanes % SUMS or lanes < SUMS or m < 2 or k < 1 or k % dot.group:
        raise ScheduleError(
            f"{name}: lanes={lanes}, k={k}, m={m}; lanes must be a multiple of {SUMS}, k must be a "
            f"multiple of {dot.group} and m at least 2"
        )
    taken = tiles_taken(m, lanes, zero != 0)
    if taken > MOST_TILES:
        raise ScheduleError(
            f"{name}: {m}x{lanes} sums and what they are computed from take {taken} registers of "
            f"{MOST_TILES}"
        )


def _matrix(
    unit: _Unit,
    lanes: int,
    k: int,
    m: int,
    zero: int = 0,
    unsigned: bool = False,
    window: tuple[int, int] | None = None,
) -> TensorIntrinsic:
    """The intrinsic of a unit for a tile of m rows, `lanes` wide, over k elements."""
    c = dot_computation(unit.dot, lanes, k // unit.dot.group, m, (zero, unsigned), window)
    name = tile_name(unit.name, (m, lanes, k), (zero, unsigned), window)

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        (out,) = outputs

        def in_vectors() -> None:
            _in_vectors(builder, unit, phase, inputs, out, (m, lanes), window)

        if phase == RESET:
            in_vectors()
            return
        if not builder.machine.features & frozenset(MATRIX_EXTENSIONS[unit.instruction]):
            raise builder.unsupported(unit.name, "a matrix unit (AMX)")
        left, right = inputs
        tile = _Tile(builder, unit, left, right, out, (m, lanes), k, zero, window)
        builder.branch(granted(builder), lambda: tile.emit(phase == UPDATE), in_vectors)

    return decl_tensor_intrin(c.op, emit, name=name)


def _in_vectors(
    builder: IntrinsicBuilder,
    unit: _Unit,
    phase: str,
    inputs: Sequence[BufferView],
    out: BufferView,
    shape: tuple[int, int],
    window: tuple[int, int] | None,
) -> None:
    """A tile of sums, of such a shape, without the unit, row by row."""
    m, lanes = shape
    wide = _vector(lanes)

    def row(at: ir.Value, _: list[ir.Value]) -> Sequence[ir.Value]:
        for first in range(0, lanes, wide):
            given = []
            if inputs:
                left, right = inputs
                if window is None:
                    mine = left.from_(at, 0, rank=1)
                else:
                    mine = left.from_(0, arith.MulIOp(at, builder.index(window[1])).result)
                given = [mine, right.from_(first, 0)]
            unit.row.emit(builder, phase, given, [out.from_(at, first, rank=1)])
        return ()

    builder.loop(m, 1, [], row)


class _Registers:
    """Which registers of the unit a tile of sums takes, and their shapes.

    firsts: the first row of each register with rows; where rows are no equal tiles the last ones
    overlap, and compute the same. span: bytes of a row that are multiplied at once. sums: by first
    row and column of registers. right: by column; one for all where there is one register of rows,
    for which each is needed once. zero, zeros: with what stands for 0, and what that adds to the
    sums of any row, by column; none where that is 0.
    """

    def __init__(self, m: int, lanes: int, depth_bytes: int, zero: int) -> None:
        high, wide = -(-m // ROWS), lanes // SUMS
        rows = -(-m // high)
        self.firsts = [min(i * rows, m - rows) for i in range(high)]
        self.span = max(n for n in range(4, ROW_BYTES + 1, 4) if depth_bytes % n == 0)
        places = [(first, i) for first in self.firsts for i in range(wide)]
        self.sums = {place: i for i, place in enumerate(places)}
        self.left = len(places)
        self.right = [self.left + 1 + (i if high > 1 else 0) for i in range(wide)]
        self.zero = self.right[-1] + 1
        self.zeros = [self.zero + 1 + i for i in range(wide)] if zero else []
        self._shapes = dict.fromkeys(self.sums.values(), (rows, ROW_BYTES))
        self._shapes[self.left] = rows, self.span
        self._shapes |= dict.fromkeys(self.right, (self.span // 4, ROW_BYTES))
        if zero:
            self._shapes[self.zero] = 1, self.span
            self._shapes |= dict.fromkeys(self.zeros, (1, ROW_BYTES))

    @property
    def shapes(self) -> bytes:
        """As the unit is told: a palette, bytes of a row and rows of each register."""
        return configuration(self._shapes)


@dataclass(frozen=True)
class _Tile:
    """A tile of sums by the unit, over k elements."""

    builder: IntrinsicBuilder
    unit: _Unit
    left: BufferView
    right: BufferView
    out: BufferView
    shape: tuple[int, int]
    k: int
    zero: int
    window: tuple[int, int] | None

    def emit(self, adds: bool) -> None:
        """Emit the code.

        Args:
            adds: to what is in memory.
        """
        own = _Registers(*self.shape, self.k * self.unit.size, self.zero)
        before = shaped(self.builder, own.shapes)
        if before != own.shapes:
            call("ldtilecfg", in_memory(self.builder, own.shapes))
        for (first, i), register in own.sums.items():
            if adds:
                self._load(register, self.out, 4, first, i * SUMS)
            else:
                call("tilezero", number(register))
        for register in own.zeros:
            call("tilezero", number(register))
        if own.zeros:
            same = in_memory(self.builder, bytes([self.zero % 256]) * ROW_BYTES)
            call("tileloadd64", number(own.zero), same, word(ROW_BYTES))
        steps = self.k * self.unit.size // own.span

        def line(at: tuple[ir.Value, ...]) -> Sequence[ir.Value]:
            self.builder.loop(steps, 1, [], lambda step, _: self._step(own, at, step))
            return ()

        if self.window is None:
            line(())
        else:
            self.builder.loop(self.window[0], 1, [], lambda at, _: line((at,)))
        for (first, i), register in own.sums.items():
            self._store(register, self.out, first, i * SUMS)
        less = [self._stored(register) for register in own.zeros]
        if before != own.shapes:
            call("ldtilecfg", in_memory(self.builder, before))
        self._take_off(less)

    def _step(
        self, own: _Registers, line: tuple[ir.Value, ...], at: ir.Value
    ) -> Sequence[ir.Value]:
        """What as many bytes of each row as a register has add to the sums."""
        one = len(own.firsts) == 1
        if one:
            self._rows(own, line, at, 0)
        group = arith.MulIOp(at, self.builder.index(own.span // 4)).result
        groups = () if self.k == self.unit.dot.group and not line else (group,)
        for i, register in enumerate(own.right):
            self._load(register, self.right, self.unit.size, *line, *groups, i * SUMS, 0)
            if own.zeros:
                self._multiply(own.zeros[i], own.zero, register)
            if one:
                self._multiply(own.sums[0, i], own.left, register)
        for first in () if one else own.firsts:
            self._rows(own, line, at, first)
            for i, register in enumerate(own.right):
                self._multiply(own.sums[first, i], own.left, register)
        return ()

    def _rows(self, own: _Registers, line: tuple[ir.Value, ...], at: ir.Value, first: int) -> None:
        """Read a register of rows."""
        place = arith.MulIOp(at, self.builder.index(own.span // self.unit.size)).result
        if self.window is None:
            self._load(own.left, self.left, self.unit.size, first, place)
        else:
            moved = self.builder.index(first * self.window[1])
            place = arith.AddIOp(place, moved).result
            self._load(own.left, self.left, self.unit.size, *line, place)

    def _take_off(self, less: Sequence[ir.Value]) -> None:
        """Take off of the sums of all rows what stands for 0 has added."""
        if not less:
            return

        def row(at: ir.Value, _: list[ir.Value]) -> Sequence[ir.Value]:
            for i, one in enumerate(less):
                was = self.out.load(at, i * SUMS, lanes=SUMS)
                self.out.store(arith.SubIOp(was, one).result, at, i * SUMS)
            return ()

        self.builder.loop(self.shape[0], 1, [], row)

    def _multiply(self, sums: int, left: int, right: int) -> None:
        call(self.unit.instruction.removeprefix("llvm.x86."), *map(number, (sums, left, right)))

    def _row_bytes(self, view: BufferView, size: int) -> ir.Value:
        """Bytes from a row of a register to the next one, in a buffer of a tile's."""
        if view is self.left and self.window is not None:
            return word(self.window[1] * size)
        # Rows of b are groups, each with all sums of a row beside each other; one has no next.
        by = 3 if view is self.right else 2
        strides = view.strides
        return word((strides[-by] if len(strides) >= by else 0) * size)

    def _load(self, register: int, view: BufferView, size: int, *place: int | ir.Value) -> None:
        where = view.pointer(*place)
        call("tileloadd64", number(register), where, self._row_bytes(view, size))

    def _store(self, register: int, view: BufferView, *place: int | ir.Value) -> None:
        where = view.pointer(*place)
        call("tilestored64", number(register), where, self._row_bytes(view, 4))

    def _stored(self, register: int) -> ir.Value:
        """The one row of a register."""
        space = in_memory(self.builder, bytes(ROW_BYTES), f"row {register}")
        call("tilestored64", number(register), space, word(ROW_BYTES))
        return llvm.LoadOp(self.builder.vector_type("i32", SUMS), space).result
