"""From a variant of a program to tasks: dispatches grouped by workload, each with its space."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.errors import UserError
from tilewright.ir.program import choose_function
from tilewright.ir.signature import demotes_f64
from tilewright.measure.inputs import argument_sizes
from tilewright.measure.jobs import Job, JobRunner, Result, WorkerFailure
from tilewright.site import Site, free_name
from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.store import TaskKey
from tilewright.target import Target
from tilewright.tuning.extract_tasks import (
    ConfigureRequest,
    DispatchFacts,
    ExtractedDispatch,
    Extraction,
    ExtractRequest,
    configure_dispatch,
    extract_dispatches,
)
from tilewright.tuning.kernel_sites import (
    SiteFacts,
    TunableSite,
    find_kernel_sites,
    sites_folder,
)
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.programs import program_inputs
from tilewright.tuning.restriction import FileRestrictions
from tilewright.tuning.task import DispatchTask, identity, repeats_for, rotations_for
from tilewright.tuning.variants import (
    DEFAULT_VARIANT,
    PREPROCESSING_FLAG,
    Variant,
    flags_key,
    kernels_key,
    preprocessing_spec,
    without_preprocessing,
)
from tilewright.workload import Workload

_EXTRACT_TIMEOUT_S = 1800.0
_LEFT_OUT = "left out by --only"
NO_KERNEL = "no kernel of our own can be made for it"


@dataclass
class Skipped:
    """A dispatch that is not tuned, and why."""

    name: str
    count: int
    reason: str
    workload: str = ""


@dataclass
class PreparedVariant:
    """The dispatches of a program as one variant compiles it, and the sites that kernels of our own
    can compute. `restrictions`: what a configuration file leaves of their spaces."""

    variant: Variant
    flags: tuple[str, ...]
    tasks: list[DispatchTask] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    sites: tuple[SiteFacts, ...] = ()
    restrictions: FileRestrictions = field(default_factory=FileRestrictions)

    def skip(self, dispatch: ExtractedDispatch, reason: str, workload: str = "") -> None:
        """Leave a dispatch out.

        Args:
            dispatch: the dispatch.
            reason: why, in words.
            workload: its workload's name, where that is known.
        """
        self.skipped.append(Skipped(dispatch.entry, dispatch.count, reason, workload))

    @property
    def kinds(self) -> set[str]:
        return {task.workload.kind for task in self.tasks}

    def parts_of(self, task: DispatchTask) -> list[DispatchTask]:
        """The tasks of the dispatches that a task is of together; none for one dispatch.

        They can have other dispatches besides.

        Args:
            task: one of its tasks.
        """
        if not task.is_chain or task.site is None:
            return []
        covered = set(task.site.site.dispatches)
        return [one for one in self.tasks if not one.is_chain and not covered.isdisjoint(one.names)]

    def padded(self, part: DispatchTask) -> DispatchTask | None:
        """The site that a dispatch computes together with what fills and pads its data.

        Args:
            part: the dispatch's task, whose time is without that.

        Returns:
            The site's task; None where nothing is padded.
        """
        found = (
            one
            for one in self.tasks
            if one.is_chain and one.site is not None and one.site.is_padded_dispatch
            if not set(one.site.site.dispatches).isdisjoint(part.names)
        )
        return next(found, None)

    def padding_s(self, part: DispatchTask) -> float:
        """Seconds that filling and padding its data take beside a dispatch, by the defaults.

        Args:
            part: the dispatch's task.
        """
        padded = self.padded(part)
        whole = 0.0 if padded is None else padded.default_s or 0.0
        return max(0.0, whole - (part.default_s or 0.0))


def nothing_to_tune(
    source: Path, prepared: Sequence[PreparedVariant], only: str | None
) -> UserError:
    """What to say of a program without tasks in any of its variants.

    Args:
        source: the user's file.
        prepared: the variants that were tried.
        only: what a dispatch's name must have in it, if the user said so.

    Returns:
        The error to raise.
    """
    skipped = [one for each in prepared for one in each.skipped]
    if not skipped:
        return UserError(
            f"{source}: no tunable dispatch: the program runs no kernels (what it computes is "
            "known at compile time, or it hands its arguments back)"
        )
    if all(one.reason == NO_KERNEL for one in skipped):
        return UserError(f"{source}: --kernels only: no kernel of our own can be made for it")
    if all(one.reason == _LEFT_OUT for one in skipped):
        names = ", ".join(dict.fromkeys(one.name for one in skipped))
        return UserError(
            f"--only: '{only}' is in no dispatch's name: no tunable dispatch ({names})"
        )
    reasons = sorted({one.reason for one in skipped})
    return UserError(f"{source}: no tunable dispatch ({'; '.join(reasons)})")


def extract(
    opened: OpenProgram, variant: Variant = DEFAULT_VARIANT, sites: bool = False
) -> Extraction:
    """Compile a program to its dispatches, and note what the compiler makes of its types.

    Args:
        opened: the program; its target learns what the compiler knows of the processor.
        variant: as which it is compiled.
        sites: find its sites as well, where kernels are tried: that takes no compile of its own.

    Returns:
        The dispatches, each in a file of the variant's folder.

    Raises:
        UserError: it does not compile; with the compiler's line.
    """
    job = extraction_job(opened, variant)
    if sites and _no_kernels(opened) is None:
        both = replace(job.request, sites=sites_folder(opened, variant))
        extraction = opened.compilers.ask(job.task, both, _EXTRACT_TIMEOUT_S)
        if not isinstance(extraction, WorkerFailure):
            return learn(opened, extraction)
        # What ails the one shall not cost the other.
    return learn(opened, opened.run(job.task, job.request, _EXTRACT_TIMEOUT_S))


def extraction_job(
    opened: OpenProgram, variant: Variant = DEFAULT_VARIANT
) -> Job[ExtractRequest, Extraction]:
    """What `extract` asks a worker, for who asks it of many programs at once.

    Args:
        opened: the program.
        variant: as which it is compiled.

    Returns:
        The job; the program is its tag, which `learn` is to be given with the answer.
    """
    program = opened.program
    request = ExtractRequest(
        program.path,
        opened.flags(variant),
        opened.work / variant.name,
        program.functions,
        opened.options.function,
        opened.arguments,
    )
    return Job(extract_dispatches, request, _EXTRACT_TIMEOUT_S, tag=opened)


def learn(opened: OpenProgram, extraction: Extraction) -> Extraction:
    """Take over what compiling a program told of the processor, and note what it made of types.

    Args:
        opened: the program.
        extraction: the answer to its `extraction_job`.

    Returns:
        The extraction.
    """
    opened.target = opened.target.with_vectors(*extraction.processor)
    _note_demotion(opened, extraction)
    return extraction


def _note_demotion(opened: OpenProgram, extraction: Extraction) -> None:
    """Say once that IREE computes in f32 what the program has in f64."""
    text = (
        "IREE compiles the program's f64 as f32 unless told otherwise "
        "(--iree-flag=--iree-input-demote-f64-to-f32=false)"
    )
    compiled = extraction.signatures.items()
    known = opened.program.functions
    demoted = any(demotes_f64(known.get(name), one) for name, one in compiled)
    if demoted and text not in opened.notes:
        opened.note(text)


def use_given_arguments(opened: OpenProgram) -> None:
    """Where the user gave inputs, the program's arguments have their sizes.

    Args:
        opened: the program, before it is taken apart.

    Raises:
        UserError: it does not compile, or the inputs are not its arguments.
    """
    if opened.options.inputs:
        extraction = extract(opened)
        name = choose_function(extraction.signatures, opened.options.function)
        signature, folder = extraction.signatures[name], opened.work / "inputs"
        inputs = program_inputs(opened.options, signature, extraction.limits, folder)
        opened.arguments = argument_sizes(inputs)


def take_apart(opened: OpenProgram, variant: Variant = DEFAULT_VARIANT) -> PreparedVariant:
    """The dispatches of a program as a variant compiles it: `extract`, then `read_tasks`.

    Args:
        opened: the program.
        variant: as which it is compiled.

    Returns:
        The tasks, and the dispatches that are none.

    Raises:
        UserError: it does not compile.
    """
    return read_tasks(opened, extract(opened, variant, sites=True), variant)


def read_tasks(
    opened: OpenProgram, extraction: Extraction, variant: Variant = DEFAULT_VARIANT
) -> PreparedVariant:
    """Read every dispatch's workload, template and space; equal workloads become one task.

    Args:
        opened: the program.
        extraction: its dispatches, as `extract` found them.
        variant: as which it was compiled.

    Returns:
        The tasks, and the dispatches that are none.
    """
    return read_all_tasks([(opened, extraction)], variant)[0]


def read_all_tasks(
    extracted: Sequence[tuple[OpenProgram, Extraction]], variant: Variant = DEFAULT_VARIANT
) -> list[PreparedVariant]:
    """`read_tasks` of several programs with the same workers, who have all of them at once.

    Args:
        extracted: the programs, each with its dispatches.
        variant: as which they were compiled.

    Returns:
        What was read of each.
    """
    found = []
    jobs: list[Job[ConfigureRequest, DispatchFacts]] = []
    for opened, extraction in extracted:
        flags = without_preprocessing(opened.flags(variant))
        prepared = PreparedVariant(
            variant,
            flags,
            sites=_sites(opened, variant, extraction.sites),
            restrictions=FileRestrictions(opened.options.config),
        )
        wanted = _select(opened, extraction, prepared)
        for d in wanted:
            request = ConfigureRequest(d, flags, constraints=opened.target.is_gpu)
            jobs.append(Job(configure_dispatch, request, 120.0, tag=d))
        found.append((opened, prepared, len(wanted)))
    results = iter(_configured(extracted[0][0].compilers, jobs) if jobs else ())
    for opened, prepared, count in found:
        by_workload: dict[str, DispatchTask] = {}
        for result in itertools.islice(results, count):
            _add(opened, prepared, by_workload, result)
        for facts in prepared.sites:
            if facts.tunable is not None:
                _add_chain(opened, prepared, by_workload, facts.tunable)
        prepared.tasks = list(by_workload.values())
        _note_restrictions(opened, prepared)
    return [prepared for _, prepared, _ in found]


def _note_restrictions(opened: OpenProgram, prepared: PreparedVariant) -> None:
    """Say what a configuration file does not do; an error where it cannot be met. Other variants
    may make other loops of the same ops, which the file is not about."""
    if prepared.variant.name == DEFAULT_VARIANT.name:
        prepared.restrictions.check()
    for text in prepared.restrictions.notes:
        if text not in opened.notes:
            opened.note(text)


def _sites(
    opened: OpenProgram, variant: Variant, known: tuple[Site, ...] | None
) -> tuple[SiteFacts, ...]:
    """The sites that kernels of our own are tried for; none where they are not, which is said."""
    why = _no_kernels(opened)
    if why is None:
        return find_kernel_sites(opened, variant, known)
    if why and why not in opened.notes:
        opened.note(why)
    return ()


def _no_kernels(opened: OpenProgram) -> str | None:
    """Why no kernels of our own are tried, '' where the user does not want any; None where they
    are."""
    if opened.options.kernels == "off":
        return ""
    if opened.target.is_gpu:
        return "kernels of our own are for CPUs: for this target the compiler's are tuned alone"
    config = opened.options.config
    if config is not None and config.restricts and opened.options.kernels == "on":
        return f"{config.path} restricts the search: kernels of our own are left out"
    if preprocessing_spec(opened.options.iree_flags) is not None:
        return (
            f"--iree-flag={PREPROCESSING_FLAG}=... takes the place of the spec that kernels of "
            "our own need: they are left out"
        )
    return None


def _configured(
    compilers: JobRunner, jobs: Sequence[Job[ConfigureRequest, DispatchFacts]]
) -> list[Result[DispatchFacts]]:
    """The results of the jobs. IREE 3.13 crashes where it states the constraints of some products
    (batch_matmul on ROCm): those are read without them."""
    results = compilers.run(jobs)
    again = {
        i: replace(r.job, request=replace(r.job.request, constraints=False))
        for i, r in enumerate(results)
        if r.failure is not None and r.failure.kind == "crashed" and r.job.request.constraints
    }
    if again:
        for i, result in zip(again, compilers.run(again.values()), strict=True):
            results[i] = result
    return results


def _select(
    opened: OpenProgram, extraction: Extraction, prepared: PreparedVariant
) -> list[ExtractedDispatch]:
    wanted = []
    for dispatch in extraction.dispatches:
        if dispatch.count == 0:
            continue
        if dispatch.isolated is None:
            prepared.skip(dispatch, dispatch.reason)
        elif not opened.options.selects(dispatch.entry):
            prepared.skip(dispatch, _LEFT_OUT)
        else:
            wanted.append(dispatch)
    return wanted


def _add(
    opened: OpenProgram,
    prepared: PreparedVariant,
    by_workload: dict[str, DispatchTask],
    result: Result[DispatchFacts],
) -> None:
    dispatch: ExtractedDispatch = result.job.tag
    if result.failure is not None:
        prepared.skip(dispatch, f"does not compile alone: {result.failure.message}")
        return
    info = result.value
    target = opened.target.with_vectors(*info.processor)
    if info.differs:
        opened.note(f"{dispatch.entry} is not tuned: {info.reason}", warning=True)
    if info.workload is None or info.template is None:
        prepared.skip(dispatch, info.reason)
        return
    site = _site_of(prepared, dispatch)
    known = by_workload.get(identity(info.workload, site))
    if known is not None:
        known.names.append(dispatch.entry)
        known.count += dispatch.count
        return
    alone = opened.options.kernels == "only" and not target.is_gpu
    space = dispatch_space(
        info.template, info.workload, target, site.spaces if site else None, alone
    )
    if space is None:
        reason = f"no search space for pipeline {info.template.translation.pipeline}"
        if not info.workload.is_static:
            reason = "a size that is known at run time only"
        elif alone:
            reason = NO_KERNEL
        prepared.skip(dispatch, reason, info.workload.name)
        return
    task = _task(opened, prepared, dispatch, info.workload, space, target, site)
    task.template = info.template
    if target.is_gpu:
        size = info.workload.bytes
        task.rotations = rotations_for(size, target.l2_bytes, task.repeats)
    by_workload[task.identity] = task


def _site_of(prepared: PreparedVariant, dispatch: ExtractedDispatch) -> TunableSite | None:
    """The site that the dispatch alone computes, and no less; of several the one that runs most."""
    found = [
        one.tunable
        for one in prepared.sites
        if one.tunable is not None and one.site.dispatches == (dispatch.entry,)
        if not one.tunable.pads
    ]
    return max(found, key=lambda one: one.site.count, default=None)


def _add_chain(
    opened: OpenProgram,
    prepared: PreparedVariant,
    by_workload: dict[str, DispatchTask],
    tunable: TunableSite,
) -> None:
    """A task of its own for a site that is not just what a tuned dispatch computes.

    It is of several dispatches, or of one that is not tuned, that computes another site as well, or
    that gets its data padded.
    """
    site = tunable.site
    alone = [task.site for task in by_workload.values() if not task.is_chain]
    if any(one is not None and one.digest == tunable.digest for one in alone):
        return
    if not any(map(opened.options.selects, (site.name, *site.dispatches))):
        return
    name = f"{site.name}_and_padding" if tunable.is_padded_dispatch else site.name
    # A dispatch that two sites use is called as one of them; its task may have the other's kernels.
    name = free_name(name, {one for task in by_workload.values() for one in task.names})
    dispatch = ExtractedDispatch("", name, site.count, site.module)
    workload = tunable.workload
    space = dispatch_space(None, workload, opened.target, tunable.spaces)
    if space is not None:
        target = opened.target
        task = _task(opened, prepared, dispatch, workload, space, target, tunable)
        by_workload.setdefault(task.identity, task)


def _task(
    opened: OpenProgram,
    prepared: PreparedVariant,
    dispatch: ExtractedDispatch,
    workload: Workload,
    space: DispatchSpace,
    target: Target,
    site: TunableSite | None,
) -> DispatchTask:
    """A task for a dispatch, or for a site of several; the caller knows the template."""
    # The flags, besides the target's, that decide which code is made.
    decisive = (*without_preprocessing(prepared.variant.flags), *opened.options.iree_flags)
    if opened.options.no_verify:
        # What was not checked is not taken over by a run that checks.
        decisive = (*decisive, "--no-verify")
    flags = flags_key(decisive)
    if site is not None:
        flags = kernels_key(flags, site.digest)
    task = DispatchTask(
        names=[dispatch.entry],
        dispatch=dispatch,
        count=dispatch.count,
        workload=workload,
        template=None,
        space=space,
        restricted=prepared.restrictions.restrict(dispatch.entry, space, workload, target),
        variant=prepared.variant.name,
        flags=prepared.flags,
        target=target,
        key=TaskKey(workload, target.key, opened.compiler_version, flags),
        repeats=repeats_for(workload, target.cores, target.is_gpu),
        site=site,
    )
    task.space_points = task.restricted.size_estimate(np.random.default_rng(0)).points
    task.folder.mkdir(parents=True, exist_ok=True)
    return task
