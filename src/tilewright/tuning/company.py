"""Choices in company: what wins alone is tried in the whole program, and dropped if it does not
hold up there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.measure.comparison import Finalist
from tilewright.measure.statistics import Verdict
from tilewright.trial import Configuration
from tilewright.tuning.confirm import Confirmed, entry_of
from tilewright.tuning.context import RunContext
from tilewright.tuning.entries import Entry, KernelEntry
from tilewright.tuning.prepare import PreparedVariant
from tilewright.tuning.programs import Build, Programs
from tilewright.tuning.proof import SpecRequest, write_specs
from tilewright.tuning.task import DispatchTask

# Hot dispatches whose choice is tried again in the whole program.
_HOT = {"quick": 2, "standard": 6, "thorough": 16}

Choice = Configuration | None


@dataclass
class Company:
    """The choices that hold up together: a configuration for each task, None to leave it alone.

    choices: by the tasks' identities. build: the program with them, whose specs have them as
    entries; it has none where no choice is left. dropped: identities of the tasks whose winner did
    not hold up.
    """

    prepared: PreparedVariant
    build: Build
    choices: dict[str, Choice] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @property
    def covered(self) -> dict[str, str]:
        """Of tasks whose dispatches a kernel for several took the place of: that kernel's task."""
        chosen = [task for task in self.prepared.tasks if self.choices.get(task.identity)]
        return {
            part: task.name
            for task in chosen
            for part in _parts_of(self.prepared, task)
            if not self.choices.get(part)
        }

    def entries(self) -> tuple[Entry, ...]:
        """What the specs of the build were written for.

        Returns:
            An entry for each choice that is a configuration.
        """
        return _entries(self.prepared, self.choices)


@dataclass
class Outcome:
    """What the parts of a run leave for the result."""

    default: Build
    default_s: float
    variants: dict[str, float | str] = field(default_factory=dict)
    prepared: list[PreparedVariant] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    companies: list[Company] = field(default_factory=list)


def spec_request(
    context: RunContext,
    prepared: PreparedVariant,
    entries: tuple[Entry, ...],
    path: Path,
) -> SpecRequest:
    """A spec of a run's, which says what it is for.

    Args:
        context: the run.
        prepared: the variant that the spec goes with.
        entries: what it shall do; without entries it changes nothing.
        path: where it is written.

    Returns:
        What :func:`tilewright.tuning.proof.write_specs` takes.
    """
    header = (
        ("target", context.target.key),
        ("compiler", context.compiler_version),
        ("variant", prepared.variant.name),
    )
    return SpecRequest(entries, path, context.flags(prepared.variant), header)


def try_in_company(
    programs: Programs,
    prepared: PreparedVariant,
    confirmed: Sequence[Confirmed],
    plain: Build,
    within_s: float | None = None,
) -> Company:
    """Find the choices that make the whole program fastest, starting from every winner.

    Each hot dispatch's runners-up, and leaving it alone, are tried in the program with the other
    winners in place, the hottest dispatches first; all are compared in the same interleaved rounds.

    Args:
        programs: of the run: compiles and measures the whole program.
        prepared: the variant with its tasks.
        confirmed: what became of the tasks alone.
        plain: the program of this variant without a spec: when nothing beats it, it stays.
        within_s: seconds in which as many programs are compiled as there is time for; None: all.

    Returns:
        The choices with their program; without choices the plain one.
    """
    context = programs.context
    winners: dict[str, Choice] = {
        c.task.identity: c.winner.configuration for c in confirmed if c.winner is not None
    }
    if not winners:
        return Company(prepared, plain)
    nothing = Company(prepared, plain, dropped=set(winners))
    # A kernel for a site of several dispatches takes the place of what was found for these.
    alone, parts = dict(winners), _parts(prepared, winners)
    winners |= {part: None for covered in parts.values() for part in covered}
    rivals = [dict(winners)]
    for outcome in _hottest(context, confirmed):
        key = outcome.task.identity
        if winners[key] is None:
            continue
        others: list[Choice] = [
            c.configuration for c in outcome.faster[1 : context.options.effort_preset.company]
        ]
        rivals += [{**winners, key: other} for other in others]
        if len(winners) > 1:
            rivals.append({**winners, key: None, **{part: alone[part] for part in parts[key]}})
    rivals = rivals[: affordable(within_s, programs.seconds_each)]
    built = _build(programs, prepared, rivals, "company")
    if not built:
        context.note("no program with the winners' spec compiled and ran right", warning=True)
        return nothing
    judged = _compare(programs, [plain, *(one.build for one in built)])
    if judged is None:
        return nothing
    best = _combine(programs, winners, built, judged)
    best.dropped = {key for key in winners if best.choices.get(key) is None}
    for key in best.choices:
        if best.choices[key] is not None:
            best.dropped -= set(parts[key])
    final = _compare(programs, [plain, best.build])
    if final is not None and final[1].ratio.value >= 1.0:
        context.note(
            "the winners do not make the whole program faster; the compiler's choices stay"
        )
        return nothing
    return best


