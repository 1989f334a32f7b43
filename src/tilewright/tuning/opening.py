"""A program opened for looking into and compiling, without a device to run it on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright import scratch
from tilewright.errors import UserError
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.pool import Job, WorkerPool
from tilewright.target import Target
from tilewright.toolchain import Toolchain, check_versions
from tilewright.tuning.runner_choice import accepted_target
from tilewright.tuning.worker_tasks import LOAD, LoadRequest

if TYPE_CHECKING:
    from tilewright.ir.program import Program

LOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class OpenProgram:
    """A program that IREE has read, workers to compile it, and a folder that goes with them.

    `iree_flags` are the user's own; `program_flags` of :mod:`tilewright.tuning.programs` adds the
    target's and a variant's.
    """

    program: Program
    target: Target
    toolchain: Toolchain
    compilers: WorkerPool
    work: Path
    iree_flags: tuple[str, ...] = ()

    def run(self, task: str, payload: Any, timeout_s: float, what: str) -> Any:
        """Run one task in a worker; UserError, beginning with `what`, when it fails."""
        (result,) = self.compilers.run([Job(payload, task, timeout_s)])
        if result.failure is None:
            return result.value
        if result.failure.is_user_error:
            raise UserError(result.failure.message)
        raise UserError(f"{what}: {result.failure.message}")


@contextmanager
def open_program(
    path: Path,
    target: Target,
    *,
    iree_flags: Sequence[str] = (),
    function: str | None = None,
    input_type: str | None = None,
) -> Iterator[OpenProgram]:
    """Read a program in a worker (a malformed one can crash the parser); all is gone at the end.

    Raises UserError for a program that cannot be read or is not one.
    """
    check_versions()
    toolchain = Toolchain()
    with (
        scratch.folder() as work,
        compile_pool(target.cores) as compilers,
    ):
        target, _ = accepted_target(target, compilers)
        request = LoadRequest(path.absolute(), work, function, input_type, target.declaration)
        (result,) = compilers.run([Job(request, LOAD, LOAD_TIMEOUT_S)])
        failure = result.failure
        if failure is not None:
            place = "" if failure.is_user_error else f"{path}: IREE cannot read the program: "
            raise UserError(place + failure.message)
        program = replace(result.value, source=path)
        yield OpenProgram(program, target, toolchain, compilers, work, tuple(iree_flags))
