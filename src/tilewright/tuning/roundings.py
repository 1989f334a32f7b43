"""What rounding does to the results of a program that is quantised.

Such a program rounds to integers between its layers. Where a number lies between two of them, the
last digit of an f32 sum decides, and with another order of the same sums the next layer gets
another integer: results of two right programs differ by whole steps, of IREE's own with other tile
sizes, too. By how much is measured: the untuned program is compiled again so that all that is
rounded is multiplied by 1 + 2^-20, and where that does not tell by 1 - 2^-20, some times what f32
sums are off by, and run. What its results change by at most, and on average, is what others may be
off by twice. On a CPU that program is compiled for any of its kind, in half of the time: of a
quantised ResNet-50 in 14 s, not 27.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.files import write_whole
from tilewright.ir.session import SITE_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.inputs import InputSet, read_outputs
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.measure.verify import Comparison
from tilewright.toolchain import UNVERIFIED
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import Tested
from tilewright.tuning.context import RunContext
from tilewright.tuning.variants import DEFAULT_VARIANT
from tilewright.tuning.worker_tasks import parse_module, preprocessed

MOVED = (1 + 2.0**-20, 1 - 2.0**-20)
"""What is rounded is multiplied by one of these, and then by the other."""
_TIMEOUT_S, _COMPILE_S = 300.0, 1800.0
# Of what the untuned program's results change by.
_ALLOWED = 2.0
# Later flags count.
_ANY_CPU = ("--iree-llvmcpu-target-cpu=generic",)
# Compiles of the untuned program that finding out takes, one way: for the same processor, for any.
_COMPILES, _COMPILES_ANY = 1.5, 0.75


class Roundings:
    """Judges results that differ from the untuned program's, where that is quantised."""

    def __init__(
        self,
        context: RunContext,
        folder: Path,
        run: Callable[[Path, InputSet, Path], str],
        compile_s: Callable[[], float],
    ) -> None:
        """Judges for a run.

        Args:
            context: the run.
            folder: for programs and results.
            run: runs a program with inputs and keeps its results in a file; '' or what failed.
            compile_s: seconds that compiling the program takes.
        """
        self._context, self._folder = context, folder
        self._run, self._compile_s = run, compile_s
        # What was written to be compiled, None before it is asked; of its first ones the programs,
        # None where one does not compile.
        self._written: list[Path] | None = None
        self._moved: list[Path | None] = []
        self._changes: dict[tuple[str, Path], list[tuple[float, float]]] = {}

    def prepare(self) -> None:
        """Have what judging takes compiled while there is time for it, if it is not yet."""
        self._programs_moved(1)

    def judge(self, vmfb: Path, inputs: InputSet, expected: Path, tested: Tested) -> Tested:
        """See whether wrong results are wrong by more than rounding does.

        Args:
            vmfb: the program that was tested.
            inputs: with which.
            expected: the file of the untuned program's results.
            tested: what was found.

        Returns:
            The same, or that the results are right, with what was allowed.
        """
        if tested.status is not Status.WRONG_RESULT or not self._programs_moved(1):
            return tested
        place = self._folder / "judged.npz"
        if self._run(vmfb, inputs, place):
            return tested
        # What moving it one way says is mostly enough, and each way takes a compile.
        judged = tested
        for ways in range(1, len(MOVED) + 1):
            if not judged.ok:
                judged = self._judged(tested, inputs, expected, place, ways)
        return judged

    def _judged(
        self, tested: Tested, inputs: InputSet, expected: Path, place: Path, ways: int
    ) -> Tested:
        """What was found, by what so many of the programs that are moved change."""
        changes = self._changes_of(inputs, expected, ways)
        if not changes:
            return tested
        made = tuple(
            one if one.ok else _judged(one, got, want, most)
            for one, got, want, most in zip(
                tested.comparisons,
                read_outputs(place),
                read_outputs(expected),
                changes,
                strict=True,
            )
        )
        wrong = next((one for one in made if not one.ok), None)
        return Tested(comparisons=made) if wrong is None else replace(tested, comparisons=made)

    def _programs_moved(self, ways: int) -> list[Path]:
        """The untuned program with what it rounds moved, so many ways at most; none where it
        rounds nothing, or there is no time."""
        context, flags = self._context, self._context.flags(DEFAULT_VARIANT)
        flags = flags if context.target.is_gpu else (*flags, *_ANY_CPU)
        if self._written is None:
            self._written = []
            context.rounds = False
            if self._is_late():
                return []
            request = RoundingsRequest(context.program.path, flags, self._folder)
            written = context.compilers.ask(write_moved, request, _TIMEOUT_S)
            if isinstance(written, WorkerFailure) or not written:
                return []
            self._written = list(written)
            context.note(
                "the program rounds to integers (it is quantised): its results may change by twice "
                "as much as they do when what is rounded changes by a millionth"
            )
        for path in self._written[len(self._moved) : ways]:
            if self._moved and self._is_late():
                break
            vmfb = path.with_suffix(".vmfb")
            made = context.toolchain.compile(
                path,
                vmfb,
                (*flags, f"--compile-from={SITE_PHASE}"),
                timeout_s=_COMPILE_S,
                extra=(UNVERIFIED,),
            )
            self._moved.append(vmfb if made.ok else None)
        return [vmfb for vmfb in self._moved[:ways] if vmfb is not None]

    def _is_late(self) -> bool:
        left = self._context.left_s
        compiles = _COMPILES if self._context.target.is_gpu else _COMPILES_ANY
        return left is not None and left < compiles * self._compile_s()

    def _changes_of(self, inputs: InputSet, expected: Path, ways: int) -> list[tuple[float, float]]:
        """For each result by how much it changes, at most and on average."""
        wanted, found = read_outputs(expected), list[list[tuple[float, float]]]()
        for vmfb in self._programs_moved(ways):
            changes = self._changes.get((inputs.key, vmfb))
            if changes is None:
                place, changes = vmfb.with_suffix(".npz"), []
                if not self._run(vmfb, inputs, place):
                    pairs = zip(read_outputs(place), wanted, strict=True)
                    changes = [apart(got, want) for got, want in pairs]
                self._changes[inputs.key, vmfb] = changes
            found += [changes] if changes else []
        return [
            (max(one[0] for one in of), max(one[1] for one in of))
            for of in zip(*found, strict=True)
        ]


