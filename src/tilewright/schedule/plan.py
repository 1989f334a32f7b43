"""What lowering decides before it writes a loop: what is computed where, and how much of it.

Bound inference: each stage computes only what its consumers read at the place where it is computed.
Consumers are looked at before their producers; a stage's range on each axis has a constant extent
and starts at an expression of the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, Var, index, substitute
from tilewright.schedule.nest import GLOBAL, LOCAL, PARALLEL, SHARED, VECTORIZED, Buffer
from tilewright.schedule.relations import extents_of, inexact, made_from, values_up
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.spans import Span, clipped, span_of, union
from tilewright.schedule.stage import Stage
from tilewright.schedule.state import AT, INLINE, Placed
from tilewright.schedule.tensor import (
    BLOCK_TAGS,
    REDUCE,
    THREAD_TAGS,
    VTHREAD,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
    reads,
)
from tilewright.schedule.walk import transform


def inlined_bodies(schedule: Schedule) -> dict[Stage, tuple[Expr, ...]]:
    """The body of every computed stage, with inlined stages put in place of their reads.

    Args:
        schedule: the schedule.

    Returns:
        One expression for each output of every stage that computes something.
    """
    bodies: dict[Stage, tuple[Expr, ...]] = {}
    inline: dict[Tensor, tuple[tuple[IterVar, ...], Expr]] = {}

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in inline:
            axes, body = inline[node.tensor]
            return substitute(body, dict(zip(axes, node.indices, strict=True)))
        return None

    for stage in schedule.stages:
        if stage.is_placeholder:
            continue
        op = stage.compute
        if not inline:
            body = op.body
        else:
            done: dict[Expr, Expr] = {}
            body = tuple(done.setdefault(e, transform(e, replaced)) for e in op.body)
        bodies[stage] = body
        if stage.attach == INLINE:
            for tensor, expr in zip(op.outputs, body, strict=True):
                inline[tensor] = (op.axis, expr)
    return bodies


def needed(
    schedule: Schedule, bodies: dict[Stage, tuple[Expr, ...]], whole: frozenset[Tensor]
) -> list[Stage]:
    """The stages whose results reach the caller, in order.

    Args:
        schedule: the schedule.
        bodies: as :func:`inlined_bodies` gives them.
        whole: the tensors that the caller gets.

    Returns:
        Producers first, without inlined stages.
    """
    found = {schedule[t] for t in whole}
    for stage in reversed(schedule.stages):
        if stage in found and stage in bodies:
            for expr in bodies[stage]:
                found.update(schedule[r.tensor] for r in reads(expr))
    return [s for s in schedule.stages if s in found and s in bodies and s.attach != INLINE]


REDUCED = 2
RESULT = 1


@dataclass(eq=False, slots=True)
class StagePlan:
    """A stage with everything that its loops need.

    mins, extents: the range of each axis of the result; `sizes` has the extents of every axis
        and loop. values: of the axes (result's and reduction's), in terms of the nest's variables.
    past: split axes whose loops run past their extent, with the value that must stay below it.
    marks: RESULT and REDUCED bits of axes and loops.
    path: the variables of the loops around the stage, outermost first.
    said: whether loops are as the schedule says, also where they run otherwise (`in_order`).
    handed: whether the result is in the caller's memory, as a whole.
    """

    stage: Stage
    body: tuple[Expr, ...]
    parent: StagePlan | None = None
    at: IterVar | None = None
    children: dict[IterVar, list[StagePlan]] = field(default_factory=dict)
    path: tuple[Var, ...] = ()
    mins: tuple[Expr, ...] = ()
    extents: tuple[int, ...] = ()
    sizes: dict[IterVar, int] = field(default_factory=dict)
    loop_values: dict[IterVar, Var] = field(default_factory=dict)
    values: dict[Expr, Expr] = field(default_factory=dict)
    past: dict[IterVar, Expr] = field(default_factory=dict)
    marks: dict[IterVar, int] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    scope: str = GLOBAL
    said: bool = False
    handed: bool = False

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @property
    def leaves(self) -> list[IterVar]:
        """The loops, outermost first."""
        return self.stage.leaf_iter_vars

    @property
    def reduction(self) -> Reduce | None:
        """The reduction that the stage is, if it is one."""
        first = self.body[0]
        return first if isinstance(first, Reduce) else None

    @property
    def root(self) -> StagePlan:
        """The stage at root level that this one is computed inside of."""
        plan = self
        while plan.parent is not None:
            plan = plan.parent
        return plan

    def thread(self, leaf: IterVar) -> str:
        """The tag that a loop is bound to, or nothing.

        Args:
            leaf: one of the stage's loops.
        """
        if self.stage.in_order(leaf) and not self.said:
            return ""
        return self.stage.marked(leaf).tag

    @property
    def origin(self) -> tuple[Expr, ...]:
        """The element with which the stage's buffer begins."""
        return tuple(index(0) for _ in self.mins) if self.handed else self.mins

    def around(self) -> list[tuple[StagePlan, IterVar]]:
        """The loops around the stage, each with the stage that it is of, outermost first."""
        outer = self.parent
        if outer is None or self.at is None:
            return []
        leaves = outer.leaves[: outer.stage.position(self.at) + 1]
        return [*outer.around(), *((outer, leaf) for leaf in leaves)]

    def subtree(self) -> Iterator[StagePlan]:
        """This stage and all that are computed inside of it."""
        yield self
        for leaf in self.leaves:
            for child in self.children.get(leaf, []):
                yield from child.subtree()


