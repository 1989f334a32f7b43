"""What a stage fetches into caches: all that an iteration of a loop reads, at once or in shares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from tilewright.schedule import nest
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, Var, index, substitute
from tilewright.schedule.plan import Plan, StagePlan
from tilewright.schedule.spans import clipped, span_of, union
from tilewright.schedule.tensor import IterVar, Tensor, reads
from tilewright.schedule.types import bits


class _Kernel(Protocol):
    @property
    def plan(self) -> Plan: ...

    @property
    def buffers(self) -> Mapping[Tensor, nest.Buffer]: ...


class LoweredStage(Protocol):
    """What is asked of a stage whose loops are being made (`stage_lowering`)."""

    plan: StagePlan
    leaves: list[IterVar]
    arithmetic: Arithmetic

    @property
    def kernel(self) -> _Kernel:
        """What it shares with the other stages of its kernel."""

    def load(self, tensor: Tensor, indices: tuple[Expr, ...]) -> nest.Load:
        """An element of a tensor, where it is in the tensor's buffer."""

    def result_loops(
        self, begin: int, end: int
    ) -> tuple[dict[Expr, Expr], list[tuple[IterVar, Var]]]:
        """Loops of their own over the result's axes between two levels."""


def prefetched(stage: LoweredStage, level: int) -> list[nest.Stmt]:
    """What the loop of a level begins each iteration with.

    Args:
        stage: whose loop it is.
        level: of the loop.

    Raises:
        ScheduleError: what is to be fetched is computed further in, or no longer read.
    """
    leaf = stage.leaves[level]
    marks = stage.plan.stage.marked(leaf)
    found: list[nest.Stmt] = []
    for tensor, offset in marks.prefetches:
        _check_computed(stage, tensor, leaf, stage.leaves[level:])
        found.append(_at_once(stage, tensor, level, offset))
    for tensor, var, offset in marks.shares:
        around = [outer for _, outer in stage.plan.around()]
        inside = around[around.index(var) :] if var in around else []
        _check_computed(stage, tensor, var, [*inside, *stage.leaves[level:]])
        found.extend(_share(stage, tensor, level, var, offset))
    return found


def _check_computed(
    stage: LoweredStage, tensor: Tensor, var: IterVar, inside: Sequence[IterVar]
) -> None:
    producer = stage.kernel.plan.of.get(tensor)
    at = producer.at if producer is not None else None
    if at is not None and at in inside:
        raise ScheduleError(
            f"prefetch of stage '{stage.plan.name}': '{tensor.name}' is computed at axis "
            f"'{at.name}', so it cannot be prefetched at '{var.name}'; prefetch it "
            "further in, or what it is computed from"
        )


def _at_once(stage: LoweredStage, tensor: Tensor, level: int, offset: int) -> nest.Stmt:
    """All that an iteration reads, before it or an earlier one."""
    values = stage.plan.loop_values
    fixed: set[Expr] = {*stage.plan.path}
    fixed.update(values[leaf] for leaf in stage.leaves[: level + 1])
    var = values[stage.leaves[level]]
    region = _read_region(stage, tensor, fixed, var, offset)
    inside = stage.leaves[level + 1 :]
    if prod(region.extents) <= prod(stage.plan.sizes[leaf] for leaf in inside):
        return nest.Prefetch(region)
    # The box around the elements is larger than they are (rows of a fused loop, say, from the end
    # of one dimension to the beginning of the next): they are fetched in rows.
    renamed, loops = stage.result_loops(level + 1, len(stage.leaves) - 1)
    fixed.update(renamed.values())
    stmt: nest.Stmt = nest.Prefetch(_read_region(stage, tensor, fixed, var, offset, renamed))
    for axis, fresh in reversed(loops):
        stmt = nest.For(fresh, stage.plan.sizes[axis], stmt)
    return stmt


def _share(
    stage: LoweredStage, tensor: Tensor, level: int, var: IterVar, offset: int
) -> Iterator[nest.Stmt]:
    """Of the lines that an iteration of a loop further out reads, as many as make all of them by
    the end of that loop's iteration; into the second-level cache, where they wait for long."""
    plan = stage.plan
    around = [*plan.around(), *((plan, leaf) for leaf in stage.leaves[: level + 1])]
    at = next((i for i, (_, leaf) in enumerate(around) if leaf is var), None)
    if at is None or at + 1 == len(around):
        raise ScheduleError(
            f"prefetch of stage '{plan.name}': '{var.name}' is no loop around axis "
            f"'{stage.leaves[level].name}', in whose iterations its data is to be fetched"
        )
    inside = around[at + 1 :]
    variables = [owner.loop_values[leaf] for owner, leaf in around]
    region = _read_region(stage, tensor, set(variables[: at + 1]), variables[at], offset)
    turn: Expr = index(0)
    for (owner, leaf), value in zip(inside, variables[at + 1 :], strict=True):
        turn = turn * owner.sizes[leaf] + value
    turns = prod(owner.sizes[leaf] for owner, leaf in inside)
    size = max(1, 8 * nest.LINE_BYTES // bits(region.buffer.dtype))
    *outer, (length, dimension) = region.runs
    lines = -(-length // size)
    count = prod(extent for extent, _ in outer) * lines
    for one in range(-(-count // turns)):
        line = turn * count // turns + one
        mins = list(region.mins)
        mins[dimension] = mins[dimension] + line % lines * size
        line = line // lines
        for extent, place in reversed(outer):
            mins[place] = mins[place] + line % extent
            line = line // extent
        places = tuple(stage.arithmetic.simplify(place) for place in mins)
        yield nest.Prefetch(nest.Region(region.buffer, places, (1,) * len(places)), cache=2)


def _read_region(
    stage: LoweredStage,
    tensor: Tensor,
    fixed: Collection[Expr],
    var: Var,
    offset: int,
    renamed: Mapping[Expr, Expr] | None = None,
) -> nest.Region:
    """What the stage reads, or computes, of a tensor while some loops stand still.

    Args:
        stage: the stage.
        tensor: what is read, or its own.
        fixed: the variables of the loops that stand still.
        var: that of one of them, which is to be `offset` iterations further.
        offset: in iterations.
        renamed: loops that have other variables around the region.

    Returns:
        The region; it may lie outside of the tensor.

    Raises:
        ScheduleError: the stage does not read the tensor any more.
    """
    plan, arithmetic = stage.plan, stage.arithmetic
    spans: list[list[Any]] = [[] for _ in tensor.shape]
    places: list[Sequence[Expr]] = [
        read.indices for expr in plan.body for read in reads(expr) if read.tensor is tensor
    ]
    if tensor in plan.stage.op.outputs:
        places.append(plan.stage.compute.axis)
    for place in places:
        # Of the stage's axes arithmetic knows the sizes of a tile, not where the tile is.
        inside = tuple(substitute(part, plan.values) for part in place)
        for i, part in enumerate(stage.load(tensor, inside).indices):
            form = arithmetic.linear(substitute(part, renamed or {}))
            spans[i].append(span_of(form, fixed, arithmetic))
    if tensor.shape and not spans[0]:
        raise ScheduleError(f"prefetch of stage '{plan.name}': it no longer reads '{tensor.name}'")
    later: dict[Expr, Expr] = {var: var + index(offset)}
    mins, extents = [], []
    buffer = stage.kernel.buffers[tensor]
    for span, size in zip(spans, buffer.shape, strict=False):
        low, extent = clipped(union(span), size, arithmetic)
        mins.append(arithmetic.simplify(substitute(low, later)))
        extents.append(extent)
    return nest.Region(buffer, tuple(mins) or (index(0),), tuple(extents) or (1,))
