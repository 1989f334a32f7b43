"""Tasks made from workloads: programs, inputs, and results in float64 to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import UserError
from tilewright.ir.program import pick_function
from tilewright.kernels.worker_tasks import (
    ENTRY,
    EmitRequest,
    OperationReferenceRequest,
    ReferenceData,
    emit_programs,
    make_operation_reference,
)
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool, session
from tilewright.measure.device_options import Parameters
from tilewright.measure.input_syntax import parse_input, resolve_inputs
from tilewright.measure.inputs import index_bounds, load_arguments, write_inputs, write_outputs
from tilewright.measure.jobs import WorkerState
from tilewright.measure.pool import WorkerFailure
from tilewright.modules.compiling import find_limits
from tilewright.toolchain import Toolchain
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import PROGRAM_REDUCTION_LENGTH

_TIMEOUT_S = 1800.0
NUMPY = "NumPy in float64"
INTERPRETER = "the program evaluated in float64"
_DEFAULT = "IREE's default, which is not float64"


@contextmanager
def made_task(
    workload: ComparedWorkload, options: CompareOptions, folder: Path
) -> Iterator[ProviderTask]:
    """A workload made ready; what belongs to it is gone at the end, but for what is in `folder`.

    Args:
        workload: what is computed.
        options: how to compare.
        folder: for programs and data; it is made.

    Returns:
        As a context: the task.

    Raises:
        UserError: IREE cannot read the program, or the operation is too large for this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if workload.program is None:
            task = _operation_task(workload, options, folder)
            if not options.target.declaration:
                yield task
                return
            # No flag selects the target: it has to stand in the program.
            opened = stack.enter_context(open_program(task.mlir, options.target))
            own = task.flags[len(options.target.flags) :]
            flags = (*opened.target.flags, *own)
            yield replace(task, target=opened.target, mlir=opened.program.path, flags=flags)
        else:
            opened = stack.enter_context(
                open_program(
                    workload.program,
                    options.target,
                    TuneOptions(iree_flags=options.iree_flags),
                )
            )
            yield _program_task(workload, opened, options, folder)


def _operation_task(
    workload: ComparedWorkload, options: CompareOptions, folder: Path
) -> ProviderTask:
    operation = workload.operation
    assert operation is not None
    mlir = folder / f"{workload.name}.mlir"
    flags = (*options.target.flags, *operation.flags, *options.iree_flags)
    with compile_pool(1, memory_limit=None) as pool:
        emitted = pool.ask(emit_programs, EmitRequest(((workload.name, mlir),), flags), _TIMEOUT_S)
        request = OperationReferenceRequest(workload.name, folder / "data", options.seed)
        made = pool.ask(make_operation_reference, request, _TIMEOUT_S)
    for outcome in (emitted, made):
        if isinstance(outcome, WorkerFailure):
            raise UserError(f"{workload.name}: no inputs or reference: {outcome.message}")
    assert isinstance(made, ReferenceData)
    return ProviderTask(
        workload,
        options.target,
        mlir,
        ENTRY,
        made.inputs,
        made.expected,
        NUMPY,
        operation.kind.reduction_length(operation),
        (operation.kind.working_type(operation),),
        operation.kind.accumulation_type(operation),
        flags,
    )


# -- programs --------------------------------------------------------------------------------------


def _program_task(
    workload: ComparedWorkload, opened: OpenProgram, options: CompareOptions, folder: Path
) -> ProviderTask:
    program = opened.program
    name = pick_function(program.functions, None)
    signature = program.functions[name]
    flags = opened.flags()
    given = [one for text in options.inputs for one in parse_input(text)]
    limits = find_limits(opened, flags).get(name, {})
    values = resolve_inputs(given, signature.inputs, seed=options.seed, bounds=index_bounds(limits))
    inputs = write_inputs(folder / "data", signature.inputs, values)
    parameters = (
        *((scope, str(file)) for scope, file in program.parameters),
        *((one.scope, str(one.path)) for one in options.parameters),
    )
    task = ProviderTask(
        workload,
        opened.target,
        program.path,
        name,
        inputs,
        folder / "data" / "expected.npz",
        INTERPRETER,
        PROGRAM_REDUCTION_LENGTH,
        flags=flags,
        parameters=parameters,
    )
    failure = opened.compilers.ask(evaluate_program, task, _TIMEOUT_S)
    if failure is None:
        return task
    return _by_default(task, opened.toolchain, options, failure)


def _by_default(
    task: ProviderTask, toolchain: Toolchain, options: CompareOptions, why: WorkerFailure
) -> ProviderTask:
    """The task with the results of IREE's default to compare with, where nothing better is."""
    assert task.expected is not None
    vmfb = task.expected.with_name("reference.vmfb")
    built = toolchain.compile(task.mlir, vmfb, task.flags, timeout_s=_TIMEOUT_S)
    if not built.ok:
        raise UserError(f"{task.workload.name}: IREE cannot compile it: {built.error}")
    with Benchmark(options.place.options, timeout_s=_TIMEOUT_S) as benchmark:
        outputs = benchmark.run(
            str(vmfb),
            task.inputs,
            task.expected,
            function=task.function,
            parameters=Parameters(task.parameters),
        )
    if isinstance(outputs, WorkerFailure):
        raise UserError(f"{task.workload.name}: it cannot be run: {outputs.message}")
    return replace(task, reference=f"{_DEFAULT} ({why.message})")


def evaluate_program(state: WorkerState, task: ProviderTask) -> None:
    """Task: evaluate a program in float64 and write its results to the file that is expected.

    Args:
        state: the worker's.
        task: of a program.

    Raises:
        Unsupported: the interpreter does not know an op.
        ValueError: the model has what ONNX's reference cannot be given.
    """
    from iree.compiler import ir

    from tilewright.ir.reference import evaluate

    values = load_arguments(task.inputs)
    source = task.workload.program
    assert task.expected is not None
    if source is not None and task.workload.is_onnx:
        outputs = evaluate_onnx(source, values)
    else:
        compiler = session(state, task.flags)
        text = compiler.compile(task.mlir.read_bytes(), compile_to="input", name=str(task.mlir))
        with compiler.context:
            module = ir.Module.parse(text)
        outputs = evaluate(module, task.function, values)
    write_outputs(task.expected, [np.ascontiguousarray(o) for o in outputs])


def evaluate_onnx(model: Path, values: Sequence[Any]) -> list[Any]:
    """The results of an ONNX model, all of its floats widened to float64, by ONNX's own reference.

    Needs the `onnx` package, without which no model gets here.

    Args:
        model: the file.
        values: of its inputs, in their order.

    Returns:
        Its results, floats in float64.

    Raises:
        ValueError: the model has control flow.
    """
    import onnx
    from onnx import TensorProto, numpy_helper
    from onnx.reference import ReferenceEvaluator

    loaded = onnx.load(str(model))
    graph = loaded.graph
    if any(a.type == onnx.AttributeProto.GRAPH for n in graph.node for a in n.attribute):
        raise ValueError("the model has control flow")

    def widen(tensor: Any) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))

    for tensor in graph.initializer:
        widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in map(np.asarray, values)]
    results = ReferenceEvaluator(loaded).run(None, dict(zip(names, wide, strict=True)))
    return [np.asarray(r) for r in results]
