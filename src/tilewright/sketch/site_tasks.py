"""What compile workers do to find the sites of a program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.files import write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.site import Site, free_name

if TYPE_CHECKING:
    from iree.compiler import ir


@dataclass(frozen=True)
class FindSitesRequest:
    """Find the sites of a program, and write the modules of those that can be cut out of it.

    program: what the compiler is given. flags: of `iree-compile`, those of the variant included.
    folder: for the modules; made if there is none. function: the entry point whose run is counted;
        by default all of them.
    """

    program: Path
    flags: tuple[str, ...]
    folder: Path
    function: str | None = None


def find_sites(state: WorkerState, request: FindSitesRequest) -> tuple[Site, ...]:
    """Task: find the sites of a program.

    Args:
        state: the worker's.
        request: see FindSitesRequest.

    Returns:
        A site for every dispatch that the run reaches, at least; equal ones are one, with their
        counts summed.

    Raises:
        CompileError: the program does not compile.
    """
    return find_on_the_way(state, request)[0]


def find_on_the_way(
    state: WorkerState, request: FindSitesRequest
) -> tuple[tuple[Site, ...], ir.Operation]:
    """Find the sites of a program, and take it to the flow phase, by one compile for both.

    Args:
        state: the worker's.
        request: see FindSitesRequest.

    Returns:
        What `find_sites` does, and the program's module.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.ir.session import SITE_PHASE
    from tilewright.ir.signature import argument_type
    from tilewright.ir.sites import find_program_sites

    compiler = session(state, request.flags)
    module = compiler.parse(request.program.read_bytes(), name=request.program.name)
    compiler.run(module, None, SITE_PHASE, verify=False)
    flow = module.operation.clone()
    request.folder.mkdir(parents=True, exist_ok=True)
    sites: list[Site] = []
    for index, found in enumerate(find_program_sites(compiler, module, request.function, flow)):
        name, path = _name(tuple(found.dispatches), {site.name for site in sites}), Path()
        alone = found.alone
        if alone is not None:
            path = request.folder / f"{index:03d}_{name[:80]}.mlir"
            write_whole(path, alone.module.operation.get_asm().encode())
        sites.append(
            Site(
                name=name,
                dispatches=tuple(found.dispatches),
                count=found.count,
                module=path,
                inputs=alone.arguments if alone is not None else (),
                constant=found.constant,
                output=argument_type(alone.result.type) if alone is not None else None,
                reason=found.reason,
                runs=tuple(found.dispatches.values()),
                again=found.again,
            )
        )
    return tuple(sites), flow


def _name(dispatches: tuple[str, ...], taken: set[str]) -> str:
    """The name of the first dispatch, with what tells it from the names that there are."""
    first, others = dispatches[0], len(dispatches) - 1
    return free_name(f"{first}_and_{others}_more" if others else first, taken)
