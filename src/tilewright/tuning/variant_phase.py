"""Whole-program variants: measured, compared, the ones worth tuning chosen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from tilewright.measure.jobs import WorkerFailure
from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, Contender, Outcome
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import end_s
from tilewright.tuning.events import ProgramMeasured
from tilewright.tuning.extract_tasks import ConvolutionsRequest, list_convolutions
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import Programs, quick_timing
from tilewright.tuning.variants import (
    Variant,
    applicable,
    im2col_applies,
    im2col_choices,
)

_CHOSEN_VARIANTS = "chosen variants"
# Seconds for a first look at a program.
_LOOK_S = 0.3
# And for a first comparison of programs.
_FIRST_LOOK_S = 30.0
# Of the best one's time, up to which a program is compared with care.
_NEAR = 1.4
# A second start is searched if it takes no more than this much of the best one's time.
_CLOSE = 1.08
# Of the time of the program that a start's kernels were put into, what a variant takes at most for
# its own code to be searched beside that start.
_GAINS = 0.95
# Of a program's time in sites that another has too, from which both are searched alike.
_ALIKE = 0.9


def choose_variants(
    programs: Programs, outcome: Outcome, first: PreparedVariant, starts: Sequence[Company]
) -> list[Contender]:
    """The programs worth going on from, fastest first; the times of all are in the outcome.

    Args:
        programs: of the run: builds and measures them.
        outcome: gets their times, or why there is none, and those that may be handed back.
        first: the dispatches of the compiler's own variant, by whose kinds variants are left out.
        starts: programs with kernels, which are compared with the plain ones.

    Returns:
        At least one.
    """
    context = programs.context
    own = Contender(Company(first, outcome.default), outcome.default_s)
    outcome.variants = {"default": outcome.default_s * 1e3, **outcome.variants}
    contenders = [own]
    wanted = _wanted(programs, first)
    if wanted or starts:
        number = f"{len(wanted)} whole-program variant{'s' if len(wanted) != 1 else ''}"
        with context.phase("variants", number):
            needed = not any(_is_faster(programs, one, own.time_s) for one in starts)
            good = [*starts, *_build_variants(programs, outcome, wanted, needed)]
            contenders += _measure(programs, outcome, own, good)
        contenders.sort(key=lambda one: one.time_s)
    keep_default = context.options.variants is None or any(
        v.name == "default" for v in context.options.variants
    )
    allowed = contenders
    if not keep_default:
        allowed = [one for one in contenders if one is not own] or contenders
    # Whatever is found, the best of each kind is compared with it again at the end.
    for kernels in (True, False):
        kind = [one for one in allowed if bool(one.company.choices) is kernels]
        outcome.companies += [one.company for one in kind[:1]]
    return _worth_tuning(context, allowed, first)


def _is_faster(programs: Programs, start: Company, than_s: float) -> bool:
    """Whether a program with kernels is faster at a first look: then variants can be done without.

    In a layout that the compiler makes nothing of one can be several times as slow.
    """
    seconds = programs.time(start.build, quick_timing(_LOOK_S))
    return not isinstance(seconds, str) and seconds < than_s


def _wanted(programs: Programs, first: PreparedVariant) -> list[Variant]:
    """The plain variants to be measured beside the compiler's own, the most promising first."""
    context = programs.context
    config = context.options.config
    if config is not None and config.restricts and context.options.variants is None:
        context.note(
            f"{config.path} restricts the search: variants are tried only if --variants names them"
        )
        return []
    if context.target.is_gpu and context.options.variants is None:
        # The built-in variants are choices that matter on a CPU.
        return []
    wanted = [v for v in context.options.chosen_variants if v.flags]
    skipped = [v.name for v in wanted if not applicable(v, first.kinds)]
    wanted = [v for v in wanted if v.name not in skipped]
    if context.options.variants is None:
        wanted += _im2col_choices(programs, first)
    if skipped:
        context.note(f"variants without effect on this program: {', '.join(skipped)}")
    return wanted


