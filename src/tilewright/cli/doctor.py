"""`tilewright doctor`."""

from __future__ import annotations

import click

from tilewright.cli import output
from tilewright.cli.tuning_options import json_option, tuning_options
from tilewright.database_address import default_database, read_database
from tilewright.measure.machine import describe


@click.command(
    name="doctor",
    epilog="""\b
Examples:
  tilewright doctor
  tilewright doctor --json""",
)
@tuning_options("db")
@json_option
def command(db: str | None, as_json: bool) -> int:
    """Say what on this machine makes times doubtful or a run fail, and what to do about it.

    Versions, cores of several kinds, other programs, frequency, how steady equal pieces of work
    are, room, the database, extras. Exit status 3 where a run would fail.
    """
    from tilewright.measure.doctor import Health, examine

    place = read_database(db) if db else default_database()
    found = []
    for one in examine(describe(), place):
        found.append(one)
        if not as_json:
            click.echo(f"{one.health:<6} {one.name:<11} {one.text}")
            if one.advice:
                click.echo(f"{'':<18} {one.advice}")
    if as_json:
        output.print_json(found)
    return 3 if any(one.health is Health.BAD for one in found) else 0
