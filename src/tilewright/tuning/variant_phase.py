"""Whole-program variants: measured, compared, the ones worth tuning chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tilewright.measure.jobs import WorkerFailure
from tilewright.tuning.company import Outcome
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import ProgramMeasured
from tilewright.tuning.extract_tasks import ConvolutionsRequest, list_convolutions
from tilewright.tuning.prepare import PreparedVariant
from tilewright.tuning.programs import Build, MeasuredBuild, Programs
from tilewright.tuning.variants import (
    Variant,
    applicable,
    im2col_applies,
    im2col_choices,
)

_CHOSEN_VARIANTS = "chosen variants"


def choose_variants(
    programs: Programs, outcome: Outcome, first: PreparedVariant
) -> list[MeasuredBuild]:
    """The variants worth tuning, fastest first; their times are in the outcome.

    Args:
        programs: of the run: builds and measures them.
        outcome: gets their times, or why there is none.
        first: the dispatches of the compiler's own variant, by whose kinds variants are left out.

    Returns:
        At least one.
    """
    context = programs.context
    own = MeasuredBuild(outcome.default, outcome.default_s)
    outcome.variants["default"] = outcome.default_s * 1e3
    config = context.options.config
    if config is not None and config.restricts and context.options.variants is None:
        context.note(
            f"{config.path} restricts the search: variants are tried only if --variants names them"
        )
        return [own]
    if context.target.is_gpu and context.options.variants is None:
        # The built-in variants are choices that matter on a CPU.
        return [own]
    wanted = [v for v in context.options.chosen_variants if v.flags]
    skipped = [v.name for v in wanted if not applicable(v, first.kinds)]
    wanted = [v for v in wanted if v.name not in skipped]
    if context.options.variants is None:
        wanted += _im2col_choices(programs, first)
    if skipped:
        context.note(f"variants without effect on this program: {', '.join(skipped)}")
    if not wanted:
        return [own]
    number = f"{len(wanted)} whole-program variant{'s' if len(wanted) > 1 else ''}"
    with context.phase("variants", number):
        measured = _measure_variants(programs, outcome, wanted, own)
    keep_default = context.options.variants is None or any(
        v.name == "default" for v in context.options.variants
    )
    if not keep_default and len(measured) > 1:
        measured = [m for m in measured if m.build.variant.flags] or measured
    return _worth_tuning(context, measured, first)


def _measure_variants(
    programs: Programs,
    outcome: Outcome,
    wanted: Sequence[Variant],
    own: MeasuredBuild,
) -> list[MeasuredBuild]:
    context = programs.context
    builds = programs.build_all([Build(v.name, v) for v in wanted])
    good = []
    programs_by_bytes = {_digest(own.build): own.build.name}
    for build in builds:
        problem = build.error if not build.ok else programs.check(build)
        if problem:
            outcome.variants[build.name] = problem
            context.emit(ProgramMeasured(build.name, None, False, problem))
            continue
        same = programs_by_bytes.setdefault(_digest(build), build.name)
        if same != build.name:
            outcome.variants[build.name] = f"the same program as {same}"
        else:
            good.append(build)
    judged = _compare_variants(programs, [own.build, *good])
    if isinstance(judged, str):
        context.note(f"comparing the variants failed: {judged}", warning=True)
        return [own]
    own.time_s = outcome.default_s = judged[own.build.name] * own.time_s
    outcome.variants["default"] = own.time_s * 1e3
    measured = [own]
    for build in good:
        seconds = own.time_s * judged[build.name]
        measured.append(MeasuredBuild(build, seconds))
        outcome.variants[build.name] = seconds * 1e3
        context.emit(ProgramMeasured(build.name, seconds, True))
    return sorted(measured, key=lambda m: m.time_s)


def _compare_variants(programs: Programs, builds: Sequence[Build]) -> dict[str, float] | str:
    """Each build's time relative to the first one's; or what failed.

    A first look in few rounds; those that are not far behind are then compared with care.
    """
    judged = programs.compare(builds, 30.0, rounds=3, min_sample_s=0.01)
    if isinstance(judged, str):
        return judged
    ratios = {b.name: f.ratio.value for b, f in zip(builds, judged, strict=True)}
    best = min(ratios.values())
    close = [builds[0], *(b for b in builds[1:] if ratios[b.name] <= 1.4 * best)]
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
    context: RunContext, measured: list[MeasuredBuild], first: PreparedVariant
) -> list[MeasuredBuild]:
    """The fastest variants; a slower one only if tuning could make up for the difference, and the
    compiler's own where kernels of our own can.

    A program of a few dispatches gets its slower variants too: lowering configurations alone
    have been seen to gain a factor of 2.5 on a single matmul, on a whole model far less.
    """
    earlier = context.store.get_state(context.run_id, _CHOSEN_VARIANTS)
    if isinstance(earlier, list):
        again = [m for name in earlier for m in measured if m.build.name == name]
        if again:
            return again
    reach = 4.0 if len(first.tasks) <= 3 else 1.25
    near = [m for m in measured if m.time_s <= reach * measured[0].time_s]
    # After the fastest the compiler's own: variants that do well are often alike.
    near.sort(key=lambda m: (m is not measured[0], bool(m.build.variant.flags), m.time_s))
    chosen = near[: context.options.effort_preset.tuned_variants]
    if first.sites:
        # A kernel of our own is as fast whatever the compiler would have made of its ops, and sites
        # are those of single ops where no variant has joined them.
        chosen += [m for m in measured if not m.build.variant.flags and m not in chosen]
    chosen.sort(key=lambda m: m.time_s)
    context.store.put_state(context.run_id, _CHOSEN_VARIANTS, [m.build.name for m in chosen])
    return chosen


def _digest(build: Build) -> str:
    assert build.vmfb is not None
    return hashlib.sha256(build.vmfb.read_bytes()).hexdigest()