def apart(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> tuple[float, float]:
    """By how much results differ, at most and on average; infinite if they cannot be compared.

    Args:
        got, want: one result each, of any types.
    """
    if got.shape != want.shape or not got.size:
        return np.inf, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    error = np.where(np.isnan(error), np.inf, error)
    return float(error.max()), float(error.mean())


def _judged(
    one: Comparison,
    got: npt.NDArray[Any],
    want: npt.NDArray[Any],
    most: tuple[float, float],
) -> Comparison:
    """A comparison that failed, by what rounding changes."""
    error, on_average = apart(got, want)
    allowed = _ALLOWED * most[0]
    if not (np.isfinite(allowed) and error <= allowed and on_average <= _ALLOWED * most[1]):
        return one
    return replace(one, ok=True, error=error, tolerance=allowed, reason="")


# In the workers


@dataclass(frozen=True)
class RoundingsRequest:
    """Write the program with what it rounds moved, as it is at the preprocessing phase."""

    program: Path
    flags: tuple[str, ...]
    folder: Path


def write_moved(state: WorkerState, request: RoundingsRequest) -> list[Path]:
    """Task: see RoundingsRequest; the files, none where it rounds nothing.

    Args:
        state: the worker's.
        request: what to read.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.ir.roundings import move_roundings

    compiler = session(state, request.flags)
    text = preprocessed(state, request.program, request.flags)
    written = []
    for number, factor in enumerate(MOVED):
        module = parse_module(compiler, text)
        if not move_roundings(module, factor):
            break
        code = io.BytesIO()
        module.operation.write_bytecode(code)
        written.append(write_whole(request.folder / f"moved_{number}.mlirbc", code.getvalue()))
    return written
