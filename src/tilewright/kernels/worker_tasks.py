"""What workers do for operations: build their programs, make inputs and references."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.files import write_whole
from tilewright.kernels.kinds import parse_operation
from tilewright.kernels.operation import Operation
from tilewright.measure.compile_worker import session
from tilewright.measure.inputs import InputFile, InputSet, random_inputs, write_outputs
from tilewright.measure.jobs import WorkerState

ENTRY = "main"
# A new number makes all references anew: when what NumPy computes here has changed.
_REFERENCES = 1
_INDEX = "reference.json"


def build_program(operation: Operation, context: Any) -> Any:
    """The program of an operation with the MLIR bindings.

    Args:
        operation: what to compute.
        context: an MLIR context that knows IREE's dialects, as that of a compiler session does.

    Returns:
        A module with one public function, `main`, that takes the operation's arguments and returns
        its result.
    """
    from iree.compiler import ir
    from iree.compiler.dialects import func

    from tilewright.kernels.program_builder import ProgramBuilder

    context.load_all_available_dialects()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        build = ProgramBuilder()
        types = [build.tensor_type(t) for t in operation.arguments]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp(ENTRY, (types, [build.tensor_type(operation.result)]))
            block = main.add_entry_block()
        with ir.InsertionPoint(block):
            func.ReturnOp([operation.kind.emit(operation, build, list(block.arguments))])
        module.operation.verify()
        return module


@dataclass(frozen=True)
class EmitRequest:
    """Write the programs of operations, given by name, to these files.

    declaration: the text of the device that they are for, where no flag names it.
    """

    programs: tuple[tuple[str, Path], ...]
    flags: tuple[str, ...]
    declaration: str = ""


def emit_programs(state: WorkerState, request: EmitRequest) -> list[str]:
    """Task: see EmitRequest. The names of those written; a file with the same content is left.

    Args:
        state: the worker's.
        request: what to write.

    Returns:
        The names of those written.
    """
    from tilewright.ir.program import set_device

    context = session(state, request.flags).context
    written = []
    for name, path in request.programs:
        module = build_program(parse_operation(name), context)
        if request.declaration:
            set_device(module, request.declaration)
        text = module.operation.get_asm().encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != text:
            write_whole(path, text)
            written.append(name)
    return written


@dataclass(frozen=True)
class OperationReferenceRequest:
    """Make an operation's inputs and, unless `inputs_only`, what NumPy says of its result."""

    operation: str
    folder: Path
    seed: int
    inputs_only: bool = False


@dataclass(frozen=True)
class ReferenceData:
    """Inputs, and the .npz file of the expected result (None: not computed)."""

    inputs: InputSet
    expected: Path | None


def make_operation_reference(
    state: WorkerState, request: OperationReferenceRequest
) -> ReferenceData:
    """Task: see OperationReferenceRequest. What an earlier request has made is not made again.

    Args:
        state: the worker's.
        request: what to make.

    Returns:
        Where it is.
    """
    kept = kept_reference(request)
    if kept is not None:
        return kept
    index = request.folder / _INDEX
    operation = parse_operation(request.operation)
    index.unlink(missing_ok=True)
    inputs = random_inputs(request.folder, operation.arguments, seed=request.seed)
    expected: Path | None = None
    if not request.inputs_only:
        expected = request.folder / "expected.npz"
        wide = np.int64 if operation.types.is_integer else np.float64
        values = [a.load().astype(wide) for a in inputs.arguments if isinstance(a, InputFile)]
        write_outputs(expected, [np.ascontiguousarray(operation.kind.reference(operation, values))])
    content = {
        "key": _reference_key(request),
        "inputs": inputs.key,
        "expected": expected is not None,
    }
    # Written last: with it, everything is there.
    write_whole(index, json.dumps(content).encode())
    return ReferenceData(inputs, expected)


def kept_reference(request: OperationReferenceRequest) -> ReferenceData | None:
    """What an earlier request has made for this one; None when it has to be made.

    Args:
        request: what is asked for.

    Returns:
        Where it is; None where it has to be made.
    """
    try:
        content = json.loads((request.folder / _INDEX).read_bytes())
        whole = content["expected"] or request.inputs_only
        if content["key"] != _reference_key(request) or not whole:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    operation = parse_operation(request.operation)
    files = [request.folder / f"input_{i}.npy" for i in range(len(operation.arguments))]
    expected = request.folder / "expected.npz" if content["expected"] else None
    if not all(f.is_file() for f in (*files, *([expected] if expected else []))):
        return None
    arguments = tuple(
        InputFile(str(file.resolve()), kind)
        for file, kind in zip(files, operation.arguments, strict=True)
    )
    return ReferenceData(InputSet(content["inputs"], arguments), expected)


def _reference_key(request: OperationReferenceRequest) -> str:
    return f"{_REFERENCES}/{request.operation}/{request.seed}"
