"""A warm compiler: one in-process IREE session for one set of flags, reused for many compiles.

Creating a session and letting it register its dialects and target backends costs about as much as
half a small compile, so a session is kept for as long as its flags are needed. A compile can start
and stop at any of the compiler's phases, reads text, bytecode or a module built with the Python
bindings, and its diagnostics come back as text.

A mistake in the input is a :class:`CompileError` and leaves the session usable. What makes the
compiler abort (an LLVM fatal error, a crash of a pass) ends the process: compile candidates in
worker processes (:mod:`tilewright.measure.compile_worker`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tilewright.errors import TilewrightError, UserError
from tilewright.toolchain import error_line

PHASES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
)

SITE_PHASE = "preprocessing"
"""Where sites are found, and of which their modules are."""

CONFIGURED_PHASE = "executable-configurations"
"""Where the compiler has chosen a configuration for every dispatch: candidates start there."""

ISOLATED_PHASE = "flow"
"""What a dispatch alone is compiled from: behind all passes that form dispatches."""

Output = Literal["vmfb", "text", "bytecode"]

_STDERR = 2
# What a linker prints begins with what is wrong.
_PRINTED_BYTES = 1 << 16

# Severities of iree_compiler_diagnostic_severity_t (embedding_api.h).
_ERROR = 2
_SEVERITY_NAMES = {0: "note", 1: "warning", 2: "error", 3: "remark"}


class CompileError(TilewrightError):
    """The compiler rejected its input.

    The message is the first line of the first error, with its location as the compiler gives it,
    or the linker's own error; `log` holds all diagnostics.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        return CompileError, (str(self), self.log)


@functools.cache
def _api() -> Any:
    """IREE's ctypes bindings, with the entry points that they leave undeclared declared."""
    from iree.compiler.api import ctypes_dl

    library = ctypes_dl._dylib
    for name in (
        "ireeCompilerInvocationSetCompileFromPhase",
        "ireeCompilerInvocationSetCompileToPhase",
    ):
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    verify = library.ireeCompilerInvocationSetVerifyIR
    verify.restype = None
    verify.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    enable = library.ireeCompilerInvocationEnableCallbackDiagnostics
    enable.restype = None
    enable.argtypes = [ctypes.c_void_p, ctypes.c_int, _DIAGNOSTIC_CALLBACK, ctypes.c_void_p]
    return ctypes_dl


_DIAGNOSTIC_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)

_NAME_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)

_global_options: tuple[str, ...] | None = None


def set_global_options(*options: str) -> None:
    """Give the compiler its process-wide options.

    Must come before the first session of the process, and works once; a second call with the same
    options does nothing.

    Args:
        options: `--mlir-disable-threading` and its like.

    Raises:
        RuntimeError: other options are set already.
    """
    global _global_options
    if _global_options == options:
        return
    if _global_options is not None:
        raise RuntimeError(f"global compiler options are already set to {_global_options}")
    _api()._initializeGlobalCL("tilewright", *options)
    _global_options = options


def target_backends() -> tuple[str, ...]:
    """The backends that this compiler generates code with: `llvm-cpu`, `cuda` and so on."""
    library = _api()._dylib
    found: list[str] = []

    def receive(name: bytes, _user: int) -> None:
        found.append(name.decode())

    # A session that is opened and closed makes sure that the compiler is initialized.
    CompilerSession().close()
    enumerate_backends = library.ireeCompilerEnumerateRegisteredHALTargetBackends
    enumerate_backends.restype = None
    enumerate_backends.argtypes = [_NAME_CALLBACK, ctypes.c_void_p]
    enumerate_backends(_NAME_CALLBACK(receive), None)
    return tuple(sorted(found))