def _parts(prepared: PreparedVariant, winners: Mapping[str, Choice]) -> dict[str, list[str]]:
    """For each winner the others that are of dispatches which it takes the place of."""
    found: dict[str, list[str]] = {key: [] for key in winners}
    for task in prepared.tasks:
        if task.identity in winners:
            parts = _parts_of(prepared, task)
            found[task.identity] = [part for part in parts if part in winners]
    return found


def _parts_of(prepared: PreparedVariant, task: DispatchTask) -> list[str]:
    """The tasks of the dispatches that a task is of together; none for one dispatch."""
    return [part.identity for part in prepared.parts_of(task)]


def affordable(within_s: float | None, seconds_each: float) -> int | None:
    """How many programs to try.

    Args:
        within_s: seconds that there are for compiling them; None: no limit.
        seconds_each: what compiling one takes.

    Returns:
        The number, at least 1 (the winners' own); None: all.
    """
    if within_s is None:
        return None
    return max(1, int(within_s / max(seconds_each, 1e-3)))


def _hottest(context: RunContext, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    won = [c for c in confirmed if c.winner is not None]
    won.sort(key=lambda c: -c.task.share)
    return won[: _HOT[context.options.effort]]


def _entries(prepared: PreparedVariant, choices: Mapping[str, Choice]) -> tuple[Entry, ...]:
    chosen: dict[object, Entry] = {}
    for task in prepared.tasks:
        configuration = choices.get(task.identity)
        if configuration is not None:
            # Tasks of one workload differ in the kernels that they can have; a configuration is
            # for all of them, and a kernel for a site whatever of it is constant.
            is_kernel = task.kernel(configuration) is not None
            at = (
                task.site.site.module.read_bytes() if is_kernel and task.site else task.workload.key
            )
            chosen.setdefault(at, entry_of(task, configuration))
    return tuple(chosen.values())


def _build(
    programs: Programs,
    prepared: PreparedVariant,
    rivals: Sequence[dict[str, Choice]],
    stem: str,
) -> list[Company]:
    """The rivals whose programs compile and compute the right results."""
    context = programs.context
    wanted: list[Build] = []
    requests: list[SpecRequest] = []
    of: list[int] = []
    for index, choices in enumerate(rivals):
        name = f"{prepared.variant.name}_{stem}_{index}"
        build = Build(name, prepared.variant, programs.folder / f"{name}.spec.mlir")
        entries = _entries(prepared, choices)
        kernels = tuple(one for one in entries if isinstance(one, KernelEntry))
        others = tuple(one for one in entries if not isinstance(one, KernelEntry))
        assert build.spec is not None
        requests.append(spec_request(context, prepared, others, build.spec))
        of.append(index)
        if kernels:
            build = replace(build, preprocessing=programs.folder / f"{name}.preprocessing.mlir")
            assert build.preprocessing is not None
            requests.append(spec_request(context, prepared, kernels, build.preprocessing))
            of.append(index)
        wanted.append(build)
    failed: dict[int, str] = {}
    for index, problem in zip(of, write_specs(context, requests), strict=True):
        if problem:
            failed.setdefault(index, problem)
    written = [index for index in range(len(rivals)) if index not in failed]
    builds = programs.build_all([wanted[index] for index in written])
    problems = list(failed.values())
    built = []
    for index, build in zip(written, builds, strict=True):
        wrong = build.error if not build.ok else programs.check(build)
        if wrong:
            problems.append(wrong)
        else:
            built.append(Company(prepared, build, rivals[index]))
    for problem in problems:
        context.note(f"a program in company was dropped: {problem}", warning=True)
    return built


def _compare(programs: Programs, builds: Sequence[Build]) -> list[Finalist] | None:
    context = programs.context
    judged = programs.compare(builds, 60.0)
    if isinstance(judged, str):
        context.note(f"comparing programs failed: {judged}", warning=True)
        return None
    return judged


def _combine(
    programs: Programs,
    winners: dict[str, Choice],
    built: Sequence[Company],
    judged: Sequence[Finalist],
) -> Company:
    """Put together the rival choices that beat the winners' program beyond the noise.

    `judged` are the plain program and those that were built.
    """
    first = built[0]
    if first.choices != winners:
        return min(zip(built, judged[1:], strict=True), key=lambda one: one[1].ratio.value)[0]
    rivals = _compare(programs, [one.build for one in built])
    if rivals is None:
        return first
    changed: dict[str, tuple[float, dict[str, Choice]]] = {}
    for one, finalist in zip(built[1:], rivals[1:], strict=True):
        if finalist.verdict is not Verdict.FASTER:
            continue
        others = {k: one.choices.get(k) for k in winners if one.choices.get(k) != winners[k]}
        key = next(iter(others))
        if key not in changed or finalist.ratio.value < changed[key][0]:
            changed[key] = (finalist.ratio.value, others)
    together = {**winners, **{k: v for _, more in changed.values() for k, v in more.items()}}
    for one in built:
        if one.choices == together:
            return one
    more = _build(programs, first.prepared, [together], "together")
    again = _compare(programs, [first.build, more[0].build]) if more else None
    return more[0] if again is not None and again[1].ratio.value < 1.0 else first
