"""What all views of a run share; `tilewright.cli.plain` and `tilewright.cli.live` are two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from tilewright import words
from tilewright.cli.progress import RunProgress
from tilewright.tuning import events


class RunView(ABC):
    """Shows a run while it goes on. A context manager; `listen` takes the events."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stopping(self) -> None:
        """The user has asked the run to stop. Called from a signal handler."""
        # No lock: the signal may have come while this very thread holds one.
        self.progress.stopping = True

    @abstractmethod
    def tell(self, text: str, style: str = "") -> None:
        """Show a line that stays.

        Args:
            text: the line.
            style: a colour, where there are colours.
        """

    def listen(self, event: events.Event) -> None:
        """Take an event in, and tell what is to stay of it.

        Args:
            event: what happened.
        """
        match event:
            case events.Note(text, warning):
                self.tell(f"warning: {text}" if warning else text, "yellow" if warning else "")
            case events.ProgramMeasured():
                self.tell(program_line(event))
            case events.WinnerFound():
                name = self.progress.label(event.variant, event.task)
                self.tell(winner_line(event, name), "green" if event.kept else "")


def program_line(event: events.ProgramMeasured) -> str:
    """What was measured of a whole program, in words.

    Args:
        event: of a program that was measured.
    """
    if event.time_s is None:
        return f"variant {event.variant}: does not count: {event.error}"
    return f"variant {event.variant}: {words.milliseconds(event.time_s)} ms"


def winner_line(event: events.WinnerFound, name: str) -> str:
    """The outcome of a dispatch in one line, which begins with what it is called.

    Args:
        event: of a dispatch whose winner is known.
        name: what it is called.
    """
    if not event.kept:
        return f"{name}: the compiler's choice stays: {event.reason}"
    return (
        f"{name}: {words.times(event.speedup)} the default's speed "
        f"({words.interval(event.low, event.high)}): {event.configuration}"
    )
