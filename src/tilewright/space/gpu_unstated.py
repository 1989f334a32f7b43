"""Rules for GPU pipelines that the compiler's own constraints leave out."""

from __future__ import annotations

from typing import Any

from tilewright.argument import dtype_of
from tilewright.space.constraints import Constraint, declared
from tilewright.space.gpu_copies import is_shared_out, is_whole
from tilewright.space.gpu_pipeline import MAX_INTRINSICS, PROMOTE, STAGES, WAVES, WORKGROUP_SIZES
from tilewright.space.gpu_stated import (
    ALL_PROMOTED,
    KEYS_PROMOTED,
    ORDERS,
    REORDER,
    SIZES,
    StatedKnobs,
)
from tilewright.space.terms import Term, evaluator, greatest, product, term, variable, where

# Of a processor of AMD's; each holds some waves of a workgroup.
_EXECUTION_UNITS = 4


def unstated_rules(knobs: StatedKnobs) -> list[Constraint]:
    """All of them that there are for a dispatch.

    Args:
        knobs: of its constraints.
    """
    return [
        *_register_rules(knobs),
        *_copy_rules(knobs),
        *_stage_rules(knobs),
        *_attention_rules(knobs),
        *_reorder_rules(knobs),
        *_whole_tile_rules(knobs),
    ]


