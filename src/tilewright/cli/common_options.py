"""Click options and types that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
input_type_option = click.option(
    "--input-type", metavar="NAME", help="The input dialect, as iree-compile names it."
)
