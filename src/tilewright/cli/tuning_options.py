"""Click options and types that several commands share. Those of tuning are made from the table
that says what an option is called, takes and means.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tilewright.tuning.options import OptionSpec, option_table

F = TypeVar("F", bound=Callable[..., Any])


def tuning_options(*only: str) -> Callable[[F], F]:
    """Adds the options of those fields of TuneOptions (default: all), in the table's order.

    Values arrive as text, and as None when the option was not given: `tuning.request` reads them.
    """

    def add(function: F) -> F:
        for spec in reversed(option_table()):
            if not only or spec.name in only:
                function = _option(spec)(function)
        return function

    return add


def _option(spec: OptionSpec) -> Callable[[F], F]:
    names = [spec.flag, *([spec.short] if spec.short else []), spec.name]
    text = f"{spec.help[:1].upper()}{spec.help[1:]}{'; may be repeated' if spec.multiple else ''}."
    if not spec.metavar:
        return click.option(*names, is_flag=True, default=None, help=text)
    return click.option(
        *names, metavar=spec.metavar, multiple=spec.multiple, default=None, help=text
    )


PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
input_type_option = click.option(
    "--input-type", metavar="NAME", help="The input dialect, as iree-compile names it."
)
