"""The end of a run: choose the program to hand back, prove it, and write the result folder."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import parse_json, write_file
from tilewright.measure import machine
from tilewright.measure.comparison import Finalist
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.statistics import Verdict
from tilewright.measure.verify import Comparison
from tilewright.spec.evidence import EntryEvidence
from tilewright.toolchain import versions
from tilewright.tuning import tables
from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, Outcome, spec_request
from tilewright.tuning.confirm import entry_of
from tilewright.tuning.context import RunContext
from tilewright.tuning.evidence import EvidenceRequest, entry_evidence, write_evidence
from tilewright.tuning.extraction import extract
from tilewright.tuning.how_to_run import lines, measure_ways, parameter_flags
from tilewright.tuning.install import install_folder
from tilewright.tuning.more_rivals import more_rivals
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import Programs
from tilewright.tuning.proof import Claim, ProofFailure, prove, write_specs
from tilewright.tuning.result import ProgramSummary, RunSummary, TuneResult
from tilewright.tuning.variants import (
    PREPROCESSING_FLAG,
    preprocessing_spec,
    relocate_preprocessing,
)

MANIFEST, SUMMARY = "manifest.json", "summary.json"
SPEC = "tuning_spec.mlir"
VMFB = "program.vmfb"
TRIALS = "trials.csv"
PREPROCESSING = "preprocessing_spec.mlir"
UNVERIFIED = "no results were checked (--no-verify): what is faster here may compute something else"
_SPEC_TIMEOUT_S = 300.0
_NOT_SEARCHED = "its variant was compared as a whole and not searched"
# Files that only some results have: those of an earlier one would be taken for this one's.
_STALE = (PREPROCESSING, "program.mlir", "program.mlirbc")


def check_writable(output: Path) -> None:
    """See whether a result folder can be made; asked before the work that it is for.

    A folder that holds anything but an earlier result is refused: nothing of the user's is ever
    overwritten.

    Args:
        output: the folder.

    Raises:
        UserError: It cannot be made there.
    """
    if output.exists():
        if not output.is_dir():
            raise UserError(f"--output: {output} is a file; give a folder that is new or a result")
        if any(output.iterdir()) and not (output / MANIFEST).exists():
            raise UserError(
                f"--output: {output} holds something else than a result of tilewright; "
                "give another folder"
            )
    parent = output if output.exists() else _existing_parent(output)
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UserError(f"--output: cannot write to {parent} ({error.strerror})") from error


def _existing_parent(path: Path) -> Path:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


@dataclass(frozen=True)
class Final:
    """The program to hand back: a company's, or the compiler's default.

    comparison: with the default. changed: the dispatches that the spec configures differently from
    the compiler itself. wrong: '' when its results were found to be those of the default. worst:
    the output that came closest to its bound. compared_with, constant_work: as of the summary.
    """

    company: Company | None
    build: Build
    comparison: Finalist | None = None
    changed: tuple[str, ...] = ()
    wrong: str = ""
    worst: Comparison | None = None
    compared_with: str = ""
    constant_work: Mapping[str, int] | None = None


def finish(programs: Programs, outcome: Outcome, cpu_start: float) -> TuneResult:
    """Choose the program to hand back, prove it and write the result folder.

    Args:
        programs: of the run: compiles and measures the program.
        outcome: what the parts of the run found.
        cpu_start: `time.process_time()` at the begin of the run.

    Returns:
        What the folder's summary says.

    Raises:
        UserError: The folder cannot be written.
    """
    context = programs.context
    with context.phase("finish", "proving the result and writing it out"):
        final = _choose(programs, outcome)
        try:
            return _install(programs, outcome, final, cpu_start)
        except OSError as error:
            raise UserError(
                f"--output: cannot write {error.filename or context.options.output} "
                f"({error.strerror})"
            ) from error


def _install(programs: Programs, outcome: Outcome, final: Final, cpu_start: float) -> TuneResult:
    """Write the result folder, which appears whole. Raises OSError."""
    context = programs.context
    output = context.options.output
    staging = Path(
        tempfile.mkdtemp(prefix=f".{output.name}.", dir=_existing_parent(output.resolve()))
    )
    try:
        one = final.comparison
        took_s = outcome.default_s if one is None else one.measurement.median_s
        runs = measure_ways(programs, final.build, output.absolute() / VMFB, took_s)
        result = _summarise(context, outcome, final, runs, cpu_start)
        evidence = entry_evidence(context, final.company, result.dispatches)
        _write_spec(context, outcome, final, staging / SPEC, evidence)
        assert final.build.vmfb is not None
        shutil.copyfile(final.build.vmfb, staging / VMFB)
        _write_files(programs, outcome, final, result, staging, evidence)
        install_folder(staging, output, _STALE)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    config = context.options.config
    if config is not None and config.output_file is not None:
        write_file(config.output_file, (output / TRIALS).read_bytes())
    return result


def _choose(programs: Programs, outcome: Outcome) -> Final:
    """The fastest of the tuned programs that beats the default's beyond the noise and is proven.

    Where there is none the default is handed back.
    """
    context = programs.context
    rivals = list({c.build.vmfb: c for c in outcome.companies}.values())
    rivals = [c for c in rivals if c.build.vmfb != outcome.default.vmfb]
    rivals += more_rivals(programs, rivals)
    for company, comparison in _faster(programs, outcome, rivals):
        final = _prove(programs, company, comparison)
        if not final.wrong:
            _tell_dispatches(context, company.prepared)
            return final
        context.note(
            f"a tuned program (variant {company.build.variant.name}) is not handed back: "
            f"{final.wrong}",
            warning=True,
        )
    wrong = programs.check(outcome.default)
    if wrong:
        context.note(
            f"the compiler's own program does not give its first results again: {wrong}",
            warning=True,
        )
    return Final(None, outcome.default, wrong=wrong)


def _tell_dispatches(context: RunContext, prepared: PreparedVariant) -> None:
    """Name the dispatches of a variant that was compared as a whole and gone no further with."""
    if prepared.tasks or prepared.skipped:
        return
    try:
        extraction = extract(context, prepared.variant)
    except UserError as error:
        context.note(f"its dispatches cannot be named: {error}", warning=True)
        return
    for dispatch in extraction.dispatches:
        if dispatch.count:
            prepared.skip(dispatch, _NOT_SEARCHED)


def _faster(
    programs: Programs, outcome: Outcome, rivals: Sequence[Company]
) -> list[tuple[Company, Finalist]]:
    """The rivals that beat the default beyond the noise, the fastest first."""
    context = programs.context
    if not rivals:
        return []
    builds = [outcome.default, *(company.build for company in rivals)]
    judged = programs.compare(
        builds, 90.0, 2 * context.options.effort_preset.program_rounds, margin=0.0
    )
    if isinstance(judged, str):
        context.note(f"comparing the tuned programs failed: {judged}", warning=True)
        return []
    outcome.default_s = judged[0].measurement.median_s
    pairs = zip(rivals, judged[1:], strict=True)
    faster = [(company, one) for company, one in pairs if one.verdict is Verdict.FASTER]
    if not faster:
        context.note("no tuned program beats the compiler's default beyond the noise")
    return sorted(faster, key=lambda pair: pair[1].ratio.value)


def _prove(programs: Programs, company: Company, comparison: Finalist) -> Final:
    """See what the company's spec changed, and that its program computes the same.

    A choice whose entry changed nothing in the program is none: it is dropped.
    """
    context = programs.context
    build, entries = company.build, company.entries()
    tested = programs.compare_all_outputs(build)
    worst = max(tested.comparisons, key=lambda one: one.share_of_bound, default=None)
    if not tested.ok or not entries:
        return Final(company, build, comparison, wrong=tested.message, worst=worst)
    claim = Claim(
        programs.program.path,
        context.flags(build.variant),
        programs.folder / "proof",
        entries,
        given=_given(context, build),
        before=company.prepared.configured,
        after=build.configured,
        timeout_s=programs.compile_timeout_s,
    )
    proof = prove(context, claim)
    if isinstance(proof, ProofFailure):
        return Final(company, build, comparison, wrong=proof.message)
    if proof.constant_work:
        packed = ", ".join(f"{name} ({n} times)" for name, n in proof.constant_work.items())
        context.note(
            f"constants are packed or transformed in every call, not ahead: {packed}", warning=True
        )
    missed = proof.missed(entries)
    for task in company.prepared.choosable:
        choice = company.choices.get(task.identity)
        if choice is not None and entry_of(task, choice).name in missed:
            del company.choices[task.identity]
            company.dropped.add(task.identity)
            context.note(f"{task.name}: its entry applies to no dispatch of the program")
    # A dispatch that no entry touched can differ: the compiler does not always choose alike.
    # Where a kernel is, the dispatches are gone that it takes the place of.
    names = {
        entry_of(task, choice).name: task.site.site.dispatches
        for task in company.prepared.choosable
        if (choice := company.choices.get(task.identity)) is not None
        if task.site is not None and task.kernel(choice) is not None
    }
    changed = [
        place
        for one in entries
        if proof.reached.get(one.name)
        for place in names.get(one.name, proof.reached[one.name])
    ]
    return Final(
        company,
        build,
        comparison,
        tuple(dict.fromkeys(changed)),
        worst=worst,
        compared_with=next((one.against for one in tested.comparisons if one.against), ""),
        constant_work=proof.constant_work,
    )


def _given(context: RunContext, build: Build) -> tuple[str, ...]:
    """The flags that name the specs of a build."""
    kernels = build.preprocessing
    own = () if kernels is None else (f"{PREPROCESSING_FLAG}={kernels}",)
    return (f"{context.target.spec_flag}{build.spec}", *own)


def _write_spec(
    context: RunContext,
    outcome: Outcome,
    final: Final,
    path: Path,
    evidence: Mapping[str, EntryEvidence],
) -> None:
    """The spec of the program; one without entries, which changes nothing, where it has none."""
    if final.build.spec is not None:
        _copy_spec(context, final.build.spec, path, evidence)
        return
    own = PreparedVariant(outcome.default.variant, ())
    prepared = final.company.prepared if final.company else own
    (problem,) = write_specs(context, [spec_request(context, prepared, (), path)])
    if problem:
        raise RuntimeError(f"a spec without entries cannot be written: {problem}")


def _copy_spec(
    context: RunContext, spec: Path, path: Path, evidence: Mapping[str, EntryEvidence]
) -> None:
    """A spec as it was compiled with, and what is known of its entries; with a comment where its
    results were not compared."""
    mark = f"// {UNVERIFIED}\n" if context.options.no_verify else ""
    request = EvidenceRequest(spec, path, evidence, mark)
    failed = context.compilers.ask(write_evidence, request, _SPEC_TIMEOUT_S)
    if isinstance(failed, WorkerFailure):
        context.note(f"{path.name} says nothing of its entries: {failed.message}", warning=True)
        path.write_bytes(mark.encode() + spec.read_bytes())


def _summarise(
    context: RunContext,
    outcome: Outcome,
    final: Final,
    runs: tuple[RunSummary, ...],
    cpu_start: float,
) -> TuneResult:
    default_ms = outcome.default_s * 1e3
    tuned_ms, speedup, interval = default_ms, 1.0, (1.0, 1.0)
    if final.comparison is not None:
        found = final.comparison.speedup
        tuned_ms = default_ms / found.value
        speedup, interval = found.value, (found.low, found.high)
    wall_s = time.monotonic() - context.started
    context.phase_s["main_process_cpu"] = time.process_time() - cpu_start
    return TuneResult(
        program=ProgramSummary(
            default_ms=default_ms,
            tuned_ms=tuned_ms,
            speedup=speedup,
            speedup_ci=interval,
            verified=not (final.wrong or context.options.no_verify),
            variant=final.build.variant.name,
            variants=dict(outcome.variants),
            largest_error=final.worst.error if final.worst is not None else None,
            allowed_error=final.worst.tolerance if final.worst is not None else None,
            compared_with=final.compared_with,
            constant_work=None if final.constant_work is None else dict(final.constant_work),
            model_run_by=outcome.model.by if outcome.model else "",
            model_error=outcome.model.error if outcome.model else None,
        ),
        dispatches=tables.dispatch_summaries(outcome, final.company),
        trials_total=context.store.count_trials(context.run_id),
        wall_s=wall_s,
        phase_s={k: round(v, 3) for k, v in context.phase_s.items()},
        output=context.options.output,
        changed=final.changed,
        notes=tuple(context.notes),
        interrupted=context.stopping,
        runs=runs,
    )


def _write_files(
    programs: Programs,
    outcome: Outcome,
    final: Final,
    result: TuneResult,
    staging: Path,
    evidence: Mapping[str, EntryEvidence],
) -> None:
    context = programs.context
    program = context.program
    destination = context.options.output.absolute()
    source = program.path.absolute()
    if program.path.absolute() != program.source.absolute():
        source = destination / f"program{program.path.suffix}"
        shutil.copyfile(program.path, staging / source.name)
    for _, path in program.parameters:
        shutil.copyfile(path, staging / Path(path).name)
    variant_flags = final.build.as_compiled(context.options.iree_flags).flags
    preprocessing = preprocessing_spec(variant_flags)
    if preprocessing is not None:
        _copy_spec(context, Path(preprocessing), staging / PREPROCESSING, evidence)
        variant_flags = relocate_preprocessing(variant_flags, destination / PREPROCESSING)
    variant = replace(final.build.variant, flags=variant_flags)
    flags = (*context.flags(variant), f"{context.target.spec_flag}{destination / SPEC}")
    command = programs.toolchain.command_line(source, destination / VMFB, flags)
    marks = [UNVERIFIED] if context.options.no_verify else []
    told = [command, *(f"# {line}" for line in (*marks, *lines(result.runs)))]
    (staging / "command.txt").write_text("\n".join(told) + "\n")
    (staging / SUMMARY).write_text(json.dumps(result.to_json(), indent=2) + "\n")
    tables.write_trials(context, outcome, staging / TRIALS)
    (staging / "run.log").write_text(tables.run_log(context, outcome, result))
    manifest = {
        "versions": versions(),
        "compiler": context.compiler_version,
        "flags": list(flags),
        "target": context.target.key,
        "machine": machine.describe().to_json(),
        "measured_on": None if context.measured_on is None else context.measured_on.to_json(),
        "seed": context.options.seed,
        "options": context.options.to_json(),
        "program": {
            "source": str(program.source.absolute()),
            "path": str(source),
            "digest": program.digest,
            "function": programs.function,
            "runtime_parameters": parameter_flags(context),
        },
        "variant": final.build.variant.name,
        "variant_flags": list(variant_flags),
        "run": context.run_id,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=2, default=str) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a result folder.

    Args:
        folder: of an earlier run.

    Returns:
        What its manifest.json holds.

    Raises:
        UserError: There is none that can be read.
    """
    try:
        data: dict[str, Any] = parse_json((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a result folder of tilewright ({error})") from error
    return data
