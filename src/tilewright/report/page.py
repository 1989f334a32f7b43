"""One HTML file from a template and figures: the drawing library inside, nothing fetched.

Figures are made with plotly and drawn in the page by plotly's own script, which is in the page as
text: it is run only after the page has been shown, and a figure is drawn only when it comes into
view.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilewright.compare.charts import Roofline
from tilewright.errors import UserError
from tilewright.files import write_whole

#: Colours that are told apart by all, on white and on black; see `tilewright.pictures`.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#999999", "#B8A200")
FIGURE_HEIGHT = 420
PATTERNS = ("", "/", ".", "x", "\\", "+", "|", "-")

#: The figures of a page (of plotly), by the id of the element that each is drawn in.
Figures = dict[str, Any]

# Where long names may be broken.
_BREAKS = re.compile(r"(?<=[_/,])(?=\w)")
_TEMPLATES = Path(__file__).parent / "templates"


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis of plotly's with its numbers written out: 1, 2, 5, 10, or powers of ten
    where values span many. By itself it writes `2` for 20.

    Args:
        title: of the axis.
        values: that are shown on it.

    Returns:
        An axis of plotly's layout.
    """
    there = [v for v in values if v > 0 and math.isfinite(v)]
    low, high = (math.log10(v) for v in (min(there, default=1.0), max(there, default=1.0)))
    steps = (1, 2, 5) if high - low < 4 else (1,)
    ticks = [
        float(f"{step}e{power}")
        for power in range(math.floor(low) - 1, math.ceil(high) + 1)
        for step in steps
    ]
    return {
        "type": "log",
        "title": {"text": title},
        "tickvals": ticks,
        "ticktext": [f"{tick:,g}" for tick in ticks],
    }


def figure_layout(**more: Any) -> dict[str, Any]:
    """What the layouts of figures have in common, and more (or other) of plotly's layout."""
    return {
        "height": FIGURE_HEIGHT,
        "margin": {"l": 60, "r": 15, "t": 20, "b": 50},
        "font": {"size": 12},
        "legend": {"orientation": "h", "y": 1.12},
        **more,
    }


def roofline_figure(chart: Roofline, markers: Mapping[str, Mapping[str, Any]]) -> Any:
    """A roofline: the machine's roofs, and the points of each series under them.

    Args:
        chart: what is shown.
        markers: by series, how plotly marks its points.

    Returns:
        A figure of plotly's.
    """
    import plotly.graph_objects as go

    low, high = chart.ends
    line = [low, chart.peak / chart.bandwidth, high]
    roofs = go.Scatter(
        x=line,
        y=[min(chart.peak, x * chart.bandwidth) for x in line],
        mode="lines",
        name="machine (f32)",
        line={"color": COLOURS[6], "width": 2},
    )
    drawn = [
        go.Scatter(
            x=[x for _, x, _ in points],
            y=[y for _, _, y in points],
            text=[name for name, _, _ in points],
            mode="markers",
            name=label,
            marker=markers[label],
            hovertemplate="%{text}<br>%{y:.4g} GFLOP/s<extra>" + label + "</extra>",
        )
        for label, points in chart.series.items()
    ]
    rates = [y for series in chart.series.values() for _, _, y in series]
    layout = figure_layout(
        xaxis=log_axis("operations for each byte", line),
        yaxis=log_axis("GFLOP/s", [chart.peak, *rates]),
    )
    return go.Figure([roofs, *drawn], layout)


def render(template: str, values: Mapping[str, Any], figures: Figures) -> str:
    """The page.

    Args:
        template: its file's name.
        values: by name; all text in them is escaped.
        figures: that are drawn in it.
    """
    import jinja2
    import plotly.offline

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["breakable"] = _breakable
    return environment.get_template(template).render(
        **values,
        style=_asset("page.css"),
        script=_asset("page.js"),
        watch=_asset("watch.js"),
        figures=_figures_script(figures),
        plotly=_inside_script(plotly.offline.get_plotlyjs()),
    )


def _figures_script(figures: Figures) -> str:
    """All figures as JSON that can stand inside a script element."""
    import plotly.io

    parts = []
    for name, made in figures.items():
        # The template that plotly adds is the same in all, and the page sets its own colours.
        made.update_layout(template=None)
        parts.append(f"{json.dumps(name)}:{plotly.io.to_json(made, validate=False)}")
    return _inside_script("{" + ",".join(parts) + "}")


def _breakable(text: str) -> Any:
    """Escaped, with places where a long name may go on in the next line; copying leaves no trace
    of them."""
    from markupsafe import Markup, escape

    return Markup(_BREAKS.sub("<wbr>", str(escape(text))))


def write_page(path: Path, text: str, option: str) -> Path:
    """Write the file whole.

    Args:
        path: the file.
        text: the page.
        option: what named the file, for messages.

    Raises:
        UserError: it cannot be written.
    """
    try:
        return write_whole(path, text.encode())
    except OSError as error:
        raise UserError(f"{option}: {path}: cannot write it ({error.strerror})") from error


@functools.cache
def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    """Text that no end of a script element is in."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", "<\\!--")
