"""What a project says of every run in it: the table `tool.tilewright` of its pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.tuning.options import OptionSpec, option_table

_TABLE = "[tool.tilewright]"


@dataclass(frozen=True)
class ProjectFile:
    """Options by the name of their field, as texts and switches; and the file that says them."""

    path: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


def find_project(folder: Path) -> ProjectFile:
    """What the nearest pyproject.toml says, in a folder or above it.

    Args:
        folder: where the search begins.

    Returns:
        Its options; none where no file has the table.

    Raises:
        UserError: the file is no TOML, or the table has what is no option or no value for one.
    """
    for place in (folder.absolute(), *folder.absolute().parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return read_project(path)
    return ProjectFile()


def read_project(path: Path) -> ProjectFile:
    """What a pyproject.toml says of runs.

    Args:
        path: the file.

    Returns:
        Its options; without a path where the table is not there.

    Raises:
        UserError: as `find_project`.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except RecursionError:
        raise UserError(f"{path}: cannot read it (it is nested too deeply)") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot read it ({error})") from error
    tool = data.get("tool", {})
    table = tool.get("tilewright") if isinstance(tool, dict) else None
    if table is None:
        return ProjectFile()
    where = f"{path}: {_TABLE}"
    if not isinstance(table, dict):
        raise UserError(f"{where} is not a table")
    specs = {spec.flag.removeprefix("--"): spec for spec in option_table()}
    given = {}
    for key, value in table.items():
        spec = specs.get(key.replace("_", "-"))
        if spec is None:
            raise UnknownNameError("option", key, specs, where)
        given[spec.name] = _value(spec, value, f"{where} {key}")
    return ProjectFile(path, _from_there(given, path.parent))


def _value(spec: OptionSpec, value: Any, where: str) -> Any:
    """A value of TOML as the command line would have it."""
    if not spec.metavar:
        if not isinstance(value, bool):
            raise UserError(f"{where}: {value!r} is not true or false")
        return value
    if spec.multiple:
        values = value if isinstance(value, list) else [value]
        return tuple(_text(one, where) for one in values)
    if isinstance(value, list):
        # Such as `variants`: a list on the command line too.
        return ",".join(_text(one, where) for one in value)
    return _text(value, where)


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: {value!r} is not a text or a number")
    return str(value)


def _from_there(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths that a file names are beside it, wherever the command is given."""
    paths = {spec.name for spec in option_table() if spec.metavar in ("FILE", "DIR", "FILE|URL")}
    return {
        name: str(folder / value)
        if name in paths and isinstance(value, str) and "://" not in value
        else value
        for name, value in given.items()
    }
