"""Code to operations: loops, branches, memory and what is held in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, gpu, memref, scf

from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.code import (
    Access,
    Branch,
    Code,
    Fence,
    Hint,
    Loop,
    Part,
    Scope,
    Storage,
    Tensorized,
    Write,
)
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.registers import Analysis
from tilewright.schedule.codegen.values import ValueEmitter
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.types import bits

_LINE_BYTES = 64
# Cache lines that one hint fetches at most: more are no longer a hint.
_MOST_LINES = 64


class KernelEmitter(ValueEmitter):
    """Emits the code of one kernel into its function.

    entry: an operation before which memory is allocated. `scratch` are the storages that neither
    the stack nor a workgroup's memory has room for, with the memref each is given.
    """

    def __init__(
        self,
        machine: Processor,
        entry: ir.Operation,
        scratch: dict[Storage, ir.Value],
        block: Mapping[str, int],
    ) -> None:
        super().__init__(machine.gathers, machine.masks)
        self._machine = machine
        self._entry = entry
        self._scratch = scratch
        self._block = block
        self._analysis = Analysis()
        self._stack_bytes = 0

    def run(self, body: Sequence[Code]) -> None:
        """Emit code at the insertion point."""
        for code in body:
            match code:
                case Write():
                    self._write(code)
                case Loop():
                    self._loop(code)
                case Branch():
                    self._branch(code)
                case Scope():
                    self._scope(code)
                case Fence():
                    gpu.BarrierOp()
                    for storage in self.memory:
                        self.changed(storage)
                case Hint():
                    self._hint(code)
                case Tensorized():
                    self._tensorized(code)

    def _write(self, code: Write) -> None:
        made = [(access, self.value(value, access.lanes)) for access, value in code.writes]
        for access, value in made:
            if access.key in self.held:
                self.held[access.key] = value
            else:
                self.store(access, value)
        for access, _ in made:
            self.changed(access.storage)

    # -- loops and branches ------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        fresh = self._analysis.in_loop(loop, {key[0] for key in self.held})
        self._hold(fresh)
        carried = self._carried(loop.body)
        made = scf.ForOp(
            self.number(0),
            self.number(loop.extent),
            self.number(1),
            [self.held[key] for key in carried],
        )
        self.loops[loop.atom] = made.induction_variable
        self._changed_in(loop.body)
        before = dict(self.held)
        self.held.update(zip(carried, made.inner_iter_args, strict=True))
        with ir.InsertionPoint(made.body), self.block():
            self._body(loop.body)
            scf.YieldOp([self.held[key] for key in carried])
        self.held = before
        self.held.update(zip(carried, made.results, strict=True))
        self._changed_in(loop.body)
        self._release(fresh, loop.body)

    def _body(self, body: Sequence[Code]) -> None:
        """Emit a loop's or a branch's code: an element that it stores several times is stored
        once."""
        fresh = self._analysis.in_body(body, {key[0] for key in self.held})
        self._hold(fresh)
        self.run(body)
        self._release(fresh, body)

    def _hold(self, places: Sequence[Access]) -> None:
        for access in places:
            self.held[access.key] = self.load(access)

    def _release(self, places: Sequence[Access], body: Sequence[Code]) -> None:
        """The end of code over which places were held: what it has written goes to memory."""
        uses = self._analysis.uses(body)
        for access in places:
            value = self.held.pop(access.key)
            if access.key in uses[access.storage].keys:
                self.store(access, value)
                self.changed(access.storage)

    def _branch(self, branch: Branch) -> None:
        carried = list(
            dict.fromkeys((*self._carried(branch.then), *self._carried(branch.otherwise)))
        )
        types = [self.held[key].type for key in carried]
        made = scf.IfOp(
            self.value(branch.condition), types, has_else=bool(carried or branch.otherwise)
        )
        before = dict(self.held)
        arms = [(made.then_block, branch.then)]
        if carried or branch.otherwise:
            arms.append((made.else_block, branch.otherwise))
        for block, body in arms:
            self.held = dict(before)
            with ir.InsertionPoint(block), self.block():
                self._body(body)
                scf.YieldOp([self.held[key] for key in carried])
            self._changed_in(body)
        self.held = before
        self.held.update(zip(carried, made.results, strict=True))

    def _carried(self, body: Sequence[Code]) -> list[Any]:
        """The keys of what is held in registers and written in the code, in a fixed order."""
        uses = self._analysis.uses(body)
        return [k for k in self.held if k[0] in uses and k in uses[k[0]].keys]

    def _changed_in(self, body: Sequence[Code]) -> None:
        for storage in self._analysis.written(body):
            self.changed(storage)

    # -- memory ------------------------------------------------------------------------------------

    def _scope(self, scope: Scope) -> None:
        held = self._analysis.in_scope(scope)
        if held is None:
            if scope.storage not in self.memory:
                self.memory[scope.storage] = self._allocated(scope.storage)
            self.changed(scope.storage)
            self.run(scope.body)
            return
        for access in held:
            self.held[access.key] = self._nothing(access)
        self.run(scope.body)
        for access in held:
            del self.held[access.key]

    @staticmethod
    def _nothing(access: Access) -> ir.Value:
        """What an element is before it is written."""
        dtype = access.storage.dtype
        if access.lanes:
            return scalars.zero(scalars.type_of(dtype, access.lanes))
        return scalars.constant(dtype, 0)

    def _allocated(self, storage: Storage) -> ir.Value:
        given = self._scratch.get(storage)
        if given is not None:
            return given
        element = scalars.memory_element(storage.dtype)
        size = storage.size * bits(storage.dtype) // 8
        on_stack = self._machine.on_stack(storage.scope, size, self._stack_bytes)
        space = self._machine.memory_space(on_stack)
        # The runtime aligns a workgroup's memory on CPUs as malloc does.
        loose = not on_stack and not self._machine.is_gpu
        more = _LINE_BYTES * 8 // bits(storage.dtype) if loose else 0
        type_ = ir.MemRefType.get(
            [storage.size + more],
            element,
            memory_space=scalars.parsed_attribute(space) if space else None,
        )
        with ir.InsertionPoint(self._entry):
            if not on_stack:
                made = memref.AllocOp(type_, [], [], alignment=_LINE_BYTES).result
                return self._aligned(made, storage) if loose else made
            self._stack_bytes += size
            return memref.AllocaOp(type_, [], [], alignment=_LINE_BYTES).result

    @staticmethod
    def _aligned(buffer: ir.Value, storage: Storage) -> ir.Value:
        """The part of a buffer for a storage that begins where a cache line does."""
        index = ir.IndexType.get()

        def number(value: int) -> ir.Value:
            return arith.ConstantOp(index, value).result

        address = memref.ExtractAlignedPointerAsIndexOp(buffer).result
        missing = arith.AndIOp(
            arith.SubIOp(number(0), address).result, number(_LINE_BYTES - 1)
        ).result
        start = arith.DivUIOp(missing, number(max(1, bits(storage.dtype) // 8))).result
        dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
        type_ = ir.MemRefType.get(
            [storage.size],
            scalars.memory_element(storage.dtype),
            layout=ir.StridedLayoutAttr.get(dynamic, [1]),
        )
        # IREE knows the memory space of what is allocated only.
        own = ir.MemRefType(buffer.type)
        plain = memref.MemorySpaceCastOp(ir.MemRefType.get(own.shape, own.element_type), buffer)
        return memref.ReinterpretCastOp(
            type_, plain.result, [start], [], [], [dynamic], [storage.size], [1]
        ).result

    def _hint(self, hint: Hint) -> None:
        if not self._machine.prefetches:
            return
        element = bits(hint.storage.dtype) // 8
        step = max(1, _LINE_BYTES // element)
        base = self.memory[hint.storage]
        for number in range(min(_MOST_LINES, -(-hint.length // step))):
            memref.PrefetchOp(
                base,
                [self.linear(hint.place.plus(number * step))],
                isWrite=False,
                localityHint=3,
                isDataCache=True,
            )

    # -- intrinsics --------------------------------------------------------------------------------

    def _tensorized(self, code: Tensorized) -> None:
        inputs = [self._view(part) for part in code.inputs]
        outputs = [self._view(part) for part in code.outputs]
        emit = code.node.intrinsic.emit
        emit(IntrinsicBuilder(self, self._machine, self._block), code.node.phase, inputs, outputs)
        for part in code.outputs:
            self.changed(part.storage)

    def _view(self, part: Part) -> BufferView:
        return BufferView(
            self.memory[part.storage],
            self.linear(part.place),
            part.shape,
            part.strides,
            part.storage.dtype,
        )