def _build_variants(
    programs: Programs, outcome: Outcome, wanted: Sequence[Variant], needed: bool
) -> list[Company]:
    """As many of the variants as there is time for, those that are programs of their own and give
    right results; the most promising also beyond their part of it, where they are `needed` since
    nothing else is faster than the program, if the run can still end in its limit."""
    context = programs.context
    good: list[Company] = []
    programs_by_bytes = {_digest(outcome.default): outcome.default.name}
    left = list(wanted)
    # Two that are compiled side by side take longer than one alone.
    took_s = 1.5 * programs.seconds_each
    while left:
        must = needed and len(left) == len(wanted) and _ends(context, took_s)
        if not must and _too_late(context, took_s):
            names = ", ".join(one.name for one in left)
            context.note(f"no time for the variants {names} (--time-limit)")
            break
        begin = time.monotonic()
        batch, left = left[: context.target.cores], left[context.target.cores :]
        builds = programs.build_all([Build(v.name, v) for v in batch])
        for build, problem in zip(builds, programs.check_all(builds), strict=True):
            if problem:
                outcome.variants[build.name] = problem
                context.emit(ProgramMeasured(build.name, None, False, problem))
                continue
            same = programs_by_bytes.setdefault(_digest(build), build.name)
            if same != build.name:
                outcome.variants[build.name] = f"the same program as {same}"
            else:
                good.append(Company(PreparedVariant(build.variant, ()), build))
        took_s = time.monotonic() - begin
    return good


def _ends(context: RunContext, more_s: float) -> bool:
    """Whether the run can end in its time after so many more seconds."""
    if context.out_of_time:
        return False
    _, finish_s = end_s(context, kernels=False)
    return context.left_s is None or context.left_s > more_s + finish_s


def _too_late(context: RunContext, more_s: float) -> bool:
    """Whether variants have had their part of the time, or would after so many more seconds."""
    left = context.left_for("variants")
    return left is not None and left < more_s


def _measure(
    programs: Programs, outcome: Outcome, own: Contender, good: Sequence[Company]
) -> list[Contender]:
    """The programs with their times, all compared in the same rounds with the compiler's own."""
    context = programs.context
    judged = _compare_variants(programs, [own.company.build, *(one.build for one in good)])
    if isinstance(judged, str):
        context.note(f"comparing the variants failed: {judged}", warning=True)
        return []
    own.time_s = outcome.default_s = judged[own.company.build.name] * own.time_s
    outcome.variants["default"] = own.time_s * 1e3
    measured = []
    for one in good:
        seconds = own.time_s * judged[one.build.name]
        measured.append(Contender(one, seconds))
        outcome.variants[one.name] = seconds * 1e3
        context.emit(ProgramMeasured(one.name, seconds, True))
    return measured


def _compare_variants(programs: Programs, builds: Sequence[Build]) -> dict[str, float] | str:
    """Each build's time relative to the first one's; or what failed.

    A first look in few rounds; those that are not far behind are then compared with care, unless
    there is one that leaves all others far behind, or rounds take so long that few have to do.
    """
    begin = time.monotonic()
    judged = programs.compare(builds, _FIRST_LOOK_S, rounds=3)
    took_s = time.monotonic() - begin
    if isinstance(judged, str):
        return judged
    ratios = {b.name: f.ratio.value for b, f in zip(builds, judged, strict=True)}
    most = _NEAR * min(ratios.values())
    close = [builds[0], *(b for b in builds[1:] if ratios[b.name] <= most)]
    if took_s > _FIRST_LOOK_S or sum(ratios[b.name] <= most for b in close) == 1:
        return ratios
    again = programs.compare(close, 45.0)
    if isinstance(again, str):
        return again
    ratios |= {b.name: f.ratio.value for b, f in zip(close, again, strict=True)}
    return ratios


