"""`tilewright bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli import output
from tilewright.cli.module_options import module_options, show_ir, split, tell
from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError
from tilewright.tuning.parse import parse_count, parse_duration

if TYPE_CHECKING:
    from tilewright.modules.benchmarking import BenchmarkRow, BenchPolicy
    from tilewright.modules.ready_module import OpenModule

_LEAST_NAME = 24


@click.command(
    name="bench",
    epilog="""\b
Examples:
  tilewright bench model.mlir
  tilewright bench matmul.vmfb --function main --input 256x256xf32 --input 256x256xf32=1
  tilewright bench model.mlir --repetitions 10 --min-time 200ms
  tilewright bench model.mlir --spec tuned --json > tuned.json""",
)
@click.argument("module", type=PATH)
@module_options
@click.option("--repetitions", metavar="N", help="Of each function (default: 1).")
@click.option(
    "--min-time", metavar="DURATION",
    help="What one repetition lasts at least, such as 0.5s or 200ms (default: 0.5s).",
)  # fmt: skip
@click.option(
    "--batch-size", metavar="N",
    help="Iterations that a call counts as: of a program compiled with "
    "--iree-hal-benchmark-dispatch-repeat-count=N, and of a benchmark of a dispatch, which is told "
    "N (default: 1).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON in Google Benchmark's form.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV in Google Benchmark's form.")
def command(
    module: Path,
    repetitions: str | None,
    min_time: str | None,
    batch_size: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> int:
    """Time functions of MODULE, and report as Google Benchmark does.

    MODULE is a compiled .vmfb, or a program, which is compiled first. Without --function it is the
    only one there is, or else every function that takes no arguments. Benchmarks are named as those
    of iree-benchmark-module. Time is wall time of one
    call, CPU the processor time of all threads together; with --repetitions their mean,
    median, standard deviation and coefficient of variation follow. Conditions that make the times
    doubtful are warned of.
    """
    from tilewright.modules.benchmarking import bench_module, context, to_csv, to_json
    from tilewright.modules.ready_module import open_module

    options, call = split(given)
    if options.compile_to is not None:
        show_ir(module, options)
        return 0
    if as_json and as_csv:
        raise UserError("--json and --csv: give one of the two")
    policy = _policy(repetitions, min_time, batch_size)
    with open_module(module, options, with_limits=not call["inputs"]) as opened:
        tell(opened.compiled)
        about = context(opened)
        for warning in about["warnings"]:
            click.echo(f"warning: {warning}", err=True)
        width = _name_width(opened, call, policy)
        as_text = not as_json and not as_csv
        if as_text:
            _print_head(about, width)

        def show(row: BenchmarkRow, unit: str) -> None:
            if as_text:
                click.echo(_line(row, unit, width))

        results = bench_module(opened, **call, policy=policy, on_row=show)
    if as_json:
        output.print_json(to_json(results, about))
    elif as_csv:
        click.echo(to_csv(results), nl=False)
    failed = [result for result in results if result.error]
    for result in failed[:-1]:
        click.echo(f"error: {result.error}", err=True)
    if failed:
        raise UserError(failed[-1].error)
    return 0


def _policy(repetitions: str | None, min_time: str | None, batch_size: str | None) -> BenchPolicy:
    from tilewright.modules.benchmarking import BenchPolicy

    default = BenchPolicy()
    return BenchPolicy(
        parse_count(repetitions, "--repetitions") if repetitions else default.repetitions,
        parse_duration(min_time, "--min-time") if min_time else default.min_time_s,
        parse_count(batch_size, "--batch-size") if batch_size else default.batch_size,
    )


def _name_width(module: OpenModule, call: dict[str, Any], policy: BenchPolicy) -> int:
    from tilewright.modules.benchmarking import choose_functions, run_name

    tail = "_median" if policy.repetitions > 1 else ""
    chosen = choose_functions(module, call["function"], call["inputs"])
    names = [run_name(one.name) + tail for one in chosen]
    return max(_LEAST_NAME, *map(len, names))


def _print_head(about: dict[str, Any], width: int) -> None:
    click.echo(about["date"])
    click.echo(
        f"Running {about['module']} on {about['device']}, {about['threads']} threads"
        if about["threads"] > 1
        else f"Running {about['module']} on {about['device']}"
    )
    click.echo(f"Run on {about['num_cpus']} X {about['mhz_per_cpu']} MHz ({about['cpu']})")
    click.echo("CPU Caches:")
    for cache in about["caches"]:
        number = max(1, about["num_cpus"] // cache["num_sharing"])
        click.echo(f"  L{cache['level']} {cache['type']} {cache['size'] >> 10} KiB (x{number})")
    click.echo(f"Load Average: {', '.join(f'{load:.2f}' for load in about['load_avg'])}")
    head = f"{'Benchmark':<{width}} {'Time':>15} {'CPU':>15} {'Iterations':>12} Items/s"
    rule = "-" * (len(head) + 4)
    click.echo(f"{rule}\n{head}\n{rule}")


def _line(row: BenchmarkRow, unit: str, width: int) -> str:
    from tilewright.modules.benchmarking import UNITS

    if row.statistic == "cv":
        real, cpu, items = (f"{100 * v:.2f} %" for v in (row.real_s, row.cpu_s, row.items_per_s))
    else:
        real, cpu = (f"{_digits(v / UNITS[unit])} {unit}" for v in (row.real_s, row.cpu_s))
        items = f"{_thousands(row.items_per_s)}/s"
    return f"{row.name:<{width}} {real:>15} {cpu:>15} {row.iterations:>12} {items}"


def _digits(value: float) -> str:
    """Three or more significant digits, as Google Benchmark shows times."""
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def _thousands(value: float) -> str:
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.5g}{prefix}"
    return f"{value:.5g}"
