"""The end of a run in words and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tilewright import words
from tilewright.cli import output
from tilewright.tuning.result import DispatchSummary, TuneResult

_TUNED = ("tuned", "reused")


def print_summary(result: TuneResult, console: Console, page: Path | None = None) -> None:
    """Everything that a user wants to know of a result, on the console.

    Args:
        result: of the run.
        console: to write to.
        page: its report.
    """
    say = console.print
    say()
    _print_dispatches(result, console)
    _print_configurations(result, console)
    _print_spaces(result, console)
    _print_variants(result, console)
    say()
    for line in program_lines(result):
        say(line)
    say()
    for line in output_lines(result):
        say(line, soft_wrap=True)
    if page is not None:
        say(f"What happened, as a page to open in a browser: {page}", soft_wrap=True)


def program_lines(result: TuneResult) -> list[str]:
    """The whole program before and after, and what was changed.

    Args:
        result: of the run.
    """
    program = result.program
    default, tuned = words.significant(program.default_ms), words.significant(program.tuned_ms)
    lines = []
    if result.improved:
        lines.append(
            f"Program: {default} ms by default, {tuned} ms tuned: {words.times(program.speedup)} "
            f"the speed (95% interval {words.interval(*program.speedup_ci)}), "
            f"variant {program.variant}"
        )
    else:
        lines.append(
            f"Program: {default} ms. Nothing beat the compiler's defaults; the tuning spec has no "
            "entries."
        )
    lines.append(program.outputs)
    if result.changed:
        replaced = [n for d in result.dispatches if d.kernel for n in d.dispatches or d.names]
        configured = [name for name in result.changed if name not in replaced]
        if configured:
            number = words.plural(len(configured), "dispatch", "dispatches")
            names = ", ".join(configured)
            lines.append(f"The spec changed the configuration of {number}: {names}")
        if replaced:
            number = words.plural(len(replaced), "dispatch", "dispatches")
            names = ", ".join(replaced)
            lines.append(f"Kernels of our own took the place of {number}: {names}")
    elif result.improved:
        lines.append("The variant alone is what made it faster; the tuning spec has no entries.")
    if any(one.tuned_ms is not None for one in result.dispatches):
        work = program.constant_work
        lines.append(
            f"Changes of layout (packing, unpacking, transposing) take "
            f"{words.share(result.layout_share)} of the time of its dispatches"
            + ("." if work is None else f"; {_constants(work)}.")
        )
    spent = f"{words.plural(result.trials_total, 'trial')} in {words.duration(result.wall_s)}"
    if result.interrupted:
        lines.append(f"Stopped early by Ctrl-C after {spent}; --resume goes on.")
    else:
        lines.append(f"{spent}.")
    return lines


def _constants(work: Mapping[str, int]) -> str:
    """What a call does with constants that could be done ahead."""
    if not work:
        return "no constant is packed or transformed in a call"
    times = words.plural(sum(work.values()), "dispatch", "dispatches")
    return f"in every call {times} pack or transform constants"


def output_lines(result: TuneResult) -> list[str]:
    """Where the result is, and the line that makes the program without tilewright.

    Args:
        result: of the run.
    """
    lines = [f"Results are in {shlex.quote(str(result.output))}. The same program by hand:"]
    try:
        text = (Path(result.output) / "command.txt").read_text()
        lines.append("  " + "\n".join(x for x in text.splitlines() if not x.startswith("#")))
    except OSError:
        lines.append(f"  see {result.output}/command.txt")
    if result.runs:
        shown = ", ".join(
            " ".join([one.device, words.plural(one.threads, "thread"), *one.words])
            + f" {words.significant(one.ms)} ms"
            for one in result.runs
        )
        lines.append(f"How to run it, measured: {shown}. Advised:")
        lines += [f"  {one.command}" for one in result.runs if one.advised]
    return lines


def _print_dispatches(result: TuneResult, console: Console) -> None:
    columns = ("dispatch", "runs", "share", "default ms", "tuned ms", "speed-up", "GFLOP/s")
    table = output.table((*columns, "status"), right=columns[1:])
    for one in _shown(result):
        table.add_row(
            one.name,
            str(one.count),
            words.share(one.share),
            words.significant(one.default_ms),
            words.significant(one.tuned_ms),
            _speedup(one),
            _gflops(one),
            one.status,
        )
    console.print(table)
    skipped = [d for d in result.dispatches if d.default_ms is None]
    for line in words.by_reason((one.name, one.status) for one in skipped):
        console.print(line)


def _shown(result: TuneResult) -> list[DispatchSummary]:
    return [d for d in result.dispatches if d.default_ms is not None]


def _speedup(one: DispatchSummary) -> str:
    if one.speedup_ci is None:
        return words.times(one.speedup) if one.status in _TUNED else "-"
    return f"{words.times(one.speedup)} ({words.interval(*one.speedup_ci)})"


def _gflops(one: DispatchSummary) -> str:
    if one.gflops_default is None:
        return "-"
    before = words.significant(one.gflops_default)
    if one.status not in _TUNED or one.gflops_tuned is None:
        return before
    return f"{before} -> {words.significant(one.gflops_tuned)}"


def _print_configurations(result: TuneResult, console: Console) -> None:
    for one in _shown(result):
        if one.status not in _TUNED:
            continue
        console.print()
        console.print(f"{one.name} ({one.workload})")
        if one.dispatches:
            console.print(f"  is       {', '.join(one.dispatches)}")
        console.print(f"  now      {one.configuration}")
        if one.default_configuration:
            console.print(f"  default  {one.default_configuration}")
        if one.verification:
            console.print(f"  checked against {one.verification}")


def _print_spaces(result: TuneResult, console: Console) -> None:
    tried = [d for d in _shown(result) if d.space_points]
    if not tried:
        return
    console.print()
    columns = ("dispatch", "configurations", "tried", "failed", "share of the space")
    table = output.table(columns, right=columns[1:])
    for one in tried:
        table.add_row(
            one.name,
            words.count(one.space_points),
            str(one.trials),
            str(one.failed_trials),
            words.share(one.tried_share),
        )
    console.print(table)


def _print_variants(result: TuneResult, console: Console) -> None:
    if len(result.program.variants) < 2:
        return
    console.print()
    table = output.table(("variant", "untuned ms"), right=("untuned ms",))
    for name, outcome in result.program.variants.items():
        table.add_row(name, outcome if isinstance(outcome, str) else words.significant(outcome))
    console.print(table)
