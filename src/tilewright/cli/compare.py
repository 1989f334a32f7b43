"""`tilewright compare`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli import output
from tilewright.cli.interrupt import Interruption
from tilewright.cli.tuning_options import tuning_options
from tilewright.database_address import read_database, without_password
from tilewright.errors import UnknownNameError, UserError
from tilewright.target import parse_target
from tilewright.toolchain import check_versions
from tilewright.tuning.parse import parse_count, parse_duration, parse_parameters

if TYPE_CHECKING:
    from tilewright.compare.comparison_options import Budget, CompareOptions
    from tilewright.compare.diff import TimeChange
    from tilewright.compare.providers.interface import Provider
    from tilewright.compare.results import ComparisonRow, ComparisonRun, ResultFile

_PATH = click.Path(path_type=Path)
_DIFF, _RUN = "diff", "run"
#: The exit status of `compare diff` when something became slower or broke.
REGRESSED = 3


class _Compare(click.Group):
    """`compare diff OLD NEW` is a command of its own; everything else names workloads."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = not args or args[0] in (_DIFF, _RUN, "-h", "--help")
        return super().parse_args(ctx, args if named else [_RUN, *args])


@click.group(
    name="compare",
    cls=_Compare,
    no_args_is_help=True,
    options_metavar="",
    subcommand_metavar="WORKLOAD... [OPTIONS]  |  diff OLD NEW [OPTIONS]",
    epilog="""\b
Examples:
  tilewright compare --matmul 512x1024x768:f32 --providers iree,iree-variant:data-tiling,numpy
  tilewright compare shapes.json --providers iree,iree-tuned,numpy,torch --output results.json
  tilewright compare model.onnx --providers iree,onnxruntime,openvino --threads 2
  tilewright compare matmul conv2d --providers iree,iree-tuned,tvm --budget 64 --plot plots
  tilewright compare --matmul 4096x4096x4096:f16-f32 --target cuda:sm_80 --device cuda://0
  tilewright compare diff old.json new.json

`tilewright compare run --help` lists the options.""",
)
def command() -> None:
    """Compare providers of code on the same workloads and data, in interleaved rounds.

    A workload is a file of shapes (.json), a program (.mlir, .onnx), an operation by its name, or a
    kind of `profile generate`, which stands for its predefined shapes. Results are checked against
    float64. What is not installed is skipped, with the line that would bring it; what computes
    wrong numbers is FAILED and in no mean.
    """


@command.command(name=_RUN)
@click.argument("workloads", nargs=-1)
@click.option(
    "--matmul", "matmuls", metavar="MxNxK[:TYPE]", multiple=True,
    help="A matrix product, such as 512x1024x768:f32; may be repeated.",
)  # fmt: skip
@click.option("--types", metavar="LIST", help="Of shapes that do not say theirs (default: f32).")
@click.option("--providers", metavar="LIST", help="What to compare (default: see below).")
@click.option("--list", "listing", is_flag=True, help="List the providers there are, and stop.")
@click.option("--base", metavar="NAME", help="What speed-ups are over (default: the first).")
@click.option(
    "--budget", metavar="N|DURATION",
    help="For providers that search: trials, such as 64, or time, such as 90s, or 64,90s.",
)  # fmt: skip
@tuning_options("threads")
@click.option("--pin", is_flag=True, help="Keep every provider on as many processors.")
@click.option("--rounds", metavar="N", help="Interleaved rounds (default: 25, at least 6).")
@click.option(
    "--max-time", metavar="DURATION",
    help="For the rounds of one workload; fewer are made where they take longer (default: 60s).",
)  # fmt: skip
@click.option("--no-peak", "peak", is_flag=True, default=True, flag_value=False,
    help="Do not measure the machine's peak before and after.")  # fmt: skip
