"""Compiling a program with what tuning has found, and proving that it was applied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import check_writable_file, user_file
from tilewright.measure.compile_worker import session
from tilewright.measure.worker_state import WorkerState
from tilewright.target import SPEC_FLAG, parse_target
from tilewright.toolchain import CompileJob, installed_version
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.outputs import MANIFEST, SPEC, read_manifest
from tilewright.tuning.variants import Variant
from tilewright.tuning.worker_tasks import CONFIGURED

_TIMEOUT_S = 1800.0
_READ_TIMEOUT_S = 300.0
_LISTED = 12


@dataclass(frozen=True)
class TunedSpec:
    """What is to be applied: a spec, with the variant and flags that it was made for.

    `flag` is that of `iree-compile` which takes it.
    """

    given: Path
    spec: Path
    variant: Variant
    target: str
    iree_flags: tuple[str, ...]
    notes: tuple[str, ...] = ()
    flag: str = SPEC_FLAG


@dataclass(frozen=True)
class SpecEntryInfo:
    """An entry of a spec: its name, and what it matches in words."""

    name: str
    matches: str


@dataclass(frozen=True)
class SpecInfo:
    """The entries of a spec, whether tilewright wrote it, and the variant that it was made for."""

    entries: tuple[SpecEntryInfo, ...]
    ours: bool
    variant: str = ""


@dataclass(frozen=True)
class ConfigurationChange:
    """A dispatch that a spec configures differently from the compiler; both choices in words.

    `entry` is the name of the entry that did it, '' where the spec is not one of tilewright's.
    """

    function: str
    entry: str
    before: str
    after: str


@dataclass(frozen=True)
class Proof:
    """What a spec did to a program: the dispatches there are, and those that it changed."""

    dispatches: tuple[str, ...]
    changes: tuple[ConfigurationChange, ...]


@dataclass(frozen=True)
class AppliedProgram:
    """A program compiled with a spec.

    `output` is None when it was only checked; `unused` names entries that no dispatch took;
    `command` is the plain iree-compile line that does the same.
    """

    program: Path
    spec: Path
    variant: str
    entries: tuple[str, ...]
    changes: tuple[ConfigurationChange, ...]
    unused: tuple[str, ...]
    output: Path | None
    command: str
    notes: tuple[str, ...] = ()


def apply(
    program: str | os.PathLike[str],
    tuned: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: str | None = None,
    iree_flags: Iterable[str] = (),
    input_type: str | None = None,
) -> AppliedProgram:
    """Compile a program with a result folder or a tuning spec, and prove that it applied.

    A result folder brings its variant's flags, its target and its own iree_flags along; `target`
    overrules, `iree_flags` come on top. `output` is written last, whole or not at all.

    Raises UserError when something does not compile, and when a spec with entries changes nothing.
    """
    destination = Path(output)
    check_writable_file(destination, "--output")
    return _apply(Path(program), Path(tuned), destination, target, tuple(iree_flags), input_type)


def check_against(
    program: str | os.PathLike[str],
    tuned: str | os.PathLike[str],
    *,
    target: str | None = None,
    iree_flags: Iterable[str] = (),
    input_type: str | None = None,
) -> AppliedProgram:
    """As :func:`apply`, without making the program."""
    return _apply(Path(program), Path(tuned), None, target, tuple(iree_flags), input_type)


def resolve_tuned(given: Path, target: str | None, iree_flags: Sequence[str]) -> TunedSpec:
    """A result folder or a spec as what to compile with. UserError when it is neither."""
    if not given.exists():
        raise UserError(f"{given}: there is no such result folder or tuning spec")
    if not given.is_dir():
        return TunedSpec(given, given, Variant("default", ()), target or "cpu", tuple(iree_flags))
    if not (given / MANIFEST).is_file():
        raise UserError(
            f"{given}: the folder has no {MANIFEST}: it is no result of `tilewright tune`; "
            "give one, or a tuning spec"
        )
    manifest = read_manifest(given)
    spec = given / SPEC
    if not spec.is_file():
        raise UserError(f"{given}: the result folder has no {SPEC}; tune the program again")
    try:
        options = manifest["options"]
        variant = Variant(str(manifest["variant"]), tuple(map(str, manifest["variant_flags"])))
        flags = (*map(str, options["iree_flags"]), *iree_flags)
        chosen = target or str(options["target"])
        compiler = str(manifest["compiler"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{given / MANIFEST}: {error} is missing or not as tilewright writes it; "
            "tune the program again"
        ) from error
    notes = []
    installed = installed_version("iree-base-compiler")
    if compiler != installed:
        notes.append(
            f"the result was made with compiler {compiler}, this one is {installed}: "
            "what was fastest there need not be here"
        )
    return TunedSpec(given, spec, variant, chosen, flags, tuple(notes))


def _apply(
    program: Path,
    given: Path,
    output: Path | None,
    target: str | None,
    iree_flags: tuple[str, ...],
    input_type: str | None,
) -> AppliedProgram:
    tuned = resolve_tuned(given, target, iree_flags)
    machine = parse_target(tuned.target)
    options = TuneOptions(iree_flags=tuned.iree_flags)
    with open_program(program, machine, options, input_type=input_type) as opened:
        info = spec_info(opened, tuned)
        made = opened.work / "program.vmfb"
        proof = prove(opened, tuned, made if output is not None else None)
        check_changes(tuned, program, info, proof)
        flags = spec_flags(opened, tuned)
        command = opened.toolchain.command_line(
            program if opened.program.path == program.absolute() else opened.program.path,
            output or "program.vmfb",
            flags,
        )
        if output is not None:
            install(made, output)
    used = {change.entry for change in proof.changes}
    names = tuple(entry.name for entry in info.entries)
    return AppliedProgram(
        program=program,
        spec=tuned.spec,
        variant=tuned.variant.name,
        entries=names,
        changes=proof.changes,
        unused=tuple(name for name in names if name not in used) if info.ours else (),
        output=output,
        command=command,
        notes=(*tuned.notes, *other_variant(tuned, info)),
    )


def other_variant(tuned: TunedSpec, info: SpecInfo) -> tuple[str, ...]:
    """A note where a bare spec was made for another variant than it is used with."""
    if not info.variant or info.variant == tuned.variant.name:
        return ()
    return (
        f"the spec was made for the variant {info.variant}: give the result folder, or its flags "
        "with --iree-flag",
    )


def spec_flags(opened: OpenProgram, tuned: TunedSpec) -> tuple[str, ...]:
    """Every flag of the compile with the spec."""
    plain = opened.flags(tuned.variant)
    flag = opened.target.spec_flag if tuned.flag == SPEC_FLAG else tuned.flag
    return (*plain, f"{flag}{tuned.spec}")


def spec_info(opened: OpenProgram, tuned: TunedSpec) -> SpecInfo:
    """The entries of the spec. UserError for a file that is no spec."""
    return opened.run(read_spec, tuned.spec, _READ_TIMEOUT_S, str(tuned.spec))


def prove(opened: OpenProgram, tuned: TunedSpec, vmfb: Path | None) -> Proof:
    """Compile with the spec and without, and see what it changed; `vmfb` is made besides."""
    plain = opened.flags(tuned.variant)
    with_spec = spec_flags(opened, tuned)
    to_configured = f"--compile-to={CONFIGURED}"
    before, after = opened.work / "before.mlir", opened.work / "after.mlir"
    source = opened.program.path
    jobs = [
        CompileJob(source, before, (*plain, to_configured), _TIMEOUT_S),
        CompileJob(source, after, (*with_spec, to_configured), _TIMEOUT_S),
    ]
    if vmfb is not None:
        jobs.append(CompileJob(source, vmfb, with_spec, _TIMEOUT_S))
    untuned, *tuned_outcomes = opened.toolchain.compile_many(jobs, opened.target.cores)
    if not untuned.ok:
        raise UserError(f"{opened.program.source}: {untuned.error}")
    for outcome in tuned_outcomes:
        if not outcome.ok:
            raise UserError(
                f"{opened.program.source} does not compile with {tuned.spec}: {outcome.error}"
            )
    # What a spec of ours prepares for matching is no change; another kind of library may do
    # anything to a dispatch.
    request = ProofRequest(before, after, plain, tuned.flag != SPEC_FLAG)
    return opened.run(read_proof, request, _READ_TIMEOUT_S, "proving that the spec applied")


def install(made: Path, output: Path) -> None:
    """Copy a finished file to where the user wants it; whole, or a UserError and nothing."""
    with user_file(output) as partial:
        partial.write_bytes(made.read_bytes())


def check_changes(tuned: TunedSpec, program: Path, info: SpecInfo, proof: Proof) -> None:
    """Raises UserError where a spec that has entries changed nothing."""
    if not info.entries or proof.changes:
        return
    entries = [f"{e.name} ({e.matches})" if e.matches else e.name for e in info.entries]
    raise UserError(
        f"{tuned.spec}: the spec changes no dispatch of {program}; it matches "
        f"{listed(entries)}; the program has {listed(proof.dispatches) or 'no dispatch'}; "
        "use the program, target and variant that it was made for"
    )


def listed(names: Sequence[str]) -> str:
    """Names with commas, those beyond a dozen as a number."""
    text = ", ".join(names[:_LISTED])
    rest = len(names) - _LISTED
    return f"{text} and {rest} more" if rest > 0 else text


# In the workers


@dataclass(frozen=True)
class ProofRequest:
    """Two files of a program at the executable-configurations phase: without and with a spec.

    `code`: a dispatch whose code alone differs counts as changed too.
    """

    before: Path
    after: Path
    flags: tuple[str, ...]
    code: bool = False


def read_proof(state: WorkerState, request: ProofRequest) -> Proof:
    """Task: see ProofRequest."""
    from tilewright.spec import applied, changed_configurations
    from tilewright.tuning.configured import configured_functions, describe_functions

    before, after = (
        parse_module(state, request.flags, path.read_bytes())
        for path in (request.before, request.after)
    )
    old, new = describe_functions(before), describe_functions(after)
    entries = applied(after)
    changed = [change.function for change in changed_configurations(before, after)]
    # What an entry of ours configured counts even where the compiler would choose the same.
    functions = dict.fromkeys([*changed, *(name for name in entries if name in old)])
    changes = [
        ConfigurationChange(name, entries.get(name, ""), old[name], new[name]) for name in functions
    ]
    if request.code:
        code, now = (
            {name: str(found.function) for name, found in configured_functions(module).items()}
            for module in (before, after)
        )
        changes += [
            ConfigurationChange(name, "", old[name], f"{new[name]}, with other code")
            for name in now
            if name in code and name not in functions and code[name] != now[name]
        ]
    return Proof(tuple(new), tuple(changes))


def read_spec(state: WorkerState, path: Path) -> SpecInfo:
    """Task: the entries of a spec. Raises UserError."""
    from tilewright.files import read_text
    from tilewright.spec import check_spec, show_spec

    text = read_text(path, "tuning spec")
    report = check_spec(text, str(path))
    rows = show_spec(text, str(path))
    entries = tuple(SpecEntryInfo(row.name, row.matches) for row in rows)
    return SpecInfo(entries, report.ours, report.header.get("variant", ""))


def parse_module(state: WorkerState, flags: tuple[str, ...], source: bytes) -> Any:
    """A module in the context of the worker's compiler for these flags."""
    from iree.compiler import ir

    context = session(state, flags).context
    with context:
        return ir.Module.parse(source, context)
