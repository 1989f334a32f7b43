"""`tilewright spec`: tuning specs merged, checked, shown; programs freed of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import PATH, json_option, tuning_options
from tilewright.files import write_file, write_text


@click.group(
    name="spec",
    epilog="""\b
Examples:
  tilewright spec show tuned/tuning_spec.mlir
  tilewright spec merge a.mlir b.mlir -o both.mlir
  tilewright spec check both.mlir --program model.mlir
  tilewright spec strip dispatch.mlir -o plain.mlir""",
)
def command() -> None:
    """Specs: transform-dialect libraries that carry configurations and kernels into iree-compile.

    Specs written by hand or by other tools work as well as those of tilewright.
    """


@command.command("merge", short_help="Make one spec of any number.")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", type=PATH)
@click.option("-o", "--output", "out", required=True, metavar="FILE", type=PATH,
              help="The merged spec.")  # fmt: skip
def merge(specs: tuple[Path, ...], out: Path) -> None:
    """Make one spec of any number; where two fit the same dispatch, the earlier one wins.

    Preprocessing specs, which have the kernels, are joined with each other.
    """
    from tilewright.sketch.spec_tasks import merge_files

    merged = merge_files(specs)
    write_text(out, merged.text)
    names = {f"spec {n}": str(path) for n, path in enumerate(specs, start=1)}
    for note in merged.notes:
        click.echo(f"note: {_named(note, names)}", err=True)
    click.echo(
        f"{out}: {words.plural(len(merged.entries), 'entry', 'entries')} from "
        f"{words.plural(len(specs), 'spec')}"
    )


def _named(note: str, names: dict[str, str]) -> str:
    """A note on `spec 2` with the file's name beside it, where it is first called that."""
    source, colon, rest = note.partition(":")
    return f"{source} ({names[source]}){colon}{rest}" if source in names else note


@command.command("check", short_help="Check a spec with this compiler, or a program.")
@click.argument("spec", type=PATH)
@click.option("--program", metavar="FILE", type=PATH, help="Also check that it fits this program.")
@tuning_options("target", "iree_flags")
def check(spec: Path, program: Path | None, **given: Any) -> None:
    """Check that this compiler takes a spec, and with --program that it changes something there.

    The code of kernels is compiled, for the processor that --target names.

    A spec that matches no dispatch of the program is an error.
    """
    from tilewright.sketch.spec_tasks import check_code, report_on
    from tilewright.target import parse_target
    from tilewright.tuning.apply import apply

    report = report_on(spec)
    if report.kernels:
        check_code(spec, parse_target(given["target"] or "cpu"), tuple(given["iree_flags"] or ()))
    count = words.plural(len(report.entries), "entry", "entries")
    sort = "preprocessing" if report.is_preprocessing else "tuning"
    click.echo(f"{spec}: a valid {sort} spec with {count}"
               f"{'' if report.ours else ', not written by tilewright'}")  # fmt: skip
    if program is None:
        return
    from tilewright.cli.output import print_changes

    print_changes(apply(program, spec, **given))


@command.command("show", short_help="Show what each entry matches and what it sets.")
@click.argument("spec", type=PATH)
@json_option
def show(spec: Path, as_json: bool) -> None:
    """Show what each entry of a spec matches and what it sets.

    Of kernels also the loops, and the schedule as a function in Python.
    """
    from tilewright.sketch.spec_tasks import report_on

    report = report_on(spec)
    if as_json:
        output.print_json(
            {
                "file": str(spec),
                "written_by_tilewright": report.ours,
                "header": dict(report.header),
                "entries": report.entries,
                "kernels": [dict(kernel) for kernel in report.kernels],
            }
        )
        return
    for key, value in report.header.items():
        click.echo(f"{key}: {value}")
    if not report.entries:
        click.echo("no entries: the compiler's own choices stay")
        return
    table = output.table(("entry", "matches", "pipeline", "configuration"))
    for row in report.entries:
        table.add_row(row.name, row.matches, row.pipeline, row.configuration)
    output.console().print(table)
    for kernel in report.kernels:
        click.echo(
            f"\nkernel {kernel['name']}, for {kernel['target']}\n{kernel['loops'].rstrip()}\n"
        )
        click.echo(f"its schedule, as Python\n{kernel['python'].rstrip()}")


@command.command("strip", short_help="Take the configurations off a program.")
@click.argument("program", type=PATH)
@click.option("-o", "--output", "out", metavar="FILE", type=PATH,
              help="Where the program without them goes (default: standard output).")  # fmt: skip
def strip(program: Path, out: Path | None) -> None:
    """Take the configurations off a program, so that a spec can give it others.

    PROGRAM is MLIR in which ops carry a lowering config, compilation info or the compiler's marks,
    and functions translation info: by hand, by `tilewright apply --emit-mlir`, or because IREE
    wrote it as a dispatch that it has configured. Specs leave what is configured alone.
    """
    from tilewright.sketch.spec_tasks import strip_file

    text, removed = strip_file(program)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_file(out, text)
    kinds = ", ".join(f"{count} {name}" for name, count in removed.items())
    what = f"removed {kinds}" if kinds else "there were no configurations to remove"
    click.echo(f"{out or program}: {what}", err=out is None)
