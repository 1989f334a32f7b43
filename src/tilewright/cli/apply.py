"""`tilewright apply`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright import words
from tilewright.cli import output as out
from tilewright.cli.applied import print_changes
from tilewright.cli.tuning_options import tuning_options
from tilewright.errors import UserError

if TYPE_CHECKING:
    from tilewright.tuning.emit import EmittedProgram

_FILE = click.Path(path_type=Path)


@click.command(
    name="apply",
    epilog="""\b
Examples:
  tilewright apply model.mlir tuned -o model.vmfb
  tilewright apply model.mlir tuned/tuning_spec.mlir -o model.vmfb
  tilewright apply model.mlir tuned --emit-mlir configured.mlir""",
)
@click.argument("program", type=_FILE)
@click.argument("tuned", metavar="OUT|SPEC", type=_FILE)
@click.option("-o", "--output", metavar="FILE", type=_FILE, help="The compiled program (.vmfb).")
@click.option(
    "--emit-mlir",
    metavar="FILE",
    type=_FILE,
    help="Write the program with compilation_info on its ops instead.",
)
@tuning_options("target", "iree_flags")
@click.option("--input-type", metavar="NAME", help="The input dialect, as iree-compile names it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    program: Path,
    tuned: Path,
    output: Path | None,
    emit_mlir: Path | None,
    target: str | None,
    iree_flags: tuple[str, ...],
    input_type: str | None,
    as_json: bool,
) -> None:
    """Compile PROGRAM with what tuning has found, and prove that it applied.

    The second argument is a result folder of `tilewright tune` (its variant's flags and its target
    are used) or a tuning spec. The dispatches whose configuration changed are listed; a spec with
    entries that changes nothing is an error.

    With --emit-mlir the configurations are put on the ops of the program itself, where a compiler
    keeps them; what cannot be carried that way is listed with the reason.
    """
    if (output is None) == (emit_mlir is None):
        raise UserError("apply: give either -o FILE.vmfb or --emit-mlir FILE.mlir")
    if emit_mlir is not None:
        from tilewright.tuning.emit import emit

        emitted = emit(
            program, tuned, emit_mlir, target=target, iree_flags=iree_flags, input_type=input_type
        )
        _print_emitted(emitted, as_json)
        return
    from tilewright.tuning.apply import apply

    assert output is not None
    applied = apply(
        program, tuned, output, target=target, iree_flags=iree_flags, input_type=input_type
    )
    if as_json:
        data = dataclasses.asdict(applied)
        out.print_json({k: str(v) if isinstance(v, Path) else v for k, v in data.items()})
        return
    print_changes(applied)
    click.echo(f"{output}: written; the same by hand:\n  {applied.command}")


def _print_emitted(emitted: EmittedProgram, as_json: bool) -> None:
    if as_json:
        data = dataclasses.asdict(emitted)
        out.print_json({k: str(v) if isinstance(v, Path) else v for k, v in data.items()})
        return
    for note in emitted.notes:
        click.echo(f"note: {note}", err=True)
    for one in emitted.carried:
        scope = "" if one.whole else " (the root op alone; the other ops of it are not configured)"
        click.echo(f"  {one.function}: on {one.op}{scope}")
        click.echo(f"    {one.configuration}")
    if emitted.dropped:
        click.echo("not carried:")
        for lost in emitted.dropped:
            click.echo(f"  {lost.function}: {lost.reason}")
    number = words.plural(len(emitted.carried), "configuration")
    click.echo(f"{emitted.output}: written with {number}; compile it with:\n  {emitted.command}")
