"""The IREE tools a run uses: their versions, and `iree-compile` as a process of its own.

Candidates are compiled in warm worker processes (:mod:`tilewright.measure.compile_worker`). Whole
programs go through the native `iree-compile`, with the command line that the user is handed, so
what is measured is what that line makes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from tilewright.errors import UnknownNameError, UserError


class StandstillWatch:
    """Notices a process that has stopped for good: all its threads sleep, it has no children that
    it could be waiting for, and it has used no processor time since the last look, so many looks
    in a row. One that waits for a processor, or was stopped by a signal, is not at a standstill;
    nor is any where the system does not tell the state of threads.

    Args:
        pid: the process.
        looks: how many looks in a row must have found it so.

    `cpu_s`: the processor time that it had used at the last look.
    """

    def __init__(self, pid: int, looks: int) -> None:
        self._pid = pid
        self._looks = looks
        self._quiet = 0
        self._used: tuple[float, ...] = ()
        self.cpu_s = 0.0

    def look(self) -> bool:
        """Look at the process, at even intervals.

        Returns:
            Whether it stands still.
        """
        before = self._used
        try:
            process = psutil.Process(self._pid)
            self._used = tuple(process.cpu_times())
            self.cpu_s = sum(self._used[:2])
            idle = self._used == before and not process.children() and _all_sleep(process)
        except psutil.Error:
            idle, self._used = False, ()
        self._quiet = self._quiet + 1 if idle else 0
        return self._quiet >= self._looks


def _all_sleep(process: psutil.Process) -> bool:
    """Whether every thread sleeps. On Linux a thread can be asked as a process can."""
    return all(
        psutil.Process(thread.id).status() == psutil.STATUS_SLEEPING for thread in process.threads()
    )


IREE_VERSIONS = ("3.13", "3.12")
"""The minor versions of IREE that are supported, the one that is developed with first."""
IREE_PACKAGES = ("iree-base-compiler", "iree-base-runtime")
"""The distributions, in one order wherever they are listed."""
KEEP_F64 = "--iree-input-demote-f64-to-f32=false"
"""Without it the compiler makes f32 of f64 in its input, arguments and results included."""
ANY_VERSION = "TILEWRIGHT_ANY_IREE"
"""The environment variable that lets versions pass that are not supported: whether a result holds
with a new one is seen by trying."""
_INSTALL = "pip install " + " ".join(f"'{name}~={IREE_VERSIONS[0]}.0'" for name in IREE_PACKAGES)

IREE_COMPILE = "iree-compile"
# What LLVM prints, with all names of processors behind it, for one that it does not know.
_ACCEPTED = "List of accepted CPUs:"
# Diagnostics with IR in them can be as large as the program: the first error is at the start.
_LOG_BYTES = 1 << 20
_LINE_CHARS = 400
# IREE 3.13 loads a tuning spec under a lock in one of its threads, which, waiting for others to
# verify it, may begin or wait for work that wants the same lock: then nothing ever moves again.
# Such a compile is ended, and done again without the compiler's own threads.
WITHOUT_THREADS = "--mlir-disable-threading"
_LOOK_S, _LOOKS = 1.0, 6
UNVERIFIED = "--verify=false"
"""Leaves out what shows mistakes of the compiler's own passes, which changes no output (a ResNet-50
takes 5.2 s, not 7.4, a SwinV2 18, not 31): for what is not handed back."""
# LLVM calls the C library for some operations (fmaxf for maxima of f16 on processors without
# instructions for them), of which IREE's own linker has nothing.
_UNDEFINED = "undefined symbol"
_LINK_HINT = (
    " (IREE links no C library by itself: --iree-llvmcpu-link-embedded=false links with the "
    "system's)"
)


def installed_version(package: str) -> str:
    """The version of an installed distribution; '' when it is not installed.

    Args:
        package: name of the distribution.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_versions() -> None:
    """Raises UserError unless IREE's compiler and runtime are of one version that is supported."""
    found = {name: installed_version(name) for name in IREE_PACKAGES}
    for minor in IREE_VERSIONS:
        if all(version.startswith(f"{minor}.") for version in found.values()):
            return
    if os.environ.get(ANY_VERSION) and all(found.values()):
        return
    have = ", ".join(f"{name} {version or 'not at all'}" for name, version in found.items())
    supported = " or ".join(f"{minor}.x" for minor in IREE_VERSIONS)
    raise UserError(
        f"tilewright needs {' and '.join(IREE_PACKAGES)}, both {supported}; installed: {have}; "
        f"run: {_INSTALL}"
    )


def versions() -> dict[str, str]:
    """Versions of all that decides a result, for a run's manifest ('' for what is missing)."""
    named = {name: installed_version(name) for name in ("tilewright", *IREE_PACKAGES, "numpy")}
    return {**named, "python": platform.python_version()}


