"""Tasks and jobs for worker processes: what is asked, what workers keep, what becomes of a job."""

from __future__ import annotations

import collections
import signal
import traceback
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast

from tilewright.trial import Status

Kept = TypeVar("Kept")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class WorkerState:
    """At most one object of each class, for as long as the worker lives.

    A module that keeps something between its tasks has a class for it, so that what one module
    keeps is no other's, and is typed.

    fragile: whether an error may leave the state of no use; the worker is then replaced after one.
    """

    def __init__(self) -> None:
        self.fragile = False
        self._kept: dict[type[Any], object] = {}

    def keep(self, value: object) -> None:
        """Keep an object, in place of the one of its class that was kept before.

        Args:
            value: of the caller's own class.
        """
        self._kept[type(value)] = value

    def get(self, kind: type[Kept]) -> Kept:
        """The object of this class that is kept; the first time it is made, without arguments.

        Raises:
            TypeError: none is kept, and the class has to be given something to be made.

        Args:
            kind: the class.
        """
        if kind not in self._kept:
            self._kept[kind] = kind()
        return cast(Kept, self._kept[kind])

    def drop(self, kind: type[Any]) -> None:
        """Forget the object of this class, if there is one.

        Args:
            kind: the class.
        """
        self._kept.pop(kind, None)


class RecentlyUsed(Generic[Key, Value]):
    """Values by key; where there are more than `limit`, the one used least recently goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: collections.OrderedDict[Key, Value] = collections.OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not there: room for it is made first.

        Args:
            key: of the value.
            make: makes it.
        """
        if key not in self._values:
            while len(self._values) >= self._limit:
                self._values.popitem(last=False)
            self._values[key] = make()
        self._values.move_to_end(key)
        return self._values[key]


Request = TypeVar("Request")
Reply = TypeVar("Reply")

# What a worker can be asked to do: a function of a module, which travels by its name. It is called
# in the worker with what that keeps, and with the request.
WorkerTask = Callable[[WorkerState, Request], Reply]

FailureKind = Literal["crashed", "timeout", "error"]

_USER_ERRORS = ("UserError", "UnknownNameError", "ScheduleError")

# What a run raises that computes something else than it should.
_WRONG = ("WroteOutside",)

# What the line of a log that says why a process died looks like.
_HEADLINES = ("LLVM ERROR", "Assertion", "Fatal Python error", "error:", "MemoryError")


@dataclass(frozen=True)
class WorkerFailure:
    """Why a job has no value.

    kind: `crashed` (the worker died or answered nonsense), `timeout` (it was killed at its
        deadline) or `error` (the task raised).
    message: one line.
    signal: name of the signal that ended the worker, if one did (`SIGSEGV`).
    error_type: class name of the exception, for `error`.
    log: traceback, or the end of what the worker printed.
    """

    kind: FailureKind
    message: str
    signal: str | None = None
    error_type: str = ""
    log: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """An `error`.

        Args:
            error: what the task raised.
        """
        name, trace = type(error).__name__, "".join(traceback.format_exception(error))
        return cls("error", one_line(str(error)) or name, None, name, trace)

    @property
    def is_user_error(self) -> bool:
        """Whether the task said itself, in words for the user, what the user can mend."""
        return self.error_type in _USER_ERRORS

    @property
    def compile_status(self) -> Status:
        """What a trial whose compile failed like this is.

        What the task says itself cannot be carried out is `invalid`.
        """
        if self.is_user_error:
            return Status.INVALID
        statuses = {"timeout": Status.COMPILE_TIMEOUT, "crashed": Status.CRASHED}
        return statuses.get(self.kind, Status.COMPILE_ERROR)

    @property
    def run_status(self) -> Status:
        """What a trial whose run failed like this is."""
        if self.error_type in _WRONG:
            return Status.WRONG_RESULT
        statuses = {"timeout": Status.RUN_TIMEOUT, "crashed": Status.CRASHED}
        return statuses.get(self.kind, Status.RUN_ERROR)


@dataclass(frozen=True)
class Job(Generic[Request, Reply]):
    """Work for one worker: a task, and the request that it is called with.

    timeout_s: from when the worker gets the job; the pool's own if None.
    tag: stays in this process; for the caller to know the job by.
    processor_time: the limit is on the processor time of the worker, where the system tells it, so
        that a loaded machine does not end what is not slow itself; what gets no further while the
        limit passes a few times is ended nevertheless.
    first_s: more time where it is its worker's first job, which makes what later ones find there.
    together: a task that is called with a list of such requests, where that takes less time than
        one by one; it returns a list of a reply or a failure for each.
    """

    task: WorkerTask[Request, Reply]
    request: Request
    timeout_s: float | None = None
    tag: Any = None
    processor_time: bool = False
    first_s: float = 0.0
    together: WorkerTask[list[Request], list[Reply | WorkerFailure]] | None = None


@dataclass(frozen=True)
class Result(Generic[Reply]):
    """What became of a job: its task's reply, or a failure. `seconds` is the wall time in the
    worker."""

    job: Job[Any, Reply]
    outcome: Reply | WorkerFailure
    seconds: float = 0.0

    @property
    def failure(self) -> WorkerFailure | None:
        """Why there is no reply, if there is none."""
        return self.outcome if isinstance(self.outcome, WorkerFailure) else None

    @property
    def value(self) -> Reply:
        """The reply.

        Raises:
            ValueError: the job failed.
        """
        if isinstance(self.outcome, WorkerFailure):
            raise ValueError(f"a job that failed has no value: {self.outcome.message}")
        return self.outcome


class JobRunner(Protocol):
    """What does jobs: worker processes of this machine, or those and a cluster's."""

    def run(
        self,
        jobs: Iterable[Job[Request, Reply]],
        on_result: Callable[[Result[Reply]], object] | None = None,
    ) -> list[Result[Reply]]:
        """Do jobs; their results in their order.

        Args:
            jobs: all to be done.
            on_result: called with each result as it comes.
        """

    def ask(
        self,
        task: WorkerTask[Request, Reply],
        request: Request,
        timeout_s: float | None = None,
    ) -> Reply | WorkerFailure:
        """Do one job: its task's reply, or why there is none.

        Args:
            task: what to do.
            request: what the task is called with.
            timeout_s: seconds; the runner's own if left out.
        """
        (result,) = self.run([Job(task, request, timeout_s)])
        return result.outcome


def one_line(text: str) -> str:
    """The first line that is not empty.

    Args:
        text: any.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else ""


def describe_exit(status: int | None, log: str) -> tuple[str | None, str]:
    """What a worker's end was.

    Args:
        status: its exit status (negative: by that signal), None if it only closed its connection.
        log: what it printed.

    Returns:
        The signal's name, if it was one, and a one-line message.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in _HEADLINES)]
    detail = (telling or lines[-1:] or [""])[0]
    suffix = f": {detail}" if detail else ""
    if status is None:
        return None, f"the worker closed its connection{suffix}"
    if status >= 0:
        return None, f"the worker exited with status {status}{suffix}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL" and not detail:
        suffix = ": killed from outside, as the system does when memory runs out"
    return name, f"the worker died of {name}{suffix}"