@tuning_options("inputs", "parameters", "target", "device", "iree_flags", "db", "seed")
@click.option("--output", "-o", metavar="FILE", type=_PATH, help="Results, as .json or .csv.")
@click.option("--append", is_flag=True, help="Add to the results that the file has.")
@click.option("--plot", metavar="DIR", type=_PATH, help="Draw the results, as PNG and SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def run(workloads: tuple[str, ...], **given: Any) -> int:
    """Compare providers on WORKLOADS.

    Each provider runs in a process of its own and is stopped while others are timed. Exit status: 0
    also when a provider failed; the table says so.
    """
    from tilewright.compare.harness import compare
    from tilewright.compare.results import ResultFile, check_output, default_base
    from tilewright.compare.workloads import find_workloads

    if given["listing"]:
        _list()
        return 0
    check_versions()
    options = _options(given)
    providers = _providers(given["providers"], options)
    chosen = find_workloads(workloads, given["matmuls"], given["types"])
    base, path, plots = given["base"], given["output"], given["plot"]
    if base is not None and base not in [p.label for p in providers]:
        raise UnknownNameError("provider", base, [p.label for p in providers], "--base")
    if given["append"] and path is None:
        raise UserError("--append: there is nothing to add to without --output FILE")
    if path is not None:
        target = options.target
        check_output(path, given["append"], options.threads, target.name, target.is_gpu)
    if plots is not None:
        from tilewright.compare.plots import check_plots

        check_plots(plots)
    results = ResultFile(path, given["append"]) if path is not None else None
    try:
        result = compare(
            chosen,
            providers,
            options,
            say=lambda line: click.echo(line, err=True),
            on_row=lambda row: click.echo(f"  {_progress(row)}", err=True),
            # What is done is not lost when the rest takes too long.
            on_workload=lambda run: results.write(run) if results is not None else None,
        )
    except KeyboardInterrupt as error:
        raise Interruption(_interrupted(results, path)) from error
    if results is not None:
        results.write(result)
    if plots is not None:
        from tilewright.compare.plots import write_plots

        for file in write_plots(plots, result, default_base(result, base)):
            click.echo(f"{file}: written", err=True)
    if given["as_json"]:
        output.print_json(result.to_json())
    else:
        _print(result, default_base(result, base))
    return 0


@command.command(name=_DIFF)
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option(
    "--margin", metavar="PERCENT", help="Changes below this are nobody's concern (default: 4)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def diff_command(old: Path, new: Path, margin: str | None, as_json: bool) -> int:
    """Compare two results, OLD and NEW, row by row, beyond the noise.

    All verdicts hold together at 95%. Exit status 3 if anything became slower or broke.
    """
    from tilewright.compare.diff import MARGIN, diff
    from tilewright.compare.results import latest, read_runs

    part = MARGIN if margin is None else _percent(margin)
    changes = diff(latest(read_runs(old)), latest(read_runs(new)), margin=part)
    if as_json:
        output.print_json([_change_json(change) for change in changes])
    else:
        _print_changes(changes)
    return REGRESSED if any(c.verdict.is_regression for c in changes) else 0


# -- options ---------------------------------------------------------------------------------------


def _options(given: dict[str, Any]) -> CompareOptions:
    from dataclasses import replace

    from tilewright.compare.comparison_options import CompareOptions

    threads = given["threads"]
    target = parse_target(
        given["target"] or "cpu", None if threads is None else parse_count(threads, "--threads")
    )
    if target.is_gpu and given["pin"]:
        raise UserError(f"--pin: it is for processors, and {target.name} is a GPU")
    if given["device"] is not None and not target.is_gpu:
        raise UserError("--device: it names a GPU; give its --target too, such as cuda:sm_80")
    options = CompareOptions(
        target,
        pin=given["pin"],
        device=given["device"] or "",
        peak=given["peak"],
        inputs=tuple(given["inputs"] or ()),
        parameters=tuple(map(parse_parameters, given["parameters"] or ())),
        iree_flags=tuple(given["iree_flags"] or ()),
        db=read_database(given["db"]) if given["db"] else None,
        budget=_budget(given["budget"]),
        command=shlex.join(["tilewright", *map(without_password, sys.argv[1:])]),
    )
    if given["rounds"] is not None:
        options = replace(options, rounds=parse_count(given["rounds"], "--rounds", least=6))
    if given["max_time"] is not None:
        options = replace(options, max_s=parse_duration(given["max_time"], "--max-time"))
    if given["seed"] is not None:
        options = replace(options, seed=parse_count(given["seed"], "--seed", least=0))
    return options


def _interrupted(results: ResultFile | None, path: Path | None) -> str:
    if results is None or not results.written:
        return "interrupted: nothing was kept"
    return f"interrupted: the workloads that were done are in {path}"


def _providers(text: str | None, options: CompareOptions) -> list[Provider]:
    """Those that were named, else the usual ones that run on the target."""
    from tilewright.compare.providers.registry import DEFAULT, find_providers

    if text is not None:
        return find_providers(text)
    usual = find_providers(DEFAULT)
    return [one for one in usual if not one.reason_against_target(options.target)]


def _budget(text: str | None) -> Budget:
    from tilewright.compare.comparison_options import Budget

    trials = seconds = None
    for part in (text or "").split(","):
        word = part.strip()
        if word and (trials if word.isdigit() else seconds) is not None:
            raise UserError(
                f"--budget: '{text}' names two of a kind; write trials, a time, or both as 64,90s"
            )
        if word.isdigit():
            trials = parse_count(word, "--budget")
        elif word:
            seconds = parse_duration(word, "--budget")
    return Budget(trials, seconds)


def _percent(text: str) -> float:

    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise UserError(f"--margin: '{text}' is not a percentage from 0 to 100, such as 5")
    return value / 100


def _list() -> None:
    from tilewright.compare.providers.registry import DEFAULT, PROVIDERS

    table = output.table(("provider", "what it is", "installed"))
    for name, kind in PROVIDERS.items():
        missing = kind.absent()
        form = f"{name}:{kind.takes}" if kind.takes else name
        table.add_row(form, kind.about, f"no: {missing}" if missing else "yes")
    output.console().print(table)
    click.echo(f"\nWithout --providers: {DEFAULT}")


# -- tables ----------------------------------------------------------------------------------------


def _progress(row: ComparisonRow) -> str:
    from tilewright.compare.tables import time_text

    if not row.ok:
        return f"{row.provider}: {row.outcome}: {row.reason}"
    note = f" ({row.note})" if row.note else ""
    return f"{row.provider}: {time_text(row)}{note}"


def _print(result: ComparisonRun, base: str) -> None:
    from tilewright.compare.tables import means_table, rows_table

    for made in (rows_table(result, base), means_table(result, base)):
        output.print_table(made)
        click.echo("")
    for warning in result.state.warnings():
        click.echo(f"warning: {warning}")


def _print_changes(changes: list[TimeChange]) -> None:
    from tilewright.compare.diff import mean_ratio
    from tilewright.compare.tables import changes_table

    output.print_table(changes_table(changes))
    mean = mean_ratio(changes)
    if mean is not None:
        click.echo(f"\nGeometric mean of new time over old: {mean:.3f}")
    worse = sum(c.verdict.is_regression for c in changes)
    click.echo(f"{worse} of {len(changes)} rows regressed" if worse else "nothing regressed")


def _change_json(change: TimeChange) -> dict[str, Any]:
    ratio = change.ratio
    found = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    data = {name: str(getattr(change, name)) for name in ("workload", "provider", "verdict")}
    return data | dict(zip(("ratio", "low", "high"), found, strict=True))
