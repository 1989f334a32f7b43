"""`tilewright measure`: for this command only, the options are read by `measure.station`, which the
machine with the device has without click."""

from __future__ import annotations

import click

from tilewright.measure import station


@click.command(
    name="measure",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Measure on this machine's device what `tilewright tune --runner` asks for in a folder."""
    return station.main(arguments)
