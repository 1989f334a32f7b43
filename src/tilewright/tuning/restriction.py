"""What a configuration file leaves of the spaces of dispatches, and which of its keys do nothing.

Its keys mean what they meant to the auto-scheduler that it comes from: `tile_m`, `tile_n` and
`tile_k` are tiles of a matrix product in elements, whatever a pipeline counts in; `block_dim_x`,
`y` and `z` are the threads of a workgroup, of which the product counts where workgroups have one
dimension; `pipeline_depth` is how many steps of the reduction are in flight. A key that changes
nothing of a dispatch is told with the reason, and so is a value that no configuration has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.space.generators import DispatchSpace
from tilewright.space.interface import Space
from tilewright.space.pipeline import Pipeline
from tilewright.target import CUDA, GpuTarget, Target
from tilewright.tuning.config_file import BLOCK_DIMS, PIPELINE_DEPTH, TILE_KEYS, ConfigFile
from tilewright.workload import Workload

# What a pipeline may call the depth.
_DEPTHS = ("pipeline_depth", "prefetch_num_stages")
# Names of dispatches in one sentence.
_SHOWN = 3

Values = tuple[int, ...]


@dataclass(frozen=True)
class _Held:
    """A knob, or a number that follows from some, held to values; the keys that say so."""

    keys: tuple[str, ...]
    values: Values


class FileRestrictions:
    """A configuration file over the dispatches of one program.

    `notes` says afterwards what did nothing, a sentence for each key and reason.
    """

    def __init__(self, config: ConfigFile | None = None) -> None:
        self._config = config
        self._idle: dict[tuple[str, str], list[str]] = {}
        self._left_out: list[str] = []
        # Of keys: those that restrict some dispatch; those with which nothing would be left of one.
        self._effective: set[str] = set()
        self._impossible: dict[str, UserError] = {}

    @property
    def notes(self) -> list[str]:
        """What did nothing, and pipelines of which nothing is left, in words."""
        found = []
        for (what, why), names in self._idle.items():
            shown = ", ".join(names[:_SHOWN])
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            found.append(f"{what} has no effect on {shown}{more}: {why}")
        return [*found, *self._left_out]

    def check(self) -> None:
        """See whether the file can be met.

        Raises:
            UserError: with the values of a key nothing is left of any dispatch; it names file,
                section, key and values.
        """
        for place, error in self._impossible.items():
            if place not in self._effective:
                raise error

    def restrict(
        self, dispatch: str, space: DispatchSpace, workload: Workload, target: Target
    ) -> Space:
        """A dispatch's space as the file restricts it. A key with which nothing is left is noted.

        Args:
            dispatch: its name.
            space: all of it.
            workload: what the dispatch computes.
            target: what it is compiled for.

        Returns:
            The space, restricted by the keys that it can meet.
        """
        if self._config is None:
            return space.space
        wanted = self._config.restrictions_for(dispatch)
        for key in (key for key in wanted if key not in _meant(space, wanted)):
            self._add(dispatch, self._config.place(dispatch, key), _no_such(key, space, target))
        while True:
            held = self._held(dispatch, space, wanted, workload)
            if not any(held.values()):
                return space.space
            try:
                made = space.space.restrict_each(_plain(held))
                break
            except UserError as error:
                culprit, error = _culprit(space, list(wanted), held, error)
                place = self._config.place(dispatch, culprit)
                text = f"{place} = {list(wanted[culprit])}"
                self._impossible.setdefault(
                    place, UserError(f"{text} leaves no configuration of {dispatch}: {error}")
                )
                self._add(dispatch, text, str(error))
                del wanted[culprit]
        keys = {key for knobs in held.values() for one in knobs.values() for key in one.keys}
        self._effective |= {self._config.place(dispatch, key) for key in keys}
        self._left_out += [f"{self._config.path}: {dispatch}: {note}" for note in made.notes]
        self._note_unused(dispatch, made.space, held)
        return made.space

    def _add(self, dispatch: str, what: str, why: str) -> None:
        names = self._idle.setdefault((what, why), [])
        if dispatch not in names:
            names.append(dispatch)

    def _held(
        self, dispatch: str, space: DispatchSpace, wanted: Mapping[str, Values], workload: Workload
    ) -> dict[str, dict[str, _Held]]:
        """What the keys are in each member of the space; what they are not is taken down."""
        assert self._config is not None
        held: dict[str, dict[str, _Held]] = {}
        refused: dict[str, set[int]] = {}
        for member in space.space.members:
            held[member.name] = {}
            for knob, one in _in_member(member, space.members.get(member.name), wanted).items():
                good = tuple(value for value in one.values if member.admits(knob, value))
                for key in one.keys:
                    refused.setdefault(key, set(one.values)).difference_update(good)
                if good:
                    held[member.name][knob] = _Held(one.keys, good)
        for key, values in wanted.items():
            if shown := [str(value) for value in values if value in refused.get(key, ())]:
                text = f"{self._config.place(dispatch, key)} = {', '.join(shown)}"
                self._add(dispatch, text, _misfit(workload, key))
        return held

    def _note_unused(
        self, dispatch: str, space: Space, held: Mapping[str, Mapping[str, _Held]]
    ) -> None:
        """Take down the values that no configuration of the restricted space has."""
        assert self._config is not None
        unused: dict[tuple[str, int], str] = {}
        used: set[tuple[str, int]] = set()
        for member in getattr(space, "members", ()):
            for knob, one in held[member.name].items():
                if len(one.keys) > 1 or len(one.values) < 2:
                    continue
                for value in one.values:
                    try:
                        member.restrict({knob: [value]})
                        used.add((one.keys[0], value))
                    except UserError as error:
                        unused[one.keys[0], value] = str(error)
        for (key, value), why in unused.items():
            if (key, value) not in used:
                self._add(dispatch, f"{self._config.place(dispatch, key)} = {value}", why)


def _meant(space: DispatchSpace, wanted: Mapping[str, Values]) -> set[str]:
    """The keys that are about something that the dispatch has."""
    found = (
        _in_member(member, space.members.get(member.name), wanted) for member in space.space.members
    )
    return {key for held in found for one in held.values() for key in one.keys}


def _no_such(key: str, space: DispatchSpace, target: Target) -> str:
    """Why a key is about nothing that a dispatch has."""
    gpu = target if isinstance(target, GpuTarget) else None
    if gpu is None and key in (*BLOCK_DIMS, PIPELINE_DEPTH):
        return "it is for GPUs"
    if key == PIPELINE_DEPTH and gpu is not None and gpu.backend == CUDA:
        return (
            "for CUDA, IREE has no pipeline with copies in flight: the code is the same for every "
            "depth"
        )
    if key in BLOCK_DIMS and any(one.threads for one in space.members.values()):
        return f"its workgroups have one dimension, and {BLOCK_DIMS[0]} is not given"
    if key in TILE_KEYS:
        return f"it has no loop {key.removeprefix('tile_')} that is tiled so"
    return "it has no such choice"


def _plain(held: Mapping[str, Mapping[str, _Held]]) -> dict[str, dict[str, Values]]:
    return {name: {knob: one.values for knob, one in each.items()} for name, each in held.items()}


def _in_member(
    member: Space, pipeline: Pipeline | None, wanted: Mapping[str, Values]
) -> dict[str, _Held]:
    """What a file's keys are in one member of a dispatch's space."""
    have = member.restrictable
    tiles = pipeline.tile_names if pipeline is not None else {}
    found: dict[str, _Held] = {}
    for key, values in wanted.items():
        if key in BLOCK_DIMS:
            continue
        names: Iterable[str] = (key,)
        if key in TILE_KEYS:
            names = (tiles.get(key.removeprefix("tile_"), ""),)
        elif key == PIPELINE_DEPTH:
            names = _DEPTHS
        knob = next((name for name in names if name in have), None)
        if knob is not None:
            found[knob] = _Held((key,), values)
    return found | _block(pipeline, wanted)


def _block(pipeline: Pipeline | None, wanted: Mapping[str, Values]) -> dict[str, _Held]:
    """The threads of a workgroup that a file asks for, by the names of their numbers."""
    dims = [key for key in BLOCK_DIMS if key in wanted]
    if pipeline is None or not pipeline.threads or not dims:
        return {}
    if any(one.knobs or int(one.compute()) != 1 for one in pipeline.threads[1:]):
        return {f"workgroup_size_{key[-1]}": _Held((key,), wanted[key]) for key in dims}
    if BLOCK_DIMS[0] not in dims:
        return {}
    products = {math.prod(sizes) for sizes in itertools.product(*(wanted[key] for key in dims))}
    return {"workgroup_size_x": _Held(tuple(dims), tuple(sorted(products)))}


def _misfit(workload: Workload, key: str) -> str:
    """Why values of a key are none of a knob."""
    loop = key.rpartition("_")[2]
    sizes = dict(zip(workload.loop_names, (dim.size for dim in workload.dims), strict=True))
    if loop in sizes:
        return f"it does not fit its loop of {sizes[loop]}"
    return "its knob has no such value"


def _culprit(
    space: DispatchSpace,
    keys: list[str],
    held: Mapping[str, Mapping[str, _Held]],
    error: UserError,
) -> tuple[str, UserError]:
    """The first key with which, beside those before it, nothing is left; and why."""
    for count in range(1, len(keys) + 1):
        taken = set(keys[:count])
        so_far = {
            name: {knob: one.values for knob, one in each.items() if taken.issuperset(one.keys)}
            for name, each in held.items()
        }
        if any(so_far.values()):
            try:
                space.space.restrict_each(so_far)
            except UserError as found:
                return keys[count - 1], found
    return keys[-1], error
