"""`--spec`: what a file of the transform dialect is, how it is applied, and whether it was.

Three things can be given: a tuning spec, the folder of a tuning run, and a library of strategies.
A library's `@__kernel_config` (another sequence of it: `FILE@SEQUENCE`) is run by the compiler on
every dispatch before it chooses a configuration itself, as a spec's is; what it does there is its
own affair. The compiler goes on without a library that does not parse or matches nothing, so what
it did is read from the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.apply import TunedSpec, check_changes, prove_tuned, spec_report
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.proof import Proof

_TIMEOUT_S = 300.0

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


@dataclass(frozen=True)
class ConfigurationLibrary:
    """What is applied, and the words that it is called by: `tuning spec` or `strategy library`."""

    tuned: TunedSpec
    what: str


def split_entry(given: Path) -> tuple[Path, str]:
    """The file and the sequence of `FILE@SEQUENCE`; '' where only a file is named.

    Args:
        given: of `--spec`.
    """
    file, at, sequence = str(given).rpartition("@")
    return (Path(file), sequence) if at and file and not given.exists() else (given, "")


def find_strategy(opened: OpenProgram, tuned: TunedSpec, entry: str = "") -> ConfigurationLibrary:
    """What a file or a tuning run's folder is.

    Args:
        opened: the program that it is for.
        tuned: what was given.
        entry: the sequence of a library to begin with.

    Raises:
        UserError: it cannot be applied.
    """
    request = ReadRequest(tuned.spec, entry)
    if not opened.run(read_strategy, request, _TIMEOUT_S, str(tuned.spec)):
        return ConfigurationLibrary(tuned, "tuning spec")
    spec = Path(f"{tuned.spec}@{entry}") if entry else tuned.spec
    return ConfigurationLibrary(replace(tuned, spec=spec, flag=LIBRARY_FLAG), "strategy library")


def prove_strategy(opened: OpenProgram, strategy: ConfigurationLibrary) -> Proof:
    """What it changed in the program.

    Args:
        opened: the program.
        strategy: what is applied.

    Raises:
        UserError: it changed nothing though it should have.
    """
    tuned = strategy.tuned
    proof = prove_tuned(opened, tuned)
    if tuned.flag != LIBRARY_FLAG:
        check_changes(tuned, opened.program.source, spec_report(opened, tuned), proof)
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
    """Task: whether a file is a library of strategies, and not a tuning spec.

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
        if not request.entry and any(library.ENTRY_POINT_ATTR in op.attributes for op in top):
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
