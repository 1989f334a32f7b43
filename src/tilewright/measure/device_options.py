"""How a device is opened, and which archives hold the weights of a program: plain data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tilewright.errors import UserError

PARAMETER_FORMATS = (".irpa", ".gguf", ".safetensors")

# Thresholds for malloc (glibc): below them freed blocks are kept.
TRIM_BYTES, MMAP_BYTES = (1 << 31) - 1, 1 << 30

_CPUS = "/sys/devices/system/cpu"

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceOptions:
    """A device and how to open it.

    uri: as IREE's `--device=` takes it. threads: workers of local-task (None: IREE's own choice,
    one for each physical core). flags: more flags of the runtime, process-wide. advice: what to do
    where it cannot be opened, put after the message. huge_pages: malloc asks the system for pages
    of 2 MiB, and programs are read into such memory instead of being mapped, so that a network's
    weights take few entries of the processor's address translation. pinned: each worker stays on a
    physical core of its own, as IREE's own choice has it, and is not moved by the system: else two
    that are woken may begin on one core, where they stay for milliseconds, or for as long as the
    system saves cores. batch: threads that are woken do not take the core of one that runs (Linux's
    `SCHED_BATCH`), as the runtime expects of its workers and the thread that waits for them: else
    the waiting one, woken by a worker, may take the worker's core and spin there for what only the
    worker can do (docs/upstream/wait_preempts_worker.py). spin_us: microseconds that a worker
    without work looks for some before it falls asleep; to be woken takes it longer. polls: who
    calls a function that there is with fences, too, waits for its end awake (`measure/polling`).
    """

    uri: str = "local-task"
    threads: int | None = None
    flags: tuple[str, ...] = ()
    advice: str = ""
    huge_pages: bool = False
    pinned: bool = False
    batch: bool = True
    spin_us: int = 0
    polls: bool = True

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UserError(f"--threads {self.threads}: at least 1 is needed")

    @staticmethod
    def cpu(threads: int) -> DeviceOptions:
        """The CPU with this many threads: the calling thread itself if one, else local-task, its
        workers on cores of their own where there are as many.

        Args:
            threads: at least 1.
        """
        if threads == 1:
            return DeviceOptions("local-sync")
        return DeviceOptions("local-task", threads, pinned=threads <= physical_cores())

    @property
    def tool_flags(self) -> list[str]:
        """The flags by which IREE's own tools open it."""
        return [f"--device={self.uri}", *self.worker_flags]

    @property
    def worker_flags(self) -> list[str]:
        """The flags of the runtime that say which workers there are, and how they wait."""
        spinning = [f"--task_worker_spin_us={self.spin_us}"] if self.spin_us else []
        if self.threads is None:
            return spinning
        # Workers of a number that is given run wherever the system has them.
        count = "max_group_count" if self.pinned else "group_count"
        return [f"--task_topology_{count}={self.threads}", *spinning]

    @property
    def schedules_batch(self) -> bool:
        """Whether a process that opens it is one of Linux's batch processes: `batch`, where threads
        wait for each other and the system has such processes."""
        return self.batch and self.uri == "local-task" and batch_processes_allowed()

    @property
    def can_poll(self) -> bool:
        """Whether calls are waited for awake: `polls`, where workers have cores of their own (else
        the system puts two of them on one, beside that of who waits) and a thread can give up its.
        """
        return self.polls and self.pinned and hasattr(os, "sched_yield")

    @property
    def tool_prefix(self) -> list[str]:
        """What IREE's own tools are started by: a line of a shell up to the tool's name."""
        variables = [f"{key}={value}" for key, value in self.environment.items()]
        return [
            *(["env", *variables] if variables else ()),
            *(["chrt", "--batch", "0"] if self.schedules_batch else ()),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the process that opens it, which it reads when it starts."""
        if not self.huge_pages:
            return {}
        tunables = {"hugetlb": 1, "mmap_threshold": MMAP_BYTES, "trim_threshold": TRIM_BYTES}
        return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{k}={v}" for k, v in tunables.items())}


def physical_cores(folder: str = _CPUS) -> int:
    """Physical cores that this process may run on; 0 where the system does not tell.

    Args:
        folder: of sysfs, with a folder for each processor.
    """
    try:
        allowed = os.sched_getaffinity(0)
        siblings = [Path(folder, f"cpu{n}", "topology", "thread_siblings_list") for n in allowed]
        return len({path.read_text() for path in siblings})
    except (AttributeError, OSError):
        return 0


def batch_processes_allowed() -> bool:
    """Whether the system has batch processes and lets this one be one: Linux, but not each sandbox
    that looks like it."""
    try:
        before = os.sched_getscheduler(0)
        if before == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.sched_setscheduler(0, before, os.sched_param(0))
    except (AttributeError, OSError):
        return False
    return True


def schedule_as_batch(batch: bool) -> None:
    """Make the calling thread, and what it starts from now on, one of Linux's batch processes, or
    a process like any other; where the system does not know or allow it, nothing. Who gave this
    process another policy (real time, say) is not overruled.

    Args:
        batch: as a batch process, whatever its parent was.
    """
    with contextlib.suppress(AttributeError, OSError):
        policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
        if os.sched_getscheduler(0) in (os.SCHED_BATCH, os.SCHED_OTHER):
            os.sched_setscheduler(0, policy, os.sched_param(0))


def as_batch(batch: bool, call: Callable[[], T]) -> T:
    """What a call returns, made while the calling thread, with what it starts meanwhile, is one of
    Linux's batch processes, unless it was given a policy other than the usual one.

    No context manager: it stands around every call of a program, which leaves nothing else in the
    caches.

    Args:
        batch: whether to do so; only where `batch_processes_allowed`.
        call: what is to be done.
    """
    if not batch or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return call()
    usual = os.sched_param(0)
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, usual)
    except OSError:
        return call()
    try:
        return call()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, usual)


@dataclass(frozen=True)
class Parameters:
    """Archives with a program's weights: (scope, path) pairs, as `--parameters=scope=path`."""

    archives: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for scope, path in self.archives:
            where = f"--parameters {scope + '=' if scope else ''}{path}"
            if Path(path).suffix not in PARAMETER_FORMATS:
                allowed = ", ".join(PARAMETER_FORMATS)
                raise UserError(f"{where}: unknown kind of archive (allowed: {allowed})")
            if not Path(path).is_file():
                raise UserError(f"{where}: there is no such file")


NO_PARAMETERS = Parameters()
