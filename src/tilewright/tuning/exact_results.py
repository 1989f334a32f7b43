"""Results that are further from the untuned program's than rounding goes, judged in float64.

A tuned program is held to the untuned one's results, which can be the worse ones: the compiler
adds up the 255,744 numbers of a group norm one after another, and a Conv-TasNet's results are off
by 1.6e-4 where onnxruntime's are by 3e-5. So the program itself is evaluated in float64
(`tilewright.ir.reference`; four networks, the largest a Swin-T, in 0.5 to 3 s on two cores). What
it says is right within the bound that programs have, and results that are no further from it than
the untuned program's, at most and on average, are as right as those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.argument import element_type_of
from tilewright.measure.compile_worker import session
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import InputSet, load_arguments, read_outputs, write_outputs
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.measure.verify import Comparison, compare, is_float_type
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import Tested
from tilewright.tuning.context import RunContext
from tilewright.tuning.reference_tasks import FLOAT64
from tilewright.tuning.roundings import apart
from tilewright.tuning.variants import DEFAULT_VARIANT
from tilewright.tuning.worker_tasks import parse_module, preprocessed

# Seconds for it, and as a part of what a run has left.
_MOST_S, _OF_LEFT = 300.0, 0.5
# Bytes of weights; float64 takes twice as many.
_LARGE = 1 << 30


class ExactResults:
    """Judges results that differ from the untuned program's, where that rounds to no integers."""

    def __init__(
        self,
        context: RunContext,
        folder: Path,
        run: Callable[[Path, InputSet, Path], str],
        function: str,
        parameters: Parameters,
        terms: int,
    ) -> None:
        """Judges for a run.

        Args:
            context: the run.
            folder: for results.
            run: runs a program with inputs and keeps its results in a file; '' or what failed.
            function: of the program.
            parameters: its weights.
            terms: that a result is taken to be a sum of.
        """
        self._context, self._folder, self._run = context, folder, run
        self._function, self._parameters, self._terms = function, parameters, terms
        # By inputs the results in float64, None where there are none.
        self._known: dict[str, Path | None] = {}
        self._told = False

    def judge(self, vmfb: Path, inputs: InputSet, expected: Path, tested: Tested) -> Tested:
        """See whether wrong results are as right as the untuned program's, or more.

        Args:
            vmfb: the program that was tested.
            inputs: with which.
            expected: the file of the untuned program's results.
            tested: what was found.

        Returns:
            The same, or that the results are right, with what was allowed.
        """
        if tested.status is not Status.WRONG_RESULT:
            return tested
        exact, place = self._exact(inputs), self._folder / "judged.npz"
        if exact is None or self._run(vmfb, inputs, place):
            return tested
        files = (read_outputs(path) for path in (place, expected, exact))
        made = tuple(
            one if one.ok else _judged(one, got, untuned, right, self._terms)
            for one, got, untuned, right in zip(tested.comparisons, *files, strict=True)
        )
        if not all(one.ok for one in made):
            return replace(tested, comparisons=made)
        if not self._told:
            self._told = True
            self._context.note(
                "results differ from the untuned program's by more than rounding should, and by "
                f"what {FLOAT64} says of the program they are as right or more: judged by that"
            )
        return Tested(comparisons=made)

    def _exact(self, inputs: InputSet) -> Path | None:
        """The program's results in float64; None where they cannot be had, or in no time."""
        if inputs.key in self._known:
            return self._known[inputs.key]
        if None in self._known.values():
            # With other data it takes as long, and has the same ops.
            return None
        context, left_s = self._context, self._context.left_s
        archives = [Path(path) for _, path in self._parameters.archives]
        found: Path | WorkerFailure | None = None
        if sum(path.stat().st_size for path in archives) <= _LARGE:
            request = ExactRequest(
                context.program.path,
                context.flags(DEFAULT_VARIANT),
                self._function,
                inputs,
                self._parameters,
                self._folder / f"exact_{len(self._known)}.npz",
            )
            most_s = _MOST_S if left_s is None else min(_MOST_S, _OF_LEFT * left_s)
            found = context.compilers.ask(evaluate_program, request, most_s)
        self._known[inputs.key] = found if isinstance(found, Path) else None
        return self._known[inputs.key]


def _judged(
    one: Comparison,
    got: npt.NDArray[Any],
    untuned: npt.NDArray[Any],
    right: npt.NDArray[Any],
    terms: int,
) -> Comparison:
    """A comparison with the untuned program that failed, by what is right."""
    kind = element_type_of(got.dtype)
    if not (is_float_type(kind) and got.shape == untuned.shape == right.shape):
        return one
    compared = replace(compare(got, right, kind, terms), against=FLOAT64)
    if compared.ok:
        return compared
    (error, on_average), (allowed, allowed_on_average) = apart(got, right), apart(untuned, right)
    if not (np.isfinite(allowed) and error <= allowed and on_average <= allowed_on_average):
        return one
    return replace(compared, ok=True, error=error, tolerance=allowed, reason="")


# In the workers


@dataclass(frozen=True)
class ExactRequest:
    """Evaluate the program in float64, as it is at the preprocessing phase.

    place: the .npz file of its results.
    """

    program: Path
    flags: tuple[str, ...]
    function: str
    inputs: InputSet
    parameters: Parameters
    place: Path


def evaluate_program(state: WorkerState, request: ExactRequest) -> Path:
    """Task: see ExactRequest; the file.

    Args:
        state: the worker's.
        request: what to evaluate.

    Raises:
        CompileError: the program does not compile.
        Unsupported: it has an op that the interpreter does not know.
    """
    from iree.runtime import ParameterIndex

    from tilewright.ir.reference import Unsupported, evaluate

    compiler = session(state, request.flags)
    text = preprocessed(state, request.program, request.flags)
    scopes: dict[str, Any] = {}
    for scope, path in request.parameters.archives:
        scopes.setdefault(scope, ParameterIndex()).load(path)
    entries = {
        (scope, key): entry for scope, index in scopes.items() for key, entry in index.items()
    }

    def parameter(scope: str, key: str) -> Any:
        entry = entries.get((scope, key))
        if entry is None:
            raise Unsupported(f"parameter {scope}::{key}, which no archive has")
        if entry.is_file:
            return entry.file_view
        return entry.splat_pattern * (entry.length // len(entry.splat_pattern))

    module = parse_module(compiler, text)
    values = load_arguments(request.inputs)
    write_outputs(request.place, evaluate(module, request.function, values, parameter))
    return request.place
