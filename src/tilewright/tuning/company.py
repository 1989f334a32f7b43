"""Choices in company: what wins alone is tried in the whole program, and dropped if it does not
hold up there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.measure.comparison import ComparisonPolicy, Finalist, judge_all
from tilewright.measure.statistics import Verdict
from tilewright.trial import Configuration
from tilewright.tuning.builds import Build
from tilewright.tuning.choices import Choices, best_known, settle
from tilewright.tuning.confirm import Confirmed, entry_of
from tilewright.tuning.context import RunContext
from tilewright.tuning.entries import Entry, KernelEntry
from tilewright.tuning.estimates import later_proof_s
from tilewright.tuning.guesses import refuted
from tilewright.tuning.model_check import ModelCheck
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import Programs
from tilewright.tuning.proof import SpecRequest, write_specs
from tilewright.tuning.sequencing import in_sequence

# Hot dispatches whose choice is tried again in the whole program.
_HOT = {"quick": 2, "standard": 6, "thorough": 16}
# Of a program's time, what a dispatch takes of which all finalists are tried in it.
_MOST = 0.5


@dataclass
class Company:
    """The choices that hold up together: a configuration for each task that is not left alone.

    choices: by the tasks' identities. build: the program with them, whose specs have them as
    entries; it has none where no choice is left. dropped: identities of the tasks whose winner did
    not hold up.
    """

    prepared: PreparedVariant
    build: Build
    choices: Choices = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """What its program is called before anything was searched."""
        name = self.build.variant.name
        return f"{name} with kernels" if self.build.preprocessing is not None else name

    @property
    def covered(self) -> dict[str, str]:
        """Of tasks whose dispatches a kernel for several took the place of: that kernel's task."""
        chosen = [task for task in self.prepared.choosable if task.identity in self.choices]
        return {
            part.identity: task.name
            for task in chosen
            for part in self.prepared.parts_of(task)
            if part.identity not in self.choices and task.site is not None
            if set(task.site.site.dispatches).issuperset(part.names)
        }

    def entries(self) -> tuple[Entry, ...]:
        """What the specs of the build were written for.

        Returns:
            An entry for each choice.
        """
        return _entries(self.prepared, self.choices)


@dataclass
class Contender:
    """A program that the search can go on from: a plain variant, or a start with kernels.

    time_s: of one run, before anything was searched.
    """

    company: Company
    time_s: float

    @property
    def name(self) -> str:
        """As the user is told."""
        return self.company.name

    @property
    def variant(self) -> str:
        """The name of its variant."""
        return self.company.build.variant.name


@dataclass
class Outcome:
    """What the parts of a run leave for the result.

    model: what came of comparing the untuned program with the model that it was made of. prepared:
    the variants whose dispatches were measured. companies: what may be handed back.
    """

    default: Build
    default_s: float
    model: ModelCheck | None = None
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
        ("accuracy", context.options.accuracy),
    )
    return SpecRequest(entries, path, context.flags(prepared.variant), header)


