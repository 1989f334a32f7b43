"""`tilewright trace`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright import words
from tilewright.cli import output as out
from tilewright.cli.module_options import module_options, split, tell
from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError
from tilewright.files import check_writable_file, write_text
from tilewright.tuning.parse import parse_count

if TYPE_CHECKING:
    from tilewright.modules.tracing import RunTrace
    from tilewright.tables import Table

_SUFFIXES = (".svg", ".json")


@click.command(
    name="trace",
    epilog="""\b
Examples:
  tilewright trace model.mlir
  tilewright trace model.mlir --spec tuned --calls 5 -o tuned.svg
  tilewright trace model.vmfb --input 1x224x224x3xf32 -o model.json""",
)
@click.argument("module", type=PATH)
@module_options
@click.option("--calls", metavar="N", help="Calls of the function (default: 3).")
@click.option(
    "-o", "--output", metavar="FILE", type=PATH, default=Path("trace.svg"),
    help="A picture (.svg), or trace events for Perfetto (.json) (default: trace.svg).",
)  # fmt: skip
def command(module: Path, calls: str | None, output: Path, **given: Any) -> None:
    """Show what a run of MODULE does over time, on this CPU.

    MODULE is a compiled .vmfb, or a program, which is compiled first. IREE's runtime records the
    operations of the device's queue, each dispatch, and the memory that the device holds; the
    timeline is drawn to a file, and the dispatches are listed with the time that they took.
    Recording costs some time: `tilewright bench` tells how long a call takes.
    """
    from tilewright.modules.ready_module import open_module
    from tilewright.modules.timeline import to_svg, to_trace_events
    from tilewright.modules.tracing import trace_module

    options, call = split(given)
    if options.compile_to is not None:
        raise UserError("--compile-to: a trace is of a run; `tilewright run --compile-to` shows IR")
    if output.suffix not in _SUFFIXES:
        raise UserError(f"--output: {output} is neither {' nor '.join(_SUFFIXES)}; name one")
    check_writable_file(output, "--output")
    count = parse_count(calls, "--calls") if calls else 3
    with open_module(module, options, with_limits=not call["inputs"]) as opened:
        tell(opened.compiled)
        trace = trace_module(opened, **call, calls=count)
    out.print_table(_table(trace))
    write_text(output, to_svg(trace) if output.suffix == ".svg" else to_trace_events(trace))
    click.echo(f"{output}: written")


def _table(trace: RunTrace) -> Table:
    from tilewright.tables import Table

    columns = ("Dispatch", "Runs", "Mean(ms)", "Share")
    rows = []
    for name, spans in trace.dispatches().items():
        took = sum(span.duration_ns for span in spans) / 1e9
        share = words.share(took / max(1e-9, trace.duration_ns / 1e9))
        rows.append((name, str(len(spans)), words.milliseconds(took / len(spans)), share))
    return Table(columns, columns[1:], tuple(rows))
