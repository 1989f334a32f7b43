"""`tilewright apply`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright import words
from tilewright.cli import output as out
from tilewright.cli.output import print_changes
from tilewright.cli.tuning_options import PATH, input_type_option, json_option, tuning_options
from tilewright.errors import UserError

if TYPE_CHECKING:
    from tilewright.tuning.emit import EmittedProgram


@click.command(
    name="apply",
    epilog="""\b
Examples:
  tilewright apply model.mlir tuned -o model.vmfb
  tilewright apply model.mlir tuned/tuning_spec.mlir -o model.vmfb
  tilewright apply model.mlir tuned --emit-mlir configured.mlir""",
)
@click.argument("program", type=PATH)
@click.argument("tuned", metavar="OUT|SPEC", type=PATH)
@click.option("-o", "--output", metavar="FILE", type=PATH, help="The compiled program (.vmfb).")
@click.option(
    "--emit-mlir",
    metavar="FILE",
    type=PATH,
    help="Write the program with compilation_info on its ops instead.",
)
@tuning_options("target", "iree_flags")
@input_type_option
@json_option
def command(
    program: Path,
    tuned: Path,
    output: Path | None,
    emit_mlir: Path | None,
    as_json: bool,
    **given: Any,
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

        _print_emitted(emit(program, tuned, emit_mlir, **given), as_json)
        return
    from tilewright.tuning.apply import apply

    assert output is not None
    applied = apply(program, tuned, output, **given)
    if as_json:
        out.print_json(applied)
        return
    print_changes(applied)
    click.echo(f"{output}: written; the same by hand:\n  {applied.command}")


def _print_emitted(emitted: EmittedProgram, as_json: bool) -> None:
    if as_json:
        out.print_json(emitted)
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