@dataclass(frozen=True)
class CompileOutcome:
    """What became of a compile.

    `error`: the first error line with its location, as IREE gives it; '' when `ok`.
    `log`: what the compiler printed (its first MiB). `crashed`: the signal that ended it, or None.
    `stood_still`: it was ended because it had stopped for good (`timed_out`, too). `cpu_s`: the
    processor time of all its threads, by looks about once a second; 0 of one that took less.
    """

    ok: bool
    seconds: float
    error: str = ""
    log: str = ""
    timed_out: bool = False
    crashed: int | None = None
    stood_still: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True)
class CompileJob:
    """One compile of `Toolchain.compile_many`: the arguments of `Toolchain.compile`."""

    program: Path
    output: Path
    flags: tuple[str, ...]
    timeout_s: float
    extra: tuple[str, ...] = ()


class Toolchain:
    """IREE's command line compiler; may be used from several threads at once.

    `iree_bin`: a directory with other IREE tools than those of the installed package; `asker` says
    who wants it, for messages.
    Raises UserError when there is no `iree-compile` that can be run.
    """

    def __init__(self, iree_bin: Path | None = None, asker: str = "iree_bin") -> None:
        self.iree_compile = _find(iree_bin, asker)
        self._serial = itertools.count()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def compile(
        self,
        program: Path,
        output: Path,
        flags: Sequence[str],
        *,
        timeout_s: float,
        extra: Sequence[str] = (),
    ) -> CompileOutcome:
        """Compile a program; `output` appears whole and only on success.

        An `output` of an earlier compile stays when this one fails. The compiler runs in its own
        process group, which is ended with everything in it after `timeout_s`. One that has stopped
        for good is ended at once, and run again without threads.

        Args:
            program: the source.
            output: the file to be made.
            flags: of `iree-compile`.
            timeout_s: seconds.
            extra: flags that do not change the result (dumps), kept apart from those that the user
                is shown.

        Returns:
            What became of it; a program that does not compile raises nothing.
        """
        return self._compile(CompileJob(program, output, tuple(flags), timeout_s, tuple(extra)))

    def _compile(self, job: CompileJob) -> CompileOutcome:
        outcome = self._compile_once(job)
        if outcome.stood_still and WITHOUT_THREADS not in (*job.flags, *job.extra):
            return self._compile_once(replace(job, extra=(*job.extra, WITHOUT_THREADS)))
        return outcome

    def _compile_once(self, job: CompileJob) -> CompileOutcome:
        output, timeout_s = job.output, job.timeout_s
        partial = output.with_name(f".{output.name}.{os.getpid()}.{next(self._serial)}.part")
        flags = (*job.flags, *job.extra)
        command = [str(self.iree_compile), str(job.program), *flags, "-o", str(partial)]
        start = time.perf_counter()
        try:
            with tempfile.TemporaryFile(prefix="tilewright-log-") as log:
                status, stood_still, cpu_s = self._run(command, log, timeout_s)
                seconds = time.perf_counter() - start
                log.seek(0)
                text = log.read(_LOG_BYTES).decode(errors="replace")
            if stood_still:
                error = "iree-compile stands still: it waits for itself"
                return CompileOutcome(False, seconds, error, text, True, stood_still=True)
            if status is None:
                return CompileOutcome(
                    False, seconds, f"iree-compile took over {timeout_s:g} s", text, timed_out=True
                )
            if status == 0 and partial.exists():
                partial.replace(output)
                return CompileOutcome(True, seconds, "", text, cpu_s=cpu_s)
            crashed = -status if status < 0 else None
            return CompileOutcome(False, seconds, _reason(text, status), text, crashed=crashed)
        finally:
            partial.unlink(missing_ok=True)

    def compile_many(self, jobs: Sequence[CompileJob], workers: int) -> list[CompileOutcome]:
        """Compile many programs at a time. When it is interrupted, the compilers still running are
        ended.

        Args:
            jobs: the compiles.
            workers: how many at a time, at least 1.

        Returns:
            One outcome for each job, in their order.

        Raises:
            ValueError: `workers` is below 1.
        """
        if workers < 1:
            raise ValueError(f"workers = {workers}, must be at least 1")
        executor = ThreadPoolExecutor(workers, thread_name_prefix="tilewright-compile")
        try:
            return list(executor.map(self._compile, jobs))
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            self.stop()
            raise
        finally:
            executor.shutdown()

    def stop(self) -> None:
        """End every compile that is running in any thread; their outcomes say crashed."""
        with self._lock:
            for process in self._running:
                _kill_group(process)

    def command_line(
        self, program: Path | str, output: Path | str, flags: Sequence[str], plain: bool = True
    ) -> str:
        """The command as one line for a POSIX shell.

        Args:
            program: the source.
            output: the file to be made.
            flags: of `iree-compile`.
            plain: `iree-compile` as users have it on their path; else this toolchain's own.
        """
        tool = IREE_COMPILE if plain else str(self.iree_compile)
        return shlex.join([tool, str(program), *flags, "-o", str(output)])

    def version(self) -> str:
        """The line of `iree-compile --version` that names IREE's version."""
        result = subprocess.run(
            [str(self.iree_compile), "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        lines = [line.strip() for line in result.stdout.splitlines() if "IREE" in line]
        return lines[-1] if lines else ""

    def check_same(self, asker: str) -> None:
        """See whether this compiler is of the version that candidates are compiled with: these are
        made by the installed package's, whichever tools a user has beside it.

        Args:
            asker: who wants this compiler; begins the message.

        Raises:
            UserError: it is of another version; it names both.
        """
        installed = Toolchain()
        if self.iree_compile == installed.iree_compile:
            return
        mine, own = self.version(), installed.version()
        if mine != own:
            raise UserError(
                f"{asker}: {self.iree_compile} is {mine or 'no compiler that tells its version'}, "
                f"the installed package is {own}, which compiles the candidates: use tools of that "
                f"version, or leave this out"
            )

    def check_processor(self, name: str) -> None:
        """See whether LLVM knows a processor.

        Args:
            name: as LLVM names it.

        Raises:
            UnknownNameError: it does not; the message has all names there are.
        """
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            program = Path(folder) / "empty.mlir"
            program.write_text("module {}\n")
            flags = (
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                f"--iree-llvmcpu-target-cpu={name}",
            )
            log = self.compile(program, Path(folder) / "empty.vmfb", flags, timeout_s=60.0).log
        for line in log.splitlines():
            if line.startswith(_ACCEPTED):
                known = [one.strip() for one in line.removeprefix(_ACCEPTED).split(",")]
                if name not in known:
                    raise UnknownNameError("processor", name, known, f"--target cpu:{name}")

    def _run(
        self, command: list[str], log: IO[bytes], timeout_s: float
    ) -> tuple[int | None, bool, float]:
        """Exit status (negative: the signal), None if it was ended; whether for standing still; the
        seconds of processor time that were seen."""
        begin = seen = time.monotonic()
        with self._started(command, log) as process:
            watch, status, still = StandstillWatch(process.pid, _LOOKS), None, False
            while not still and (left := begin + timeout_s - time.monotonic()) > 0:
                try:
                    status = process.wait(min(left, _LOOK_S))
                    break
                except subprocess.TimeoutExpired:
                    seen, still = time.monotonic(), watch.look()
            # What it did since the last look is taken to be as much as before.
            later = (time.monotonic() - begin) / max(seen - begin, 1e-9)
            return status, still, watch.cpu_s * later

    @contextlib.contextmanager
    def _started(self, command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        # The lock is held over the start: `stop` misses no process.
        with self._lock:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
                _kill_group(process)
            process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that may have ended, and what it started, while its number is still its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _find(iree_bin: Path | None, asker: str) -> Path:
    if iree_bin is not None:
        found = iree_bin / IREE_COMPILE
        if not found.is_file() or not os.access(found, os.X_OK):
            raise UserError(
                f"{asker}: '{iree_bin}' has no {IREE_COMPILE} that can be run; give a directory "
                "with IREE's tools, or leave it out to use the installed package's"
            )
        return found.resolve()
    # The script that pip installs starts Python first, which takes longer than a small compile.
    spec = importlib.util.find_spec("iree.compiler") if importlib.util.find_spec("iree") else None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(place) / "_mlir_libs" / IREE_COMPILE
        if found.is_file() and os.access(found, os.X_OK):
            return found
    raise UserError(f"IREE's {IREE_COMPILE} is not installed; run: {_INSTALL}")


def error_line(log: str) -> str:
    """The line of a compiler's or linker's output that says why it failed; '' where none does.

    Args:
        log: all that was printed.
    """
    lines = [line.strip() for line in log.splitlines()]
    for mark in (" error: ", "LLVM ERROR: ", "Assertion "):
        for line in lines:
            if mark in f" {line}":
                return _cut(line) + (_LINK_HINT if _UNDEFINED in line else "")
    return ""


def _reason(log: str, status: int) -> str:
    """The line of the compiler's output that says why it failed."""
    if line := error_line(log):
        return line
    if status < 0:
        return f"iree-compile was ended by {_signal_name(-status)}"
    lines = log.strip().splitlines()
    return (
        _cut(lines[0].strip())
        if lines
        else f"iree-compile failed with exit status {status}, saying nothing"
    )


def _cut(line: str) -> str:
    """The line without the rest of an attribute that is written out in it (all CPU features)."""
    return line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + "…"


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
