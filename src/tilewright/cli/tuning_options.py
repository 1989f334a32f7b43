"""Click options and types that several commands share. Those of tuning are made from the table
that says what an option is called, takes and means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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


def arguments_again(context: click.Context, without: Collection[str] = ()) -> list[str]:
    """The command line of a command, for another process.

    Args:
        context: of the command.
        without: parameters that are left out.

    Returns:
        What stands behind the program's name.
    """
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in without or value in (None, False, ()):
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            arguments += map(str, values)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            options.append(parameter.opts[0])
        else:
            options += [f"{parameter.opts[0]}={one}" for one in values]
    return [*context.command_path.split()[1:], *options, "--", *arguments]


def with_other_iree(wanted: str) -> int:
    """Run the command that is running in a process that has another IREE.

    Args:
        wanted: as `--against` takes it.

    Returns:
        Its exit status.
    """
    from tilewright.other_iree import other_iree

    with other_iree(wanted) as other:
        return other.run(arguments_again(click.get_current_context(), without=("against",)))


against_option = click.option(
    "--against",
    metavar="NEW_IREE",
    help="Do so with this IREE, not the installed one: a version such as 3.12 (pip installs it "
    "into the user's cache), a Python environment, or the folder of its iree-compile.",
)
PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
input_type_option = click.option(
    "--input-type", metavar="NAME", help="The input dialect, as iree-compile names it."
)