def try_in_company(
    programs: Programs,
    confirmed: Sequence[Confirmed],
    base: Company,
    within_s: float | None = None,
) -> Company:
    """Find the choices that make the whole program fastest, starting from every winner.

    The compiler's code in the place of kernels that are not certainly faster, each hot dispatch's
    runners-up, and what the program had before in its place, are tried with the other winners, the
    hottest dispatches first; all are compared in the same interleaved rounds.
    Where there is no time for as many programs, the winners are left out by halves; where there is
    none for one, a program that has choices already stays.

    Args:
        programs: of the run: compiles and measures the whole program.
        confirmed: what became of the tasks alone.
        base: the program that the search went on from: when nothing beats it, it stays.
        within_s: seconds in which as many programs are compiled as there is time for; None: all.

    Returns:
        The choices with their program.
    """
    context, prepared = programs.context, base.prepared
    known = _known(base)
    lost = {c.task.identity for c in confirmed if c.compared and c.winner is None}
    found = {key: one for key, one in known.items() if key not in lost} | {
        c.task.identity: (c.winner.configuration, (c.task.default_s or 0.0) / c.speedup.value)
        for c in confirmed
        if c.winner is not None
    }
    winners = settle(prepared, found)
    asked = dict.fromkeys([*base.choices, *found])
    changed = [key for key in asked if winners.get(key) != base.choices.get(key)]
    doubtful = _configured(winners, confirmed)
    late = is_late(programs, within_s)
    if not changed and (not doubtful or late):
        return base
    if base.choices and late:
        # It has been timed as a whole; what was found since is in the database.
        context.note(f"no time for another program than {base.name} (--time-limit)")
        return base

    def without(keys: Sequence[str]) -> Choices:
        """The winners, but for these tasks what the program had before."""
        kept = {key: one for key, one in found.items() if key not in keys}
        return settle(prepared, kept | {key: known[key] for key in keys if key in known})

    rivals = list(doubtful)
    for outcome in _hottest(context, confirmed) if changed else ():
        key = outcome.task.identity
        if key in winners:
            preset = context.options.effort_preset
            # One that is most of the program is cheap to judge where it counts: its calls begin
            # with other data in the caches than the rows of calls that it is timed by alone.
            tried = preset.finalists if outcome.task.share > _MOST else preset.company
            others = outcome.faster[1:tried]
            rivals += [winners | {key: other.configuration} for other in others]
            rivals.append(without([key]))
    kernels = any(task.data is not None for task in prepared.tasks)
    after_s = 2 * programs.comparing_s + later_proof_s(context, kernels)
    count = affordable(within_s, programs.each_s, after_s)
    if count is not None and len(rivals) >= count and len(changed) > 2:
        rivals = [without(changed[::2]), without(changed[1::2])]
    together = [winners, *rivals]
    rivals = [
        one for at, one in enumerate(together) if one != base.choices and one not in together[:at]
    ]
    built = build_companies(programs, prepared, rivals[:count], "company")
    nothing = replace(base, dropped={key for key in winners if key not in base.choices})
    if not built:
        context.note("no program with the winners' spec compiled and ran right", warning=True)
        return nothing
    judged = _compare(programs, [base.build, *(one.build for one in built)])
    if judged is None:
        return nothing
    best = _combine(programs, winners, base, built, judged)
    final: list[Finalist] | None = judged
    if len(built) > 1:
        # It was picked for its time.
        final = None if best is base else _compare(programs, [base.build, best.build])
    if best is base or (final is not None and final[1].ratio.value >= 1.0):
        context.note(
            f"the winners do not make the whole program faster than {base.name}; it stays"
            if base.choices
            else "the winners do not make the whole program faster; the compiler's choices stay"
        )
        return nothing
    taken = {*best.choices, *best.covered}
    best.dropped = {key for key in found if key not in taken}
    return best


def is_late(programs: Programs, within_s: float | None) -> bool:
    """Whether there is no time for another program.

    Args:
        programs: of the run.
        within_s: seconds that there are; None: no limit.
    """
    return within_s is not None and within_s < programs.each_s + programs.comparing_s


def take_best(programs: Programs, base: Company) -> Company:
    """The best that is known of each task, together, for sessions that confirm nothing: it is
    compared with the default as a whole program, at the end.

    Args:
        programs: of the run: compiles and checks the whole program.
        base: the program that the search went on from; it stays where there is nothing better.

    Returns:
        The choices with their program.
    """
    choices = settle(base.prepared, _known(base) | best_known(base.prepared))
    if choices == base.choices:
        return base
    built = build_companies(programs, base.prepared, [choices], "best")
    return built[0] if built else base


def _configured(winners: Choices, confirmed: Sequence[Confirmed]) -> list[Choices]:
    """The winners with configurations of the compiler's code in the place of those kernels that
    are not certainly faster: one program, or none where no kernel is in doubt."""
    found: dict[str, Configuration] = {}
    for outcome in confirmed:
        winner, task = outcome.winner, outcome.task
        if winner is None or task.identity not in winners:
            continue
        if task.kernel(winner.configuration) is None:
            continue
        own = [one for one in outcome.faster if task.kernel(one.configuration) is None]
        if own and _overlap(winner.finalist, own[0].finalist):
            found[task.identity] = own[0].configuration
    return [winners | found] if found else []


def _overlap(one: Finalist | None, other: Finalist | None) -> bool:
    """Whether it is open which of two finalists of a task is faster."""
    return one is None or other is None or other.ratio.low <= one.ratio.high


def _known(base: Company) -> dict[str, tuple[Configuration, float]]:
    """The choices of a program that was measured, with their times alone; without those that were
    guesses, where trials have shown since that they are no gain."""
    known = {}
    for task in base.prepared.choosable:
        chosen, guess = base.choices.get(task.identity), base.prepared.guesses.get(task.identity)
        times = [t.time_s for t in task.trials if t.configuration == chosen and t.time_s]
        if chosen is None:
            continue
        if guess is not None and guess[0] == chosen and not refuted(task, chosen):
            known[task.identity] = (chosen, min(times, default=guess[1]))
        elif guess is None and times:
            known[task.identity] = (chosen, min(times))
    return known


