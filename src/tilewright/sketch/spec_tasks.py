"""What workers do with specs and programs that are only read, and with the code of kernels.

A file that is not what it says can crash the parser: it takes a worker down and no command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import UserError
from tilewright.files import read_text
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import Reply, Request, WorkerFailure, WorkerState, WorkerTask
from tilewright.measure.processor import processor
from tilewright.schedule import compiler
from tilewright.schedule.build_tasks import with_processor
from tilewright.spec.report import SpecReport
from tilewright.target import Target

if TYPE_CHECKING:
    from tilewright.spec.merge import MergeResult


def check_code(spec: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """See that a compiler takes the code of a spec's kernels.

    Args:
        spec: a preprocessing spec.
        target: what is compiled for.
        flags: more flags of `iree-compile`.

    Raises:
        UserError: it is no spec, the target lacks something that a kernel needs, or the compiler
            does not take the code.
    """
    failure = compiler.ask(compile_code, ReadSpecRequest(spec, target, flags))
    if isinstance(failure, WorkerFailure):
        raise UserError(f"{spec}: the code of its kernels does not compile: {failure.message}")
    if failure:
        raise UserError(failure)


def report_on(spec: Path) -> SpecReport:
    """What a spec is.

    Args:
        spec: its file.

    Raises:
        UserError: it is none.
    """
    return _asked(report_on_file, spec, spec)


def merge_files(specs: Sequence[Path], apart: bool = False) -> MergeResult:
    """One spec of several of one sort.

    Args:
        specs: their files; where two fit the same dispatch, the earlier one wins.
        apart: leave out what makes kernels that follow each other one dispatch.

    Returns:
        The spec, with what was left out and what to know.

    Raises:
        UserError: a file is no spec, or they are of both sorts.
    """
    return _asked(merge_read, (tuple(specs), apart), *specs)


def strip_file(program: Path) -> tuple[bytes, Mapping[str, int]]:
    """A program without the configurations that it carries.

    Args:
        program: its file.

    Returns:
        As `ir.program.strip_program`.

    Raises:
        UserError: a file that cannot be read, or that IREE does not parse.
    """
    return _asked(strip_read, program, program)


def _asked(task: WorkerTask[Request, Reply], request: Request, *read: Path) -> Reply:
    """A task's reply. Raises UserError."""
    reply = compiler.ask(task, request)
    if isinstance(reply, WorkerFailure):
        place = "" if reply.is_user_error else f"{', '.join(map(str, read))}: cannot be read: "
        raise UserError(f"{place}{reply.message}")
    return reply


def resolved_target(target: Target) -> Target:
    """A target with what the compiler knows of its processor.

    Args:
        target: of a CPU or a GPU.

    Returns:
        The same target, its processor and vectors known; of a GPU as it is.

    Raises:
        UserError: the compiler does not know it.
    """
    if target.is_gpu:
        return target
    found = compiler.ask(learn_processor, target)
    if isinstance(found, WorkerFailure):
        raise UserError(f"--target {target.name}: {found.message}")
    return found


# In the workers


def report_on_file(_state: WorkerState, path: Path) -> SpecReport:
    """Task: see `report_on`."""
    from tilewright.spec.read import check_spec

    return check_spec(read_text(path, "tuning spec"), str(path))


def merge_read(_state: WorkerState, request: tuple[tuple[Path, ...], bool]) -> MergeResult:
    """Task: see `merge_files`."""
    from tilewright.spec.join import merge_any, without_sequences

    paths, apart = request
    merged = merge_any([(str(path), read_text(path, "tuning spec")) for path in paths])
    return replace(merged, text=without_sequences(merged.text)) if apart else merged


def strip_read(_state: WorkerState, path: Path) -> tuple[bytes, Mapping[str, int]]:
    """Task: see `strip_file`."""
    from tilewright.ir.program import strip_program

    return strip_program(path)


@dataclass(frozen=True)
class ReadSpecRequest:
    """A spec that is to be used for a target, with more flags of `iree-compile`."""

    path: Path
    target: Target
    flags: tuple[str, ...] = ()


def read_spec(state: WorkerState, request: ReadSpecRequest) -> SpecReport:
    """Task: what a spec is.

    Args:
        state: the worker's.
        request: which spec, for what.

    Raises:
        UserError: it is none, or the target lacks something that one of its kernels needs.
    """
    from tilewright.sketch.requirements import check_kernels

    report = report_on_file(state, request.path)
    if report.kernels:
        check_kernels(report.kernels, with_processor(state, request.target), str(request.path))
    return report


def compile_code(state: WorkerState, request: ReadSpecRequest) -> str:
    """Task: compile the code of a spec's kernels; '' or why they are not for the target.

    Args:
        state: the worker's.
        request: which spec, for what.

    Raises:
        CompileError: the compiler does not take the code.
    """
    from iree.compiler import ir

    from tilewright.spec.kernels import stored_kernels

    try:
        read_spec(state, request)
    except UserError as error:
        return str(error)
    compiler = session(state, (*request.target.flags, *request.flags))
    with compiler.context, ir.Location.unknown():
        spec = ir.Module.parse(request.path.read_bytes())
        module = ir.Module.create()
        for kernel in stored_kernels(spec.operation):
            for op in kernel.parts(spec.operation):
                if not op.name.startswith("transform."):
                    module.body.append(op.clone(ip=False).operation)
            ir.SymbolTable.set_visibility(
                ir.SymbolTable(module.operation)[kernel.symbols.call], "public"
            )
        source = str(module)
    compiler.compile(source, name=request.path.name)
    return ""


def learn_processor(state: WorkerState, target: Target) -> Target:
    """Task: see `resolved_target`.

    Args:
        state: the worker's.
        target: of a CPU.
    """
    return target.with_vectors(*processor(state, target.flags))