def _register_rules(knobs: StatedKnobs) -> list[Constraint]:
    """What one thread holds and what is unrolled for it: a candidate whose accumulators alone
    need more registers than a thread has only spills, and one of thousands of instructions in a
    row takes minutes to compile."""
    parallel = [n for n in knobs.names if n in ("m_tile", "n_tile") or n.startswith("wg_")]
    parallel = [n for n in parallel if n not in SIZES]
    sums = [n for n in knobs.names if n.startswith("red_")]
    intrinsic = next((n for n in ("mma_idx", "qk_mma_idx") if n in knobs.names), "")
    if WORKGROUP_SIZES[0] not in knobs.computed or not parallel or not intrinsic:
        return []
    tile = product(knobs.terms[name] for name in parallel)
    m, n, k = (knobs.intrinsic_size(intrinsic, axis) for axis in range(3))
    step = k if knobs.in_intrinsics else 1
    points = product([tile, *(knobs.terms[name] for name in sums), step])
    subgroups = greatest(1, knobs.thread_count // knobs.target.subgroup)
    return [
        *knobs.at_most(
            "accumulators of a thread",
            tile // knobs.thread_count,
            knobs.target.registers,
            "registers",
        ),
        *knobs.at_most(
            "unrolled intrinsics",
            points // greatest(1, m * n * k * subgroups),
            MAX_INTRINSICS,
            "instructions",
        ),
    ]


def _copy_rules(knobs: StatedKnobs) -> list[Constraint]:
    """Threads share the copies of promoted operands (see `gpu_copies`)."""
    if knobs.program.pipeline != "VectorDistribute":
        return []
    rules = []
    for operand, shape in _promoted_tiles(knobs).items():
        bits = 8 * dtype_of(knobs.workload.element_types[operand]).itemsize
        good = is_shared_out(shape, knobs.thread_count, bits)
        scope = knobs.scope_of(good) if isinstance(good, Term) else ()
        if not scope:
            continue
        # Queries that stay in registers are not copied.
        if operand == 0 and PROMOTE in knobs.extra_names:
            options = (ALL_PROMOTED, KEYS_PROMOTED)
            good = good | (variable(PROMOTE, options) == KEYS_PROMOTED)
            scope = (PROMOTE, *scope)
        rules.append(
            declared(
                f"threads share the copy of operand {operand}",
                scope,
                good,
                lambda *v, scope=scope: (
                    "the tile cannot be shared out to the threads in whole vectors ("
                    + ", ".join(f"{n} {one}" for n, one in zip(scope, v, strict=True))
                    + ")"
                ),
            )
        )
    return rules


def _stage_rules(knobs: StatedKnobs) -> list[Constraint]:
    """Three stages are for copies that all threads share (see `gpu_copies`)."""
    if STAGES not in knobs.extra_names or knobs.workload.kind != "contraction":
        return []
    whole = term(True)
    for operand, shape in _promoted_tiles(knobs).items():
        bits = 8 * dtype_of(knobs.workload.element_types[operand]).itemsize
        whole = whole & is_whole(shape, knobs.thread_count, bits)
    condition = (variable(STAGES) <= 2) | whole
    return [
        declared(
            "three stages copy whole tiles",
            knobs.scope_of(condition, extras=(STAGES,)),
            condition,
            lambda *v: "some threads have less to copy than others",
        )
    ]


def _promoted_tiles(knobs: StatedKnobs) -> dict[int, list[Any]]:
    """The tiles of promoted operands, outermost loop first, by the operand's position."""
    root = knobs.template.root_op
    if knobs.workload.kind == "attention":
        by_role: dict[str, Any] = {d.role: d.size for d in knobs.workload.dims if d.role == "k1"}
        for role, name in (("m", "m_tile"), ("n", "n_tile"), ("k2", "red_k2")):
            by_role[role] = knobs.terms.get(name, 1)
        tiles = [by_role.get(dim.role, 1) for dim in knobs.workload.dims]
    else:
        loops = range(len(knobs.program.dims))
        depth = knobs.intrinsic_size("mma_idx", 2) if knobs.in_intrinsics else 1
        steps = {i: knobs.terms[f"red_{i}"] * depth for i in loops if f"red_{i}" in knobs.terms}
        tiles = [knobs.terms.get(f"wg_{i}", steps.get(i, 1)) for i in loops]
    found: dict[int, list[Any]] = {}
    count = 3 if knobs.workload.kind == "attention" else 2
    for operand, _ in enumerate(root.operand_inner[:count]):
        inner = root.operand_inner[operand]
        outer = [loop for loop in root.operand_loops[operand] if loop != inner]
        order = [*outer, inner] if inner >= 0 else outer
        if all(loop < len(tiles) for loop in order):
            found[operand] = [tiles[loop] for loop in order]
    return found


def _attention_rules(knobs: StatedKnobs) -> list[Constraint]:
    """What IREE 3.13's constraints on attention leave out: they bound the shared memory of the
    operands but not that of the scores, which go from one product to the other through it, and
    have score tiles that are smaller than the intrinsic."""
    tiles = ("m_tile", "n_tile", "red_k2")
    if knobs.workload.kind != "attention" or not set(tiles) <= set(knobs.names):
        return []
    k1 = {d.role: d.size for d in knobs.workload.dims}.get("k1", 1)
    element = dtype_of(knobs.workload.element_types[0]).itemsize
    limit = knobs.target.workgroup_memory
    m, n, k2 = (knobs.terms[name] for name in tiles)
    memory = element * (m * k1 + k2 * k1 + k2 * n + m * k2)
    remainder = term(0)
    for knob, axis in (("qk_mma_idx", 1), ("pv_mma_idx", 2)):
        if knob in knobs.names:
            remainder = remainder + k2 % knobs.intrinsic_size(knob, axis)
    rules = [
        *knobs.at_most("shared memory of scores", memory, limit, "bytes"),
        *knobs.at_most("red_k2 is a multiple of the intrinsics'", remainder, 0, "left over"),
    ]
    if WAVES not in knobs.extra_names:
        return rules
    kept: Any = 0
    if PROMOTE in knobs.extra_names:
        all_in = variable(PROMOTE, (ALL_PROMOTED, KEYS_PROMOTED)) == ALL_PROMOTED
        kept = where(all_in, 0, m * k1 * element)
    waves = variable(WAVES)
    width = _EXECUTION_UNITS * knobs.target.subgroup
    used = (memory - kept) * waves * width // knobs.thread_count
    scope = knobs.scope_of(used, extras=(WAVES, PROMOTE))
    number = evaluator(used, scope)
    # More waves than shared memory has room for are not to be had: the code stays the same.
    room = declared(
        "waves have room in shared memory",
        scope,
        (waves <= 1) | (used <= limit),
        lambda *v: f"{v[0]} take {int(number(*v))} of {limit} bytes",
    )
    return [*rules, room]


def _reorder_rules(knobs: StatedKnobs) -> list[Constraint]:
    """Only a grid of workgroups in two dimensions can be transposed."""
    if REORDER not in knobs.extra_names:
        return []
    several = term(True)
    for loop, name in knobs.grid.items():
        several = several & (knobs.terms[name] < knobs.program.dims[loop])
    condition = (variable(REORDER, ORDERS) == "none") | several
    return [
        declared(
            "transposed workgroups are a grid",
            knobs.scope_of(condition, extras=(REORDER,)),
            condition,
            lambda *v: "the workgroups are a single row or column",
        )
    ]


def _whole_tile_rules(knobs: StatedKnobs) -> list[Constraint]:
    """Tiles that divide the loops of convolutions: the constraints take sizes rounded up to
    whole intrinsics, which needs padding that their configurations do not have. Products are
    padded, and convolutions as products."""
    if knobs.is_padded:
        return []

    def rule(name: str, size: int) -> list[Constraint]:
        label = f"{name} divides its loop of {size}"
        return knobs.at_most(label, size % knobs.terms[name], 0, "left over")

    order = {name: loop for loop, name in knobs.grid.items()}
    return [
        one
        for name in knobs.names
        if name in order
        for one in rule(name, knobs.program.dims[order[name]])
    ]
