"""Tensorized loops: does the pattern match what the loops compute, and on which regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    TRUE,
    Binary,
    Call,
    Cast,
    Combiner,
    Const,
    Expr,
    Not,
    Reduce,
    Select,
    TensorRead,
    Var,
    index,
)
from tilewright.schedule.intrinsic import BODY, RESET, UPDATE, TensorIntrinsic
from tilewright.schedule.nest import If, Intrinsic, Region, Stmt
from tilewright.schedule.plan import REDUCED, RESULT, StagePlan
from tilewright.schedule.tensor import IterVar, Tensor
from tilewright.schedule.walk import children, flat, same, substitute, variables

if TYPE_CHECKING:
    from tilewright.schedule.stage_lowering import StageLowering

_COMMUTATIVE = ("add", "mul", "min", "max", "and", "or", "xor", "logical_and", "logical_or")


def tensorized_leaf(plan: StagePlan) -> int | None:
    """The level of the tensorized loop, if there is one."""
    for i, leaf in enumerate(plan.leaves):
        marks = plan.stage.marks.get(leaf)
        if marks is not None and marks.intrinsic is not None:
            return i
    return None


def tensorized(stage: StageLowering, level: int) -> Stmt:
    """The stage's loops with an intrinsic in place of those from a level on."""
    plan = stage.plan
    match = _Match(stage, level)
    inputs, outputs = match.regions()
    intrinsic = match.intrinsic
    checks = stage.checks(RESULT) + stage.checks(REDUCED)
    for at, check in checks:
        if at >= level or variables(check) & match.inside:
            match.fail(f"the tile passes the end of an axis: it would need the check '{check}'")

    def use(phase: str) -> Stmt:
        stmt: Stmt = Intrinsic(intrinsic, phase, () if phase == RESET else inputs, outputs)
        predicate = stage.predicate(("threadIdx.x",) if intrinsic.collective else ())
        return stmt if predicate is TRUE else If(predicate, stmt)

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

    def reduction() -> Stmt:
        if intrinsic.has_reset:
            start = _reset(stage, begin, level, use(RESET))
        else:
            start = stage.initialised(begin, [])
        return flat(start, stage.loops(begin, level, inner, lambda: use(UPDATE)))

    return stage.loops(0, begin, [(at, c) for at, c in checks if at < begin], reduction)


def _reset(stage: StageLowering, begin: int, level: int, stmt: Stmt) -> Stmt:
    """The reset in loops of its own over the result's axes inside of the reduction's."""
    from tilewright.schedule.walk import rewrite

    renamed: dict[Expr, Expr] = {}
    loops: list[tuple[IterVar, Var]] = []
    for leaf in stage.leaves[begin:level]:
        value = stage.plan.loop_values[leaf]
        if stage.plan.marks[leaf] & ~REDUCED and isinstance(value, IterVar):
            fresh = Var(leaf.name + ".init")
            stage.arithmetic.bind(fresh, 0, stage.plan.sizes[leaf] - 1)
            renamed[value] = fresh
            loops.append((leaf, fresh))
    simplify = stage.arithmetic.simplify
    stmt = rewrite(stmt, lambda e: simplify(substitute(e, renamed)))
    for leaf, fresh in reversed(loops):
        stmt = stage.loop(leaf, stmt, fresh)
    return stmt


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
            said = self.plan.stage.marks.get(leaf)
            if said is not None and (said.kind or said.thread is not None):
                what = said.thread.tag if said.thread is not None else said.kind
                self.fail(f"loop '{leaf.name}' inside of it is {what}")
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
            low = self.plan.mins[i]
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
        if mine.dtype != pattern.dtype or type(mine) is not type(pattern):
            return False
        if isinstance(mine, TensorRead) and isinstance(pattern, TensorRead):
            return self._reads(mine, pattern)
        match mine, pattern:
            case Const(), Const():
                return mine.value == pattern.value
            case Binary(), Binary():
                if mine.op != pattern.op:
                    return False
                kept = dict(self.bound)
                if self._matches(mine.a, pattern.a) and self._matches(mine.b, pattern.b):
                    return True
                self.bound = kept
                if mine.op not in _COMMUTATIVE:
                    return False
                return self._matches(mine.a, pattern.b) and self._matches(mine.b, pattern.a)
            case Call(), Call():
                if mine.name != pattern.name:
                    return False
            case Select(), Select():
                if mine.guarded != pattern.guarded:
                    return False
            case Cast(), Cast():
                pass
            case Not(), Not():
                pass
            case _:
                return False
        return all(map(self._matches, children(mine), children(pattern)))

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
