"""Intrinsics for `tensorize`: products of small matrices by a processor's matrix unit (AMX of x86).

The unit has eight registers of up to 16 rows of 64 bytes each. Linux lets a process use it that has
asked for it (`arch_prctl(ARCH_REQ_XCOMP_PERM)`): a kernel asks itself, once for each process, and
computes the same by dot products in vectors where that is refused.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18; Linux,
Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, scf

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

__all__ = ["MATRIX_EXTENSIONS", "bf16_matrix", "byte_matrix"]

# Linux: the call, what is asked for and the state of the unit's registers.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# What is known of it.
_GRANTED, _REFUSED = 1, 2
_FLAG = "tilewright_matrix_unit"
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
        builder.branch(_granted(builder), lambda: tile.emit(phase == UPDATE), in_vectors)

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
        self.sums = {place: number for number, place in enumerate(places)}
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
        high, wide = zip(*(self._shapes.get(i, (0, 0)) for i in range(16)), strict=True)
        return struct.pack("<2B14x16H16B", 1, 0, *wide, *high)


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
        shaped = _shaped(self.builder, own.shapes)
        if shaped != own.shapes:
            _call("ldtilecfg", _in_memory(self.builder, own.shapes))
        for (first, i), register in own.sums.items():
            if adds:
                self._load(register, self.out, 4, first, i * SUMS)
            else:
                _call("tilezero", _byte(register))
        for register in own.zeros:
            _call("tilezero", _byte(register))
        if own.zeros:
            same = _in_memory(self.builder, bytes([self.zero % 256]) * ROW_BYTES)
            _call("tileloadd64", _byte(own.zero), same, _word(ROW_BYTES))
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
        if shaped != own.shapes:
            _call("ldtilecfg", _in_memory(self.builder, shaped))
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
        _call(self.unit.instruction.removeprefix("llvm.x86."), *map(_byte, (sums, left, right)))

    def _row_bytes(self, view: BufferView, size: int) -> ir.Value:
        """Bytes from a row of a register to the next one, in a buffer of a tile's."""
        if view is self.left and self.window is not None:
            return _word(self.window[1] * size)
        # Rows of b are groups, each with all sums of a row beside each other; one has no next.
        by = 3 if view is self.right else 2
        strides = view.strides
        return _word((strides[-by] if len(strides) >= by else 0) * size)

    def _load(self, register: int, view: BufferView, size: int, *place: int | ir.Value) -> None:
        where = view.pointer(*place)
        _call("tileloadd64", _byte(register), where, self._row_bytes(view, size))

    def _store(self, register: int, view: BufferView, *place: int | ir.Value) -> None:
        where = view.pointer(*place)
        _call("tilestored64", _byte(register), where, self._row_bytes(view, 4))

    def _stored(self, register: int) -> ir.Value:
        """The one row of a register."""
        space = _in_memory(self.builder, bytes(ROW_BYTES), f"row {register}")
        _call("tilestored64", _byte(register), space, _word(ROW_BYTES))
        return llvm.LoadOp(self.builder.vector_type("i32", SUMS), space).result


def _call(name: str, *operands: ir.Value) -> None:
    llvm.CallIntrinsicOp(None, f"llvm.x86.{name}", list(operands), [], [])


def _shaped(builder: IntrinsicBuilder, registers: bytes) -> bytes:
    """Which shapes the unit's registers have from the kernel's beginning on: to tell them takes
    longer than a product, so that the first tile's are told once. The unit is given back at the
    end: what is in its registers is kept and restored with a thread's others otherwise."""

    def tell() -> bytes:
        granted, where = _granted(builder), _in_memory(builder, registers)
        with ir.InsertionPoint(_only_if(granted)):
            _call("ldtilecfg", where)

        def give_back() -> None:
            with ir.InsertionPoint(_only_if(granted)):
                _call("tilerelease")

        builder.at_end(give_back)
        return registers

    return builder.at_first("matrix unit's shapes", tell)


def _only_if(condition: ir.Value) -> ir.Operation:
    """Where what is done goes if something holds: before this operation."""
    with ir.InsertionPoint(scf.IfOp(condition).then_block):
        return scf.YieldOp([]).operation


def _in_memory(builder: IntrinsicBuilder, data: bytes, name: str = "") -> ir.Value:
    """A pointer to memory of a kernel's with these bytes, as it is when the kernel begins."""

    def make() -> ir.Value:
        byte = ir.IntegerType.get_signless(8)
        type_ = ir.VectorType.get([len(data)], byte)
        elements = [ir.IntegerAttr.get(byte, one - 256 * (one > 127)) for one in data]
        value = llvm.ConstantOp(type_, ir.DenseElementsAttr.get(elements, type_)).result
        space = llvm.AllocaOp(llvm.PointerType.get(), _word(1), type_, alignment=len(data)).result
        llvm.StoreOp(value, space)
        return space

    return builder.at_first(("matrix unit", name, data), make)


def _byte(value: int) -> ir.Value:
    """The number of a register."""
    return arith.ConstantOp(ir.IntegerType.get_signless(8), value).result


def _word(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(64), value).result


def _monotonic() -> ir.Attribute:
    """LLVM's order of accesses that are atomic, and no more."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 2)


def _granted(builder: IntrinsicBuilder) -> ir.Value:
    """Whether the process may use the unit's registers: asked of Linux by its first kernel."""

    def make() -> ir.Value:
        word = ir.IntegerType.get_signless(64)
        pointer = llvm.PointerType.get()
        flag = llvm.AddressOfOp(pointer, builder.global_word(_FLAG)).result
        # Two threads may both ask, and write the same down.
        known = llvm.LoadOp(word, flag, alignment=8, ordering=_monotonic()).result
        unknown = arith.CmpIOp(arith.CmpIPredicate.eq, known, _word(0)).result
        asked = scf.IfOp(unknown, [word], has_else=True)
        with ir.InsertionPoint(asked.then_block):
            answer = llvm.InlineAsmOp(
                word,
                [_word(_ARCH_PRCTL), _word(_REQUEST_PERMISSION), _word(_TILE_DATA)],
                "syscall",
                "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}",
                has_side_effects=True,
            ).result
            given = arith.CmpIOp(arith.CmpIPredicate.eq, answer, _word(0)).result
            found = arith.SelectOp(given, _word(_GRANTED), _word(_REFUSED)).result
            llvm.StoreOp(found, flag, alignment=8, ordering=_monotonic())
            scf.YieldOp([found])
        with ir.InsertionPoint(asked.else_block):
            scf.YieldOp([known])
        return arith.CmpIOp(arith.CmpIPredicate.eq, asked.results[0], _word(_GRANTED)).result

    return builder.at_first("matrix unit", make)
