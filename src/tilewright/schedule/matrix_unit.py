"""A processor's matrix unit (AMX of x86) in kernels: its instructions, the shapes of its
registers, and the permission to use it.

The unit has eight registers of up to 16 rows of 64 bytes each. Linux lets a process use it that has
asked for it (`arch_prctl(ARCH_REQ_XCOMP_PERM)`): a kernel asks itself, once for each process.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18; Linux,
Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, scf

from tilewright.schedule.codegen.view import IntrinsicBuilder

# Linux: the call, what is asked for and the state of the unit's registers.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# What is known of it.
_GRANTED, _REFUSED = 1, 2
_FLAG = "tilewright_matrix_unit"


def configuration(shapes: Mapping[int, tuple[int, int]]) -> bytes:
    """Shapes of registers as the unit is told them.

    Args:
        shapes: rows and bytes of a row, by register.
    """
    high, wide = zip(*(shapes.get(i, (0, 0)) for i in range(16)), strict=True)
    return struct.pack("<2B14x16H16B", 1, 0, *wide, *high)


def call(name: str, *operands: ir.Value) -> None:
    """An instruction of the unit.

    Args:
        name: LLVM's, without what its names of x86 begin with.
        operands: that it takes.
    """
    llvm.CallIntrinsicOp(None, f"llvm.x86.{name}", list(operands), [], [])


def shaped(builder: IntrinsicBuilder, registers: bytes) -> bytes:
    """Which shapes the unit's registers have from the kernel's beginning on: to tell them takes
    longer than a product, so that the first tile's are told once. The unit is given back at the
    end: what is in its registers is kept and restored with a thread's others otherwise.

    Args:
        builder: of the kernel.
        registers: of a tile, see `configuration`.

    Returns:
        Those of the kernel's first tile.
    """

    def tell() -> bytes:
        allowed, where = granted(builder), in_memory(builder, registers)
        with ir.InsertionPoint(_only_if(allowed)):
            call("ldtilecfg", where)

        def give_back() -> None:
            with ir.InsertionPoint(_only_if(allowed)):
                call("tilerelease")

        builder.at_end(give_back)
        return registers

    return builder.at_first("matrix unit's shapes", tell)


def _only_if(condition: ir.Value) -> ir.Operation:
    """Where what is done goes if something holds: before this operation."""
    with ir.InsertionPoint(scf.IfOp(condition).then_block):
        return scf.YieldOp([]).operation


def in_memory(builder: IntrinsicBuilder, data: bytes, name: str = "") -> ir.Value:
    """A pointer to memory of a kernel's with some bytes, as it is when the kernel begins.

    Args:
        builder: of the kernel.
        data: the bytes, as many as a power of two.
        name: of memory that is written to.
    """

    def make() -> ir.Value:
        byte = ir.IntegerType.get_signless(8)
        type_ = ir.VectorType.get([len(data)], byte)
        elements = [ir.IntegerAttr.get(byte, one - 256 * (one > 127)) for one in data]
        value = llvm.ConstantOp(type_, ir.DenseElementsAttr.get(elements, type_)).result
        space = llvm.AllocaOp(llvm.PointerType.get(), word(1), type_, alignment=len(data)).result
        llvm.StoreOp(value, space)
        return space

    return builder.at_first(("matrix unit", name, data), make)


def number(value: int) -> ir.Value:
    """The number of a register.

    Args:
        value: the number.
    """
    return arith.ConstantOp(ir.IntegerType.get_signless(8), value).result


def further(pointer: ir.Value, size: int) -> ir.Value:
    """A pointer so many bytes further on.

    Args:
        pointer: to memory.
        size: bytes.
    """
    byte = ir.IntegerType.get_signless(8)
    return llvm.GEPOp(llvm.PointerType.get(), pointer, [], [size], byte, None).result


def prefetch(pointer: ir.Value) -> None:
    """Fetch what will be read into the first-level cache; it need not be memory of the kernel's.

    Args:
        pointer: to it.
    """
    short = ir.IntegerType.get_signless(32)
    how = (arith.ConstantOp(short, one).result for one in (0, 3, 1))
    llvm.CallIntrinsicOp(None, "llvm.prefetch", [pointer, *how], [], [])


def word(value: int) -> ir.Value:
    """A number of 64 bits.

    Args:
        value: the number.
    """
    return arith.ConstantOp(ir.IntegerType.get_signless(64), value).result


def _monotonic() -> ir.Attribute:
    """LLVM's order of accesses that are atomic, and no more."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 2)


def granted(builder: IntrinsicBuilder) -> ir.Value:
    """Whether the process may use the unit's registers: asked of Linux by its first kernel.

    Args:
        builder: of the kernel.
    """

    def make() -> ir.Value:
        long = ir.IntegerType.get_signless(64)
        pointer = llvm.PointerType.get()
        flag = llvm.AddressOfOp(pointer, builder.global_word(_FLAG)).result
        # Two threads may both ask, and write the same down.
        known = llvm.LoadOp(long, flag, alignment=8, ordering=_monotonic()).result
        unknown = arith.CmpIOp(arith.CmpIPredicate.eq, known, word(0)).result
        asked = scf.IfOp(unknown, [long], has_else=True)
        with ir.InsertionPoint(asked.then_block):
            answer = llvm.InlineAsmOp(
                long,
                [word(_ARCH_PRCTL), word(_REQUEST_PERMISSION), word(_TILE_DATA)],
                "syscall",
                "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}",
                has_side_effects=True,
            ).result
            given = arith.CmpIOp(arith.CmpIPredicate.eq, answer, word(0)).result
            found = arith.SelectOp(given, word(_GRANTED), word(_REFUSED)).result
            llvm.StoreOp(found, flag, alignment=8, ordering=_monotonic())
            scf.YieldOp([found])
        with ir.InsertionPoint(asked.else_block):
            scf.YieldOp([known])
        return arith.CmpIOp(arith.CmpIPredicate.eq, asked.results[0], word(_GRANTED)).result

    return builder.at_first("matrix unit", make)
