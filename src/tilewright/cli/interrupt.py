"""Ctrl-C and other requests to end a run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

# A person who wants out presses Ctrl-C more than once: what comes this soon after the abort has
# begun means the same, and must not break off the tidying up.
_SAME_ABORT_S = 3.0


class Interruption(Exception):
    """The user has ended a command before its end; the message says what became of it."""


class Stoppable(Protocol):
    """What a signal is passed on to; both are called from a signal handler or a thread."""

    def request_stop(self) -> None:
        """End the search soon and write out what was found."""

    def abort(self) -> None:
        """End what would keep this process waiting."""


class Interrupts:
    """The signal handlers of one run.

    The first SIGINT asks the run to stop. The second, or SIGTERM or SIGHUP at any time, raises
    KeyboardInterrupt in the main thread.
    """

    def __init__(self, run: Stoppable) -> None:
        self.stopping = False
        self._run = run
        self._aborted_at: float | None = None

    def on_sigint(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to stop; the second time, abort it.

        Args:
            number: of the signal.
            frame: where it came.
        """
        if self.stopping:
            self.on_sigterm(number, frame)
            return
        self.stopping = True
        self._run.request_stop()

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Abort the run, unless an abort has just begun.

        Args:
            number: of the signal.
            frame: where it came.

        Raises:
            KeyboardInterrupt: in the main thread.
        """
        now = time.monotonic()
        if self._aborted_at is not None and now - self._aborted_at < _SAME_ABORT_S:
            return
        self._aborted_at = now
        # In a thread: this one may hold the locks that ending things needs.
        threading.Thread(target=self._run.abort, daemon=True).start()
        raise KeyboardInterrupt


@contextmanager
def interruptible(run: Stoppable) -> Iterator[Interrupts]:
    """Handle signals for a run. Outside the main thread signals are left alone.

    Args:
        run: what is asked to stop.

    Yields:
        What the handlers do.
    """
    interrupts = Interrupts(run)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    handlers = {signal.SIGINT: interrupts.on_sigint, signal.SIGTERM: interrupts.on_sigterm}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = interrupts.on_sigterm
    # What the caller has set to be ignored (as nohup does) stays ignored.
    wanted = {s: h for s, h in handlers.items() if signal.getsignal(s) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
