"""Pictures drawn with matplotlib, which is optional, and never with a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.errors import UserError

#: Colours that people with any of the common colour-blindnesses tell apart: M. Okabe, K. Ito,
#: "Color Universal Design", 2008, in an order in which neighbours differ in lightness too.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#000000",
    "#F0E442",
)
#: Told apart without any colour: hatches of bars, markers of points.
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def figure(option: str = "--plot", **options: Any) -> Any:
    """An empty figure of matplotlib. UserError, which names the option, where it is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"{option} needs matplotlib: pip install 'tilewright[plot]'") from error
    made = Figure(layout="constrained", **options)
    FigureCanvasAgg(made)
    return made


def check_picture(path: Path, option: str = "--plot") -> None:
    """UserError unless matplotlib is installed and can write such a file."""
    allowed = sorted(figure(option).canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in allowed:
        raise UserError(
            f"{option} {path}: unknown kind of picture '{path.suffix}' "
            f"(allowed: {', '.join('.' + kind for kind in allowed)})"
        )


def save_picture(drawn: Any, path: Path, option: str = "--plot") -> None:
    """Write a figure in the form that the file's suffix names."""
    try:
        drawn.savefig(path)
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write it ({error.strerror})") from error
