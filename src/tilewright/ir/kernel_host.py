"""The host's code of kernels: what calls them, written in the HAL dialect.

IREE takes longer to make it of the ops that call kernels (`flow.dispatch`) than to compile a
kernel. What it makes of them is simple and is written here in its place: command buffers that are
recorded once, in which a kernel waits for those before it whose data it touches. What is the
device's business (how it is found, which memory is allocated) is read from a small program that
IREE has compiled for it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, cf, func, hal, util

from tilewright.ir.calling_host import HostSizes
from tilewright.ir.candidate import BENCHMARK_FUNCTION
from tilewright.ir.dispatches import ISOLATED_FUNCTION
from tilewright.ir.guards import GUARD_BYTE, GUARDED
from tilewright.ir.hand_written import Binding, call_executable, executable, index
from tilewright.ir.kernel_calls import KernelCall, KernelCalls, ResultType
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.splice import serialize_stubs
from tilewright.ir.walk import string_attribute, walk

_STUB = "stub"
_DEVICE, _EXECUTABLE, _COMMANDS, _FENCE, _VIEW = (
    f"!hal.{kind}" for kind in ("device", "executable", "command_buffer", "fence", "buffer_view")
)
# Whose attributes are the same wherever the compiler writes them for a device.
_LIKE = (
    "hal.command_buffer.create",
    "hal.command_buffer.execution_barrier",
    "hal.memory_type",
    "hal.buffer_usage",
)
_NO_FLAGS = 0


class HostWriter:
    """Writes host code for what a compiler session compiles for.

    Raises CompileError when a program that does nothing does not compile.
    """

    def __init__(self, session: CompilerSession) -> None:
        self._session = session
        self._module = _nothing(session)
        self._like: dict[str, dict[str, ir.Attribute]] = {}
        for op in walk(self._module):
            if op.name in _LIKE and op.name not in self._like:
                self._like[op.name] = {name: op.attributes[name] for name in op.attributes}
        kept = [op for op in _top(self._module) if _finds_device(op)]
        (self._device,) = (string_attribute(op, "sym_name") for op in kept if _is_global(op))
        for op in _top(self._module):
            if op.name != "hal.executable" and op not in kept:
                op.erase()

    def write(self, calls: KernelCalls, *, guarded: bool = True) -> Any:
        """Host code: `main`, `guarded` (`ir.guards`), and `bench` where something repeats.

        Args:
            calls: what it does.
            guarded: whether there is a `guarded`.

        Returns:
            The module operation at the `hal` phase; its executables do nothing.
        """
        often = calls.often
        with self._session.context, ir.Location.unknown():
            module = self._module.clone()
            (stub,) = (op for op in _top(module) if op.name == "hal.executable")
            block = module.regions[0].blocks[0]
            with ir.InsertionPoint(block):
                for name in dict.fromkeys(calls.kernels):
                    self._load(stub, name)
                self._function(ISOLATED_FUNCTION, calls)
                if guarded:
                    longer = tuple(result.guarded() for result in calls.results)
                    self._function(GUARDED, replace(calls, results=longer), filled=True)
                if often > 1:
                    self._function(BENCHMARK_FUNCTION, calls, often, calls.rotations)
            stub.erase()
        return module

    # -- globals -------------------------------------------------------------------------------

    def _load(self, stub: ir.Operation, kernel: str) -> None:
        """An executable, and the global that it is loaded into."""
        copy = stub.clone().operation
        copy.attributes["sym_name"] = ir.StringAttr.get(kernel)
        (binary,) = (op for op in walk(copy) if op.name == "hal.executable.binary")
        # The compiler would keep one of those that are equal.
        code = np.frombuffer(kernel.encode(), np.uint8)
        kind = ir.VectorType.get(code.shape, ir.IntegerType.get_signless(8))
        binary.attributes["data"] = ir.DenseElementsAttr.get(code, type=kind)
        place = ir.SymbolRefAttr.get([kernel, string_attribute(binary, "sym_name")])
        with _initialized(self._loaded(kernel), _EXECUTABLE) as made:
            made.append(hal.ExecutableCreateOp(self._get_device(), _i64(-1), place, []).result)

    def _loaded(self, kernel: str) -> str:
        """The global of an executable, as the compiler calls it."""
        return f"{self._device}_executable_0_{kernel}"

    def _get_device(self) -> ir.Value:
        return _get(self._device, _DEVICE)

    # -- functions -----------------------------------------------------------------------------

    def _function(
        self,
        name: str,
        calls: KernelCalls,
        often: int = 1,
        sets: int = 1,
        filled: bool = False,
    ) -> None:
        """A function that makes the calls; `filled`: its results are the guards' before."""
        size = HostSizes.of(calls, sets)
        recorded, commands = ir.Type.parse(_COMMANDS), f"{name}_commands"
        # Were it inlined, calls would no longer say which executable they are of.
        never = ir.Attribute.parse("#util.inline.never")
        record = _declared(f"record_{name}", [], [recorded], "private", inlining_policy=never)
        self._record(record, calls, size, often, sets, filled)
        with _initialized(commands, _COMMANDS) as made:
            made.append(util.CallOp([recorded], f"record_{name}", []).result)
        view = ir.Type.parse(_VIEW)
        taken, returned = [view] * (sets * len(calls.inputs)), [view] * len(calls.results)
        body = _declared(name, taken, returned, "public")
        with ir.InsertionPoint(body):
            device = self._get_device()
            kind = ir.Type.parse("!hal.buffer")
            buffers = [hal.BufferViewBufferOp(kind, view).result for view in body.arguments]
            ready = util.NullOp(ir.Type.parse(_FENCE)).result
            for bytes_ in size.allocated:
                ready, buffer = self._allocate(device, ready, bytes_)
                buffers.append(buffer)
            done = hal.FenceCreateOp(device, _flags()).result
            zero = index(0)
            hal.DeviceQueueExecuteIndirectOp(
                device,
                _i64(-1),
                ready,
                done,
                _get(commands, _COMMANDS),
                buffers,
                [zero] * len(buffers),
                [index(bytes_) for bytes_ in (*size.taken, *size.allocated)],
                _flags(),
            )
            i32 = ir.IntegerType.get_signless(32)
            forever = arith.ConstantOp(i32, -1).result
            status = hal.FenceAwaitOp(forever, _flags(), [done]).result
            util.StatusCheckOkOp(status, message="kernels")
            own = iter(buffers[len(taken) :])
            results = [
                (next(own) if result.input is None else buffers[result.input], result)
                for result in calls.results
            ]
            util.ReturnOp([_viewed(*result) for result in results])

    def _allocate(
        self, device: ir.Value, ready: ir.Value, bytes_: int
    ) -> tuple[ir.Value, ir.Value]:
        """Memory, once something is ready: the fence that says that it is there, and the buffer."""
        there = hal.FenceCreateOp(device, _flags()).result
        i32 = ir.IntegerType.get_signless(32)
        memory, usage = (
            ir.Operation.create(name, results=[i32], attributes=self._like[name]).result
            for name in ("hal.memory_type", "hal.buffer_usage")
        )
        made = hal.DeviceQueueAllocaOp(
            device, _i64(-1), ready, there, _i64(0), memory, usage, index(bytes_), _flags()
        )
        return there, made.result

    def _record(
        self,
        block: ir.Block,
        calls: KernelCalls,
        size: HostSizes,
        often: int,
        sets: int,
        filled: bool,
    ) -> None:
        """Return the command buffer of a function from a block."""
        with ir.InsertionPoint(block):
            like = self._like["hal.command_buffer.create"]
            capacity = index(len(size.taken) + len(size.allocated))
            modes, categories = like["modes"], like["command_categories"]
            commands = hal.CommandBufferCreateOp(
                self._get_device(), modes, categories, _i64(-1), binding_capacity=capacity
            ).result
            if filled:
                byte = arith.ConstantOp(ir.IntegerType.get_signless(8), GUARD_BYTE).result
                for result in range(len(calls.results)):
                    slot, offset, length = map(index, size.place(len(calls.inputs) + result))
                    hal.CommandBufferFillBufferOp(commands, slot, offset, length, byte, _flags())
                self._wait(commands)
            if often == 1:
                self._dispatch(commands, calls, size)
        if often > 1:
            with _repeated(block, often) as (turn, block):
                number = arith.RemUIOp(turn, index(sets)).result
                first = arith.MulIOp(number, index(size.inputs)).result
                self._dispatch(commands, calls, size, first)
        with ir.InsertionPoint(block):
            hal.CommandBufferFinalizeOp(commands)
            util.ReturnOp([commands])

    def _dispatch(
        self, commands: ir.Value, calls: KernelCalls, size: HostSizes, first: ir.Value | None = None
    ) -> None:
        """Record the calls, and that what comes behind waits for them; `first` is the buffer with
        which their inputs begin."""
        since: list[KernelCall] = []
        number, kernel = functools.cache(index), functools.cache(self._kernel)

        def slot(buffer: int) -> ir.Value:
            if first is None or buffer >= size.inputs:
                return number(size.place(buffer)[0])
            return arith.AddIOp(first, number(buffer)).result

        for call in calls.calls:
            if call.waits_for(since):
                self._wait(commands)
                since.clear()
            since.append(call)
            bound = [*call.reads, *call.writes]
            places = [size.place(buffer) for buffer in bound]
            counts = [number(1)] * 3
            hal.CommandBufferDispatchOp(
                commands,
                *kernel(call.kernel),
                *counts,
                [],
                [slot(buffer) for buffer in bound],
                [number(offset) for _, offset, _ in places],
                [number(length) for _, _, length in places],
                _flags(),
            )
        self._wait(commands)

    def _kernel(self, name: str) -> tuple[ir.Value, ir.Value]:
        """An executable, and the number of its function."""
        loaded = _get(self._loaded(name), _EXECUTABLE)
        # The code that takes its place says which function it is.
        entry = ir.SymbolRefAttr.get([name, name, name])
        return loaded, hal.ExecutableLookupFunctionOp(loaded, entry).result

    def _wait(self, commands: ir.Value) -> None:
        """What is recorded from here on waits for all before it."""
        like = self._like["hal.command_buffer.execution_barrier"]
        hal.CommandBufferExecutionBarrierOp(
            commands, like["source_stage_mask"], like["target_stage_mask"], like["flags"]
        )


