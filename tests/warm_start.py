"""Processes that begin with their imports done: forked from one that has imported everything.

A worker, a command or an example imports for longer than most tests compute. What is forked runs
the same module or script with the same arguments, environment and files as one that is started
anew; `tests/measure` and the tests of installing start processes anew. Linux only.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.measure import worker_process

AVAILABLE = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_WORKER = "tilewright.measure.worker"
_IMPORTED = (
    "iree.compiler.api.ctypes_dl",
    "iree.compiler.ir",
    "iree.runtime",
    "tilewright.api",
    "tilewright.cli.main",
    "tilewright.measure.benchmark_worker",
    "tilewright.modules",
    "tilewright.replay",
    "tilewright.schedule",
    "tilewright.sketch.candidate_tasks",
    "tilewright.tuning.inspect",
    "tilewright.tuning.session",
    "tilewright.tuning.worker_tasks",
)


@dataclass(frozen=True)
class Start:
    """What a process runs: `module`, or the file `script`, with `arguments`.

    `files` says which descriptors the process has, each by a descriptor that comes with the
    request; `parent` is who waits for it.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    files: tuple[int, ...]
    parent: int
    module: str = ""
    script: str = ""


class Forked:
    """A process that was forked for this one, as far as `subprocess.Popen` is needed of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class WarmProcess:
    """The process that others are forked from; it ends with the one that asks it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    @classmethod
    def start(cls) -> WarmProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import {__name__} as w; w.main({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Threads of a library would be lost in what is forked.
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                },
            )
        atexit.register(process.wait)
        atexit.register(ours.close)
        return cls(ours)

    def fork(self, start: Start) -> Forked:
        """Have a process forked, as a child of this one."""
        body = pickle.dumps(start)
        size = len(body).to_bytes(8, "little")
        files = array.array("i", start.files)
        # What is forked is orphaned at once, and goes to the nearest process that takes orphans.
        _take_orphans(True)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
            with _memory_file(body) as memory:
                files.append(memory)
                self._channel.sendmsg([size], rights)
                pid = int.from_bytes(self._channel.recv(8), "little")
        finally:
            _take_orphans(False)
        if not pid:
            raise RuntimeError("the warm process has ended")
        return Forked(pid)


@contextlib.contextmanager
def _memory_file(body: bytes) -> Iterator[int]:
    """The environment can be more than a message may hold."""
    file = os.memfd_create("start")
    try:
        os.write(file, body)
        yield file
    finally:
        os.close(file)


def _take_orphans(on: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


_warm: dict[int, WarmProcess] = {}


def warm_process() -> WarmProcess:
    """The one of this process; made when first asked for."""
    me = os.getpid()
    if me not in _warm:
        _warm[me] = WarmProcess.start()
    return _warm[me]


def _start_worker(
    command: Sequence[str],
    *,
    stdin: int,
    stdout: Any,
    stderr: Any,
    pass_fds: tuple[int, int],
    start_new_session: bool,
    env: Mapping[str, str],
) -> Forked:
    """In place of `subprocess.Popen` as `WorkerProcess` calls it."""
    channel, lifeline, *rest = command[command.index(_WORKER) + 1 :]
    assert (int(channel), int(lifeline)) == pass_fds
    files = (stdout.fileno(), stderr.fileno(), *pass_fds)
    start = Start(tuple(rest), dict(env), os.getcwd(), files, os.getpid(), module=_WORKER)
    return warm_process().fork(start)


def _fork_workers() -> None:
    worker_process.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=_start_worker, DEVNULL=subprocess.DEVNULL
    )


@contextlib.contextmanager
def warm_workers() -> Iterator[None]:
    """Workers of pools are forked, not started."""
    _fork_workers()
    try:
        yield
    finally:
        worker_process.subprocess = subprocess


def run_warm(
    arguments: Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str],
    module: str = "",
    script: str | Path = "",
) -> subprocess.CompletedProcess[str]:
    """Run a module or a script, as `subprocess.run` does with what it prints captured."""
    if not AVAILABLE:
        what = ["-m", module] if module else [script]
        return subprocess.run(
            [sys.executable, *what, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    try:
        given = tuple(map(str, arguments))
        start = Start(
            given,
            dict(environment),
            str(folder),
            tuple(files),
            os.getpid(),
            module=module,
            script=str(script),
        )
        status = warm_process().fork(start).wait()
        printed = [os.pread(f, os.fstat(f).st_size, 0).decode() for f in files]
    finally:
        for file in files:
            os.close(file)
    return subprocess.CompletedProcess([module or str(script), *given], status, *printed)


# -- in the warm process ---------------------------------------------------------------------------


def _serve(channel: socket.socket) -> tuple[Start, list[int]]:
    """Fork a process for each request; returns in each of them."""
    while True:
        room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
        try:
            size, rights, *_ = channel.recvmsg(8, room)
        except ConnectionError:
            # Who asks was killed with a request on its way.
            os._exit(0)
        if not size:
            os._exit(0)
        files = array.array("i")
        for _, _, data in rights:
            files.frombytes(data)
        *given, memory = files
        start = pickle.loads(os.pread(memory, int.from_bytes(size, "little"), 0))
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(tell, pid.to_bytes(8, "little"))
                os._exit(0)
            channel.close()
            for file in (told, tell, memory):
                os.close(file)
            return start, given
        # Once this one has ended, the other is the child of who asked for it.
        os.waitpid(between, 0)
        try:
            channel.send(os.read(told, 8))
        except ConnectionError:
            # Who asked was killed meanwhile; what was forked for it sees that, too.
            os._exit(0)
        os.close(told)
        os.close(tell)
        for file in files:
            os.close(file)


def _take_place(start: Start, files: list[int]) -> None:
    """Be the process that was asked for, as far as its system is concerned."""
    while os.getppid() != start.parent:
        if not os.path.exists(f"/proc/{start.parent}"):
            # Who asked was killed meanwhile.
            os._exit(0)
        time.sleep(0.0005)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    for number, file in enumerate(files[:2], start=1):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv = [start.script or start.module, *map(str, files[2:]), *start.arguments]
    wanted = start.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in wanted if path and path not in sys.path]
    if start.module == _WORKER:
        os.setsid()


def _run(start: Start) -> int:
    """The exit status of the module or script."""
    try:
        if start.script:
            sys.path.insert(0, str(Path(start.script).parent))
            runpy.run_path(start.script, run_name="__main__")
        else:
            runpy.run_module(start.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(channel: int) -> None:
    """Import, and fork what is asked for."""
    for name in _IMPORTED:
        importlib.import_module(name)
    importlib.import_module("brief").be_brief()
    # What is collected later need not be copied.
    gc.collect()
    gc.freeze()
    serving = socket.socket(fileno=channel)
    while True:
        start, files = _serve(serving)
        _take_place(start, files)
        if start.module == _WORKER:
            break
        # A command starts workers in its turn: they are forked from a copy of it.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            _warm[os.getpid()] = WarmProcess(ours)
            _fork_workers()
            break
        ours.close()
        serving = theirs
    status = _run(start)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Taking all modules down would take as long as the command.
    os._exit(status)
