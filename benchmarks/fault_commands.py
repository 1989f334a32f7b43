"""Commands of tilewright as processes with a home folder, a limit and captured output of their own.

They are forked from a process that has done its imports; some are started anew, as a user's are.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

import warm_start  # noqa: E402

# Seconds on a machine that has its processors for this alone; on one with other work by so much
# more as that work takes.
LIMIT_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a command ended; `status` None: not within its limit."""

    status: int | None
    out: str
    err: str
    seconds: float


def environment(home: Path) -> dict[str, str]:
    """Variables of a command with a home folder of its own.

    Args:
        home: the folder.
    """
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}
    return {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp"), "COLUMNS": "200"}


def run_command(
    arguments: Sequence[str],
    folder: Path,
    home: Path,
    limit_s: float,
    enough: Callable[[], bool] = lambda: False,
    script: str = "",
    anew: bool = False,
) -> Ended:
    """Run `tilewright` with these arguments.

    Args:
        arguments: of the command line.
        folder: to run in.
        home: its home folder.
        limit_s: seconds after which it is killed.
        enough: asked now and then; once it is true the command is interrupted as by Ctrl-C twice.
        script: a Python file to run in the command's place.
        anew: start Python anew, in place of forking a process that has imported tilewright.
    """
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    began = time.monotonic()
    try:
        pid = (_started if anew else _forked)(arguments, folder, home, script, files)
        status = _wait(pid, began + limit_s, enough)
        out, err = (os.pread(f, min(os.fstat(f).st_size, 1 << 20), 0) for f in files)
    finally:
        for file in files:
            os.close(file)
    took = time.monotonic() - began
    return Ended(status, out.decode(errors="replace"), err.decode(errors="replace"), took)


def _forked(
    arguments: Sequence[str], folder: Path, home: Path, script: str, files: Sequence[int]
) -> int:
    start = warm_start.Start(
        tuple(arguments),
        environment(home),
        str(folder),
        tuple(files),
        os.getpid(),
        module="" if script else "tilewright",
        script=script,
    )
    return warm_start.warm_process().fork(start).pid


def _started(
    arguments: Sequence[str], folder: Path, home: Path, script: str, files: Sequence[int]
) -> int:
    process = subprocess.Popen(
        [sys.executable, *([script] if script else ["-m", "tilewright"]), *arguments],
        cwd=folder,
        env={**environment(home), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdin=subprocess.DEVNULL,
        stdout=files[0],
        stderr=files[1],
    )
    # Who asked waits for it, as for one that was forked.
    process.returncode = 0
    return process.pid


def _wait(pid: int, deadline: float, enough: Callable[[], bool]) -> int | None:
    """The exit status, or None of a process that had to be killed."""
    handle = os.pidfd_open(pid)
    killed = False
    try:
        while not select.select([handle], [], [], 0.2)[0]:
            if time.monotonic() > deadline:
                killed = True
                os.kill(pid, signal.SIGKILL)
            elif enough():
                os.kill(pid, signal.SIGINT)
    finally:
        os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if killed else status


def limit_s() -> float:
    """How long a command may take on this machine as it is now."""
    return LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
