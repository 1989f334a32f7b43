"""What applying a spec did, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from tilewright import words

if TYPE_CHECKING:
    from tilewright.tuning.apply import AppliedProgram
    from tilewright.tuning.proof import ConfigurationChange


def change_lines(
    changes: Iterable[ConfigurationChange], *, with_entries: bool = True
) -> Iterator[str]:
    """Dispatches with what they were configured as before, and what after.

    Args:
        changes: one for each dispatch.
        with_entries: name the entry of the spec that did it, where it is known.
    """
    for change in changes:
        entry = f" (entry {change.entry})" if change.entry and with_entries else ""
        yield f"  {change.function}{entry}"
        yield f"    before  {change.before}"
        yield f"    after   {change.after}"


def print_changes(applied: AppliedProgram) -> None:
    """Every dispatch whose configuration changed, with both.

    Args:
        applied: the program with the spec.
    """
    for note in applied.notes:
        click.echo(f"note: {note}", err=True)
    if not applied.entries:
        click.echo(f"{applied.spec}: no entries; the compiler's own choices stay")
    elif applied.changes:
        number = words.plural(len(applied.changes), "dispatch", "dispatches")
        click.echo(f"{applied.spec}: applied to {number} of {applied.program}:")
    for line in change_lines(applied.changes):
        click.echo(line)
    if applied.unused and applied.changes:
        click.echo(f"entries without a dispatch here: {', '.join(applied.unused)}")
