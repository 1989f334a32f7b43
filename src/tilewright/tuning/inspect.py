"""What there is to tune in a program, without running anything: dispatches, workloads, spaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.space.interface import Space
from tilewright.space.union import UnionSpace
from tilewright.target import parse_target
from tilewright.tuning.extraction import use_given_arguments
from tilewright.tuning.kernel_sites import SiteFacts
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.prepare import take_apart
from tilewright.tuning.prepared_variant import Skipped
from tilewright.tuning.request import make_request
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import Variant

# Estimates and shares are drawn with one seed: inspecting twice says the same.
_SEED = 0


@dataclass(frozen=True)
class KnobInfo:
    """A knob: how many values it has, the compiler's own, whether it has an effect and why not."""

    name: str
    values: int
    default: str
    effect: bool
    note: str


@dataclass(frozen=True)
class SpaceInfo:
    """The space of one pipeline.

    `points` valid configurations, between `low` and `high` with 95% confidence (equal when
    `exact`), out of `total` combinations of values. `rejections`: the share of all combinations
    that each constraint alone rejects, the largest first.
    """

    pipeline: str
    own: bool
    points: int
    low: int
    high: int
    exact: bool
    total: int
    knobs: tuple[KnobInfo, ...]
    rejections: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class DispatchInfo:
    """One workload: the dispatches that have it, how often they run, the compiler's choice.

    `spaces` has one entry for each pipeline that fits; `points` is their sum, between `low` and
    `high`.
    """

    names: tuple[str, ...]
    count: int
    workload: str
    key: str
    flops: int
    configuration: str
    points: int
    low: int
    high: int
    exact: bool
    spaces: tuple[SpaceInfo, ...]


@dataclass(frozen=True)
class SiteInfo:
    """What a kernel of our own can take the place of.

    `dispatches`: what the compiler computes it with. `ops`: what computes in it. `sketches`: the
    size of the space of each sketch that fits, by name; where there is none `reason` says why.
    """

    name: str
    dispatches: tuple[str, ...]
    count: int
    ops: tuple[str, ...]
    sketches: tuple[tuple[str, int], ...]
    reason: str


@dataclass(frozen=True)
class VariantInfo:
    """The program as a whole-program variant compiles it."""

    name: str
    flags: tuple[str, ...]
    dispatches: tuple[DispatchInfo, ...]
    skipped: tuple[Skipped, ...]
    sites: tuple[SiteInfo, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What `tilewright inspect` shows; `to_json()` is its JSON."""

    program: Path
    dialect: str
    functions: tuple[str, ...]
    target: str
    compiler: str
    variants: tuple[VariantInfo, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What `tilewright inspect --json` prints.

        Returns:
            The fields as JSON has them.
        """
        data = asdict(self)
        data["program"] = str(self.program)
        for variant in data["variants"]:
            for dispatch in variant["dispatches"]:
                for space in dispatch["spaces"]:
                    space["rejections"] = dict(space["rejections"])
            for site in variant["sites"]:
                site["sketches"] = dict(site["sketches"])
        return data


def inspect(
    program: str | os.PathLike[str],
    *,
    target: str = "cpu",
    threads: int | str | None = None,
    function: str | None = None,
    kernels: str = "on",
    accuracy: str = "strict",
    only: str | None = None,
    variants: str | Iterable[str | Variant] | None = None,
    iree_flags: Iterable[str] = (),
    inputs: Iterable[str] = (),
    input_type: str | None = None,
) -> Inspection:
    """The dispatches of a program and their search spaces, for each variant (the default alone).

    Compiles on this machine for the target; nothing is run. Options as those of
    :func:`tilewright.tune`.

    Args:
        program: MLIR or an ONNX model.
        target: what it is compiled for.
        threads: that its kernels run on; by default as many as there are cores.
        function: the entry point whose dispatches are counted; by default all.
        kernels: `on`, `only` or `off`: whether kernels of our own are looked for.
        accuracy: `strict` or `relaxed`: whether those with other rounding are, too.
        only: a part of the names of the dispatches that are looked at.
        variants: whole-program variants, by name or with flags.
        iree_flags: of `iree-compile`.
        inputs: the function's, in IREE's syntax; they give the sizes that its types leave open.
        input_type: the program's dialect, where it cannot be told from it.

    Returns:
        Dispatches, spaces, and what cannot be tuned and why.

    Raises:
        UserError: What the caller can mend.
    """
    request = make_request(
        program,
        {
            "target": target,
            "threads": threads,
            "function": function,
            "kernels": kernels,
            "accuracy": accuracy,
            "only": only,
            "variants": ["default"] if variants is None else variants,
            "iree_flags": iree_flags,
            "inputs": inputs,
        },
    )
    options = request.options
    machine = parse_target(options.target, options.threads)
    with open_program(request.program, machine, options, input_type=input_type) as opened:
        return _inspect(opened)


def _inspect(opened: OpenProgram) -> Inspection:
    options, program = opened.options, opened.program
    wanted = options.chosen_variants
    use_given_arguments(opened)
    found = tuple(_variant(opened, variant) for variant in wanted)
    if program.stripped:
        opened.note(
            f"{program.stripped} configurations in the input are left out of account; tuning "
            "removes them"
        )
    return Inspection(
        program=program.source,
        dialect=program.dialect,
        functions=tuple(program.functions),
        target=opened.target.key,
        compiler=opened.compiler_version,
        variants=found,
        notes=tuple(dict.fromkeys(opened.notes)),
    )


def _variant(opened: OpenProgram, variant: Variant) -> VariantInfo:
    prepared = take_apart(opened, variant)
    return VariantInfo(
        name=variant.name,
        flags=tuple(variant.flags),
        dispatches=tuple(_dispatch(task) for task in prepared.tasks),
        skipped=tuple(prepared.skipped),
        sites=tuple(_site(facts) for facts in prepared.sites),
    )


def _site(facts: SiteFacts) -> SiteInfo:
    spaces = facts.tunable.spaces if facts.tunable is not None else {}
    sizes = {n: s.size_estimate(np.random.default_rng(_SEED)).points for n, s in spaces.items()}
    site = facts.site
    return SiteInfo(
        site.name, site.dispatches, site.count, facts.ops, tuple(sizes.items()), facts.reason
    )


def _dispatch(task: DispatchTask) -> DispatchInfo:
    space = task.space.space
    members = space.members if isinstance(space, UnionSpace) else (space,)
    spaces = tuple(_space(member, own=member.name == task.space.own) for member in members)
    return DispatchInfo(
        names=tuple(task.names),
        count=task.count,
        workload=task.workload.name,
        key=task.workload.key,
        flops=task.workload.flops,
        configuration=task.own_choice,
        points=sum(s.points for s in spaces),
        low=sum(s.low for s in spaces),
        high=sum(s.high for s in spaces),
        exact=all(s.exact for s in spaces),
        spaces=spaces,
    )


def _space(space: Space, own: bool) -> SpaceInfo:
    size = space.size_estimate(np.random.default_rng(_SEED))
    shares = space.rejections(np.random.default_rng(_SEED))
    default = dict(space.default.items)
    return SpaceInfo(
        pipeline=space.name,
        own=own,
        points=size.points,
        low=size.low,
        high=size.high,
        exact=size.exact,
        total=size.total,
        knobs=tuple(
            KnobInfo(k.name, k.cardinality, _show(default[k.name]), k.effect, k.note)
            for k in space.knobs
        ),
        rejections=tuple(sorted(shares.items(), key=lambda item: (-item[1], item[0]))),
    )


def _show(value: object) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )
