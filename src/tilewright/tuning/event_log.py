"""A run's events as lines of JSON: written while it goes on, read back by whoever watches it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from tilewright.errors import UserError
from tilewright.files import parse_json, user_folder_file
from tilewright.toolchain import versions
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import events
from tilewright.tuning.events import Event, Listener
from tilewright.tuning.options import TuneOptions

#: Of the lines; another number for another meaning of what a line has already.
FORMAT = 1

_KINDS: dict[str, type[Event]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in Event.__subclasses__()
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_line(event: Event, seconds: float) -> str:
    """An event as a line of JSON, without the line's end.

    Args:
        event: what happened.
        seconds: since the run began.
    """
    data = asdict(event)
    if isinstance(event, events.TrialDone):
        trial = event.trial
        # Samples are in trials.csv; who watches a run has no use for them.
        data["trial"] = {
            "configuration": dict(trial.configuration.items),
            "status": trial.status.value,
            "time_s": trial.time_s,
            "message": trial.message,
            "origin": trial.origin,
        }
    head = {"event": _NAMES[type(event)], "t": round(seconds, 3)}
    if isinstance(event, events.RunStarted):
        head["format"] = FORMAT
    return json.dumps(_plain({**head, **data}), allow_nan=False)


def read_line(line: str | bytes) -> tuple[float, Event | None]:
    """What a line says.

    Args:
        line: of a file of events.

    Returns:
        Seconds since the run began, and the event; None where it is of a kind, or of a format,
        that this version does not know.

    Raises:
        ValueError: it is no line of such a file.
    """
    try:
        data = parse_json(line)
        name, seconds = str(data.pop("event")), float(data.pop("t"))
        kind = _KINDS.get(name)
        if kind is None or data.pop("format", FORMAT) != FORMAT:
            return seconds, None
        return seconds, _event(kind, data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a line of a run's events ({error})") from None


def live_place(output: Path) -> Path:
    """Where a run that writes to a result folder keeps its events while it goes on.

    Args:
        output: the result folder.
    """
    digest = hashlib.sha256(str(output.absolute()).encode()).hexdigest()[:16]
    return user_folder_file("cache", f"running-{digest}.jsonl")


class EventLog:
    """Writes each event as a line, at once; a listener.

    A run does not end because they cannot be written: the first fault is told, and the rest left.

    Args:
        path: of the file, which is made anew.
        failed: is told why no more can be written.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        path: Path,
        failed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another run's watcher goes on reading what it has opened. Pipes and devices that the user
        # names are written to, not taken away.
        if path.is_file():
            path.unlink()
        self._file: TextIO | None = path.open("w", encoding="utf-8", buffering=1)
        self._failed, self._clock, self._start = failed, clock, clock()

    def listen(self, event: Event) -> None:
        """Write an event.

        Args:
            event: what happened.
        """
        if self._file is None:
            return
        try:
            self._file.write(event_line(event, self._clock() - self._start) + "\n")
        except OSError as error:
            self.close()
            self._failed(f"no more events are written ({error.strerror})")

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


@contextmanager
def recorded(
    program: Path, target: str, options: TuneOptions, listener: Listener
) -> Iterator[Listener]:
    """Have a run's events written, with one for its begin and, where it fails, its end.

    Where the user names no file they lie where `watch` finds them by the result folder, for as long
    as the run goes on.

    Args:
        program: what is tuned.
        target: for what.
        options: of the run.
        listener: of the user, who is told everything too.

    Yields:
        The listener for the run.

    Raises:
        UserError: the file that the user named cannot be written.
    """

    def warn(text: str) -> None:
        listener(events.Note(text, warning=True))

    path = options.events or live_place(options.output)
    log = None
    try:
        log = EventLog(path, warn)
    except OSError as error:
        if options.events is not None:
            raise UserError(f"--events: {path}: cannot write it ({error.strerror})") from error
    tell = listener if log is None else _both(log.listen, listener)
    try:
        output = str(options.output.absolute())
        limit = options.time_limit_s
        tell(events.RunStarted(str(program), target, output, limit, versions(), os.getpid()))
        yield tell
    except UserError as error:
        tell(events.RunEnded("failed", str(error)))
        raise
    except BaseException as error:
        tell(events.RunEnded("interrupted", type(error).__name__))
        raise
    finally:
        if log is not None:
            log.close()
            if options.events is None:
                with suppress(OSError):
                    os.unlink(path)


def _both(first: Listener, second: Listener) -> Listener:
    def tell(event: Event) -> None:
        first(event)
        second(event)

    return tell


def _plain(value: Any) -> Any:
    """As JSON has it: no infinities, which a time that is not known yet may be."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _event(kind: type[Event], data: dict[str, Any]) -> Event:
    # A later version may say more of an event.
    known = {one.name for one in fields(kind)}
    data = {name: value for name, value in data.items() if name in known}
    if kind is events.TrialDone:
        trial = data["trial"]
        configuration = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in trial["configuration"].items()
        }
        data["trial"] = Trial(
            Configuration.of(configuration),
            Status(trial["status"]),
            trial["time_s"],
            message=trial["message"],
            origin=trial["origin"],
        )
        if data.get("detail") is not None:
            data["detail"] = events.TrialDetail(**data["detail"])
    elif kind is events.DispatchesRanked:
        data["rows"] = tuple(events.DispatchRow(**row) for row in data["rows"])
    return kind(**data)
