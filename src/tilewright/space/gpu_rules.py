"""Rules for configurations of matrix pipelines that the compiler's constraints leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.argument import dtype_of
from tilewright.gpu_target import GpuTarget
from tilewright.space.constraints import Constraint
from tilewright.space.gpu_member import WORKGROUP_SIZES
from tilewright.workload import Workload

if TYPE_CHECKING:
    from tilewright.space.gpu_smt import SmtMember

# What the constraints do not say: a candidate whose accumulators alone need more registers than a
# thread has only spills, and one of thousands of instructions in a row takes minutes to compile.
MAX_INTRINSICS = 1024

# Knobs beside those of the constraints: waves that an execution unit is to hold (AMD), and which
# operands of attention go through shared memory.
WAVES, PROMOTE = "waves_per_eu", "promote_operands"
ALL_PROMOTED = "0,1,2"
_EXECUTION_UNITS = 4


def register_rules(member: SmtMember, target: GpuTarget) -> list[Constraint]:
    """Limits of what one thread holds and of what is unrolled for it."""
    names = set(member.names)
    threads = member.computed_sizes.get(WORKGROUP_SIZES[0])
    parallel = [n for n in member.names if n in ("m_tile", "n_tile") or n.startswith("wg_")]
    parallel = [n for n in parallel if not n.startswith("wg_size")]
    reductions = [n for n in member.names if n.startswith("red_")]
    intrinsic = next((n for n in ("mma_idx", "qk_mma_idx") if n in names), "")
    if threads is None or not parallel or not intrinsic:
        return []
    shapes = np.array(member.shapes(intrinsic), dtype=np.int64)
    depth_in_intrinsics = member.program.pipeline == "TileAndFuse"

    def product(values: Mapping[str, Any], which: Sequence[str]) -> Any:
        total: Any = np.int64(1)
        for name in which:
            total = total * values[name]
        return total

    def accumulators(values: Mapping[str, Any]) -> Any:
        return product(values, parallel) // np.maximum(1, member.threads(values))

    def instructions(values: Mapping[str, Any]) -> Any:
        m, n, k = (shapes[values[intrinsic], axis] for axis in range(3))
        points = product(values, parallel) * product(values, reductions)
        if depth_in_intrinsics:
            points = points * k
        subgroups = np.maximum(1, member.threads(values) // target.subgroup)
        return points // np.maximum(1, m * n * k * subgroups)

    rules = (
        ("accumulators of a thread", accumulators, parallel, target.registers, "registers"),
        ("unrolled intrinsics", instructions, [*parallel, *reductions, intrinsic],
         MAX_INTRINSICS, "instructions"),
    )  # fmt: skip
    return [
        rule
        for name, count, used, limit, unit in rules
        if (rule := _at_most(member, name, count, [*used, *threads.knobs], limit, unit)) is not None
    ]


def attention_rules(member: SmtMember, workload: Workload, target: GpuTarget) -> list[Constraint]:
    """What IREE 3.13's constraints on attention leave out: they bound the shared memory of the
    operands but not that of the scores, which go from one product to the other through it, and
    have score tiles that are smaller than the intrinsic."""
    sizes = {d.role: d.size for d in workload.dims}
    tiles = ("m_tile", "n_tile", "red_k2")
    if workload.kind != "attention" or not set(tiles) <= set(member.names):
        return []
    operand_bytes = dtype_of(workload.element_types[0]).itemsize

    def memory(values: Mapping[str, Any]) -> Any:
        m, n, k2 = (values[name] for name in tiles)
        k1 = sizes.get("k1", 1)
        return operand_bytes * (m * k1 + k2 * k1 + k2 * n + m * k2)

    def remainder(values: Mapping[str, Any]) -> Any:
        left: Any = np.int64(0)
        for knob, axis in (("qk_mma_idx", 1), ("pv_mma_idx", 2)):
            if knob in member.names:
                shapes = np.array(member.shapes(knob), dtype=np.int64)
                left = left + values["red_k2"] % shapes[values[knob], axis]
        return left

    found = (
        _at_most(
            member, "shared memory of scores", memory, tiles, target.workgroup_memory, "bytes"
        ),
        _at_most(
            member,
            "red_k2 is a multiple of the intrinsics'",
            remainder,
            ("red_k2", "qk_mma_idx", "pv_mma_idx"),
            0,
            "left over",
        ),
    )
    rules = [rule for rule in found if rule is not None]
    if any(knob.name == WAVES for knob in member.extras):
        rules.append(_waves_rule(member, memory, tiles, sizes.get("k1", 1) * operand_bytes, target))
    return rules


def _waves_rule(
    member: SmtMember,
    memory: Callable[[Mapping[str, Any]], Any],
    tiles: Sequence[str],
    row_bytes: int,
    target: GpuTarget,
) -> Constraint:
    """More waves than shared memory has room for are not to be had: the code stays the same."""
    promotes = (PROMOTE,) if any(knob.name == PROMOTE for knob in member.extras) else ()
    threads = member.computed_sizes[WORKGROUP_SIZES[0]]
    scope = tuple(n for n in member.free if n in {*tiles, *threads.knobs})

    def used(waves: Any, *others: Any) -> Any:
        values = member.values(scope, others[len(promotes) :])
        one = memory(values)
        for promoted in others[: len(promotes)]:
            kept = np.asarray(promoted) != ALL_PROMOTED
            one = one - np.where(kept, values["m_tile"] * row_bytes, 0)
        width = _EXECUTION_UNITS * target.subgroup
        return one * np.asarray(waves) * width // np.maximum(1, member.threads(values))

    return Constraint(
        "waves have room in shared memory",
        (WAVES, *promotes, *scope),
        lambda w, *o: (np.asarray(w) <= 1) | (used(w, *o) <= target.workgroup_memory),
        lambda w, *o: f"{w} take {int(used(w, *o))} of {target.workgroup_memory} bytes",
        vectorised=True,
    )


def _at_most(
    member: SmtMember,
    name: str,
    count: Callable[[Mapping[str, Any]], Any],
    used: Sequence[str],
    limit: int,
    unit: str,
) -> Constraint | None:
    scope = tuple(n for n in member.free if n in set(used))
    if not scope:
        return None
    return Constraint(
        name,
        scope,
        lambda *c: count(member.values(scope, c)) <= limit,
        lambda *c: f"{int(count(member.values(scope, c)))}, more than {limit} {unit}",
        vectorised=True,
    )


def whole_tile_rules(member: SmtMember, workload: Workload) -> list[Constraint]:
    """Tiles that divide the loops of convolutions: the constraints take sizes rounded up to whole
    intrinsics, which needs padding that their configurations do not have. Products are padded."""
    if workload.kind == "contraction":
        return []
    rules = []
    for name in member.names:
        loop = name.removeprefix("wg_")
        if not name.startswith("wg_") or not loop.isdigit():
            continue
        size = member.program.dims[int(loop)]
        rule = _at_most(
            member,
            f"{name} divides its loop of {size}",
            lambda values, name=name, size=size: size % values[name],  # type: ignore[misc]
            (name,),
            0,
            "left over",
        )
        if rule is not None:
            rules.append(rule)
    return rules
