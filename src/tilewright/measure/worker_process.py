"""One worker of a pool: a process in a group of its own, its socket, its log, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tilewright.measure.protocol import FrameKind, FrameReader

_LOG_TAIL = 8192
_READ = 1 << 20
# The variable by which a worker's processes are known that have left its process group.
_MARK = "TILEWRIGHT_WORKER"
# What forks for ever is looked for as often.
_STRAY_ROUNDS = 20
# A process whose socket has closed is a zombie within this time, unless it only closed its files.
_EXIT_WAIT_S = 1.0

# Numerical libraries must not start threads of their own beside what is measured or compiled.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class WorkerProcess:
    """Starts `tilewright.measure.worker` in a session and process group of its own.

    The socket carries frames; the lifeline is a pipe whose only write end is here, so the worker
    sees it close when this process ends in whatever way; standard output and error go to a log
    file without a name.
    """

    def __init__(
        self,
        *,
        memory_limit: int,
        log_limit: int,
        environment: dict[str, str],
        bound_to_thread: bool,
        folder: Path,
    ) -> None:
        self.jobs_done = 0
        self._log_limit = log_limit
        # What a candidate leaves behind, or fills the disk with, goes with its worker.
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._mark = f"{_MARK}={self._folder.parent.name}/{self._folder.name}"
        self._reader = FrameReader()
        self._outgoing = bytearray()
        self._log = tempfile.TemporaryFile(prefix="tilewright-log-")  # noqa: SIM115
        # Appending, so that the worker can cut the file to zero and write on from there.
        flags = fcntl.fcntl(self._log, fcntl.F_GETFL)
        fcntl.fcntl(self._log, fcntl.F_SETFL, flags | os.O_APPEND)
        self.channel, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "tilewright.measure.worker",
                    *map(str, (theirs.fileno(), lifeline, os.getpid(), int(bound_to_thread))),
                    *map(str, (memory_limit, log_limit)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
                env={
                    **os.environ,
                    **_ENVIRONMENT,
                    # What is importable here is importable there.
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    "TMPDIR": str(self._folder),
                    _MARK: self._mark.partition("=")[2],
                    **environment,
                },
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.channel.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def queue(self, data: bytes) -> None:
        """Have bytes sent when the socket takes them.

        Args:
            data: whole frames.
        """
        self._outgoing += data

    def write(self) -> bool:
        """Send what fits without waiting; whether more is left. A dead worker takes nothing."""
        try:
            while self._outgoing:
                sent = self.channel.send(memoryview(self._outgoing)[:_READ])
                del self._outgoing[:sent]
        except BlockingIOError:
            return True
        except OSError:
            self._outgoing.clear()
        return False

    def read(self) -> list[tuple[FrameKind, bytes]] | None:
        """The frames that have arrived; None at the end of the stream. Raises ProtocolError."""
        try:
            data = self.channel.recv(_READ)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return list(self._reader.feed(data)) if data else None

    def processor_s(self) -> float | None:
        """Processor seconds the worker and the ended children of its have used; None unknown."""
        # Not at the top: a machine that only measures for another has the runtime and NumPy alone.
        import psutil

        try:
            used = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return None
        return used.user + used.system + used.children_user + used.children_system

    def cut_log(self) -> None:
        """Keep the log within its limit where the worker itself cannot: what prints may hold
        Python's lock."""
        if os.fstat(self._log.fileno()).st_size > 2 * self._log_limit:
            self._log.truncate(0)

    @property
    def has_left_files(self) -> bool:
        """Whether there are files that a job did not remove, or it removed the folder itself."""
        return not self._folder.is_dir() or any(self._folder.iterdir())

    @property
    def has_left_processes(self) -> bool:
        """Whether a job has started processes that are still there, as far as the system tells
        (Linux does): they would take their time from those that are measured next."""
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{thread}/children", "rb") as file:
                    if file.read(1):
                        return True
        return False

    def log_tail(self) -> str:
        """The end of what the worker has printed since its last job began."""
        size = os.fstat(self._log.fileno()).st_size
        data = os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL))
        return data.decode(errors="replace")

    def reap(self) -> int | None:
        """Exit status of a worker that has ended (negative: by that signal), None if it has not.

        The process is left a zombie, which keeps its group's number from being used again before
        `kill` has ended the rest of the group.
        """
        end = time.monotonic() + _EXIT_WAIT_S
        while True:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            if time.monotonic() >= end:
                return None
            time.sleep(0.001)

    def kill(self) -> None:
        """End the worker and every process of its group, and free what belongs to it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()  # should it not have reached its own session yet
        self._process.wait()
        for _ in range(_STRAY_ROUNDS):
            if not _kill_marked(self._mark):
                break
        self._close_files()

    def _close_files(self) -> None:
        self.channel.close()
        os.close(self._lifeline)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill_marked(mark: str) -> int:
    """Kill what a worker started that is in no group of its any more (Linux tells by /proc).

    Args:
        mark: a variable of their environment, with its value.

    Returns:
        How many there were.
    """
    if sys.platform != "linux":
        return 0
    wanted, found = mark.encode() + b"\0", 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted not in file.read():
                        continue
                os.kill(int(name), signal.SIGKILL)
                found += 1
    return found
