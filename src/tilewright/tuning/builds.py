"""The program of a run, compiled: with a variant, and with specs."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tilewright.toolchain import UNVERIFIED, CompileOutcome
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import PLAIN, WITH_KERNELS
from tilewright.tuning.variants import (
    DEFAULT_VARIANT,
    PREPROCESSING_FLAG,
    Variant,
    packed_ahead,
    without_spec,
)

COMPILE_TIMEOUT_S = 1800.0
# Of its processor time: what a compile takes alone on several cores (six networks on two cores:
# 0.73 to 0.83). Times that: what it takes verified (1.1 to 1.7).
_OF_WORK, _VERIFIED = 0.8, 1.4


@dataclass(frozen=True)
class Build:
    """A program as a variant, with specs or without: to be compiled, or compiled.

    name: of its file. spec: a tuning spec. vmfb: None before it is compiled, and, with an `error`,
    when it does not. preprocessing: a spec with kernels, in the place of the one that the variant
    may have. seconds: that compiling it took. apart: where kernels of the spec are in sequence, the
    spec without that. configured: the program at the executable-configurations phase, where it was
    compiled to that, too.
    """

    name: str
    variant: Variant
    spec: Path | None = None
    vmfb: Path | None = None
    error: str = ""
    preprocessing: Path | None = None
    seconds: float = 0.0
    apart: Path | None = None
    configured: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether it compiled."""
        return self.vmfb is not None

    @property
    def is_default(self) -> bool:
        """Whether it is what the compiler makes of the program by itself."""
        specs = (self.spec, self.preprocessing)
        return self.variant == DEFAULT_VARIANT and not any(specs)

    def as_compiled(self, given: Sequence[str]) -> Variant:
        """The variant with the preprocessing spec that the program is compiled with.

        Args:
            given: the user's flags, which hold where they say what kernels would need.
        """
        if self.preprocessing is None:
            return self.variant
        own = (*packed_ahead(given), *without_spec(self.variant.flags))
        return replace(self.variant, flags=(f"{PREPROCESSING_FLAG}={self.preprocessing}", *own))


def compile_program(
    context: RunContext, wanted: Build, alone: bool = True, timeout_s: float = COMPILE_TIMEOUT_S
) -> Build:
    """Compile a program of a run; a failure is in the result.

    Args:
        context: the run.
        wanted: what to compile.
        alone: as `Programs.build` takes it.
        timeout_s: seconds for it.

    Returns:
        The program, or why there is none.
    """
    vmfb = programs_folder(context) / f"{wanted.name}.vmfb"
    flags = context.flags(wanted.as_compiled(context.options.iree_flags), wanted.spec)
    compiled = partial(
        context.toolchain.compile, context.program.path, vmfb, flags, timeout_s=timeout_s
    )
    # What is no choice of ours need not be shown to compile as the user's compile does it.
    outcome = compiled(extra=(UNVERIFIED,) if wanted.is_default else ())
    if wanted.is_default and outcome.crashed not in (None, signal.SIGKILL):
        # Who verifies can say what is wrong; one that was ended from outside is not begun again.
        outcome = compiled()
    if outcome.ok:
        step = WITH_KERNELS if wanted.preprocessing is not None else PLAIN
        if alone or not context.deadlines.each(step, 0.0):
            context.deadlines.took(
                step, _alone_s(outcome) if wanted.is_default else outcome.seconds
            )
    made = vmfb if outcome.ok else None
    return replace(wanted, vmfb=made, error=outcome.error, seconds=outcome.seconds)


def _alone_s(outcome: CompileOutcome) -> float:
    """Seconds that a program would take which was compiled beside others, unverified, if it were
    compiled alone, and verified."""
    work_s = _OF_WORK * outcome.cpu_s
    return _VERIFIED * min(outcome.seconds, work_s or math.inf)


@contextmanager
def compiling(context: RunContext, wanted: Build) -> Iterator[Callable[[], Build]]:
    """Compile a program of a run while something else is done: the compiler seldom has work for all
    cores.

    With one thread it is compiled when it is asked for.

    Args:
        context: the run.
        wanted: what to compile.

    Yields:
        Waits for the program, as `compile_program` returns it.
    """
    if context.target.cores == 1:
        yield lambda: compile_program(context, wanted)
        return
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(compile_program, context, wanted)
        try:
            yield made.result
        except BaseException:
            context.toolchain.stop()
            raise


def programs_folder(context: RunContext) -> Path:
    """The folder of a run's programs.

    Args:
        context: the run.
    """
    folder = context.work / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
