"""What a run begins with that others have found: specs that are given, and libraries of specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import words
from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.sketch.spec_tasks import report_on_file
from tilewright.space.generators import dispatch_space
from tilewright.space.interface import Space
from tilewright.spec.report import SpecReport
from tilewright.store.column_values import configuration_from_json
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.trial import Configuration
from tilewright.tuning.context import RunContext
from tilewright.tuning.outputs import PREPROCESSING, SPEC, SUMMARY
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.spec_library import OTHER, open_library
from tilewright.tuning.worker_tasks import parse_module
from tilewright.workload import Workload

IREE_DEFAULTS = "iree"
"""What `--start-spec` calls the specs that come with the compiler."""

_DECIDED = ("tuned", "reused", "default kept", "dropped in company")
_ENABLE_DEFAULTS = "--iree-codegen-enable-default-tuning-specs"
_TUNER_FLAG = "--iree-codegen-add-tuner-attributes"
_TIMEOUT_S = 300.0
_COMPILE_TIMEOUT_S = 1800.0

Suggestions = dict[str, list[Configuration]]
"""Configurations by the key of the workload that they are for."""


def suggestions(context: RunContext, prepared: PreparedVariant) -> Suggestions:
    """What is to be tried first, from `--start-spec` and `--library`.

    Args:
        context: the run, which is told what was found.
        prepared: the tasks of the program's default variant.

    Returns:
        For each workload configurations in the order in which they are tried; whether a space has
        them is for others to see.

    Raises:
        UserError: a spec or a library cannot be read.
    """
    found: Suggestions = {}
    for given in context.options.start_spec:
        for name, wanted in _of_spec(context, prepared, given):
            found.setdefault(name, []).append(wanted)
    if context.options.library is not None:
        _from_library(context, prepared, context.options.library, found)
    return found


def settled(context: RunContext) -> frozenset[str]:
    """The workloads that `--keep-start` leaves as an earlier run decided on them.

    Args:
        context: the run.

    Returns:
        Keys of the workloads that the result folders of `--start-spec` have tuned.

    Raises:
        UserError: no such folder is given, or it cannot be read.
    """
    if not context.options.keep_start:
        return frozenset()
    folders = [Path(given) for given in context.options.start_spec if Path(given).is_dir()]
    if not folders:
        raise UserError(
            "--keep-start: give the result folder that it is about with --start-spec DIR"
        )
    found: set[str] = set()
    for folder in folders:
        try:
            summary = parse_json((folder / SUMMARY).read_text())
            rows = [row for row in summary["dispatches"] if row["status"] in _DECIDED]
            found |= {str(row["key"]) for row in rows}
            found |= {str(row["key"]) for row in summary["dispatches"] if row["dispatches"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / SUMMARY}: cannot read it ({error})") from error
    return frozenset(found)


def _of_spec(
    context: RunContext, prepared: PreparedVariant, given: str
) -> Iterator[tuple[str, Configuration]]:
    """Workloads with what a spec has for them."""
    if given == IREE_DEFAULTS:
        found = _by_its_effect(context, prepared, (_ENABLE_DEFAULTS,), "IREE's own specs")
        context.note(f"IREE's own specs configure {words.plural(len(found), 'workload')} here")
        yield from found
        return
    path = Path(given)
    files = [path / SPEC, path / PREPROCESSING] if path.is_dir() else [path]
    there = [file for file in files if file.is_file()]
    if not there:
        raise UserError(
            f"--start-spec: {given}: there is no such spec or result folder; give one, or "
            f"'{IREE_DEFAULTS}' for the specs that come with the compiler"
        )
    spaces: dict[str, list[Space]] = {}
    for task in prepared.tasks:
        spaces.setdefault(task.workload.key, []).append(task.restricted)
    for file in there:
        report: SpecReport = context.run(report_on_file, file, _TIMEOUT_S)
        known = list(_known(report))
        others = len(report.entries) - len(known)
        if others and not report.is_preprocessing:
            # Somebody else's: what it does to this program is what it has to say.
            flag = f"{context.target.spec_flag}{file}"
            known += _by_its_effect(context, prepared, (flag,), str(file))
        fitting = [
            (key, wanted)
            for key, wanted in known
            if any(space.contains(wanted) for space in spaces.get(key, ()))
        ]
        yield from fitting
        if report.entries:
            context.note(
                f"{file}: {words.plural(len(report.entries), 'entry', 'entries')}, of which "
                f"{len(fitting)} for this program: they are tried first"
            )


def _known(report: SpecReport) -> Iterator[tuple[str, Configuration]]:
    """Workloads with configurations, as far as a spec says what its entries are for."""
    for one in report.evidence.values():
        knobs = one.knobs()
        if knobs:
            try:
                yield one.operator, configuration_from_json(knobs)
            except ValueError:
                continue


def _from_library(
    context: RunContext, prepared: PreparedVariant, place: str, found: Suggestions
) -> None:
    """Look the workloads up in a library, and say how what there is fits."""
    library = open_library(place)
    counts: dict[str, int] = {}
    for task in prepared.tasks:
        hits = library.find(task.workload.key, context.target.key, context.measured_on)
        how = "for nothing like it"
        if hits:
            fits = hits[0].fit
            how = f"for {fits.how}" + (f" (hints only: {fits.why})" if fits.why else "")
            if fits.how == OTHER:
                how = f"refused ({fits.why})"
        counts[how] = counts.get(how, 0) + 1
        for hit in hits:
            if hit.fit.how != OTHER and (knobs := hit.evidence.knobs()):
                found.setdefault(task.workload.key, []).append(configuration_from_json(knobs))
    told = ", ".join(f"{number} {how}" for how, number in sorted(counts.items()))
    context.note(f"library {place}: of {words.plural(len(prepared.tasks), 'workload')} {told}")


def _by_its_effect(
    context: RunContext, prepared: PreparedVariant, flags: Sequence[str], what: str
) -> list[tuple[str, Configuration]]:
    """What a spec makes of the program's dispatches, in the knobs of their spaces."""
    output = context.work / "suggested.mlir"
    outcome = context.toolchain.compile(
        context.program.path,
        output,
        (*context.flags(), _TUNER_FLAG, *flags, f"--compile-to={CONFIGURED_PHASE}"),
        timeout_s=_COMPILE_TIMEOUT_S,
    )
    if not outcome.ok:
        raise UserError(f"--start-spec: the program does not compile with {what}: {outcome.error}")
    tasks = [task for task in prepared.tasks if task.template is not None]
    places = tuple((task.dispatch.executable, task.name) for task in tasks)
    request = ConfiguredRequest(output, context.flags(), places)
    read = context.run(read_configured, request, _TIMEOUT_S)
    found = []
    for task in tasks:
        # The key is another one: what a spec runs before it matches changes the ops.
        if (facts := read.get(task.name)) is None or facts[1].name != task.workload.name:
            continue
        chosen = _as_configuration(*facts, task.target)
        if chosen is not None and chosen != task.space.default:
            found.append((task.workload.key, chosen))
    return found


