"""A variant of a program as it is tuned: its tasks, its sites, and what is left out and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UserError
from tilewright.trial import Configuration
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.kernel_sites import SiteFacts
from tilewright.tuning.restriction import FileRestrictions
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import Variant

LEFT_OUT = "left out by --only"
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
    can compute. `restrictions`: what a configuration file leaves of their spaces. `configured`: the
    program at the executable-configurations phase, where it has been taken apart. `untimed`: tasks
    that there was no time to measure, or that do not compile; they are skipped, but can have
    kernels all the same.
    `guesses`: kernels that a program has and no trial, by the identities of their tasks, with the
    seconds that they are guessed to take."""

    variant: Variant
    flags: tuple[str, ...]
    tasks: list[DispatchTask] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    sites: tuple[SiteFacts, ...] = ()
    restrictions: FileRestrictions = field(default_factory=FileRestrictions)
    configured: Path | None = None
    untimed: list[DispatchTask] = field(default_factory=list)
    guesses: dict[str, tuple[Configuration, float]] = field(default_factory=dict)

    @property
    def choosable(self) -> list[DispatchTask]:
        """The tasks that something can be chosen for."""
        return [*self.tasks, *self.untimed]

    def skip(self, dispatch: ExtractedDispatch, reason: str, workload: str = "") -> None:
        """Leave a dispatch out.

        Args:
            dispatch: the dispatch.
            reason: why, in words.
            workload: its workload's name, where that is known.
        """
        self.skipped.append(Skipped(dispatch.entry, dispatch.count, reason, workload))

    @property
    def constant_bytes(self) -> int:
        """Of the weights that a call reads, as far as they are operands of single dispatches."""
        found: dict[str, int] = {}
        single = (one.tunable for one in self.sites if one.tunable is not None)
        for site in (one.site for one in single if one.is_one_dispatch):
            for name, runs in zip(site.dispatches, site.all_runs, strict=True):
                size = site.constant_bytes * min(runs, site.again or runs)
                found[name] = max(found.get(name, 0), size)
        return sum(found.values())

    @property
    def guessed_s(self) -> float:
        """What its dispatches are guessed to take of a run of the program, in seconds."""
        return sum(task.guessed_s for task in self.choosable if not task.is_chain)

    @property
    def kinds(self) -> set[str]:
        return {task.workload.kind for task in self.choosable}

    def parts_of(self, task: DispatchTask) -> list[DispatchTask]:
        """The tasks of the dispatches that a task is of together; none for one dispatch.

        They can have other dispatches besides.

        Args:
            task: one of its tasks.
        """
        if not task.is_chain or task.site is None:
            return []
        covered = set(task.site.site.dispatches)
        return [
            one for one in self.choosable if not one.is_chain and not covered.isdisjoint(one.names)
        ]

    def needs_kernel(self, task: DispatchTask) -> bool:
        """Whether the compiler's own code for a task, or for one of its parts, does not compile.

        Args:
            task: one of its tasks.
        """
        return task.uncompilable or any(part.uncompilable for part in self.parts_of(task))

    @property
    def is_stuck(self) -> bool:
        """Whether it has a dispatch that does not compile and that no kernel can be for."""
        stuck = [set(task.names) for task in self.choosable if task.uncompilable]
        sites = (task.site.site for task in self.choosable if stuck and task.site is not None)
        covered = {name for site in sites for name in site.dispatches}
        return any(covered.isdisjoint(names) for names in stuck)

    def padded(self, part: DispatchTask) -> DispatchTask | None:
        """The site that a dispatch computes together with what fills and pads its data.

        Args:
            part: the dispatch's task, whose time is without that.

        Returns:
            The site's task; None where nothing is padded.
        """
        found = (
            one
            for one in self.choosable
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
        whole = 0.0 if padded is None else padded.own_s
        return max(0.0, whole - part.own_s)


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
    if all(one.reason == LEFT_OUT for one in skipped):
        names = ", ".join(dict.fromkeys(one.name for one in skipped))
        return UserError(
            f"--only: '{only}' is in no dispatch's name: no tunable dispatch ({names})"
        )
    reasons = sorted({one.reason for one in skipped})
    return UserError(f"{source}: no tunable dispatch ({'; '.join(reasons)})")