class Plan:
    """All stages that are computed, producers first, with their ranges."""

    def __init__(self, schedule: Schedule, whole: frozenset[Tensor], said: bool = False) -> None:
        """whole: tensors that the caller gets; others are computed as a whole where they are
        outputs of the schedule. said: as of a StagePlan."""
        self.schedule = schedule
        self.whole = whole
        self.said = said
        self.arithmetic = Arithmetic()
        self.threads: dict[tuple[Stage, str], Var] = {}
        for stage in schedule.stages:
            if stage.attach == INLINE and not whole.isdisjoint(stage.op.outputs):
                raise ScheduleError(
                    f"compute_inline of '{stage.name}': it is among the arguments, so the caller "
                    "gets it as a whole; leave it out of them, or compute it at root level"
                )
        bodies = inlined_bodies(schedule)
        self.stages = needed(schedule, bodies, whole | schedule.output_tensors)
        self.plans = {
            s: StagePlan(s, bodies[s], said=said, handed=not whole.isdisjoint(s.op.outputs))
            for s in self.stages
        }
        self.of: dict[Tensor, StagePlan] = {
            t: plan for s, plan in self.plans.items() for t in s.op.outputs
        }
        self._readers = self._all_readers()
        for stage in self.stages:
            self._attach(self.plans[stage])
        for stage in self.stages:
            self._check_nesting(self.plans[stage])
        for stage in self.stages:
            self._check_placement(self.plans[stage])
        for stage in reversed(self.stages):
            self._infer(self.plans[stage])

    # -- placement ---------------------------------------------------------------------------------

    def _all_readers(self) -> dict[StagePlan, list[tuple[StagePlan, list[TensorRead]]]]:
        found: dict[StagePlan, list[tuple[StagePlan, list[TensorRead]]]] = {}
        for stage in self.stages:
            reader = self.plans[stage]
            mine: dict[StagePlan, list[TensorRead]] = {}
            for expr in reader.body:
                for read in reads(expr):
                    producer = self.of.get(read.tensor)
                    if producer is not None:
                        mine.setdefault(producer, []).append(read)
            for producer, its in mine.items():
                found.setdefault(producer, []).append((reader, its))
        return found

    def _attach(self, plan: StagePlan) -> None:
        placed = _placement(plan.stage)
        if placed is None:
            return
        stage, axis = placed.attach_stage, placed.attach_axis
        assert stage is not None
        assert axis is not None
        where = f"compute_at of '{plan.name}'"
        if stage not in self.plans:
            raise ScheduleError(f"{where}: '{stage.name}', where it is to be computed, is inlined")
        leaf = stage.leaf(axis, where)
        parent = self.plans[stage]
        for outer in stage.leaf_iter_vars[: stage.position(leaf) + 1]:
            marks = stage.marked(outer)
            if marks.kind == VECTORIZED:
                raise ScheduleError(
                    f"{where}: axis '{leaf.name}' of '{stage.name}' is in the vectorized loop "
                    f"'{outer.name}'; compute it at a loop outside of that"
                )
            if marks.intrinsic is not None:
                raise ScheduleError(
                    f"{where}: axis '{leaf.name}' of '{stage.name}' is in the loop "
                    f"'{outer.name}', which is tensorized"
                )
        plan.parent, plan.at = parent, leaf
        parent.children.setdefault(leaf, []).append(plan)

    @staticmethod
    def _check_nesting(plan: StagePlan) -> None:
        """No stage is computed inside of itself."""
        seen = set()
        parent: StagePlan | None = plan
        while parent is not None:
            if parent in seen:
                raise ScheduleError(
                    f"compute_at: '{plan.name}' is computed inside of itself, by way of "
                    f"'{parent.name}'"
                )
            seen.add(parent)
            parent = parent.parent

    def _check_placement(self, plan: StagePlan) -> None:
        """Every reader has to run inside of the loop at which the stage is computed."""
        if plan.parent is None or plan.at is None:
            return
        readers = self._readers.get(plan, [])
        for reader, _ in readers:
            if reader is not plan.parent and (plan.parent, plan.at) not in reader.around():
                raise ScheduleError(
                    f"compute_at of '{plan.name}': '{reader.name}' reads it, but runs outside of "
                    f"axis '{plan.at.name}' of '{plan.parent.name}'; compute '{plan.name}' "
                    f"further out, or '{reader.name}' further in"
                )

    # -- ranges ------------------------------------------------------------------------------------

    def thread_var(self, plan: StagePlan, tag: str) -> Var:
        """The variable of a kernel's grid for a tag.

        Args:
            plan: a stage of the kernel.
            tag: `blockIdx.x` to `threadIdx.z`.
        """
        key = (plan.root.stage, tag)
        if key not in self.threads:
            self.threads[key] = Var(tag)
        return self.threads[key]

    def _infer(self, plan: StagePlan) -> None:
        stage, op = plan.stage, plan.stage.compute
        plan.path = tuple(outer.loop_values[leaf] for outer, leaf in plan.around())
        plan.scope = self._scope(plan)
        shape = op.outputs[0].shape
        made = self.whole | self.schedule.output_tensors
        full = plan.parent is None and not made.isdisjoint(op.outputs)
        if full:
            ranges: list[tuple[Expr, int]] = [(index(0), e) for e in shape]
        else:
            ranges = _whole_tiles(stage, self._needed_range(plan, shape), shape)
        plan.mins = tuple(r[0] for r in ranges)
        plan.extents = tuple(r[1] for r in ranges)
        if plan.handed and plan.parent is not None:
            self._check_whole(plan, shape)
        roots = dict(zip(op.axis, plan.extents, strict=True))
        lows: dict[IterVar, Expr] = dict(zip(op.axis, plan.mins, strict=True))
        reduction = plan.reduction
        for axis in reduction.axes if reduction is not None else ():
            assert axis.dom is not None
            lows[axis], roots[axis] = index(axis.dom[0]), axis.dom[1]
        bound = [leaf for leaf in plan.leaves if plan.thread(leaf)]
        plan.sizes = extents_of(stage.relations, roots, bound)
        for leaf in plan.leaves:
            self._bind_leaf(plan, leaf)
        plan.marks = made_from(
            stage.relations, {a: REDUCED if a.kind == REDUCE else RESULT for a in roots}
        )
        raw = values_up(stage.relations, plan.sizes, plan.loop_values)
        simplify = self.arithmetic.simplify
        plan.values = {a: simplify(lows[a] + simplify(raw[a])) for a in roots}
        plan.past = {a: simplify(raw[a]) for a in inexact(stage.relations, plan.sizes)}
        for axis, extent in roots.items():
            if axis not in plan.loop_values:
                self.arithmetic.bind(axis, 0, extent - 1)

    def _check_whole(self, plan: StagePlan, shape: tuple[int, ...]) -> None:
        """What the caller gets has to be computed as a whole, each element in one place."""
        where = f"compute_at of '{plan.name}': it is among the arguments, so the caller gets it"
        seen: set[Var] = set()
        for low, extent, size in zip(plan.mins, plan.extents, shape, strict=True):
            form, reach = self.arithmetic.linear(low), extent
            steps = sorted((step, a.high) for a, step in form.terms.items() if a.kind == "var")
            for step, last in steps:
                reach = reach + step * last if 0 < step <= reach else 0
            whole = form.low == 0 and len(steps) == len(form.terms) and reach >= size
            if not whole or seen & form.variables:
                raise ScheduleError(
                    f"{where} as a whole, and the loops there do not go over all of it; leave it "
                    "out of them, or compute it at root level"
                )
            seen |= form.variables
        for outer, leaf in plan.around():
            at_once = bool(outer.thread(leaf)) or outer.stage.marked(leaf).kind == PARALLEL
            many = outer.sizes[leaf] > 1 and outer.loop_values[leaf] not in seen
            if at_once and many:
                raise ScheduleError(
                    f"{where}, and '{leaf.name}' of '{outer.name}' would compute it several times "
                    "at once; leave it out of them, or compute it at root level"
                )
        outside = {outer.thread(leaf) for outer, leaf in plan.around()}
        inside = (self._kernel_tags(plan) & set(THREAD_TAGS)) - outside
        if inside:
            raise ScheduleError(
                f"{where} in memory, and the threads of {min(inside)} do not wait for each other "
                "there; compute it inside of what is bound to that, or at root level"
            )

    def _bind_leaf(self, plan: StagePlan, leaf: IterVar) -> None:
        extent = plan.sizes[leaf]
        tag = plan.thread(leaf)
        thread = plan.stage.marks[leaf].thread if tag else None
        value: Var = leaf
        if thread is not None:
            self._check_binding(plan, leaf, tag)
            if thread.dom is not None and thread.dom[1] != extent:
                raise ScheduleError(
                    f"bind: axis '{leaf.name}' of stage '{plan.name}' has {extent} iterations, "
                    f"the thread axis {tag} that it is bound to {thread.dom[1]}"
                )
            if tag != VTHREAD:
                value = self.thread_var(plan, tag)
                known = self.arithmetic.bounds.get(value)
                if known is not None and known[1] + 1 != extent:
                    raise ScheduleError(
                        f"bind: {tag} has {known[1] + 1} iterations elsewhere in the kernel of "
                        f"'{plan.root.name}', but axis '{leaf.name}' of stage '{plan.name}' has "
                        f"{extent}; within one kernel they must agree"
                    )
        self.arithmetic.bind(value, 0, extent - 1)
        plan.loop_values[leaf] = value

    def _check_binding(self, plan: StagePlan, leaf: IterVar, tag: str) -> None:
        where = f"bind to {tag}: axis '{leaf.name}' of stage '{plan.name}'"
        if plan.parent is None:
            return
        if tag in BLOCK_TAGS:
            raise ScheduleError(
                f"{where} is computed inside of '{plan.parent.name}', and blocks do not see each "
                f"other's {plan.scope} memory; bind an axis of '{plan.root.name}' instead"
            )
        if tag in THREAD_TAGS and plan.scope == LOCAL and leaf.kind != REDUCE:
            raise ScheduleError(
                f"{where} spreads what has scope local, which is every thread's own, over threads "
                "that do not see it; give the stage scope shared, or compute it at the loop of "
                f"'{plan.parent.name}' that is bound to {tag}"
            )

    def _scope(self, plan: StagePlan) -> str:
        if plan.stage.scope:
            inside = plan.parent is not None and bool(self._kernel_tags(plan))
            if plan.stage.scope == GLOBAL and inside:
                raise ScheduleError(
                    f"stage '{plan.name}' has scope global, but is computed inside of the blocks "
                    f"or threads of '{plan.root.name}', which cannot share global memory: give it "
                    "scope shared or local, or compute it at root level"
                )
            return plan.stage.scope
        if plan.parent is None or plan.handed:
            return GLOBAL
        if any(outer.thread(leaf) in (*THREAD_TAGS, VTHREAD) for outer, leaf in plan.around()):
            return LOCAL
        return SHARED if self._kernel_tags(plan) else GLOBAL

    def _kernel_tags(self, plan: StagePlan) -> set[str]:
        """The tags of the blocks and threads of the kernel that a stage is part of."""
        tags = {p.thread(leaf) for p in plan.root.subtree() for leaf in p.leaves}
        return tags & {*BLOCK_TAGS, *THREAD_TAGS}

    def _relaxed(self, plan: StagePlan) -> set[Var]:
        """Loops around a stage that all share its storage: their iterations count together."""
        if plan.scope in (LOCAL, GLOBAL) or "." in plan.scope:
            return set()
        tags = (*THREAD_TAGS, VTHREAD)
        return {o.loop_values[leaf] for o, leaf in plan.around() if o.thread(leaf) in tags}

    def _needed_range(self, plan: StagePlan, shape: tuple[int, ...]) -> list[tuple[Expr, int]]:
        fixed = set(plan.path) - self._relaxed(plan)
        spans: list[list[Span]] = [[] for _ in shape]
        for reader, its in self._readers.get(plan, []):
            values = self._reading_values(reader, fixed)
            for read in its:
                for i, expr in enumerate(read.indices):
                    form = self.arithmetic.linear(substitute(expr, values))
                    spans[i].append(span_of(form, fixed, self.arithmetic))
        return [
            clipped(union(s), size, self.arithmetic) for s, size in zip(spans, shape, strict=True)
        ]

    def _reading_values(self, reader: StagePlan, fixed: set[Var]) -> dict[Expr, Expr]:
        """Values of a reader's axes; an axis whose loops all run stands for itself, so that what
        a split leaves over does not count."""
        values: dict[Expr, Expr] = {}
        op = reader.stage.compute
        lows = dict(zip(op.axis, reader.mins, strict=True))
        for axis, value in reader.values.items():
            assert isinstance(axis, IterVar)
            if reader.past and not self._touches(reader, axis, fixed):
                low = lows.get(axis, index(axis.dom[0] if axis.dom else 0))
                values[axis] = low + axis
            else:
                values[axis] = value
        return values

    @staticmethod
    def _touches(reader: StagePlan, axis: IterVar, fixed: set[Var]) -> bool:
        below = made_from(reader.stage.relations, {axis: 1})
        return any(below.get(leaf) and reader.loop_values[leaf] in fixed for leaf in reader.leaves)


