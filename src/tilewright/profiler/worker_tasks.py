"""What workers do for the profiler: compile dispatches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.profiler.folder import TunedConfiguration


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


def compile_dispatch(state: WorkerState, request: DispatchRequest) -> CompileAnswer:
    """Task: see DispatchRequest. Files appear whole, the vmfb only when the compile succeeds.

    Args:
        state: the worker's.
        request: what to compile.

    Returns:
        What the compiler said.
    """
    from tilewright.ir.candidate import make_candidate
    from tilewright.ir.lowering import UnreadableConfiguration
    from tilewright.ir.session import CONFIGURED_PHASE, CompileError

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
        vmfb = compiler.compile(module.operation, compile_from=CONFIGURED_PHASE)
    except CompileError as error:
        return CompileAnswer(str(error), error.log)
    except UnreadableConfiguration as error:
        return CompileAnswer(f"the configuration is not for this program: {error}")
    write_whole(request.vmfb, vmfb)
    return CompileAnswer()


class _Templates(RecentlyUsed[tuple[str, tuple[str, ...]], bytes]):
    """Programs as the compiler configures them, by a digest and the flags."""

    def __init__(self) -> None:
        super().__init__(16)


def _template(state: WorkerState, request: DispatchRequest) -> bytes:
    """The program as the compiler configures it, kept between its configurations."""
    source = request.program.read_bytes()
    key = (hashlib.sha256(source).hexdigest(), request.flags)
    compiler = session(state, request.flags)
    return state.get(_Templates).get(
        key,
        lambda: compiler.compile(source, compile_to=CONFIGURED_PHASE, name=request.program.name),
    )
