"""What workers do for the profiler: build programs, compile dispatches, make references."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.measure.compile_worker import session, write_whole
from tilewright.measure.inputs import InputFile, InputSet, random_inputs, write_outputs
from tilewright.profiler.folder import TunedConfiguration
from tilewright.profiler.names import parse_operation
from tilewright.tuning.worker_tasks import CONFIGURED

_MODULE = "tilewright.profiler.worker_tasks"
EMIT, COMPILE_DISPATCH, REFERENCE = (
    f"{_MODULE}:{name}" for name in ("emit", "compile_dispatch", "reference")
)

_TEMPLATES = "tilewright.profiler.templates"
_MOST_TEMPLATES = 16
# A new number makes all references anew: when what NumPy computes here has changed.
_REFERENCES = 1
_INDEX = "reference.json"


@dataclass(frozen=True)
class EmitRequest:
    """Write the programs of operations, given by name, to these files."""

    programs: tuple[tuple[str, Path], ...]
    flags: tuple[str, ...]


def emit(state: dict[str, Any], request: EmitRequest) -> list[str]:
    """Task: see EmitRequest. The names of those written; a file with the same content is left."""
    from tilewright.profiler.builder import build_program

    context = session(state, request.flags).context
    written = []
    for name, path in request.programs:
        module = build_program(parse_operation(name), context)
        text = module.operation.get_asm().encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != text:
            write_whole(path, text)
            written.append(name)
    return written


@dataclass(frozen=True)
class DispatchRequest:
    """Compile a program in one configuration.

    tuned: None for the compiler's own. repeats: above 1 the result has a function `bench` too,
    which runs the whole program this often. configured: where to keep the configured program that
    code is generated from.
    """

    program: Path
    flags: tuple[str, ...]
    tuned: TunedConfiguration | None
    repeats: int
    vmfb: Path
    configured: Path


@dataclass(frozen=True)
class CompileAnswer:
    """message: the first error, '' when the vmfb was written. log: all that the compiler said."""

    message: str = ""
    log: str = ""


def compile_dispatch(state: dict[str, Any], request: DispatchRequest) -> CompileAnswer:
    """Task: see DispatchRequest. Files appear whole, the vmfb only when the compile succeeds."""
    from tilewright.ir.candidate import COMPILE_FROM, make_candidate
    from tilewright.ir.lowering import UnreadableConfiguration
    from tilewright.ir.session import CompileError

    try:
        compiler = session(state, request.flags)
        tuned = request.tuned
        module = make_candidate(
            _template(state, request),
            compiler.context,
            tuned.executable if tuned else "",
            tuned.entry if tuned else "",
            tuned.configuration if tuned else None,
            request.repeats,
            whole=True,
        )
        write_whole(request.configured, module.operation.get_asm().encode())
        vmfb = compiler.compile(module.operation, compile_from=COMPILE_FROM)
    except CompileError as error:
        return CompileAnswer(str(error), error.log)
    except UnreadableConfiguration as error:
        return CompileAnswer(f"the configuration is not for this program: {error}")
    write_whole(request.vmfb, vmfb)
    return CompileAnswer()


def _template(state: dict[str, Any], request: DispatchRequest) -> bytes:
    """The program as the compiler configures it, kept between its configurations."""
    kept: dict[tuple[str, tuple[str, ...]], bytes] = state.setdefault(_TEMPLATES, {})
    source = request.program.read_bytes()
    key = (hashlib.sha256(source).hexdigest(), request.flags)
    if key not in kept:
        while len(kept) >= _MOST_TEMPLATES:
            del kept[next(iter(kept))]
        compiler = session(state, request.flags)
        kept[key] = compiler.compile(source, compile_to=CONFIGURED, name=request.program.name)
    return kept[key]


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


def reference(state: dict[str, Any], request: OperationReferenceRequest) -> ReferenceData:
    """Task: see ReferenceRequest. What an earlier request has made is not made again."""
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
    """What an earlier request has made for this one; None when it has to be made."""
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


def chunks(items: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
    """The items in groups of at most `size`."""
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]
