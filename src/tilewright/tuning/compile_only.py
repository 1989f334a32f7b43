"""`tilewright tune --compile-only`: candidates are compiled and not run. It needs no device.

For each dispatch: configurations drawn uniformly from its space, how many of them compile and to
how many different programs, why the others do not, whether the workgroup's size that was asked for
is in the code that was generated, and whether a tuning spec with one of them is applied.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import words
from tilewright.device_code import workgroup_sizes
from tilewright.errors import UserError
from tilewright.gpu import GpuCompilationInfo
from tilewright.space.interface import Space
from tilewright.space.knobs import ChoiceKnob
from tilewright.toolchain import versions
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.confirm import configuration_claim
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import TrialDone
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.outputs import MANIFEST
from tilewright.tuning.prepared_variant import PreparedVariant, nothing_to_tune
from tilewright.tuning.proof import ProofFailure, prove
from tilewright.tuning.search_phase import trial_detail
from tilewright.tuning.session_stages import Compiling
from tilewright.tuning.stages import CompiledCandidate, CompileStage
from tilewright.tuning.task import DispatchTask

SUMMARY = "summary.json"
DEFAULT_SAMPLES = 64


@dataclass(frozen=True)
class CompiledDispatch:
    """What became of the candidates of one dispatch.

    `sampled` are different configurations, `distinct` counts different programs. `sizes_found`: of
    how many the workgroup's size is in the code; None where the format does not tell. `choices`:
    how often each value of each knob that chooses among names was drawn. `errors` counts reasons.
    `applied`: what the proof that a spec (or attribute) is applied said, '' when it was.
    """

    name: str
    workload: str
    space_points: float
    spaces: dict[str, float]
    sampled: int
    compiled: int
    distinct: int
    sizes_found: int | None
    choices: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    applied: str | None = None
    compile_s: float = 0.0

    @property
    def compile_rate(self) -> float | None:
        """Share of the sampled candidates that compiled; None where there were none."""
        return self.compiled / self.sampled if self.sampled else None


@dataclass(frozen=True)
class CompileOnlyResult:
    """The outcome of a compile-only run; `to_json()` is summary.json."""

    program: str
    target: str
    seed: int
    dispatches: tuple[CompiledDispatch, ...]
    skipped: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    output: Path
    wall_s: float

    @property
    def compile_rate(self) -> float | None:
        """Share of all sampled candidates that compiled; None where there were none."""
        sampled = sum(d.sampled for d in self.dispatches)
        return sum(d.compiled for d in self.dispatches) / sampled if sampled else None

    def to_json(self) -> dict[str, Any]:
        """What summary.json holds.

        Returns:
            The fields, and the share of candidates that compiled.
        """
        return {
            "mode": "compile-only",
            "program": self.program,
            "target": self.target,
            "seed": self.seed,
            "compile_rate": self.compile_rate,
            "dispatches": [{**asdict(d), "compile_rate": d.compile_rate} for d in self.dispatches],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "notes": list(self.notes),
            "wall_s": self.wall_s,
        }


def compile_only(
    context: RunContext, compiling: Compiling, prepared: PreparedVariant, source: Path
) -> CompileOnlyResult:
    """Sample, compile, count and write summary.json and the manifest.

    Args:
        context: the run.
        compiling: the stage that compiles candidates.
        prepared: the tasks of the program's default variant.
        source: the user's file, for messages.

    Returns:
        What became of the candidates of each dispatch.

    Raises:
        UserError: No dispatch has a space.
    """
    begin = time.monotonic()
    if not prepared.tasks:
        raise nothing_to_tune(source, [prepared], context.options.only)
    samples = context.options.max_trials or DEFAULT_SAMPLES
    found = []
    for task in map(compiled_alone, prepared.tasks):
        if context.out_of_time:
            context.note(f"{task.name}: not compiled, the time is up", warning=True)
            continue
        with context.phase("compile", f"candidates of {task.name}"):
            found.append(_dispatch(context, compiling.compiler(context, task), task, samples))
    result = CompileOnlyResult(
        str(source),
        context.target.key,
        context.options.seed,
        tuple(found),
        tuple((s.name, s.reason) for s in prepared.skipped),
        tuple(context.notes),
        context.options.output,
        time.monotonic() - begin,
    )
    manifest = {
        "mode": "compile-only",
        "versions": versions(),
        "compiler": context.compiler_version,
        "target": context.target.key,
        "options": context.options.to_json(),
    }
    context.options.output.mkdir(parents=True, exist_ok=True)
    for name, data in ((SUMMARY, result.to_json()), (MANIFEST, manifest)):
        (context.options.output / name).write_text(json.dumps(data, indent=2) + "\n")
    return result


def compiled_alone(task: DispatchTask) -> DispatchTask:
    """A task whose candidates run their dispatch once: what is not timed need not be repeated, and
    host code that repeats takes as long to compile as a small kernel.

    Args:
        task: any.
    """
    return replace(task, repeats=1, rotations=1)


def sample(task: DispatchTask, count: int, seed: int) -> list[Configuration]:
    """Different configurations drawn uniformly, and where these leave out a pipeline or intrinsic
    (any value of a knob that chooses among names) one with it.

    Args:
        task: whose restricted space is drawn from.
        count: how many, at most.
        seed: of the draws.

    Returns:
        The configurations; all there are when these are fewer.
    """
    rng = np.random.default_rng(seed)
    chosen: dict[Configuration, None] = {}
    for _ in range(8):
        chosen.update(dict.fromkeys(task.restricted.sample(rng, count)))
        if len(chosen) >= count:
            break
    drawn = list(chosen)[:count]
    missing: dict[Configuration, None] = {}
    for space, knob, name in _names(task.restricted):
        if any(_has(space, one, knob, name) for one in (*drawn, *missing)):
            continue
        with contextlib.suppress(UserError):
            missing.update(dict.fromkeys(space.restrict({knob: [name]}).space.sample(rng, 1)))
    return [*missing, *(one for one in drawn if one not in missing)][:count]


def _names(space: Space) -> Iterator[tuple[Space, str, str]]:
    """Each pipeline of a space with each value of its knobs that choose among names."""
    for each in getattr(space, "pipelines", (space,)):
        for knob in each.knobs:
            names = knob.values if isinstance(knob, ChoiceKnob) else ()
            yield from ((each, knob.name, name) for name in names if isinstance(name, str))


def _has(space: Space, configuration: Configuration, knob: str, name: str) -> bool:
    return (knob, name) in configuration.items and space.contains(configuration)


def _dispatch(
    context: RunContext, compiler: CompileStage, task: DispatchTask, count: int
) -> CompiledDispatch:
    candidates = sample(task, count, context.options.seed)
    begin = time.monotonic()
    compiled: list[CompiledCandidate] = []
    step = max(1, context.target.cores) * 4
    # Of programs, by their digests: one that another candidate became before is not written again.
    verdicts: dict[str, bool | None] = {}
    for first in range(0, len(candidates), step):
        if context.out_of_time:
            break
        for one in compiler.compile(candidates[first : first + step]):
            compiled.append(one)
            if context.options.verbose:
                _tell(context, compiler, task, one, len(compiled), len(candidates))
            if one.status is Status.OK and one.artifact is not None and one.artifact.exists():
                verdicts[one.digest] = size_found(task, one)
                one.artifact.unlink()
    good = [one for one in compiled if one.status is Status.OK]
    told = [verdicts[o.digest] for o in good if verdicts.get(o.digest) is not None]
    return CompiledDispatch(
        name=task.name,
        workload=task.workload.name,
        space_points=task.space_points,
        spaces=space_sizes(task),
        sampled=len(compiled),
        compiled=len(good),
        distinct=len({one.digest for one in good}),
        sizes_found=sum(map(bool, told)) if told else None,
        choices=choice_counts(task.restricted, candidates),
        errors=dict(Counter(reason_of(one) for one in compiled if one.status is not Status.OK)),
        applied=spec_applies(context, task, (one.configuration for one in good)),
        compile_s=time.monotonic() - begin,
    )


def _tell(
    context: RunContext,
    compiler: CompileStage,
    task: DispatchTask,
    one: CompiledCandidate,
    done: int,
    limit: int,
) -> None:
    """Show a candidate that was compiled, as a trial without times."""
    trial = Trial(one.configuration, one.status, message=one.message)
    detail = trial_detail(task, compiler, trial)
    unknown_s = float("inf")
    context.emit(TrialDone(task.name, trial, None, unknown_s, done, limit, task.variant, detail))


def space_sizes(task: DispatchTask) -> dict[str, float]:
    """The number of configurations of each pipeline.

    Args:
        task: whose restricted space is looked at.

    Returns:
        Numbers, estimated where they are large, by the pipeline's name.
    """
    rng = np.random.default_rng(0)
    pipelines = getattr(task.restricted, "members", (task.restricted,))
    return {space.name: float(space.size_estimate(rng).points) for space in pipelines}


def size_found(task: DispatchTask, one: CompiledCandidate) -> bool | None:
    """Whether the code has workgroups of the size that the configuration asks for.

    Args:
        task: whose candidate it is.
        one: a candidate that compiled, with its program.

    Returns:
        None where the code does not tell.
    """
    if task.kernel(one.configuration) is not None:
        return None
    configuration = task.lower(one.configuration)
    if not isinstance(configuration, GpuCompilationInfo) or not configuration.workgroup_size:
        return None
    sizes = workgroup_sizes(one.artifact.read_bytes())
    if not sizes:
        return None
    wanted = (*configuration.workgroup_size, 1, 1)[:3]
    flat = (int(np.prod(wanted)), 1, 1)
    return wanted in sizes or flat in sizes


def choice_counts(space: Space, candidates: Sequence[Configuration]) -> dict[str, dict[str, int]]:
    """How often each name was drawn, those too that never were.

    Args:
        space: that was drawn from.
        candidates: what was drawn.

    Returns:
        By knob and by name.
    """
    counts: dict[str, dict[str, int]] = {}
    for _, knob, name in _names(space):
        counts.setdefault(knob, {})[name] = sum((knob, name) in c.items for c in candidates)
    return counts


def reason_of(one: CompiledCandidate) -> str:
    """Why a candidate has no program, without what differs from one to the next.

    Args:
        one: a candidate that did not compile.
    """
    place, found, rest = one.message.partition(": ")
    # `-:33:19` or `file.mlir:4:8`: where in the dispatch's IR, of no use without it.
    text = rest if found and place.count(":") == 2 and " " not in place else one.message
    return f"{one.status}: {text}" if one.status is not Status.COMPILE_ERROR else text


def spec_applies(
    opened: OpenProgram, task: DispatchTask, configurations: Iterable[Configuration]
) -> str | None:
    """Whether the first configuration that is not the default is applied by what would be handed
    back.

    Args:
        opened: the task's program.
        task: the dispatch.
        configurations: that compile.

    Returns:
        '' when it is, else why not; None where there is no such configuration.
    """
    for configuration in configurations:
        if configuration != task.space.default:
            claim = configuration_claim(task, configuration, task.folder / "proof")
            proof = prove(opened, claim)
            return proof.message if isinstance(proof, ProofFailure) else ""
    return None


def summary_lines(result: CompileOnlyResult) -> list[str]:
    """The result in plain text, a few lines for each dispatch.

    Args:
        result: of a compile-only run.

    Returns:
        Lines without ends.
    """
    lines = []
    for d in result.dispatches:
        sizes = "" if d.sizes_found is None else f", workgroup size found in {d.sizes_found}"
        spaces = ", ".join(f"{name} {points:.0f}" for name, points in d.spaces.items())
        lines.append(f"{d.name} ({d.workload})")
        lines.append(f"  space        {d.space_points:.0f} configurations ({spaces})")
        lines.append(
            f"  compiled     {d.compiled} of {d.sampled} ({_percent(d.compile_rate)}), "
            f"{d.distinct} different programs{sizes}, {d.compile_s:.1f} s"
        )
        if d.applied is not None:
            lines.append(f"  handed back  {d.applied or 'applied'}")
        lines += [f"  {count:4} x {reason}" for reason, count in d.errors.items()]
    lines += words.by_reason((name, f"skipped: {reason}") for name, reason in result.skipped)
    lines.append(f"compile rate {_percent(result.compile_rate)}; {result.output / SUMMARY}")
    return lines


def _percent(rate: float | None) -> str:
    return "none was compiled" if rate is None else f"{rate:.1%}"