class _Diagnostics:
    """Collects the diagnostics of one invocation; must outlive it.

    The linker prints its errors instead of handing them over: they are read back where standard
    error is a file, as it is in workers.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self._mark = _stderr_size()
        # The ctypes closure is kept in an attribute: the compiler holds only its address.
        self.callback = _DIAGNOSTIC_CALLBACK(self._receive)

    def _receive(self, severity: int, message: int, size: int, _user: int) -> None:
        self.entries.append((severity, ctypes.string_at(message, size).decode(errors="replace")))

    def error(self, message: str = "") -> CompileError:
        """The error that they make; `message` says what is wrong where they do not."""
        printed = self._printed()
        shown = error_line(printed) or message or self._first_error
        entries = [f"{_SEVERITY_NAMES.get(s, s)}: {t}" for s, t in self.entries]
        return CompileError(shown, "\n".join([*([printed.rstrip()] if printed else []), *entries]))

    def _printed(self) -> str:
        size = _stderr_size()
        if not size:
            return ""
        # A log that was cut meanwhile begins anew.
        start = self._mark if self._mark <= size else 0
        with contextlib.suppress(OSError):
            return os.pread(_STDERR, _PRINTED_BYTES, start).decode(errors="replace")
        return ""

    @property
    def _first_error(self) -> str:
        for severity, text in self.entries:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if severity == _ERROR and lines:
                return lines[0]
        return "the compiler failed and gave no reason"


def _stderr_size() -> int:
    """How much is in the file that standard error goes to; 0 where it is no file."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


