"""What compile workers do with specs that have kernels: read them, compile the kernels' code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UserError
from tilewright.files import read_text
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.schedule import compiler
from tilewright.schedule.build_tasks import with_processor
from tilewright.spec.report import SpecReport
from tilewright.target import Target


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


# In the workers


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
    from tilewright.spec.read import check_spec

    path = request.path
    report = check_spec(read_text(path, "tuning spec"), str(path))
    if report.kernels:
        check_kernels(report.kernels, with_processor(state, request.target), str(path))
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