def _im2col_choices(programs: Programs, first: PreparedVariant) -> list[Variant]:
    """Variants that make only some of the program's convolutions matrix products."""
    context = programs.context
    if not im2col_applies(first.kinds):
        return []
    request = ConvolutionsRequest(
        programs.program.path,
        context.flags(),
        context.work / "preprocessing",
    )
    found = context.compilers.ask(list_convolutions, request, 600.0)
    if isinstance(found, WorkerFailure):
        context.note(f"no choice of convolutions for im2col: {found.message}", warning=True)
        return []
    return im2col_choices(found, context.options.effort_preset)


def _worth_tuning(
    context: RunContext, measured: list[Contender], first: PreparedVariant
) -> list[Contender]:
    """The fastest programs; a slower one only if tuning could make up for the difference.

    A program of a few dispatches gets its slower variants too: lowering configurations alone
    have been seen to gain a factor of 2.5 on a single matmul, on a whole model far less. Where
    kernels do better than all plain variants these are the variants' gains to be caught up with.
    """
    earlier = context.store.get_state(context.run_id, _CHOSEN_VARIANTS)
    if isinstance(earlier, list):
        again = [m for name in earlier for m in measured if m.name == name]
        if again:
            return again
    # Of one variant the plain program and the start have the same tasks.
    best: dict[str, Contender] = {}
    for one in measured:
        best.setdefault(one.variant, one)
    few = len(first.choosable) <= 3
    starts = [one for one in best.values() if one.company.choices]
    plain = [one for one in best.values() if not one.company.choices]
    if starts and starts[0].time_s <= (2.0 if few else 1.25) * measured[0].time_s:
        chosen = starts[:1]
        for one in starts[1:]:
            # What is found for the one is as good for the other, which would only be compiled and
            # compared twice.
            if one.time_s <= _CLOSE * starts[0].time_s and not _alike(one, starts[0]):
                chosen.append(one)
                break
        # Five products searched with 1.1 and with 1.5 here: four as fast within 2%, one 6% slower,
        # in 0.55 to 0.95 of the time. What is no faster than the start without its kernels is
        # taken to have no configurations that are not found there, too.
        reach = 1.15 if few else 1.0
        bare = [m.time_s for m in measured if m.variant == starts[0].variant and m not in starts]
        most_s = min([reach * starts[0].time_s, *(_GAINS * time_s for time_s in bare)])
        near = [one for one in plain if one.time_s <= most_s]
        chosen += near[: context.options.effort_preset.tuned_variants]
    else:
        reach = 4.0 if few else 1.25
        near = [one for one in plain if one.time_s <= reach * plain[0].time_s]
        # After the fastest the compiler's own: variants that do well are often alike.
        near.sort(key=lambda m: (m is not plain[0], m.variant != "default", m.time_s))
        chosen = near[: context.options.effort_preset.tuned_variants]
        if first.sites:
            # A kernel of our own is as fast whatever the compiler would have made of its ops, and
            # sites are those of single ops where no variant has joined them.
            chosen += [one for one in plain if one.variant == "default" and one not in chosen]
    chosen.sort(key=lambda one: one.time_s)
    context.store.put_state(context.run_id, _CHOSEN_VARIANTS, [one.name for one in chosen])
    return chosen


def _alike(one: Contender, other: Contender) -> bool:
    """Whether almost all of a program's time goes into sites that the other has too."""
    theirs = {task.site.digest for task in other.company.prepared.tasks if task.site is not None}
    tasks = [task for task in one.company.prepared.tasks if not task.is_chain]
    same = sum(t.share for t in tasks if t.site is not None and t.site.digest in theirs)
    return bool(tasks) and same >= _ALIKE * sum(task.share for task in tasks)


def _digest(build: Build) -> str:
    assert build.vmfb is not None
    return hashlib.sha256(build.vmfb.read_bytes()).hexdigest()
