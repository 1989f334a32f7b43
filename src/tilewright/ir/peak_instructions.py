"""The instructions that a processor's peak is measured with, and the kernels made of them: data.

The kernels are built in :mod:`tilewright.ir.peak_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.argument import ArgumentType


@dataclass(frozen=True)
class Form:
    """An instruction in one width: bytes of its vectors, and LLVM's name where it has no op.

    feature: what LLVM calls the extension that brings it; '' for what every processor has.
    """

    bytes: int
    feature: str = ""
    intrinsic: str = ""


@dataclass(frozen=True)
class Instruction:
    """An instruction that may set the peak of an element type.

    name: in words. element_type: of the operands. accumulator: element type that it adds up in.
    operations: by one execution, for each lane of the accumulator. kind: how it is written, a key
    of the emitters below. forms: those it comes in; none: any width. features: one of these is
    needed, in any width.
    """

    name: str
    element_type: str
    accumulator: str
    operations: int
    kind: str
    forms: tuple[Form, ...] = ()
    features: tuple[str, ...] = ()


def _dot(*names: tuple[int, str, str]) -> tuple[Form, ...]:
    return tuple(Form(size, feature, f"llvm.{name}") for size, feature, name in names)


# Matrix units that IREE does not generate code for (AMX, SME) are left out on purpose.
INSTRUCTIONS: tuple[Instruction, ...] = (
    Instruction("fused multiply-add", "f32", "f32", 2, "fma"),
    Instruction("fused multiply-add", "f64", "f64", 2, "fma"),
    Instruction("fused multiply-add", "f16", "f16", 2, "fma", features=("avx512fp16", "fullfp16")),
    Instruction(
        "dot product of pairs",
        "bf16",
        "f32",
        4,
        "dot",
        _dot(
            (64, "avx512bf16", "x86.avx512bf16.dpbf16ps.512"),
            (32, "avx512bf16", "x86.avx512bf16.dpbf16ps.256"),
            (16, "bf16", "aarch64.neon.bfdot.v4f32.v8bf16"),
        ),
    ),
    Instruction(
        "2x2 matrix product",
        "bf16",
        "f32",
        8,
        "dot",
        _dot((16, "bf16", "aarch64.neon.bfmmla")),
    ),
    Instruction(
        "dot product of fours",
        "i8",
        "i32",
        8,
        "dot",
        _dot(
            (64, "avx512vnni", "x86.avx512.vpdpbusd.512"),
            (32, "avx512vnni", "x86.avx512.vpdpbusd.256"),
            (32, "avxvnni", "x86.avx512.vpdpbusd.256"),
            (16, "dotprod", "aarch64.neon.sdot.v4i32.v16i8"),
        ),
    ),
    Instruction(
        "2x2 matrix product",
        "i8",
        "i32",
        16,
        "dot",
        _dot((16, "i8mm", "aarch64.neon.smmla.v4i32.v16i8")),
    ),
    Instruction(
        "multiply and add pairs",
        "i16",
        "i32",
        4,
        "pairs",
        _dot(
            (64, "avx512bw", "x86.avx512.pmaddw.d.512"),
            (32, "avx2", "x86.avx2.pmadd.wd"),
            (16, "sse2", "x86.sse2.pmadd.wd"),
        ),
    ),
    Instruction("multiply and add", "i32", "i32", 2, "multiply_add"),
    # Integer sums alone: an addition and an exclusive or, that it is not taken for `n * a`.
    Instruction("add", "i32", "i32", 2, "add"),
    Instruction("add", "i16", "i16", 2, "add"),
    Instruction("add", "i8", "i8", 2, "add"),
)

#: Kinds of streams through memory, with the number of arrays they go through.
STREAMS = {"read": 1, "copy": 2, "triad": 3}

BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i16": 16, "i8": 8}


@dataclass(frozen=True)
class ArithmeticKernel:
    """`accumulators` chains of one instruction, `steps` long, in each of `workgroups`."""

    instruction: Instruction
    form: Form
    accumulators: int
    steps: int
    workgroups: int

    @property
    def vector_bytes(self) -> int:
        return self.form.bytes

    @property
    def lanes(self) -> int:
        """Elements of one accumulator."""
        return self.form.bytes * 8 // BITS[self.instruction.accumulator]

    @property
    def arguments(self) -> tuple[ArgumentType, ...]:
        """The accumulators to begin with, and the two operands."""
        count = (self.accumulators + 2) * self.lanes
        return (ArgumentType(self.instruction.accumulator, (count,)),)

    @property
    def work(self) -> int:
        """Operations of one call, a multiply-add counted as two."""
        per_step = self.accumulators * self.lanes * self.instruction.operations
        return per_step * self.steps * self.workgroups

    @property
    def limit(self) -> str:
        """What it measures: the element type."""
        return self.instruction.element_type

    @property
    def name(self) -> str:
        own = f"{self.limit} {self.instruction.name}"
        return f"{own}, {8 * self.form.bytes}-bit vectors"


@dataclass(frozen=True)
class MemoryKernel:
    """Streams through arrays of `elements` f32 each.

    limit: `read` sums one array up, `copy` writes it to a second one, `triad` adds a multiple of a
    second one and writes to a third. streaming: with stores that do not first read what they
    overwrite into the caches.
    """

    limit: str
    elements: int
    workgroups: int
    vector_bytes: int
    streaming: bool = False

    @property
    def lanes(self) -> int:
        return self.vector_bytes // 4

    @property
    def arguments(self) -> tuple[ArgumentType, ...]:
        """The arrays; the last one is written unless there is only one."""
        return (ArgumentType("f32", (self.elements,)),) * STREAMS[self.limit]

    @property
    def work(self) -> int:
        """Bytes that one call reads and writes, as the program asks for them."""
        return 4 * self.elements * len(self.arguments)

    @property
    def name(self) -> str:
        return f"{self.limit}{', streaming stores' if self.streaming else ''}"


Kernel = ArithmeticKernel | MemoryKernel


def usable_forms(
    instruction: Instruction, features: frozenset[str], vector_bytes: int
) -> tuple[Form, ...]:
    """The forms of an instruction that a processor has.

    Beside the widest vectors those of half the width where the native ones are of 64 bytes: some
    processors have twice as many multipliers for them, and a higher frequency.

    Args:
        instruction: the instruction.
        features: LLVM's names of the processor's extensions.
        vector_bytes: bytes of its native vectors.

    Returns:
        The forms, each intrinsic once.
    """
    if instruction.features and not features & set(instruction.features):
        return ()
    halves = vector_bytes == 64 and instruction.kind in ("fma", "dot")
    widths = (vector_bytes, vector_bytes // 2) if halves else (vector_bytes,)
    if not instruction.forms:
        return tuple(Form(width) for width in widths)
    found = [f for f in instruction.forms if f.feature in features and f.bytes in widths]
    # Two extensions may bring the same instruction.
    return tuple({f.intrinsic: f for f in found}.values())


def accumulators_for(vector_registers: int) -> int:
    """As many as registers hold beside two operands and a temporary: more than any pipeline of
    multiply-add units has in flight.

    Args:
        vector_registers: of the processor.

    Returns:
        Accumulators of a kernel.
    """
    return 24 if vector_registers >= 32 else 12
