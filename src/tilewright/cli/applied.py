"""What applying a spec did, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tilewright import words

if TYPE_CHECKING:
    from tilewright.tuning.apply import AppliedProgram


def print_changes(applied: AppliedProgram) -> None:
    """Every dispatch whose configuration changed, with both."""
    for note in applied.notes:
        click.echo(f"note: {note}", err=True)
    if not applied.entries:
        click.echo(f"{applied.spec}: no entries; the compiler's own choices stay")
    elif applied.changes:
        number = words.plural(len(applied.changes), "dispatch", "dispatches")
        click.echo(f"{applied.spec}: applied to {number} of {applied.program}:")
    for change in applied.changes:
        entry = f" (entry {change.entry})" if change.entry else ""
        click.echo(f"  {change.function}{entry}")
        click.echo(f"    before  {change.before}")
        click.echo(f"    after   {change.after}")
    if applied.unused and applied.changes:
        click.echo(f"entries without a dispatch here: {', '.join(applied.unused)}")