def _as_configuration(
    template: DispatchTemplate, workload: Workload, target: Target
) -> Configuration | None:
    """What a dispatch has been configured with, in the knobs of its space."""
    space = dispatch_space(template, workload, target)
    return None if space is None else space.default


# In the workers


@dataclass(frozen=True)
class ConfiguredRequest:
    """Read dispatches, each an executable and its entry point, of a configured program."""

    program: Path
    flags: tuple[str, ...]
    places: tuple[tuple[str, str], ...]


def read_configured(
    state: WorkerState, request: ConfiguredRequest
) -> dict[str, tuple[DispatchTemplate, Workload]]:
    """Task: see ConfiguredRequest.

    Args:
        state: the worker's.
        request: which dispatches.

    Returns:
        Template and workload by entry point, of those that can be read.
    """
    from tilewright.ir.lowering import UnreadableConfiguration
    from tilewright.ir.template import dispatch_functions, read_dispatch

    module = parse_module(session(state, request.flags), request.program.read_bytes())
    there = dispatch_functions(module)
    found = {}
    for executable, entry in request.places:
        if f"{executable}/{entry}" not in there:
            continue
        try:
            read = read_dispatch(module, executable, entry)
        except UnreadableConfiguration:
            continue
        found[entry] = (read.template, read.workload)
    return found
