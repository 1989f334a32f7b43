"""Numbers as people read them: times, shares, sizes of spaces, points in time."""

from __future__ import annotations

import time
from collections.abc import Iterable


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds with three significant digits: `0.0123`, `4.56`, `1230`.

    Args:
        seconds: None is shown as `-`.
    """
    return "-" if seconds is None else significant(seconds * 1e3)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent, as far as it is not tiny.

    Args:
        value: None is shown as `-`.
        digits: how many.
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    magnitude = f"{abs(value):e}"
    exponent = int(magnitude.partition("e")[2])
    if exponent < -4:
        return f"{value:.{digits - 1}e}"
    return f"{round(value, digits - 1 - exponent):.{max(0, digits - 1 - exponent)}f}"


def share(value: float) -> str:
    """A share of the whole in percent; small ones with more digits: `37.2%`, `0.004%`.

    Args:
        value: 1 is the whole.
    """
    percent = 100 * value
    if percent == 0:
        return "0%"
    return f"{percent:.1f}%" if percent >= 0.1 else f"{percent:.1g}%"


def count(value: float | None) -> str:
    """How many: `1,234` as it is, large numbers as `1.2e+09`.

    Args:
        value: None is shown as `-`.
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`.

    Args:
        seconds: rounded to whole ones.
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def times(value: float) -> str:
    """A speed-up: `1.52x`.

    Args:
        value: of the speed before.
    """
    return f"{value:.2f}x"


def interval(low: float, high: float) -> str:
    """An interval: `1.48 to 1.56`.

    Args:
        low: its lower end.
        high: its upper end.
    """
    return f"{low:.2f} to {high:.2f}"


def when(epoch_s: float | None) -> str:
    """A point in time in the user's own zone, to the minute.

    Args:
        epoch_s: seconds since 1970; None is shown as `-`.
    """
    return "-" if epoch_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_s))


def plural(number: int, one: str, many: str = "") -> str:
    """`1 dispatch`, `2 dispatches`.

    Args:
        number: how many.
        one: the word for one.
        many: the word for more, where it is not `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def by_reason(left_out: Iterable[tuple[str, str]], named: int = 3) -> list[str]:
    """What was left out, and why: `pad: skipped: dynamic shape`; those of one reason on one line.

    Args:
        left_out: names, each with what was done with it and the reason.
        named: how many names are shown of one reason; how many more there are is said.

    Returns:
        A line for each reason, in the order of the first of each.
    """
    found: dict[str, list[str]] = {}
    for name, reason in left_out:
        found.setdefault(reason, []).append(name)
    return [
        f"{', '.join(of[:named])}{f' and {len(of) - named:,} more' if len(of) > named else ''}: "
        f"{reason}"
        for reason, of in found.items()
    ]
