"""Memory for the buffers of a kernel: on the stack, of a workgroup, or given from outside."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from tilewright.ir.hand_written import index
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.view import part_of
from tilewright.schedule.nest import LINE_BYTES, Buffer
from tilewright.schedule.types import bits


class Allocator:
    """Finds memory for the buffers of one kernel.

    entry: an operation before which memory is allocated.
    bindings: the memory of the buffers that exist outside of the kernel.
    scratch: the memory given for buffers that neither the stack nor a workgroup's memory has room
        for, in the order in which they are met. How many elements of which type each needs is in
        `large` afterwards; those that `scratch` has nothing for make the code unusable.
    """

    def __init__(
        self,
        processor: Processor,
        entry: ir.Operation,
        bindings: Sequence[ir.Value],
        scratch: Sequence[ir.Value],
    ) -> None:
        self.large: list[tuple[int, str]] = []
        self._processor = processor
        self._entry = entry
        self._bindings = bindings
        self._scratch = scratch
        self._stack_bytes = self._workgroup_bytes = 0

    def memory(self, size: int, buffer: Buffer) -> ir.Value:
        """New memory for a buffer.

        Args:
            size: elements.
            buffer: whose element type and scope count.

        Returns:
            A memref of one dimension.
        """
        processor = self._processor
        element = scalars.memory_element(buffer.dtype)
        size_bytes = size * bits(buffer.dtype) // 8
        on_stack = processor.on_stack(buffer.scope, size_bytes, self._stack_bytes)
        loose = not on_stack and not processor.is_gpu
        if on_stack:
            self._stack_bytes += size_bytes
        elif loose and self._workgroup_bytes + size_bytes > processor.workgroup_bytes:
            self.large.append((size, buffer.dtype))
            if len(self.large) <= len(self._scratch):
                return self._scratch[len(self.large) - 1]
        else:
            self._workgroup_bytes += size_bytes
        space = processor.memory_space(on_stack)
        # The runtime aligns a workgroup's memory on CPUs as malloc does.
        more = LINE_BYTES * 8 // bits(buffer.dtype) if loose else 0
        attribute = scalars.parsed_attribute(space) if space else None
        type_ = ir.MemRefType.get([size + more], element, memory_space=attribute)
        make = memref.AllocaOp if on_stack else memref.AllocOp
        with ir.InsertionPoint(self._entry):
            made = make(type_, [], [], alignment=LINE_BYTES).result
            return self._aligned(made, size, buffer.dtype) if loose else made

    def _aligned(self, buffer: ir.Value, size: int, dtype: str) -> ir.Value:
        """The part of a buffer that begins where a cache line does, distinct from the bindings.

        It is not said to be distinct from a workgroup's other memory: all of that has one base, of
        which LLVM would then believe that nothing in it overlaps, also within one buffer.
        """
        address = memref.ExtractAlignedPointerAsIndexOp(buffer).result
        missing = arith.SubIOp(index(0), address).result
        missing = arith.AndIOp(missing, index(LINE_BYTES - 1)).result
        start = arith.DivUIOp(missing, index(max(1, bits(dtype) // 8))).result
        # IREE knows the memory space of what is allocated only.
        own = ir.MemRefType(buffer.type)
        plain = memref.MemorySpaceCastOp(ir.MemRefType.get(own.shape, own.element_type), buffer)
        return distinct([part_of(plain.result, start, [size]), *self._bindings])[0]


def distinct(buffers: Sequence[ir.Value]) -> list[ir.Value]:
    """Buffers of which LLVM knows that none overlaps another.

    With that it keeps what a loop reads and writes in one place in registers.

    Args:
        buffers: memrefs that are not parts of one another.

    Returns:
        The same buffers, to be used in their place.
    """
    if len(buffers) < 2:
        return list(buffers)
    return list(memref.DistinctObjectsOp(buffers).operation.results)
