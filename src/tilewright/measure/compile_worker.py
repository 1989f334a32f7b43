"""Tasks of a compile worker: a warm compiler for each set of flags, and compiling with it.

A task of one's own (one that edits a template before it compiles, say) gets its compiler by
:func:`session` and keeps what it parses in the worker's state dict.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession, Output, set_global_options
from tilewright.measure.pool import WorkerPool

SETUP = "tilewright.measure.compile_worker:setup"
COMPILE = "tilewright.measure.compile_worker:compile_source"

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

_SESSIONS = "tilewright.sessions"
# A session holds about 10 MB; a run uses one for each variant's set of flags.
_MAX_SESSIONS = 8


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


def setup(state: dict[str, Any], payload: CompileSetup) -> None:
    """Set up the worker; must run before its first session is made."""
    set_global_options(*payload.global_options)
    for flags in payload.flags:
        session(state, flags)


def session(state: dict[str, Any], flags: tuple[str, ...]) -> CompilerSession:
    """The worker's warm compiler for these flags.

    The sessions used least recently are closed when there are many: parsed operations belong in
    the state under a key that includes the flags, and must be dropped with `forget_sessions`.
    """
    sessions: dict[tuple[str, ...], CompilerSession] = state.setdefault(_SESSIONS, {})
    found = sessions.pop(flags, None)
    if found is None:
        found = CompilerSession(flags)
        while len(sessions) >= _MAX_SESSIONS:
            # Dropped, not closed: operations that a task still holds keep their context alive.
            del sessions[next(iter(sessions))]
    sessions[flags] = found
    return found


def compile_source(state: dict[str, Any], request: CompileRequest) -> bytes | Path:
    """Task: compile a module. Raises CompileError."""
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


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file so that no reader, and no later run, ever sees half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def compile_pool(
    count: int,
    *,
    task: str = COMPILE,
    flags: tuple[tuple[str, ...], ...] = (),
    timeout_s: float = 30.0,
    memory_limit: int | None = 4 << 30,
) -> WorkerPool:
    """A pool of `count` compile workers, warmed up for these sets of flags."""
    if count < 1:
        raise UserError(f"compile workers: {count} asked for, at least 1 is needed")
    return WorkerPool(
        task,
        count,
        setup=SETUP,
        init=CompileSetup(flags),
        timeout_s=timeout_s,
        memory_limit=memory_limit,
    )