def _whole_tiles(
    stage: Stage, needed: list[tuple[Expr, int]], shape: tuple[int, ...]
) -> list[tuple[Expr, int]]:
    """What is computed of each axis of a result: where an intrinsic takes all of one, all of it,
    even if less is read; of an aligned extent as many elements more as the result has."""
    axes, ranges = stage.compute.axis, list(needed)
    for place, factor in stage.extent_factors.items():
        low, extent = ranges[place]
        aligned = -(-extent // factor) * factor
        ranges[place] = (low, aligned) if aligned < shape[place] else (index(0), shape[place])
    for intrinsic in (marks.intrinsic for marks in stage.marks.values()):
        taken = () if intrinsic is None else intrinsic.op.axis
        for place, axis in enumerate(taken, len(axes) - len(taken)):
            whole = place >= 0 and axis.dom == axes[place].dom
            if whole and any(axes[place] is leaf for leaf in stage.leaf_iter_vars):
                assert axis.dom is not None
                ranges[place] = index(0), axis.dom[1]
    return ranges


def _placement(stage: Stage) -> Placed | None:
    """The stage or the innermost group around it that says where it is computed."""
    placed: Placed | None = stage
    while placed is not None:
        if placed.attach == AT:
            return placed
        placed = placed.group
    return None
