"""Tensorized loops: does the pattern match what the loops compute, and on which regions."""

from __future__ import annotations

from dataclasses import replace

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    Binary,
    Combiner,
    Expr,
    Var,
    alike,
    index,
    is_true,
    same,
    substitute,
    variables,
)
from tilewright.schedule.intrinsic import BODY, RESET, UPDATE, CallIntrinsic, TensorIntrinsic
from tilewright.schedule.nest import If, Intrinsic, Region, Stmt, flat
from tilewright.schedule.plan import REDUCED, RESULT, StagePlan
from tilewright.schedule.stage_lowering import StageLowering
from tilewright.schedule.tensor import IterVar, Reduce, Tensor, TensorRead
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import children

_COMMUTATIVE = ("add", "mul", "min", "max", "and", "or", "xor", "logical_and", "logical_or")


def tensorized_leaf(plan: StagePlan) -> int | None:
    """The level of the tensorized loop, if there is one."""
    for i, leaf in enumerate(plan.leaves):
        if plan.stage.marked(leaf).intrinsic is not None:
            return i
    return None


def tensorized(stage: StageLowering, level: int) -> Stmt:
    """The stage's loops with an intrinsic in place of those from a level on.

    Args:
        stage: the stage.
        level: of the tensorized loop.

    Raises:
        ScheduleError: the pattern does not compute what the loops do; says how they differ.
    """
    plan = stage.plan
    match = _Match(stage, level)
    inputs, outputs = match.regions()
    intrinsic = match.intrinsic
    checks = stage.checks(RESULT) + stage.checks(REDUCED)
    for at, check in checks:
        if at >= level or variables(check) & match.inside:
            match.fail(f"the tile passes the end of an axis: it would need the check '{check}'")

    def use(phase: str, renamed: dict[Expr, Expr] | None = None) -> Stmt:
        def changed(expr: Expr) -> Expr:
            return stage.arithmetic.simplify(substitute(expr, renamed)) if renamed else expr

        written = tuple(replace(r, mins=tuple(map(changed, r.mins))) for r in outputs)
        made = Intrinsic(intrinsic, phase, () if phase == RESET else inputs, written)
        match.check_calls(made)
        stmt: Stmt = made
        predicate = stage.predicate(("threadIdx.x",) if intrinsic.collective else ())
        return stmt if is_true(predicate) else If(changed(predicate), stmt)

    begin = min(stage.begin, level)
    outer = any(plan.marks[a] & REDUCED and plan.sizes[a] > 1 for a in plan.leaves[:level])
    if plan.reduction is None or not outer:
        if BODY in intrinsic.phases:
            return stage.loops(0, level, checks, lambda: use(BODY))
        match.needs(RESET)
        match.needs(UPDATE)
        return stage.loops(0, level, checks, lambda: flat(use(RESET), use(UPDATE)))
    match.needs(UPDATE)
    inner = [(at, c) for at, c in checks if at >= begin]

    def start() -> Stmt:
        if RESET not in intrinsic.phases:
            return stage.initialised(begin, [])
        renamed, loops = stage.result_loops(begin, level)
        stmt = use(RESET, renamed)
        for leaf, fresh in reversed(loops):
            stmt = stage.loop(leaf, stmt, fresh)
        return stmt

    def reduction() -> Stmt:
        return flat(start(), stage.loops(begin, level, inner, lambda: use(UPDATE)))

    return stage.loops(0, begin, [(at, c) for at, c in checks if at < begin], reduction)


