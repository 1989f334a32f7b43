"""Compiling a program with what tuning has found, and proving that it was applied."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import check_writable_file, write_file
from tilewright.sketch.spec_tasks import ReadSpecRequest, read_spec
from tilewright.spec.report import SpecReport
from tilewright.target import PACKED_AHEAD_FLAG, SPEC_FLAG, parse_target
from tilewright.toolchain import installed_version
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.outputs import MANIFEST, PREPROCESSING, SPEC, read_manifest
from tilewright.tuning.proof import Claim, ConfigurationChange, Proof, ProofStage, prove
from tilewright.tuning.variants import (
    PREPROCESSING_FLAG,
    Variant,
    packed_ahead,
    preprocessing_spec,
    relocate_preprocessing,
    with_spec_flags,
    without_spec,
)

_READ_TIMEOUT_S = 300.0
_LISTED = 12


@dataclass(frozen=True)
class TunedSpec:
    """What is to be applied: a spec, with the variant and flags that it was made for.

    `flag` is that of `iree-compile` which takes it. `kernels`: a preprocessing spec with kernels
    that goes with it; one that has none is among the flags of the variant alone.
    """

    given: Path
    spec: Path
    variant: Variant
    target: str
    iree_flags: tuple[str, ...]
    notes: tuple[str, ...] = ()
    flag: str = SPEC_FLAG
    kernels: Path | None = None


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
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    iree_flags: Iterable[str] = (),
    input_type: str | None = None,
) -> AppliedProgram:
    """Compile a program with a result folder or a tuning spec, and prove that it applied.

    A result folder brings its variant's flags, its target and its own iree_flags along.

    Args:
        program: MLIR or an ONNX model.
        tuned: the folder or the spec.
        output: the compiled program, written last, whole or not at all; None: it is only checked
            that the spec applies.
        target: in place of the folder's, as :func:`tilewright.tune` takes it.
        iree_flags: of `iree-compile`, on top of the folder's.
        input_type: the program's dialect, where it cannot be told from it.

    Returns:
        What changed, and the command that does the same.

    Raises:
        UserError: Something does not compile or cannot be read or written, or a spec with entries
            changes nothing.
    """
    source, destination = Path(program), None if output is None else Path(output)
    if destination is not None:
        check_writable_file(destination, "--output")
    found = resolve_tuned(Path(tuned), target, tuple(iree_flags))
    options = TuneOptions(iree_flags=found.iree_flags)
    with open_program(source, parse_target(found.target), options, input_type=input_type) as opened:
        found, report = read_tuned(opened, found)
        made = None if destination is None else opened.work / "program.vmfb"
        proof = prove_tuned(opened, found, vmfb=made)
        check_changes(found, source, report, proof)
        command = opened.toolchain.command_line(
            source if opened.program.path == source.absolute() else opened.program.path,
            destination or "program.vmfb",
            spec_flags(opened, found),
        )
        if destination is not None and made is not None:
            write_file(destination, made.read_bytes())
    used = {change.entry for change in proof.changes}
    used |= {name for name, places in proof.reached.items() if places}
    names = tuple(entry.name for entry in report.entries)
    return AppliedProgram(
        program=source,
        spec=found.spec,
        variant=found.variant.name,
        entries=names,
        changes=proof.changes,
        unused=tuple(name for name in names if name not in used) if report.ours else (),
        output=destination,
        command=command,
        notes=(*found.notes, *other_variant(found, report)),
    )


def resolve_tuned(given: Path, target: str | None, iree_flags: Sequence[str]) -> TunedSpec:
    """A result folder or a spec as what to compile with.

    Args:
        given: the folder or the file.
        target: in place of the folder's; None: the folder's, or the CPU for a spec alone.
        iree_flags: of the user's, on top of the folder's.

    Returns:
        What is to be applied.

    Raises:
        UserError: It is neither, or the folder is not as tilewright writes it.
    """
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
        own = _harmless(manifest["variant_flags"], given, iree_flags)
        if (moved := given / PREPROCESSING).is_file():
            # The folder may have been moved since.
            own = relocate_preprocessing(own, moved.absolute())
        flags = (*_harmless(options["iree_flags"], given, iree_flags), *iree_flags)
        if not packed_ahead(flags):
            own = tuple(flag for flag in own if flag != PACKED_AHEAD_FLAG)
        variant = Variant(str(manifest["variant"]), own)
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


# In names of flags of `iree-compile` and of LLVM that have it start a program, read code from
# elsewhere, or write files.
_REACHING = re.compile(
    "linker-path|preprocess-executables-with|exec-on|dump|substitute|plugin|reproducer|crash|save"
    "|output|search-path|-dir|-file(?!name)|dot-|profile|-out$|-to$"
)


def _harmless(flags: Sequence[str], folder: Path, trusted: Sequence[str]) -> tuple[str, ...]:
    """The flags of a folder, which may be from elsewhere. Raises UserError for one that has the
    compiler start programs or write files, unless the user gives it, too."""
    for flag in map(str, flags):
        name = flag.partition("=")[0]
        if (not name.startswith("--") or _REACHING.search(name)) and flag not in trusted:
            raise UserError(
                f"{folder / MANIFEST}: the flag {flag} has the compiler start programs or touch "
                f"files; give --iree-flag={flag} as well if it shall"
            )
    return tuple(map(str, flags))


def other_variant(tuned: TunedSpec, report: SpecReport) -> tuple[str, ...]:
    """Notes where a bare spec was made for other flags than it is used with.

    Args:
        tuned: what is applied.
        report: what its spec says of itself.

    Returns:
        The notes, or nothing.
    """
    notes = []
    variant = report.header.get("variant", "")
    if variant and variant != tuned.variant.name:
        notes.append(
            f"the spec was made for the variant {variant}: give the result folder, or its flags "
            "with --iree-flag"
        )
    return tuple(notes)


def spec_flags(opened: OpenProgram, tuned: TunedSpec) -> tuple[str, ...]:
    """Every flag of the compile with the spec.

    Args:
        opened: the program.
        tuned: what is applied to it.

    Returns:
        The flags of the program in the variant, then the one that names the spec.
    """
    return with_spec_flags(opened.flags(tuned.variant), _given(opened, tuned))


def _given(opened: OpenProgram, tuned: TunedSpec) -> tuple[str, ...]:
    """The flags that name the specs whose effect is to be seen."""
    flag = opened.target.spec_flag if tuned.flag == SPEC_FLAG else tuned.flag
    kernels = () if tuned.kernels is None else (f"{PREPROCESSING_FLAG}={tuned.kernels}",)
    return (*kernels, f"{flag}{tuned.spec}")


def read_tuned(opened: OpenProgram, tuned: TunedSpec) -> tuple[TunedSpec, SpecReport]:
    """What the specs are, read in a worker.

    Args:
        opened: the program that they are applied to.
        tuned: what is applied.

    Returns:
        What is applied, with the flag that takes it and the kernels that go with it; the entries of
        all, and what the spec says of itself.

    Raises:
        UserError: A file is no spec, or has kernels for another processor.
    """

    def read(path: Path) -> SpecReport:
        request = ReadSpecRequest(path, opened.target)
        return opened.run(read_spec, request, _READ_TIMEOUT_S, str(path))

    report = read(tuned.spec)
    if report.is_preprocessing:
        return replace(tuned, flag=f"{PREPROCESSING_FLAG}="), report
    first = preprocessing_spec(tuned.variant.flags)
    if first is None:
        return tuned, report
    also = read(first)
    report = replace(report, entries=(*also.entries, *report.entries), kernels=also.kernels)
    return (replace(tuned, kernels=first) if also.kernels else tuned), report


def prove_tuned(
    opened: OpenProgram, tuned: TunedSpec, program: Path | None = None, **how: Any
) -> Proof:
    """Compile with the spec and without, and see what it changed.

    Args:
        opened: the program.
        tuned: what is applied to it.
        program: another text of the program that is compiled.
        how: further fields of the :class:`tilewright.tuning.proof.Claim`.

    Returns:
        What changed; nothing may have.

    Raises:
        UserError: The program does not compile, with the spec or at all.
    """
    flags = opened.flags(tuned.variant)
    claim = Claim(
        program or opened.program.path,
        flags if tuned.kernels is None else without_spec(flags),
        opened.work / "proof",
        given=_given(opened, tuned),
        # What a spec of ours prepares for matching is no change; another kind of library may do
        # anything to a dispatch.
        code=tuned.flag not in (SPEC_FLAG, f"{PREPROCESSING_FLAG}="),
        **how,
    )
    proof = prove(opened, claim)
    if isinstance(proof, Proof):
        return proof
    source = opened.program.source
    place = {
        ProofStage.WITHOUT: f"{source}",
        ProofStage.WITH: f"{source} does not compile with {tuned.spec}",
    }.get(proof.stage, "proving that the spec applied")
    raise UserError(f"{place}: {proof.message}")


def check_changes(tuned: TunedSpec, program: Path, report: SpecReport, proof: Proof) -> None:
    """See that a spec that has entries changed something.

    Args:
        tuned: what was applied.
        program: to what.
        report: the spec.
        proof: what it changed.

    Raises:
        UserError: It has entries and changed nothing.
    """
    if not report.entries or proof.changes or any(proof.reached.values()):
        return
    entries = [f"{e.name} ({e.matches})" if e.matches else e.name for e in report.entries]
    raise UserError(
        f"{tuned.spec}: the spec changes no dispatch of {program}; it matches "
        f"{listed(entries)}; the program has {listed(proof.dispatches) or 'no dispatch'}; "
        "use the program, target and variant that it was made for"
    )


def listed(names: Sequence[str]) -> str:
    """Names with commas, those beyond a dozen as a number.

    Args:
        names: of entries or dispatches.

    Returns:
        `a, b and 3 more`; '' for none.
    """
    text = ", ".join(names[:_LISTED])
    rest = len(names) - _LISTED
    return f"{text} and {rest} more" if rest > 0 else text