@contextlib.contextmanager
def _initialized(name: str, kind: str) -> Iterator[list[ir.Value]]:
    """A global at the insertion point, and what is done to get its value, which goes into the list,
    when the program is loaded."""
    util.GlobalOp(name, ir.TypeAttr.get(ir.Type.parse(kind)), sym_visibility="private")
    made = util.InitializerOp(ir.TypeAttr.get(ir.FunctionType.get([], [])))
    with ir.InsertionPoint(made.operation.regions[0].blocks.append()):
        values: list[ir.Value] = []
        yield values
        util.GlobalStoreOp(values[0], name)
        util.ReturnOp([])


@contextlib.contextmanager
def _repeated(block: ir.Block, often: int) -> Iterator[tuple[ir.Value, ir.Block]]:
    """A loop behind a block, with the insertion point in it: the number of the turn, and the block
    that it ends in."""
    body = block.create_after(ir.IndexType.get())
    after = body.create_after()
    with ir.InsertionPoint(block):
        cf.BranchOp([index(0)], body)
    with ir.InsertionPoint(body):
        (turn,) = body.arguments
        yield turn, after
        following = arith.AddIOp(turn, index(1)).result
        more = arith.CmpIOp(arith.CmpIPredicate.ult, following, index(often)).result
        cf.CondBranchOp(more, [following], [], body, after)


