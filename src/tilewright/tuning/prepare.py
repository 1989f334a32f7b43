"""From the dispatches of a program to tasks: grouped by workload, each with its space."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tilewright.measure.inputs import turns_for
from tilewright.measure.jobs import Job, JobRunner, Result
from tilewright.site import Site, free_name
from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.store import TaskKey
from tilewright.target import Target
from tilewright.tuning.extract_tasks import (
    ConfigureRequest,
    DispatchFacts,
    ExtractedDispatch,
    Extraction,
    configure_dispatch,
    configure_dispatches,
)
from tilewright.tuning.extraction import extract, why_no_kernels
from tilewright.tuning.kernel_sites import SiteFacts, TunableSite, find_kernel_sites
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.prepared_variant import LEFT_OUT, NO_KERNEL, PreparedVariant
from tilewright.tuning.restriction import FileRestrictions
from tilewright.tuning.task import DispatchTask, identity, repeats_for, rotations_for
from tilewright.tuning.variants import (
    DEFAULT_VARIANT,
    Variant,
    flags_key,
    kernels_key,
    without_preprocessing,
)
from tilewright.workload import Workload

# Of what a dispatch reads and writes: what is constants at least for it to be timed on several sets
# of all its operands, as if only the constants were others.
_CONSTANT_SHARE = 0.75
# Arithmetic intensity, in operations for each byte, below which a dispatch waits for memory.
_MEMORY_BOUND = 16


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
            configured=extraction.configured,
        )
        wanted = _select(opened, extraction, prepared)
        for d in wanted:
            request = ConfigureRequest(d, flags, constraints=opened.target.is_gpu)
            together = configure_dispatches
            jobs.append(Job(configure_dispatch, request, 120.0, tag=d, together=together))
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
    why = why_no_kernels(opened)
    if why is None:
        return find_kernel_sites(opened, variant, known)
    if why and why not in opened.notes:
        opened.note(why)
    return ()


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
            prepared.skip(dispatch, LEFT_OUT)
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
    size = info.workload.bytes
    if target.is_gpu:
        task.rotations = rotations_for(size, target.l2_bytes, task.repeats)
    elif (
        site is not None
        and site.site.constant_bytes >= _CONSTANT_SHARE * size
        and not prepared.variant.is_data_tiled
    ):
        # As its kernels are: what reads little else is otherwise timed on what a cache keeps.
        task.rotations = turns_for(site.site.constant_bytes, task.beside)
        task.repeats = max(task.repeats, task.rotations)
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
        beside=0 if target.is_gpu else _constants_beside(prepared, workload, site),
        site=site,
    )
    task.folder.mkdir(parents=True, exist_ok=True)
    return task


def _constants_beside(
    prepared: PreparedVariant, workload: Workload, site: TunableSite | None
) -> int:
    """Bytes of constants that are read from one time that a site reads its own to the next.

    With data tiling the program of a dispatch alone packs its operands first, and cannot be timed
    on several sets. Where it waits for memory its kernels are timed on one set as well, or none
    would be faster.
    """
    if prepared.variant.is_data_tiled and workload.flops < _MEMORY_BOUND * workload.bytes:
        return 0
    if site is not None and site.site.again:
        return site.site.again * site.site.constant_bytes
    return prepared.constant_bytes