class CompilerSession:
    """An IREE compiler with fixed flags; not for use by several threads at once.

    >>> session = CompilerSession(["--iree-hal-target-device=local",
    ...                            "--iree-hal-local-target-device-backends=llvm-cpu"])
    ... # doctest: +SKIP
    >>> vmfb = session.compile("func.func @main() { return }")  # doctest: +SKIP

    Raises UserError for a flag that the compiler does not have.
    """

    def __init__(self, flags: Sequence[str] = ()) -> None:
        self.flags = tuple(flags)
        self._known_passes: dict[str, bool] = {}
        self._session: Any = _api().Session()
        try:
            self._session.set_flags(*self.flags)
        except ValueError as error:
            self.close()
            detail = " ".join(str(error).split())
            raise UserError(
                f"the IREE compiler does not accept its flags ({' '.join(self.flags)}): {detail}; "
                f"`iree-compile --help` lists what it takes"
            ) from None

    @property
    def context(self) -> Any:
        """The session's `iree.compiler.ir.Context`, with every dialect of the compiler."""
        return self._session.context

    def parse(self, source: str | bytes, *, name: str = "source.mlir") -> Any:
        """The operation (`iree.compiler.ir.Operation`) of a module.

        Args:
            source: text or MLIR bytecode.
            name: the file name that the compiler's messages show.

        Returns:
            The operation; it lives in the session's context and must not outlive the session.

        Raises:
            CompileError: the source is no valid module.
        """
        # The Python wrapper of the context must exist before the operation: it owns the context.
        context = self.context
        with context, self._invocation() as (invocation, diagnostics):
            self._read(invocation, diagnostics, source, name)
            return invocation.export_module()

    def compile(
        self,
        source: Any,
        compile_from: str | None = None,
        compile_to: str | None = None,
        output: Output | None = None,
        *,
        name: str = "source.mlir",
        verify: bool = True,
    ) -> bytes:
        """Compile from one phase to another.

        Args:
            source: text, MLIR bytecode, or a module operation of `self.context` (changed in place:
                pass a clone to keep it).
            compile_from: one of `PHASES`, behind which to begin; None is the very start.
            compile_to: one of `PHASES`, behind which to end; None is the very end.
            output: `vmfb` (only and by default without compile_to), `text` or `bytecode` (the IR
                after compile_to; text by default).
            name: the file name that the compiler's messages show.
            verify: as `run` takes it.

        Returns:
            The output.

        Raises:
            CompileError: the compiler refuses.
            ValueError: an unknown phase, or an output that is not possible.
        """
        output = output or ("text" if compile_to else "vmfb")
        if (output == "vmfb") != (compile_to is None):
            raise ValueError(f"output '{output}' is not possible with compile_to={compile_to!r}")
        with self._invocation() as (invocation, diagnostics):
            _set_phases(invocation, compile_from, compile_to)
            if not verify:
                _leave_unverified(invocation)
            self._read(invocation, diagnostics, source, name)
            if not invocation.execute():
                raise diagnostics.error()
            try:
                return _written(invocation, output)
            except ValueError as error:
                raise diagnostics.error(str(error)) from None

    def run(
        self, operation: Any, compile_from: str | None, compile_to: str, verify: bool = True
    ) -> None:
        """Take a module operation, in place, from one phase to another.

        Args:
            operation: of `self.context`.
            compile_from: one of `PHASES`, behind which to begin; None is the very start.
            compile_to: one of `PHASES`, behind which to end.
            verify: whether every pass's result is verified, not the operation itself alone: half of
                the time that straight code of loops takes to become LLVM's, and up to as much of
                what a network takes (a SwinV2 31 s, 18 without).

        Raises:
            CompileError: the compiler refuses; the operation is then of no more use.
            ValueError: an unknown phase.
        """
        with self._invocation() as (invocation, diagnostics):
            _set_phases(invocation, compile_from, compile_to)
            if not verify:
                _leave_unverified(invocation)
            invocation.import_module(operation)
            if not invocation.execute():
                raise diagnostics.error()

    def run_passes(self, operation: Any, passes: str) -> None:
        """Run passes on a module operation, in place, which no pass's result is verified of.

        Args:
            operation: of `self.context`.
            passes: nested as operations are, such as `func.func(canonicalize,cse)`.

        Raises:
            CompileError: one of them fails, or there is none of a name; the operation is then of no
                more use.
        """
        with self._invocation() as (invocation, diagnostics):
            _leave_unverified(invocation)
            invocation.import_module(operation)
            if not invocation.execute_text_pass_pipeline(passes):
                raise diagnostics.error()

    def has_passes(self, passes: str) -> bool:
        """Whether the compiler knows passes by these names, which differ between its versions.

        Args:
            passes: as of `run_passes`.
        """
        if passes not in self._known_passes:
            try:
                self.run_passes(self.parse("module {}"), passes)
                self._known_passes[passes] = True
            except CompileError:
                self._known_passes[passes] = False
        return self._known_passes[passes]

    def _read(self, invocation: Any, diagnostics: _Diagnostics, source: Any, name: str) -> None:
        """Give the invocation its input."""
        if not isinstance(source, str | bytes):
            invocation.import_module(getattr(source, "operation", source))
            return
        api = _api()
        data = source.encode() if isinstance(source, str) else source
        if not api._is_mlir_bytecode(memoryview(data)):
            # MLIR's lexer reads up to a terminating NUL, which belongs to the buffer.
            data += b"\0"
        wrapped = api.Source.wrap_buffer(self._session, data, buffer_name=name)
        if not invocation.parse_source(wrapped):
            raise diagnostics.error()

    @contextlib.contextmanager
    def _invocation(self) -> Iterator[tuple[Any, _Diagnostics]]:
        """One compiler invocation with its diagnostics, closed on the way out."""
        diagnostics = _Diagnostics()
        invocation = self._session.invocation()
        try:
            _api()._dylib.ireeCompilerInvocationEnableCallbackDiagnostics(
                invocation._inv_p, 0, diagnostics.callback, None
            )
            yield invocation, diagnostics
        finally:
            invocation.close()

    def close(self) -> None:
        """Free the session. Operations of its context must be gone by then."""
        self._session.close()


def _set_phases(invocation: Any, compile_from: str | None, compile_to: str | None) -> None:
    for phase in (compile_from, compile_to):
        if phase is not None and phase not in PHASES:
            raise ValueError(f"unknown compiler phase '{phase}' (allowed: {', '.join(PHASES)})")
    library = _api()._dylib
    if compile_from:
        library.ireeCompilerInvocationSetCompileFromPhase(invocation._inv_p, compile_from.encode())
    if compile_to:
        library.ireeCompilerInvocationSetCompileToPhase(invocation._inv_p, compile_to.encode())


def _leave_unverified(invocation: Any) -> None:
    """Let no pass's result be verified; what is parsed is verified all the same."""
    _api()._dylib.ireeCompilerInvocationSetVerifyIR(invocation._inv_p, False)


def _written(invocation: Any, output: Output) -> bytes:
    """What the invocation made, copied out of the compiler's memory."""
    buffer = _api().Output.open_membuffer()
    try:
        if output == "vmfb":
            invocation.output_vm_bytecode(buffer)
        elif output == "text":
            invocation.output_ir(buffer)
        else:
            invocation.output_ir_bytecode(buffer)
        return bytes(buffer.map_memory())
    finally:
        buffer.close()
