"""The end of a run: choose the program to hand back, prove it, and write the result folder."""

from __future__ import annotations

import filecmp
import json
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import UserError
from tilewright.measure import machine
from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.statistics import Verdict
from tilewright.toolchain import versions
from tilewright.tuning import tables
from tilewright.tuning.company import Company, write_spec
from tilewright.tuning.context import RunContext
from tilewright.tuning.install import install_folder
from tilewright.tuning.programs import Build, BuildRequest, Programs
from tilewright.tuning.result import ProgramSummary, TuneResult
from tilewright.tuning.variants import preprocessing_spec, relocate_preprocessing
from tilewright.tuning.worker_tasks import (
    CONFIGURED,
    AppliedChange,
    AppliedRequest,
    read_applied,
)

if TYPE_CHECKING:
    from tilewright.ir.program import Program
    from tilewright.tuning.outcome import Outcome

MANIFEST = "manifest.json"
SPEC = "tuning_spec.mlir"
VMFB = "program.vmfb"
PREPROCESSING = "preprocessing_spec.mlir"
_PROGRAM_TIMEOUT_S = 900.0
# Files that only some results have: those of an earlier one would be taken for this one's.
_STALE = (PREPROCESSING, "program.mlir", "program.mlirbc")


def check_writable(output: Path) -> None:
    """Raises UserError when a result folder cannot be made there.

    A folder that holds anything but an earlier result is refused: nothing of the user's is ever
    overwritten.
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
    """The program to hand back: with the spec of a company, or a variant alone."""

    company: Company | None
    build: Build
    comparison: Finalist | None


def finish(
    context: RunContext, program: Program, programs: Programs, outcome: Outcome, cpu_start: float
) -> TuneResult:
    """Choose, prove, write. Raises RuntimeError when a spec with entries changes nothing."""
    with context.phase("finish", "proving the result and writing it out"):
        staging = Path(
            tempfile.mkdtemp(
                prefix=f".{context.options.output.name}.",
                dir=_existing_parent(context.options.output.resolve()),
            )
        )
        try:
            final = _choose(context, programs, outcome)
            spec = _write_spec(context, outcome, final, staging / SPEC)
            build, changes = _prove(context, programs, final, spec)
            comparison = _measure(context, programs, outcome, final, build)
            result = _summarise(context, outcome, final, comparison, changes, cpu_start)
            assert build.vmfb is not None
            shutil.copyfile(build.vmfb, staging / VMFB)
            _write_files(context, program, programs, outcome, final, result, staging)
            install_folder(staging, context.options.output, _STALE)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    return result


def _choose(context: RunContext, programs: Programs, outcome: Outcome) -> Final:
    """The fastest of the tuned programs, if it beats the default's beyond the noise."""
    default = outcome.default
    rivals = [
        (company, company.build)
        for company in outcome.companies
        if company.build is not None and company.build.vmfb != default.vmfb
    ]
    if not rivals:
        return Final(None, default, None)
    judged = programs.compare(
        [default, *(build for _, build in rivals)], _policy(context), _PROGRAM_TIMEOUT_S
    )
    if isinstance(judged, str):
        context.note(f"comparing the tuned programs failed: {judged}", warning=True)
        return Final(None, default, None)
    best = min(range(len(rivals)), key=lambda i: judged[i + 1].ratio.value)
    outcome.default_s = judged[0].measurement.median_s
    if judged[best + 1].verdict is not Verdict.FASTER:
        context.note("no tuned program beats the compiler's default beyond the noise")
        return Final(None, default, judged[best + 1])
    company, build = rivals[best]
    return Final(company, build, judged[best + 1])


def _policy(context: RunContext) -> ComparisonPolicy:
    return ComparisonPolicy(
        rounds=2 * context.options.effort_preset.program_rounds,
        max_s=90.0,
        min_sample_s=0.02,
        margin=0.0,
        seed=context.options.seed,
    )


def _write_spec(context: RunContext, outcome: Outcome, final: Final, path: Path) -> Path:
    """The spec of the chosen program; without entries when nothing is tuned."""
    prepared = final.company.prepared if final.company else outcome.prepared[0]
    chosen = final.company.tuned() if final.company else []
    header = (
        ("target", context.target.key),
        ("compiler", context.compiler_version),
        ("variant", final.build.variant.name),
    )
    return write_spec(context, prepared, chosen, path, header)


def _prove(
    context: RunContext, programs: Programs, final: Final, spec: Path
) -> tuple[Build, tuple[AppliedChange, ...]]:
    """Compile with the very spec, list what it changed, compare the outputs.

    A spec with entries that changes no dispatch is an error: it was not applied.
    """
    entries = final.company.tuned() if final.company else []
    variant = final.build.variant
    build = programs.build(BuildRequest("final", variant, spec))
    if not build.ok:
        raise RuntimeError(f"the program does not compile with the tuning spec: {build.error}")
    wrong = programs.check(build, _PROGRAM_TIMEOUT_S)
    if wrong:
        raise RuntimeError(f"the program computes something else with the tuning spec: {wrong}")
    changes = applied_changes(context, programs, build)
    if entries and not changes:
        raise RuntimeError("the tuning spec has entries but changed no dispatch of the program")
    return build, changes


