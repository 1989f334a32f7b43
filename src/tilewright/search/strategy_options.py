"""Options of strategies: one table drives parsing, the help text and the error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import UnknownNameError, UserError

OptionValue = int | float | str | bool

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """One option: its type is that of the default; `low` and `high` are allowed themselves."""

    name: str
    default: OptionValue
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    def allowed(self) -> str:
        """The values allowed, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind is bool:
            return "true, false"
        noun = {int: "an integer", float: "a number", str: "any text"}[self.kind]
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"{noun} from {self.low:g}"
        if self.high is not None:
            return f"{noun} up to {self.high:g}"
        return noun

    def parse(self, value: object, where: str = "") -> OptionValue:
        """The value as the option's type, from text or from a Python value; UserError if wrong."""
        parsed = self._convert(value)
        if (
            parsed is None
            or (self.choices and parsed not in self.choices)
            or (self.low is not None and isinstance(parsed, int | float) and parsed < self.low)
            or (self.high is not None and isinstance(parsed, int | float) and parsed > self.high)
        ):
            head = f"{where}: " if where else ""
            raise UserError(f"{head}option {self.name} = {value!r} (allowed: {self.allowed()})")
        return parsed

    def _convert(self, value: object) -> OptionValue | None:
        if self.kind is bool:
            text = str(value).lower()
            return True if text in _TRUE else False if text in _FALSE else None
        if self.kind is str:
            return str(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        try:
            number = float(value)
        except ValueError:
            return None
        if number != number:
            return None
        if self.kind is int:
            return int(number) if number.is_integer() else None
        return number


def parse_options(
    table: Sequence[Option], given: Mapping[str, object], where: str = ""
) -> dict[str, OptionValue]:
    """Every option of a table, as given or by default.

    Args:
        table: the options there are.
        given: values by name, as text or as Python values.
        where: begins the message of an error.

    Raises:
        UserError: for an option that there is not, or a value that is not allowed.
    """
    by_name = {o.name: o for o in table}
    for name in given:
        if name not in by_name:
            if not by_name:
                raise UserError(f"{where}: takes no options, but '{name}' was given")
            raise UnknownNameError("option", name, by_name, where)
    return {o.name: o.parse(given.get(o.name, o.default), where) for o in table}


def parse_assignments(texts: Iterable[str], where: str = "--strategy-option") -> dict[str, str]:
    """`key=value` texts as a mapping; a later one replaces an earlier one of the same key."""
    out: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{where} {text!r}: write it as NAME=VALUE")
        out[key.strip()] = value.strip()
    return out