class _Match:
    """The pattern of an intrinsic laid over the loops of a stage from a level on."""

    def __init__(self, stage: StageLowering, level: int) -> None:
        self.stage = stage
        self.plan = stage.plan
        self.leaf = stage.leaves[level]
        marks = self.plan.stage.marks[self.leaf]
        assert marks.intrinsic is not None
        self.intrinsic: TensorIntrinsic = marks.intrinsic
        self.arithmetic = stage.arithmetic
        inner = stage.leaves[level:]
        for leaf in inner:
            said = self.plan.stage.marked(leaf)
            if said.kind or said.tag:
                self.fail(f"loop '{leaf.name}' inside of it is {said.said}")
        self.inside = {v for v in (self.plan.loop_values[a] for a in inner) if isinstance(v, Var)}
        self.tile: dict[Expr, Expr] = {}
        self.bound: dict[Tensor, tuple[Tensor, tuple[Expr, ...]]] = {}
        self.mapped: dict[Expr, Expr] = {}

    def fail(self, why: str) -> None:
        raise ScheduleError(
            f"tensorize: intrinsic '{self.intrinsic.name}' does not fit axis '{self.leaf.name}' of "
            f"stage '{self.plan.name}': {why}"
        )

    def needs(self, phase: str) -> None:
        """Refuses an intrinsic that cannot do what the loops around it ask for."""
        if phase not in self.intrinsic.phases:
            outer = "its reduction goes on outside of the tensorized loop"
            self.fail(
                f"{outer}, which takes the phase '{phase}' (declared: "
                f"{', '.join(self.intrinsic.phases)})"
            )

    def check_calls(self, made: Intrinsic) -> None:
        """Refuses calls whose arguments are not as they were declared."""
        if not isinstance(self.intrinsic, CallIntrinsic):
            return
        made.calls()
        tensors = (*self.intrinsic.inputs, *self.intrinsic.outputs)
        buffers = {tensor: buffer for buffer, tensor in self.intrinsic.tensors.items()}
        for tensor, region in zip(tensors, (*made.inputs, *made.outputs), strict=False):
            factor = buffers[tensor].offset_factor if made.inputs else 1
            place: Expr = index(0)
            for low, step in zip(region.mins, region.buffer.layout, strict=True):
                place = place + low * index(step)
            form = self.arithmetic.linear(place)
            if any(step % factor for step in (*form.terms.values(), form.constant)):
                self.fail(
                    f"buffer '{buffers[tensor].name}' begins at multiples of {factor} elements "
                    f"(offset_factor), the region of '{region.buffer.name}' at '{place}'"
                )

    def regions(self) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
        """The regions of the pattern's inputs and outputs."""
        op = self.intrinsic.op
        if len(op.body) != len(self.plan.body):
            self.fail(f"it computes {len(op.body)} tensors, the stage {len(self.plan.body)}")
        axes = self.plan.stage.compute.axis
        lead = len(axes) - len(op.axis)
        if lead < 0:
            self.fail(f"its result has {len(op.axis)} dimensions, the stage's only {len(axes)}")
        mins = []
        for i, axis in enumerate(axes):
            base, extent = self._part(axis)
            wanted = op.axis[i - lead] if i >= lead else None
            size = wanted.dom[1] if wanted is not None and wanted.dom else 1
            if extent != size:
                self.fail(
                    f"it takes {size} of axis '{axis.name}', the tensorized loops have {extent}"
                )
            if wanted is not None:
                self._map(axis, base, wanted, extent)
            else:
                self.tile[axis] = base
            low = self.plan.origin[i]
            mins.append(self.arithmetic.simplify(base - low))
        self._map_reduction()
        for mine, pattern in zip(self.plan.body, op.body, strict=True):
            if not self._bodies(mine, pattern):
                self.fail(f"it computes '{pattern}', the stage '{mine}'")
        shapes = [t.shape for t in self.intrinsic.outputs]
        outputs = tuple(
            Region(b, tuple(mins) or (index(0),), _extents(len(b.shape), s))
            for b, s in zip(self.plan.buffers, shapes, strict=True)
        )
        inputs = []
        for tensor in self.intrinsic.inputs:
            source, place = self.bound[tensor]
            load = self.stage.load(source, place)
            shape = _extents(len(load.buffer.shape), tensor.shape)
            inputs.append(Region(load.buffer, load.indices, shape))
        return tuple(inputs), outputs

    def _part(self, axis: IterVar) -> tuple[Expr, int]:
        """Where an axis starts in the tile, and how many of its values the tile has."""
        form = self.arithmetic.linear(self.plan.values[axis])
        rest, base = form.part(lambda atom, _: bool(atom.variables & self.inside))
        reach = 1
        for step, first, last in sorted((c, a.low, a.high) for a, c in rest.terms.items()):
            if step != reach or first != 0:
                self.fail(f"its loops do not run over neighbouring values of axis '{axis.name}'")
            reach = step * (last + 1)
        if rest.low != 0 or rest.high + 1 != reach:
            self.fail(f"its loops do not run over neighbouring values of axis '{axis.name}'")
        return self.arithmetic.expr(base.plus(form.constant)), reach

    def _map(self, axis: IterVar, base: Expr, wanted: IterVar, extent: int) -> None:
        self.mapped[wanted] = wanted
        self.arithmetic.bind(wanted, 0, extent - 1)
        self.tile[axis] = base + wanted

    def _map_reduction(self) -> None:
        reduction, pattern = self.plan.reduction, self.intrinsic.reduction
        if (reduction is None) != (pattern is None):
            self.fail("one of the two is a reduction, the other is not")
        if reduction is None or pattern is None:
            return
        parts = [(axis, *self._part(axis)) for axis in reduction.axes]
        wide = [p for p in parts if p[2] > 1]
        wanted = [a for a in pattern.axes if a.dom is not None and a.dom[1] > 1]
        sizes = [a.dom[1] for a in wanted if a.dom is not None]
        if [p[2] for p in wide] != sizes:
            self.fail(
                f"it reduces {sizes or [1]} values, the tensorized loops "
                f"{[p[2] for p in wide] or [1]}"
            )
        for axis, base, _ in parts:
            self.tile[axis] = base
        for (axis, base, extent), its in zip(wide, wanted, strict=True):
            self._map(axis, base, its, extent)
        for axis in pattern.axes:
            if axis.dom is not None and axis.dom[1] == 1:
                self.arithmetic.bind(axis, 0, 0)

    # -- bodies ------------------------------------------------------------------------------------

    def _bodies(self, mine: Expr, pattern: Expr) -> bool:
        if isinstance(mine, Reduce) and isinstance(pattern, Reduce):
            return (
                len(mine.sources) == len(pattern.sources)
                and mine.index == pattern.index
                and mine.init is None
                and _same_combiner(mine.combiner, pattern.combiner)
                and self._matches(mine.condition, pattern.condition)
                and all(map(self._matches, mine.sources, pattern.sources))
            )
        return self._matches(mine, pattern)

    def _matches(self, mine: Expr, pattern: Expr) -> bool:
        if isinstance(mine, TensorRead) and isinstance(pattern, TensorRead):
            return mine.dtype == pattern.dtype and self._reads(mine, pattern)
        if mine.dtype == INDEX == pattern.dtype:
            return self.arithmetic.difference(substitute(mine, self.tile), pattern) == 0
        if isinstance(mine, Var | Reduce) or not alike(mine, pattern):
            return False
        operands, its = children(mine), children(pattern)
        known = dict(self.bound)
        if all(map(self._matches, operands, its)):
            return True
        self.bound = known
        if not isinstance(mine, Binary) or mine.op not in _COMMUTATIVE:
            return False
        return all(map(self._matches, operands, reversed(its)))

    def _reads(self, mine: TensorRead, pattern: TensorRead) -> bool:
        lead = len(mine.indices) - len(pattern.indices)
        if lead < 0:
            return False
        inner = set(self.mapped)
        place = []
        for i, expr in enumerate(mine.indices):
            form = self.arithmetic.linear(substitute(expr, self.tile))
            if i >= lead:
                form = form.plus(self.arithmetic.linear(pattern.indices[i - lead]), -1)
            if form.variables & inner:
                return False
            place.append(self.arithmetic.expr(form))
        known = self.bound.get(pattern.tensor)
        if known is None:
            self.bound[pattern.tensor] = (mine.tensor, tuple(place))
            return True
        return known[0] is mine.tensor and all(
            self.arithmetic.difference(a, b) == 0 for a, b in zip(known[1], place, strict=True)
        )


def _extents(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*(1 for _ in range(rank - len(shape))), *shape)


def _same_combiner(a: Combiner, b: Combiner) -> bool:
    if len(a.result) != len(b.result):
        return False
    renamed = dict(zip((*a.lhs, *a.rhs), (*b.lhs, *b.rhs), strict=True))
    parts = [*zip(a.result, b.result, strict=True), *zip(a.identity, b.identity, strict=True)]
    return all(same(x, y, renamed) for x, y in parts)