def affordable(within_s: float | None, seconds_each: float, after_s: float = 0.0) -> int | None:
    """How many programs to try.

    Args:
        within_s: seconds that there are for them; None: no limit.
        seconds_each: what compiling one takes.
        after_s: what several take besides, however many there are: comparing, proving the best.

    Returns:
        The number, at least 1 (the winners' own); None: all.
    """
    if within_s is None:
        return None
    return max(1, int((within_s - after_s) / max(seconds_each, 1e-3)))


def _hottest(context: RunContext, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    won = [c for c in confirmed if c.winner is not None]
    won.sort(key=lambda c: -c.task.share)
    return won[: _HOT[context.options.effort]]


def _entries(prepared: PreparedVariant, choices: Mapping[str, Configuration]) -> tuple[Entry, ...]:
    chosen: dict[object, Entry] = {}
    for task in prepared.choosable:
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


def build_companies(
    programs: Programs,
    prepared: PreparedVariant,
    rivals: Sequence[Choices],
    stem: str,
) -> list[Company]:
    """Write the specs of choices and compile the program with them.

    Args:
        programs: of the run.
        prepared: the variant whose tasks the choices are of.
        rivals: the choices.
        stem: part of the files' names.

    Returns:
        Those whose programs compile and compute the right results; of the others the user is told.
    """
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
    builds = programs.build_all(in_sequence(programs, [wanted[index] for index in written]))
    problems = list(failed.values())
    built = []
    for index, build, wrong in zip(written, builds, programs.check_all(builds), strict=True):
        if wrong and build.apart is not None:
            context.note(f"the program with kernels in sequence was dropped: {wrong}", warning=True)
            build, wrong = build_apart(programs, build)
        if wrong:
            problems.append(wrong)
        else:
            built.append(Company(prepared, build, rivals[index]))
    for problem in problems:
        context.note(f"a program in company was dropped: {problem}", warning=True)
    return built


def build_apart(programs: Programs, build: Build) -> tuple[Build, str]:
    """Compile a program with kernels in sequence without that.

    Args:
        programs: of the run: compiles and checks the program.
        build: has kernels in sequence.

    Returns:
        The program, and what is wrong with it, '' for nothing.
    """
    name = f"{build.name}_apart"
    wanted = Build(name, build.variant, build.spec, preprocessing=build.apart)
    (made,) = programs.build_all([wanted])
    (wrong,) = programs.check_all([made])
    return made, wrong


def _compare(programs: Programs, builds: Sequence[Build]) -> list[Finalist] | None:
    context = programs.context
    judged = programs.compare(builds, 60.0)
    if isinstance(judged, str):
        context.note(f"comparing programs failed: {judged}", warning=True)
        return None
    return judged


def _combine(
    programs: Programs,
    winners: Choices,
    base: Company,
    built: Sequence[Company],
    judged: Sequence[Finalist],
) -> Company:
    """Put together the rival choices that beat the winners' program beyond the noise.

    `judged` are the base and those that were built.
    """
    first = built[0]
    if first.choices != winners:
        return min(zip(built, judged[1:], strict=True), key=lambda one: one[1].ratio.value)[0]
    # Against the winners' program, in the same rounds.
    rivals = judge_all([one.measurement for one in judged[1:]], ComparisonPolicy())
    changed: dict[str, tuple[float, dict[str, Configuration | None]]] = {}
    for one, finalist in zip(built[1:], rivals[1:], strict=True):
        if finalist.verdict is not Verdict.FASTER:
            continue
        keys = dict.fromkeys([*winners, *one.choices])
        others = {k: one.choices.get(k) for k in keys if one.choices.get(k) != winners.get(k)}
        key = next(iter(others))
        if key not in changed or finalist.ratio.value < changed[key][0]:
            changed[key] = (finalist.ratio.value, others)
    merged = {**winners, **{k: v for _, more in changed.values() for k, v in more.items()}}
    together = {key: choice for key, choice in merged.items() if choice is not None}
    for one in (base, *built):
        if one.choices == together:
            return one
    more = build_companies(programs, first.prepared, [together], "together")
    again = _compare(programs, [first.build, more[0].build]) if more else None
    return more[0] if again is not None and again[1].ratio.value < 1.0 else first
