"""Helpers of these tests: compile and run with IREE, isolate the dispatches of a program."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.api import Output, Session, Source, ctypes_dl
from iree.compiler.dialects import flow, func

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_set_compile_to_phase = ctypes_dl._dylib.ireeCompilerInvocationSetCompileToPhase
_set_compile_to_phase.restype = None
_set_compile_to_phase.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_SESSIONS: dict[tuple[str, ...], Session] = {}


def _run_compiler(text: str, flags: Sequence[str], output: str) -> bytes:
    """Compile in process, in a session that is kept for the next use of the same flags."""
    key = tuple(flags)
    if key not in _SESSIONS:
        _SESSIONS[key] = Session()
        _SESSIONS[key].set_flags(*FLAGS, *flags)
    session = _SESSIONS[key]
    invocation = session.invocation()
    invocation.enable_console_diagnostics()
    if output == "output_ir":
        _set_compile_to_phase(invocation._inv_p, b"flow")
    assert invocation.parse_source(Source.wrap_buffer(session, text.encode() + b"\0"))
    assert invocation.execute()
    file = Output.open_membuffer()
    getattr(invocation, output)(file)
    content = bytes(file.map_memory())
    file.close()
    invocation.close()
    return content


def to_flow(text: str, *flags: str) -> str:
    """The program after `--compile-to=flow`."""
    return _run_compiler(text, flags, "output_ir").decode()


def run_iree(text: str, inputs: Sequence[Any], *flags: str) -> list[np.ndarray]:
    """Compile and run `main` on the calling thread (local-sync)."""
    binary = _run_compiler(text, flags, "output_vm_bytecode")
    config = rt.Config("local-sync")
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, binary), config)
    passed = [_as_buffer(config, x) for x in inputs]
    results = module["main"](*passed)
    results = results if isinstance(results, tuple | list) else [results]
    return [_as_array(r) for r in results]


def _as_buffer(config: rt.Config, x: Any) -> Any:
    """The runtime takes bf16 by its element type over 16-bit integers."""
    if not isinstance(x, np.ndarray) or x.dtype != ml_dtypes.bfloat16:
        return x
    return config.device.allocator.allocate_buffer_copy(
        memory_type=rt.MemoryType.DEVICE_LOCAL,
        allowed_usage=rt.BufferUsage.DEFAULT,
        device=config.device,
        buffer=np.ascontiguousarray(x).view(np.uint16),
        element_type=rt.HalElementType.BFLOAT_16,
    )


def _as_array(x: Any) -> np.ndarray:
    if not isinstance(x, rt.DeviceArray):
        return np.asarray(x)
    if x.dtype == np.uint16 or str(x.dtype) == "bfloat16":
        return np.asarray(x.to_host()).view(ml_dtypes.bfloat16)
    return x.to_host()


@contextlib.contextmanager
def parsed(text: str) -> Iterator[Any]:
    with ir.Context() as context, ir.Location.unknown():
        context.load_all_available_dialects()
        yield ir.Module.parse(text)


def random_inputs(module: Any, function: str = "main", seed: int = 0) -> list[Any]:
    """Different random data for each argument: normal floats, small integers."""
    generator = np.random.default_rng(seed)
    for op in module.body.operations:
        if (
            "sym_name" in op.attributes
            and ir.StringAttr(op.attributes["sym_name"]).value == function
        ):
            return [_random(generator, a.type) for a in op.regions[0].blocks[0].arguments]
    raise KeyError(function)


def _random(generator: np.random.Generator, type_: Any) -> Any:
    ranked = isinstance(type_, ir.RankedTensorType)
    name = str(type_.element_type if ranked else type_)
    shape = tuple(type_.shape) if ranked else ()
    if name.startswith("i"):
        if name == "i1":
            return generator.integers(0, 2, shape).astype(np.bool_)
        # Wider integers serve as indices in these programs.
        low = -7 if name == "i8" else 0
        values = generator.integers(low, 8, shape)
        dtype = "int64" if name == "index" else f"int{name[1:]}"
        return np.asarray(values, dtype) if ranked else int(values)
    values = np.asarray(generator.standard_normal(shape))
    return values.astype(ml_dtypes.bfloat16 if name == "bf16" else f"float{name[1:]}")


def isolate_all(text: str) -> list[str]:
    """Every dispatch of a flow module as a program of its own (one per executable)."""
    programs = []
    with parsed(text) as module:
        executables, globals_, dispatches = {}, [], {}
        for op in module.body.operations:
            if op.operation.name == "flow.executable":
                executables[ir.StringAttr(op.operation.attributes["sym_name"]).value] = op
            elif op.operation.name == "util.global" and "device" in str(
                op.operation.attributes["type"]
            ):
                globals_.append(op)

        def visit(op: Any) -> Any:
            if op.name == "flow.dispatch":
                entry = ir.SymbolRefAttr(ir.ArrayAttr(op.attributes["entry_points"])[0]).value
                dispatches.setdefault(entry[0], op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for name, dispatch in dispatches.items():
            programs.append(_isolate(module, [*globals_, executables[name]], dispatch))
    return programs


def _isolate(module: Any, context: Sequence[Any], dispatch: Any) -> str:
    alone = ir.Module.create()
    for name in module.operation.attributes:
        alone.operation.attributes[name] = module.operation.attributes[name]
    with ir.InsertionPoint(alone.body):
        for op in context:
            op.operation.clone()
        inputs = [_plain(v.type) for v in dispatch.operands]
        results = [_plain(v.type) for v in dispatch.results]
        main = func.FuncOp("main", ir.FunctionType.get(inputs, results))
    with ir.InsertionPoint(main.add_entry_block()):
        call = dispatch.clone()
        for i, (argument, wanted) in enumerate(
            zip(main.entry_block.arguments, dispatch.operands, strict=True)
        ):
            value = argument
            if argument.type != wanted.type:
                encode = flow.TensorEncodeOp(wanted.type, argument, [], [])
                encode.operation.move_before(call)
                value = encode.result
            call.operands[i] = value
        returned = [
            r if r.type == t else flow.TensorEncodeOp(t, r, [], []).result
            for r, t in zip(call.results, results, strict=True)
        ]
        func.ReturnOp(returned)
    return alone.operation.get_asm()


def _plain(type_: Any) -> Any:
    """The type without an encoding."""
    if isinstance(type_, ir.RankedTensorType) and type_.encoding is not None:
        return ir.RankedTensorType.get(type_.shape, type_.element_type)
    return type_