def applied_changes(
    context: RunContext, programs: Programs, build: Build
) -> tuple[AppliedChange, ...]:
    """Which dispatches the build's spec configures differently from the compiler itself."""
    assert build.spec is not None
    paths = []
    for name, spec in (("before", None), ("after", build.spec)):
        path = programs.folder / f"proof_{name}.mlir"
        outcome = programs.toolchain.compile(
            programs.program.path,
            path,
            (*programs.flags(build.variant, spec), f"--compile-to={CONFIGURED}"),
            timeout_s=programs.compile_timeout_s,
        )
        if not outcome.ok:
            raise RuntimeError(f"the program does not compile {name} tuning: {outcome.error}")
        paths.append(path)
    request = AppliedRequest(paths[0], paths[1], programs.flags(build.variant))
    changes = context.compilers.ask(read_applied, request, 120)
    if isinstance(changes, WorkerFailure):
        raise RuntimeError(f"the proof that the spec applied failed: {changes.message}")
    # A dispatch that no entry touched can differ: the compiler does not always choose alike.
    return tuple(change for change in changes if change.entry)


def _measure(
    context: RunContext, programs: Programs, outcome: Outcome, final: Final, build: Build
) -> Finalist | None:
    """The time before and after, interleaved, of the programs that are handed back.

    The comparison that chose the program serves when the shipped one is the same, byte by byte.
    """
    if final.company is None:
        return None
    assert build.vmfb is not None
    assert final.build.vmfb is not None
    if final.comparison is not None and filecmp.cmp(build.vmfb, final.build.vmfb, shallow=False):
        return final.comparison
    judged = programs.compare([outcome.default, build], _policy(context), _PROGRAM_TIMEOUT_S)
    if isinstance(judged, str):
        context.note(f"the last comparison failed: {judged}", warning=True)
        return final.comparison
    outcome.default_s = judged[0].measurement.median_s
    return judged[1]


def _summarise(
    context: RunContext,
    outcome: Outcome,
    final: Final,
    comparison: Finalist | None,
    changes: tuple[AppliedChange, ...],
    cpu_start: float,
) -> TuneResult:
    default_ms = outcome.default_s * 1e3
    tuned_ms, speedup, interval = default_ms, 1.0, (1.0, 1.0)
    if comparison is not None and final.company is not None:
        found = comparison.speedup
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
            verified=True,
            variant=final.build.variant.name,
            variants=dict(outcome.variants),
        ),
        dispatches=tables.dispatch_summaries(outcome, final.company),
        trials_total=context.store.count_trials(context.run_id),
        wall_s=wall_s,
        phase_s={k: round(v, 3) for k, v in context.phase_s.items()},
        output=context.options.output,
        changed=tuple(c.function for c in changes),
        notes=tuple(context.notes),
        interrupted=context.stopping,
    )


def _write_files(
    context: RunContext,
    program: Program,
    programs: Programs,
    outcome: Outcome,
    final: Final,
    result: TuneResult,
    staging: Path,
) -> None:
    destination = context.options.output.absolute()
    source = program.path.absolute()
    if program.path.absolute() != program.source.absolute():
        source = destination / f"program{program.path.suffix}"
        shutil.copyfile(program.path, staging / source.name)
    parameters = []
    for scope, path in program.parameters:
        shutil.copyfile(path, staging / Path(path).name)
        parameters.append(f"--parameters={scope}={destination / Path(path).name}")
    parameters += [f"--parameters={p.scope}={p.path}" for p in context.options.parameters]
    variant_flags = final.build.variant.flags
    preprocessing = preprocessing_spec(variant_flags)
    if preprocessing is not None:
        shutil.copyfile(preprocessing, staging / PREPROCESSING)
        variant_flags = relocate_preprocessing(variant_flags, destination / PREPROCESSING)
    variant = replace(final.build.variant, flags=variant_flags)
    flags = (*programs.flags(variant), f"{context.target.spec_flag}{destination / SPEC}")
    command = programs.toolchain.command_line(source, destination / VMFB, flags)
    (staging / "command.txt").write_text(command + "\n")
    (staging / "summary.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    tables.write_trials(context, outcome, staging / "trials.csv")
    if context.options.config is not None and context.options.config.output_file is not None:
        tables.write_trials(context, outcome, context.options.config.output_file)
    (staging / "run.log").write_text(tables.run_log(context, outcome, result))
    manifest = {
        "versions": versions(),
        "compiler": context.compiler_version,
        "flags": list(flags),
        "target": context.target.key,
        "machine": machine.describe().to_json(),
        "seed": context.options.seed,
        "options": context.options.to_json(),
        "program": {
            "source": str(program.source.absolute()),
            "path": str(source),
            "digest": program.digest,
            "function": programs.function,
            "runtime_parameters": parameters,
        },
        "variant": final.build.variant.name,
        "variant_flags": list(variant_flags),
        "run": context.run_id,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=2, default=str) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a result folder. Raises UserError when there is none that can be read."""
    try:
        data: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a result folder of tilewright ({error})") from error
    return data
