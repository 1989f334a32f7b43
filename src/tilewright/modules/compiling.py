"""A program compiled for running: with a strategy, with the IR of its phases, in any form.

Of `--spec` it finds what the file of the transform dialect is, applies it, and finds whether it
was. Three things can be given: a tuning spec, the folder of a tuning run, and a library of
strategies. A library's `@__kernel_config` (another sequence of it: `FILE@SEQUENCE`) is run by the
compiler on every dispatch before it chooses a configuration itself, as a spec's is; what it does
there is its own affair. The compiler goes on without a library that does not parse or matches
nothing, so what it did is read from the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import write_file
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.modules.functions import takes_integers
from tilewright.modules.module_source import VM_BYTECODE, ModuleOptions
from tilewright.target import Target, parse_target
from tilewright.tuning.apply import (
    TunedSpec,
    check_changes,
    prove_tuned,
    read_tuned,
    resolve_tuned,
    spec_flags,
)
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.proof import ConfigurationChange, Proof
from tilewright.tuning.variants import DEFAULT_VARIANT
from tilewright.tuning.worker_tasks import parse_module

_READ_TIMEOUT_S = 300.0

LIBRARY_FLAG = "--iree-codegen-transform-dialect-library="
# What scripts began with before there were named sequences.
_OLD_FORMS = (
    "transform.sequence",
    "transform.structured.canonicalized_sequence",
    "transform.with_pdl_patterns",
)
SEQUENCE_FORM = (
    "module attributes {transform.with_named_sequence} { transform.named_sequence "
    "@__kernel_config(%root: !transform.any_op {transform.consumed}) -> !transform.any_op "
    "{ ... transform.yield %root : !transform.any_op } }"
)


def split_entry(given: Path) -> tuple[Path, str]:
    """The file and the sequence of `FILE@SEQUENCE`; '' where only a file is named.

    Args:
        given: of `--spec`.
    """
    file, at, sequence = str(given).rpartition("@")
    return (Path(file), sequence) if at and file and not given.exists() else (given, "")


def find_strategy(opened: OpenProgram, tuned: TunedSpec, entry: str = "") -> TunedSpec:
    """What a file or a tuning run's folder is.

    Args:
        opened: the program that it is for.
        tuned: what was given.
        entry: the sequence of a library to begin with.

    Returns:
        The same; with the flag and the sequence of a library where it is one, and with the kernels
        that go with it.

    Raises:
        UserError: it cannot be applied.
    """
    request = ReadRequest(tuned.spec, entry)
    if not opened.run(read_strategy, request, _READ_TIMEOUT_S, str(tuned.spec)):
        return read_tuned(opened, tuned)[0]
    spec = Path(f"{tuned.spec}@{entry}") if entry else tuned.spec
    return replace(tuned, spec=spec, flag=LIBRARY_FLAG)


def prove_strategy(opened: OpenProgram, tuned: TunedSpec) -> Proof:
    """What it changed in the program.

    Args:
        opened: the program.
        tuned: what is applied.

    Raises:
        UserError: it changed nothing though it should have.
    """
    proof = prove_tuned(opened, tuned)
    if tuned.flag != LIBRARY_FLAG:
        check_changes(tuned, opened.program.source, read_tuned(opened, tuned)[1], proof)
    elif not proof.changes:
        raise UserError(
            f"{tuned.spec}: the strategy library changes no dispatch of {opened.program.source}; "
            f"it has {', '.join(proof.dispatches) or 'no dispatch'}"
        )
    return proof


# In the workers


@dataclass(frozen=True)
class ReadRequest:
    """A file of the transform dialect, and the sequence to begin with ('': the usual one)."""

    path: Path
    entry: str = ""


def read_strategy(_state: WorkerState, request: ReadRequest) -> bool:
    """Task: whether a file is a library of strategies, and not a spec.

    Args:
        _state: the worker's.
        request: the file.

    Raises:
        UserError: it is neither, or a script in the form of `transform.sequence` at the top level,
            which the compiler no longer takes.
    """
    from iree.compiler import ir

    from tilewright.files import read_text
    from tilewright.spec import library
    from tilewright.spec.read import is_preprocessing

    path = request.path
    text = read_text(path, "tuning spec or strategy library")
    with library.new_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text).operation
        except ir.MLIRError as error:
            if _first_op(text) in _OLD_FORMS:
                raise _old_form(path) from None
            reason = next(
                (line for line in str(error).splitlines()[1:] if line.strip()), str(error)
            )
            raise UserError(
                f"{path}: this compiler cannot parse it: {reason.strip()}; strategies are written "
                f"as {SEQUENCE_FORM}"
            ) from None
        if any(op.name in _OLD_FORMS for op in _outside_sequences(module)):
            raise _old_form(path)
        top = [op.operation for op in module.regions[0].blocks[0].operations]
        is_tuning_spec = any(library.ENTRY_POINT_ATTR in op.attributes for op in top)
        if not request.entry and (is_tuning_spec or is_preprocessing(module)):
            return False
        names = [library.symbol(op) for op in top if op.name == "transform.named_sequence"]
        wanted = request.entry or library.ENTRY_POINT
        if wanted in names:
            return True
        has = ", ".join(f"@{name}" for name in names) or "no named sequence"
        raise UserError(
            f"{path}: neither a tuning spec nor a strategy library that begins with @{wanted}: it "
            f"has {has}; name another with FILE@SEQUENCE, or write it as {SEQUENCE_FORM}"
        )


def _first_op(text: str) -> str:
    """The name of the first operation that is not of the builtin dialect.

    MLIR says it: a context that knows no other dialect stops there. A script in the old form also
    has the old types and names inside, at which the compiler's own context would stop.
    """
    from iree.compiler import ir

    bare = ir.Context.__base__()
    with bare:
        try:
            ir.Module.parse(text)
        except ir.MLIRError as error:
            return str(error).partition("custom op '")[2].partition("'")[0]
    return ""


def _old_form(path: Path) -> UserError:
    return UserError(
        f"{path}: a script in the old form of `transform.sequence`, which this compiler no longer "
        f"runs; write its steps as {SEQUENCE_FORM}"
    )


def _outside_sequences(module: Any) -> Iterator[Any]:
    """Every operation that is not inside a named sequence."""
    from tilewright.ir.walk import walk

    return walk(module, lambda op: op.name != "transform.named_sequence")


_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class CompiledModule:
    """What became of a program.

    vmfb: its compiled form; None when only IR was asked for, which is in `ir` then. parameters:
    (scope, file) of weights that importing it put outside. limits: by function and position of an
    argument, what integers there must stay below since they are used as indices. phases: the files
    with the IR after each phase. changes: what the strategy changed; `strategy` says what it is.
    """

    vmfb: Path | None = None
    ir: Path | None = None
    parameters: tuple[tuple[str, Path], ...] = ()
    limits: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    phases: tuple[Path, ...] = ()
    strategy: str = ""
    changes: tuple[ConfigurationChange, ...] = ()
    notes: tuple[str, ...] = ()


def module_target(options: ModuleOptions) -> Target:
    """The target that programs are compiled for and run on.

    Args:
        options: the user's.

    Raises:
        UserError: there is no such target.
    """
    return parse_target(options.target or "cpu", options.threads)


@contextmanager
def compiled_program(
    path: Path, options: ModuleOptions, *, with_limits: bool = True
) -> Iterator[CompiledModule]:
    """Compile a program as the options say; its files are gone at the end, but for `options.save`.

    Args:
        path: the program.
        options: the user's.
        with_limits: also find which of its integer arguments are indices.

    Returns:
        As a context: what became of it.

    Raises:
        UserError: it does not compile, or a strategy changes nothing.
    """
    tuned, entry = None, ""
    if options.spec is not None:
        spec, entry = split_entry(options.spec)
        tuned = resolve_tuned(spec, options.target, options.iree_flags)
    with open_program(
        path,
        parse_target(tuned.target, options.threads) if tuned else module_target(options),
        TuneOptions(
            iree_flags=tuned.iree_flags if tuned else options.iree_flags,
            iree_bin=options.iree_bin,
        ),
        input_type=options.input_type,
    ) as opened:
        strategy = find_strategy(opened, tuned, entry) if tuned else None
        yield _compile(opened, options, strategy, with_limits)


def _compile(
    opened: OpenProgram,
    options: ModuleOptions,
    tuned: TunedSpec | None,
    with_limits: bool,
) -> CompiledModule:
    proof = prove_strategy(opened, tuned) if tuned else None
    variant = tuned.variant if tuned else DEFAULT_VARIANT
    plain = opened.flags(variant)
    wanted = with_limits and options.phase is None
    limits = find_limits(opened, plain) if wanted else {}
    flags = spec_flags(opened, tuned) if tuned else plain
    made, phases = _make(opened, flags, options)
    vmfb = made if options.phase is None else None
    return CompiledModule(
        vmfb=vmfb,
        ir=None if vmfb else made,
        parameters=opened.program.parameters,
        limits=limits,
        phases=phases,
        strategy=_words(tuned) if tuned else "",
        changes=proof.changes if proof else (),
        notes=tuned.notes if tuned else (),
    )


def _words(tuned: TunedSpec) -> str:
    """What is applied, and as what."""
    what = "strategy library" if tuned.flag == LIBRARY_FLAG else "tuning spec"
    return f"{what} {tuned.spec}"


def _make(
    opened: OpenProgram, flags: tuple[str, ...], options: ModuleOptions
) -> tuple[Path, tuple[Path, ...]]:
    """Compile, with the IR of the phases on the way; the result and these files."""
    extra: tuple[str, ...] = ()
    folder = options.dump_phases
    before: dict[Path, int] = {}
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--dump-phases: cannot make {folder} ({error.strerror})") from error
        extra = (f"--dump-compilation-phases-to={folder.absolute()}",)
        before = _files(folder)
    if options.phase is not None:
        made = opened.work / "phase.mlir"
        _run(opened, made, (*flags, f"--compile-to={options.phase}"), extra)
    else:
        made = opened.work / "program.vmfb"
        _run(opened, made, flags, extra)
    if options.save is not None:
        written = made
        if options.output_format not in (None, VM_BYTECODE):
            written = opened.work / "written"
            _run(opened, written, (*flags, f"--output-format={options.output_format}"))
        write_file(options.save, written.read_bytes())
    if folder is None:
        return made, ()
    return made, tuple(f for f, when in _files(folder).items() if before.get(f) != when)


def _files(folder: Path) -> dict[Path, int]:
    """The files of a folder in the order of their names, with when they were written."""
    return {file: file.stat().st_mtime_ns for file in sorted(folder.iterdir()) if file.is_file()}


def _run(
    opened: OpenProgram, output: Path, flags: tuple[str, ...], extra: tuple[str, ...] = ()
) -> None:
    outcome = opened.toolchain.compile(
        opened.program.path, output, flags, timeout_s=_TIMEOUT_S, extra=extra
    )
    if not outcome.ok:
        raise UserError(f"{opened.program.source}: {outcome.error}")


# In the workers


def find_limits(opened: OpenProgram, flags: tuple[str, ...]) -> Mapping[str, Mapping[int, int]]:
    """What integers must stay below since they are used as indices.

    Args:
        opened: the program.
        flags: of iree-compile.

    Returns:
        By function and position of an argument.

    Raises:
        UserError: the program does not compile with these flags.
    """
    if not any(takes_integers(one) for one in opened.program.functions.values()):
        return {}
    request = LimitsRequest(opened.program.path, flags)
    return opened.run(index_limits, request, _TIMEOUT_S, str(opened.program.source))


@dataclass(frozen=True)
class LimitsRequest:
    """Compile a program to the flow phase and see which integers of its functions are indices."""

    program: Path
    flags: tuple[str, ...]


def index_limits(state: WorkerState, request: LimitsRequest) -> dict[str, Mapping[int, int]]:
    """Task: see LimitsRequest.

    Args:
        state: the worker's.
        request: what to compile.

    Returns:
        By function and position of an argument.

    Raises:
        CompileError: it does not compile.
    """
    from tilewright.ir.dispatches import entry_function
    from tilewright.ir.index_bounds import program_limits
    from tilewright.ir.signature import entry_points

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(), compile_to="flow", name=request.program.name
    )
    module = parse_module(compiler, text)
    found: dict[str, Mapping[int, int]] = {}
    for name in entry_points(module):
        function = entry_function(module, name)
        if function is not None:
            found[name] = program_limits(module, function)
    return found
