"""Which view of a run fits: a live one on a terminal, else plain lines."""

from __future__ import annotations

import sys
from typing import Protocol

import click

from tilewright.cli import output
from tilewright.cli.plain import PlainView
from tilewright.cli.progress import RunProgress
from tilewright.tuning.events import Event


class RunView(Protocol):
    """What shows a run while it goes on."""

    progress: RunProgress

    def __enter__(self) -> RunView: ...

    def __exit__(self, *_: object) -> None: ...

    def stopping(self) -> None:
        """The user has asked the run to stop. Called from a signal handler."""

    def listen(self, event: Event) -> None:
        """Take an event in."""


def make_view(time_limit_s: float | None, plain: bool) -> RunView:
    """A view on stderr: stdout is for the result alone. `plain`: no live view in any case."""
    progress = RunProgress(time_limit_s)
    console = output.console(stderr=True)
    # Rich also takes FORCE_COLOR, which many log viewers set, for a terminal.
    if plain or not sys.stderr.isatty() or console.is_dumb_terminal:
        return PlainView(progress, lambda text: click.echo(text, err=True))
    # Drawing terminal pictures takes more of rich than writing lines does.
    from tilewright.cli.live import LiveView

    return LiveView(progress, console)
