"""Tasks of a compile worker: a warm compiler for each set of flags, and compiling with it.

A task of one's own (one that edits a template before it compiles, say) gets its compiler by
:func:`session` and keeps what it parses in the worker's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import UserError
from tilewright.files import write_whole
from tilewright.ir.session import CompilerSession, Output, set_global_options
from tilewright.measure.jobs import Job, RecentlyUsed, WorkerState
from tilewright.measure.pool import WorkerPool

if TYPE_CHECKING:
    from tilewright.ir.calling_host import CallingHost
    from tilewright.ir.kernel_calls import KernelCalls
    from tilewright.ir.splice import SplicedHost

# With one compile at a time in each of several processes, the compiler's own threads only cost:
# 5 to 8% of the wall time of a small kernel, with one process as with one per core.
# Executables stay apart, which changes nothing in their code, so that one can be exchanged alone
# (`ir.splice`).
# Errors do not need the whole executable printed behind them, which can be thousands of lines.
GLOBAL_OPTIONS = (
    "--mlir-disable-threading",
    "--iree-hal-link-executables=false",
    "--mlir-print-op-on-diagnostic=false",
)

SETTING_UP_S = 10.0
"""What a worker's first candidate may take more than others, in processor time: it makes the
session and the template that they find. Without it, in the place of a worker that was ended comes
one that times out as well: one candidate that hangs would have all that follow do so."""

# A session holds about 10 MB; a run uses one for each variant's set of flags.
_MAX_SESSIONS = 8
# Host code holds less than one; a network's kernels are called in some twenty forms.
_MAX_HOSTS = 64


@dataclass(frozen=True)
class CompileSetup:
    """flags: sets of flags whose sessions are made before the first job arrives."""

    flags: tuple[tuple[str, ...], ...] = ()
    global_options: tuple[str, ...] = GLOBAL_OPTIONS


@dataclass(frozen=True)
class CompileRequest:
    """What `compile_source` does: see `CompilerSession.compile`.

    source: text, bytecode, or the path of a file with either.
    destination: path to write the result to; None returns it.
    """

    source: str | bytes | Path
    flags: tuple[str, ...]
    compile_from: str | None = None
    compile_to: str | None = None
    output: Output | None = None
    destination: Path | None = None
    name: str = "source.mlir"


class _Sessions(RecentlyUsed[tuple[str, ...], CompilerSession]):
    """The worker's compilers, by their flags."""

    def __init__(self) -> None:
        super().__init__(_MAX_SESSIONS)


class _HostWriters(RecentlyUsed[CompilerSession, Any]):
    """What writes host code, by its compiler."""

    def __init__(self) -> None:
        super().__init__(_MAX_SESSIONS)


class _Hosts(RecentlyUsed[tuple[CompilerSession, "KernelCalls", bool], "SplicedHost"]):
    """Host code that kernels are put into, by its compiler, the form of its calls, and whether it
    has guards."""

    def __init__(self) -> None:
        super().__init__(_MAX_HOSTS)


def setup(state: WorkerState, request: CompileSetup) -> None:
    """Set up the worker; must run before its first session is made.

    Args:
        state: of a new worker.
        request: options of the compiler, and sessions to make at once.

    Raises:
        UserError: a flag is unknown.
    """
    set_global_options(*request.global_options)
    for flags in request.flags:
        session(state, flags)


def session(state: WorkerState, flags: tuple[str, ...]) -> CompilerSession:
    """The worker's warm compiler for these flags.

    The sessions used least recently are dropped when there are many, not closed: operations that a
    task still holds keep their context alive.

    Args:
        state: what the worker keeps.
        flags: of `iree-compile`.
    """
    return state.get(_Sessions).get(flags, lambda: CompilerSession(flags))


def host_of(
    state: WorkerState, compiler: CompilerSession, calls: KernelCalls, guarded: bool = True
) -> CallingHost:
    """Host code that calls kernels; what it is made of is kept for all calls of the same form.

    Args:
        state: what the worker keeps.
        compiler: the worker's, which compiles the kernels.
        calls: what it does.
        guarded: whether it has a function `guarded`, see `ir.guards`.

    Raises:
        CompileError: it does not compile.
    """
    from tilewright.ir.calling_host import CallingHost, sizes_of
    from tilewright.ir.kernel_host import HostWriter
    from tilewright.ir.splice import SplicedHost

    form = calls.form()

    def made() -> SplicedHost:
        writer: HostWriter = state.get(_HostWriters).get(compiler, lambda: HostWriter(compiler))
        written = writer.write(form, guarded=guarded)
        return SplicedHost(compiler, written, form.kernels, sizes_of(form))

    return CallingHost(state.get(_Hosts).get((compiler, form, guarded), made), calls)


def compile_source(state: WorkerState, request: CompileRequest) -> bytes | Path:
    """Task: compile a module.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Returns:
        What was compiled, or where it was written to if the request says where.

    Raises:
        CompileError: the compiler rejects the module.
    """
    source: str | bytes
    source = request.source.read_bytes() if isinstance(request.source, Path) else request.source
    result = session(state, request.flags).compile(
        source,
        request.compile_from,
        request.compile_to,
        request.output,
        name=str(request.source) if isinstance(request.source, Path) else request.name,
    )
    if request.destination is None:
        return result
    return write_whole(request.destination, result)


def compile_pool(
    count: int,
    *,
    flags: tuple[tuple[str, ...], ...] = (),
    timeout_s: float = 30.0,
    memory_limit: int | None = 4 << 30,
) -> WorkerPool:
    """A pool of `count` compile workers, warmed up for these sets of flags.

    Args:
        count: of workers.
        flags: sets of flags whose compilers are warmed up.
        timeout_s: default limit of a job, in seconds.
        memory_limit: bytes of private memory for each worker; None for no limit.

    Raises:
        UserError: `count` is below 1.
    """
    if count < 1:
        raise UserError(f"compile workers: {count} asked for, at least 1 is needed")
    return WorkerPool(
        count,
        setup=Job(setup, CompileSetup(flags)),
        timeout_s=timeout_s,
        memory_limit=memory_limit,
    )