def _declared(
    name: str,
    taken: Sequence[ir.Type],
    returned: Sequence[ir.Type],
    visibility: str,
    inlining_policy: ir.Attribute | None = None,
) -> ir.Block:
    """The block of a new function at the insertion point."""
    kind = ir.TypeAttr.get(ir.FunctionType.get(taken, returned))
    function = util.FuncOp(name, kind, sym_visibility=visibility, inlining_policy=inlining_policy)
    return function.operation.regions[0].blocks.append(*taken)


def _get(name: str, kind: str) -> ir.Value:
    """The value of a global."""
    return util.GlobalLoadOp(ir.Type.parse(kind), name).result


def _i64(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(64), value).result


def _flags() -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _NO_FLAGS)


def _viewed(buffer: ir.Value, result: ResultType) -> ir.Value:
    """A result as it is returned."""
    i32 = ir.IntegerType.get_signless(32)
    element = hal.ElementTypeOp(ir.TypeAttr.get(ir.Type.parse(result.element)), results=[i32])
    encoding = ir.Operation.create("hal.encoding_type", results=[i32])
    return hal.BufferViewCreateOp(
        buffer,
        index(0),
        index(result.bytes),
        element.result,
        encoding.result,
        [index(size) for size in result.shape],
    ).result


# -- what IREE makes of a program ------------------------------------------------------------------


def _nothing(session: CompilerSession) -> Any:
    """A program that calls a kernel that does nothing, at the `hal` phase."""
    # Nothing may have been compiled with it yet, which brings dialects with it.
    session.context.load_all_available_dialects()
    with session.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            f32 = ir.F32Type.get()
            bindings = [Binding(ir.MemRefType.get([1], f32), read_only=False)]
            stub = executable(_STUB, bindings, (1, 1, 1))
            tensor = ir.RankedTensorType.get([1], f32)
            function = func.FuncOp(ISOLATED_FUNCTION, ir.FunctionType.get([], [tensor]))
            with ir.InsertionPoint(function.add_entry_block()):
                func.ReturnOp(call_executable(stub.entry, [tensor], []))
    session.run(module.operation, None, CONFIGURED_PHASE, verify=False)
    serialize_stubs(session, module.operation, [_STUB])
    return module.operation


def _top(module: Any) -> list[ir.Operation]:
    return [op.operation for op in module.regions[0].blocks[0].operations]


def _is_global(op: ir.Operation) -> bool:
    return str(op.name) == "util.global"


def _finds_device(op: ir.Operation) -> bool:
    """Whether it is the global of the device, or what looks for the device when a program is
    loaded."""
    if _is_global(op):
        return str(ir.TypeAttr(op.attributes["type"]).value) == _DEVICE
    if op.name != "util.initializer":
        return False
    stored = [o.operands[0] for o in walk(op) if o.name == "util.global.store"]
    return _DEVICE in {str(value.type) for value in stored}
