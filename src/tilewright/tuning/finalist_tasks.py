"""What compile workers do for a finalist that is a kernel: its site as a program, through a spec.

The spec is what would be shipped, with this kernel alone in it, and the compiler's own pass does to
the site what it says, before any other: the site was cut out of the program at the phase at which
`iree-compile` has specs act, and input passes could fold what the spec matches. In a warm worker
that takes neither a process nor a compile without the spec for each finalist; the program that is
handed back is proven with the command line that the user is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.entries import KernelEntry, write_entries
from tilewright.tuning.proof import NOT_REACHED
from tilewright.tuning.reference_tasks import SITE_PROGRAM_PHASE
from tilewright.tuning.worker_tasks import parse_module

_APPLY = "builtin.module(iree-preprocessing-transform-interpreter{{transform-spec-path={}}})"


@dataclass(frozen=True)
class SiteFinalistRequest:
    """Compile a site as a program with a kernel in its place.

    entry: the kernel. program: the site's module, as `SiteData.program`. flags: of `iree-compile`.
    vmfb: where the program goes; the spec is written beside it. repeats: executions in one
    submission when it is timed.
    """

    entry: KernelEntry
    program: Path
    flags: tuple[str, ...]
    vmfb: Path
    repeats: int


def compile_site_finalist(state: WorkerState, request: SiteFinalistRequest) -> Path:
    """Task: see SiteFinalistRequest.

    Args:
        state: the worker's.
        request: which kernel for which site, and where the program goes.

    Returns:
        Where it is.

    Raises:
        UserError: the spec cannot be written, or does not reach the site.
        CompileError: the program does not compile with it.
    """
    from tilewright.ir.candidate import make_candidate

    text = write_entries((request.entry,), state, request.flags, {})
    spec = write_whole(request.vmfb.with_suffix(".spec.mlir"), text.encode())
    compiler = session(state, request.flags)
    module = parse_module(compiler, request.program.read_bytes())
    # What each pass leaves is verified where the result is proven.
    _apply(module, spec)
    compiler.run(module.operation, SITE_PROGRAM_PHASE, CONFIGURED_PHASE, verify=False)
    if not any(KernelEntry.reached(module).values()):
        raise UserError(NOT_REACHED)
    source = bytes(module.operation.get_asm(binary=True))
    made = make_candidate(source, compiler.context, "", "", None, request.repeats, whole=True)
    vmfb = compiler.compile(made.operation, compile_from=CONFIGURED_PHASE)
    return write_whole(request.vmfb, vmfb)


def _apply(module: Any, spec: Path) -> None:
    """Do to a module, in place, what a preprocessing spec does."""
    from iree.compiler import passmanager

    with module.context:
        passmanager.PassManager.parse(_APPLY.format(spec), module.context).run(module.operation)
