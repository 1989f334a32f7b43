"""`tilewright config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tilewright.cli import output
from tilewright.cli.tuning_options import json_option
from tilewright.tuning.options import TuneOptions, option_table
from tilewright.tuning.project import ProjectFile, find_project


@click.group(
    name="config",
    epilog="""\b
Examples:
  tilewright config show
  tilewright config show --json""",
)
def command() -> None:
    """Show what options a run has that are not on its command line."""


@command.command(
    name="show",
    epilog="""\b
Examples:
  tilewright config show
  tilewright config show --json""",
)
@json_option
def show(as_json: bool) -> None:
    """Show each option of `tilewright tune` with its value here, and what says it.

    The command line goes before a configuration file (--config, auto-scheduler.cfg), that before
    the table [tool.tilewright] of the nearest pyproject.toml, that before the defaults.
    """
    project = find_project(Path.cwd())
    rows = _rows(project)
    if as_json:
        output.print_json(
            [{"option": flag, "value": value, "from": where} for flag, value, where in rows]
        )
        return
    table = output.table(("option", "value", "from"))
    for flag, value, where in rows:
        table.add_row(flag, value, where)
    output.console().print(table)


def _rows(project: ProjectFile) -> list[tuple[str, str, str]]:
    from tilewright.tuning.request import make_request

    # Read as a run would, so that a fault is told here as it is there.
    make_request("program", {}, project)
    defaults = TuneOptions()
    return [
        (
            spec.flag,
            _words(project.given.get(spec.name, getattr(defaults, spec.name))),
            str(project.path) if spec.name in project.given else "default",
        )
        for spec in option_table()
    ]


def _words(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
