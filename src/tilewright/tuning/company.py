"""Choices in company: what wins alone is tried in the whole program, and dropped if it does not
hold up there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.statistics import Verdict
from tilewright.trial import Configuration
from tilewright.tuning.confirm import Confirmed, entry_request
from tilewright.tuning.context import RunContext
from tilewright.tuning.prepare import PreparedVariant
from tilewright.tuning.programs import Build, BuildRequest, Programs
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import SpecRequest, write_tuning_spec

# Hot dispatches whose choice is tried again in the whole program.
_HOT = {"quick": 2, "standard": 6, "thorough": 16}

Choice = Configuration | None


@dataclass
class Company:
    """The choices that hold up together: a configuration for each task, None to leave it alone."""

    prepared: PreparedVariant
    choices: dict[str, Choice] = field(default_factory=dict)
    build: Build | None = None
    spec: Path | None = None
    dropped: set[str] = field(default_factory=set)

    def tuned(self) -> list[tuple[DispatchTask, Configuration]]:
        by_key = {t.workload.key: t for t in self.prepared.tasks}
        return [(by_key[k], c) for k, c in self.choices.items() if c is not None]


def write_spec(
    context: RunContext,
    prepared: PreparedVariant,
    chosen: Sequence[tuple[DispatchTask, Configuration]],
    path: Path,
    header: tuple[tuple[str, str], ...] = (),
) -> Path:
    """One spec for the chosen configurations. Raises UserError when it cannot be made."""
    entries = tuple(entry_request(task, configuration) for task, configuration in chosen)
    request = SpecRequest(entries, path, prepared.flags, header)
    written = context.compilers.ask(write_tuning_spec, request, 300.0)
    if isinstance(written, WorkerFailure):
        raise RuntimeError(f"the tuning spec cannot be written: {written.message}")
    return path


def try_in_company(
    context: RunContext,
    programs: Programs,
    prepared: PreparedVariant,
    confirmed: Sequence[Confirmed],
    plain: Build,
    within_s: float | None = None,
) -> Company:
    """Find the choices that make the whole program fastest, starting from every winner.

    Each hot dispatch's runners-up, and leaving it alone, are tried in the program with the other
    winners in place, the hottest dispatches first, as many programs as can be compiled within
    `within_s` seconds; all are compared in the same interleaved rounds. `plain` is the program of
    this variant without a spec: when nothing beats it, it stays.
    """
    company = Company(prepared)
    winners = {
        c.task.workload.key: c.winner.configuration for c in confirmed if c.winner is not None
    }
    company.choices = dict(winners)
    if not winners:
        company.build = plain
        return company
    rivals: list[dict[str, Choice]] = [dict(winners)]
    for outcome in _hottest(context, confirmed):
        key = outcome.task.workload.key
        others: list[Choice] = [
            c.configuration for c in outcome.faster[1 : context.options.effort_preset.company]
        ]
        if len(winners) > 1:
            others.append(None)
        rivals += [{**winners, key: other} for other in others]
    rivals = rivals[: affordable(within_s, programs.seconds_each)]
    builds, kept = _build(context, programs, prepared, rivals, "company")
    if not builds:
        company.choices, company.build = {}, plain
        company.dropped = set(winners)
        context.note("no program with the winners' spec compiled and ran right", warning=True)
        return company
    judged = _compare(context, programs, [plain, *builds])
    if judged is None:
        company.choices, company.build = {}, plain
        return company
    best = _combine(context, programs, prepared, winners, builds, kept, judged)
    company.choices, company.build = best
    company.spec = best[1].spec
    company.dropped = {k for k in winners if company.choices.get(k) is None}
    final = _compare(context, programs, [plain, company.build])
    if final is not None and final[1].ratio.value >= 1.0:
        context.note(
            "the winners do not make the whole program faster; the compiler's choices stay"
        )
        company.dropped = set(winners)
        company.choices, company.build, company.spec = {}, plain, None
    return company


def affordable(within_s: float | None, seconds_each: float) -> int | None:
    """How many programs to try: the winners' own always, the others as time allows (None: all)."""
    if within_s is None:
        return None
    return max(1, int(within_s / max(seconds_each, 1e-3)))


def _hottest(context: RunContext, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    won = [c for c in confirmed if c.winner is not None]
    won.sort(key=lambda c: -c.task.share)
    return won[: _HOT[context.options.effort]]


def _build(
    context: RunContext,
    programs: Programs,
    prepared: PreparedVariant,
    rivals: Sequence[dict[str, Choice]],
    stem: str,
) -> tuple[list[Build], list[dict[str, Choice]]]:
    """Programs of the rivals that compile and compute the right results, and those rivals."""
    by_key = {t.workload.key: t for t in prepared.tasks}
    requests = []
    for index, choices in enumerate(rivals):
        chosen = [(by_key[k], c) for k, c in choices.items() if c is not None]
        name = f"{prepared.variant.name}_{stem}_{index}"
        spec = write_spec(context, prepared, chosen, programs.folder / f"{name}.spec.mlir")
        requests.append(BuildRequest(name, prepared.variant, spec))
    builds, kept = [], []
    for build, choices in zip(programs.build_all(requests), rivals, strict=True):
        wrong = build.error if not build.ok else programs.check(build, 600.0)
        if wrong:
            context.note(f"a program in company was dropped: {wrong}", warning=True)
            continue
        builds.append(build)
        kept.append(choices)
    return builds, kept


def _compare(
    context: RunContext, programs: Programs, builds: Sequence[Build]
) -> list[Finalist] | None:
    effort = context.options.effort_preset
    policy = ComparisonPolicy(
        rounds=effort.program_rounds, max_s=60.0, min_sample_s=0.02, seed=context.options.seed
    )
    judged = programs.compare(builds, policy, 900.0)
    if isinstance(judged, str):
        context.note(f"comparing programs failed: {judged}", warning=True)
        return None
    return judged


def _combine(
    context: RunContext,
    programs: Programs,
    prepared: PreparedVariant,
    winners: dict[str, Configuration],
    builds: list[Build],
    kept: list[dict[str, Choice]],
    judged: list[Finalist],
) -> tuple[dict[str, Choice], Build]:
    """Put together the rival choices that beat the winners' program beyond the noise."""
    if kept[0] != winners:
        index = min(range(len(builds)), key=lambda i: judged[i + 1].ratio.value)
        return kept[index], builds[index]
    changed: dict[str, tuple[float, Choice]] = {}
    rivals = _compare(context, programs, builds)
    if rivals is None:
        return kept[0], builds[0]
    for choices, finalist in zip(kept[1:], rivals[1:], strict=True):
        if finalist.verdict is not Verdict.FASTER:
            continue
        key = next(k for k in winners if choices.get(k) != winners[k])
        if key not in changed or finalist.ratio.value < changed[key][0]:
            changed[key] = (finalist.ratio.value, choices.get(key))
    if not changed:
        return kept[0], builds[0]
    together: dict[str, Choice] = {**winners, **{k: c for k, (_, c) in changed.items()}}
    if together in kept:
        index = kept.index(together)
        return kept[index], builds[index]
    built, ok = _build(context, programs, prepared, [together], "together")
    if not built:
        return kept[0], builds[0]
    again = _compare(context, programs, [builds[0], built[0]])
    if again is not None and again[1].ratio.value < 1.0:
        return ok[0], built[0]
    return kept[0], builds[0]
