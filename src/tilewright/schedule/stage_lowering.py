"""The loops of one stage, with those of the stages computed inside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.schedule import nest
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    Binary,
    Expr,
    Select,
    Var,
    index,
    is_true,
    substitute,
    variables,
)
from tilewright.schedule.functions import conjunction, conjuncts
from tilewright.schedule.plan import REDUCED, RESULT, Plan, StagePlan
from tilewright.schedule.prefetches import prefetched
from tilewright.schedule.tensor import (
    DATA,
    VTHREAD,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
)
from tilewright.schedule.types import BOOL
from tilewright.schedule.walk import transform


@dataclass(frozen=True)
class KernelParts:
    """What the stages of one kernel share.

    buffers: of every tensor. bound: the tags of blocks and threads that loops of each stage are
        bound to. block: the threads of a workgroup, by tag.
    lowered: writes the loops of a stage that is computed inside of another.
    """

    plan: Plan
    buffers: dict[Tensor, nest.Buffer]
    bound: dict[StagePlan, set[str]]
    block: dict[str, int]
    lowered: Callable[[StageLowering], nest.Stmt]


class StageLowering:
    """The loops of one stage, with those of the stages computed inside of it."""

    def __init__(self, kernel: KernelParts, plan: StagePlan) -> None:
        self.kernel = kernel
        self.plan = plan
        self.arithmetic = kernel.plan.arithmetic
        self.reduction = plan.reduction
        self.leaves = plan.leaves
        self.indices = tuple(
            self._simplify(plan.values[axis] - low)
            for axis, low in zip(plan.stage.compute.axis, plan.origin, strict=True)
        ) or (index(0),)
        self.begin = self._first_reduction()
        # Bound checks stand inside of the last loop that has stages in it: those decide for
        # themselves what they compute, and their barriers need every thread.
        self.deepest = max(
            (i for i, leaf in enumerate(self.leaves) if plan.children.get(leaf)), default=-1
        )

    def _simplify(self, expr: Expr) -> Expr:
        return self.arithmetic.simplify(expr)

    def _first_reduction(self) -> int:
        reduced = (i for i, leaf in enumerate(self.leaves) if self.plan.marks[leaf] & REDUCED)
        return next(reduced, len(self.leaves))

    # -- the whole stage ---------------------------------------------------------------------------

    def lowered(self) -> nest.Stmt:
        """The loops of a stage that neither threads nor an intrinsic compute together."""
        checks = self.checks(RESULT)
        if self.reduction is None:
            return self.loops(0, len(self.leaves), checks, self._elements)
        return self.loops(0, self.begin, checks, lambda: self._reduction(checks))

    def _elements(self) -> nest.Stmt:
        return self.store([self.resolved(e) for e in self.plan.body])

    def check_vectorized(self) -> None:
        """Raises ScheduleError where a loop is to be vectors and threads at once."""
        for leaf in self.leaves:
            marks = self.plan.stage.marked(leaf)
            if "vectorize" in marks.pragmas and marks.tag:
                raise ScheduleError(
                    f"pragma vectorize: axis '{leaf.name}' of stage '{self.plan.name}' is bound to "
                    f"{marks.tag}"
                )

    def _reduction(self, checks: list[tuple[int, Expr]]) -> nest.Stmt:
        inner = [(level, check) for level, check in checks if level >= self.begin]
        more = self.checks(REDUCED)
        end = len(self.leaves)
        update = self.loops(self.begin, end, [*inner, *more], self.update, self._conditions())
        if self._starts_inside:
            return update
        return nest.flat(self.initialised(self.begin, checks), update)

    @property
    def _starts_inside(self) -> bool:
        """Whether the first iteration of the reduction's loop starts the result, and no loops of
        their own before it do: where results in memory are added to what stages inside of that loop
        compute, so that these loops would be another way through all of it."""
        reduced = [leaf for leaf in self.leaves if self.plan.marks[leaf] & REDUCED]
        assert self.reduction is not None
        return (
            len(reduced) == 1
            and self.deepest > self.begin
            and self.plan.marks[reduced[0]] == REDUCED
            and not self.plan.stage.marked(reduced[0]).said
            and not self.kernel.block
            and self.plan.scope != nest.LOCAL
            and is_true(self.reduction.condition)
        )

    def initialised(self, begin: int, checks: list[tuple[int, Expr]]) -> nest.Stmt:
        """Loops over the result's axes from a level on that store the reduction's start.

        Args:
            begin: the level.
            checks: conditions with the levels where they stand; those further out than `begin` hold
                here.
        """
        renamed, loops = self.result_loops(begin, len(self.leaves))
        stmt = self.store(self.start(), renamed=renamed, starts=True)
        own = [c for level, c in checks if level >= begin]
        # What was checked further out, for the loops shared with the update, holds here.
        conditions = [self._simplify(substitute(c, renamed)) for c in own]
        for leaf, fresh in reversed(loops):
            if any(fresh in variables(c) for c in conditions):
                stmt, conditions = nest.If(conjunction(conditions), stmt, likely=True), []
            stmt = self.loop(leaf, stmt, fresh)
        return nest.If(conjunction(conditions), stmt, likely=True) if conditions else stmt

    def result_loops(
        self, begin: int, end: int
    ) -> tuple[dict[Expr, Expr], list[tuple[IterVar, Var]]]:
        """Loops of their own over the result's axes between two levels.

        Args:
            begin, end: levels; `end` is behind the last.

        Returns:
            The values of the stage's variables there, and each loop with its new variable.
        """
        renamed: dict[Expr, Expr] = {}
        loops: list[tuple[IterVar, Var]] = []
        for leaf in self.leaves[begin:end]:
            value = self.plan.loop_values[leaf]
            if self.plan.marks[leaf] & ~REDUCED and isinstance(value, IterVar):
                fresh = Var(leaf.name + ".init")
                self.arithmetic.bind(fresh, 0, self.plan.sizes[leaf] - 1)
                renamed[value] = fresh
                loops.append((leaf, fresh))
        return renamed, loops

    # -- loops -------------------------------------------------------------------------------------

    def loops(
        self,
        begin: int,
        end: int,
        checks: list[tuple[int, Expr]],
        body: Callable[[], nest.Stmt],
        conditions: Sequence[tuple[int, Expr]] = (),
    ) -> nest.Stmt:
        """Loops of the levels from `begin` to `end`, with the stages computed in them, around a
        body; each check stands where its level says.

        Args:
            begin, end: levels; `end` is behind the last.
            checks: conditions with the levels where they stand.
            body: makes what is innermost.
            conditions: the same, of what the user asked for, none further out than `begin`.
        """
        stmt = body()
        for level in reversed(range(begin - 1, end)):
            asked = [c for at, c in conditions if at == level]
            if asked:
                stmt = nest.If(conjunction(asked), stmt)
            here = [c for at, c in checks if max(at, begin - 1) == level]
            if here and (begin == 0 or level >= begin):
                stmt = nest.If(conjunction(here), stmt, likely=True)
            if level >= begin:
                leaf = self.leaves[level]
                stmt = nest.flat(*prefetched(self, level), self._with_children(leaf, stmt))
                stmt = self.loop(leaf, stmt)
        return stmt

    def loop(self, leaf: IterVar, body: nest.Stmt, var: Var | None = None) -> nest.Stmt:
        """The loop of a leaf; nothing where it has one iteration or is a thread's.

        Args:
            leaf: the leaf.
            body: what is inside.
            var: its variable, where it is not the leaf itself.
        """
        marks, tag = self.plan.stage.marked(leaf), self.plan.thread(leaf)
        extent, pragmas = self.plan.sizes[leaf], dict(marks.pragmas)
        if (tag and tag != VTHREAD) or (extent == 1 and not pragmas):
            return body
        kind = nest.THREAD if tag else marks.kind or nest.SERIAL
        if kind == nest.PARALLEL and self.plan.stage.in_order(leaf) and not self.plan.said:
            kind = nest.SERIAL
        reduction = leaf.kind != DATA and var is None
        return nest.For(leaf if var is None else var, extent, body, kind, tag, reduction, pragmas)

    def _with_children(self, leaf: IterVar, body: nest.Stmt) -> nest.Stmt:
        for child in reversed(self.plan.children.get(leaf, [])):
            body = nest.flat(self.kernel.lowered(StageLowering(self.kernel, child)), body)
            for buffer in reversed(child.buffers):
                body = body if child.handed else nest.Allocate(buffer, body)
        return body

    def checks(self, part: int) -> list[tuple[int, Expr]]:
        """Conditions under which an iteration is one of the stage's, with the level from which on
        they can stand. part: RESULT for the axes of the result, REDUCED for the others."""
        plan = self.plan
        conditions: list[Binary] = []
        for axis, value in plan.past.items():
            if (part == RESULT and plan.marks[axis] & RESULT) or plan.marks[axis] == part:
                conditions.append(Binary("lt", value, index(plan.sizes[axis]), BOOL))
        if part == RESULT:
            op = plan.stage.compute
            for axis, size in zip(op.axis, op.outputs[0].shape, strict=True):
                if plan.sizes[axis] < size:
                    # A region that starts or ends outside of the tensor has less to do there.
                    value = plan.values[axis]
                    conditions.append(Binary("lt", value, index(size), BOOL))
                    conditions.append(Binary("ge", value, index(0), BOOL))
        decided = [self._simplify(c) for c in conditions]
        return [(self._level(c), c) for c in decided if not is_true(c)]

    def _level(self, condition: Expr) -> int:
        """The innermost loop whose variable a condition has, but no stage further in."""
        used = variables(condition)
        values = [self.plan.loop_values[leaf] for leaf in self.leaves]
        own = (i for i, v in enumerate(values) if isinstance(v, IterVar) and v in used)
        return max(self.deepest, *own, -1)

    # -- statements --------------------------------------------------------------------------------

    def resolved(self, expr: Expr) -> Expr:
        """An expression of the stage's axes in terms of loops and buffers."""

        def change(node: Expr) -> Expr | None:
            if isinstance(node, TensorRead):
                return self.load(node.tensor, node.indices)
            return self.plan.values.get(node)

        return self._simplify(transform(expr, change))

    def load(self, tensor: Tensor, indices: tuple[Expr, ...]) -> nest.Load:
        producer = self.kernel.plan.of.get(tensor)
        buffer = self.kernel.buffers[tensor]
        if producer is not None:
            indices = tuple(i - m for i, m in zip(indices, producer.origin, strict=True))
        return nest.Load(buffer, tuple(self._simplify(i) for i in indices) or (index(0),))

    def start(self) -> list[Expr]:
        """What a reduction starts from."""
        reduction = self.reduction
        assert reduction is not None
        first = reduction.init or reduction.combiner.identity
        return [self.resolved(e) for e in first]

    def update(self) -> nest.Stmt:
        """The statement that takes another value into the result."""
        reduction = self.reduction
        assert reduction is not None
        sources = [self.resolved(s) for s in reduction.sources]
        old: list[Expr] = [nest.Load(b, self.indices) for b in self.result_buffers()]
        if self._starts_inside:
            first = self.plan.loop_values[self.leaves[self.begin]]
            later = Binary("gt", first, index(0), BOOL)
            old = [Select(later, o, s, False) for o, s in zip(old, self.start(), strict=True)]
        return self.store(reduction.combiner.combine(old, sources))

    def _conditions(self) -> list[tuple[int, Expr]]:
        """What the reduction takes values under, each part where the last of its loops is: a window
        that is beyond the edge of an image is so in all channels."""
        assert self.reduction is not None
        parts = map(self.resolved, conjuncts(self.reduction.condition))
        return [(max(self._level(c), self.begin), c) for c in parts if not is_true(c)]

    def result_buffers(self) -> list[nest.Buffer]:
        """The buffers in the order of the reduction's values."""
        buffers = list(self.plan.buffers)
        order = [e.index for e in self.plan.body if isinstance(e, Reduce)]
        return [buffers[order.index(i)] for i in range(len(order))] if order else buffers

    def store(
        self,
        values: Sequence[Expr],
        renamed: dict[Expr, Expr] | None = None,
        starts: bool = False,
    ) -> nest.Stmt:
        """Stores of the values at the stage's element, under the stage's predicate.

        Args:
            values: one for each output.
            renamed: variables that have other names in the loops around this.
            starts: whether they are what a reduction starts from.
        """
        buffers = self.result_buffers()
        indices, renamed = self.indices, renamed or {}
        if renamed:
            indices = tuple(self._simplify(substitute(i, renamed)) for i in indices)
            values = [self._simplify(substitute(v, renamed)) for v in values]
        stores = [nest.Store(b, indices, v) for b, v in zip(buffers, values, strict=True)]
        stmt = nest.stored(stores)
        predicate = self.predicate(starts=starts)
        if not is_true(predicate):
            stmt = nest.If(self._simplify(substitute(predicate, renamed)), stmt)
        return stmt

    def predicate(self, together: tuple[str, ...] = (), starts: bool = False) -> Expr:
        """The condition under which elements are stored: the user's, and of all the threads that
        would do the same one alone where they would disturb each other.

        Args:
            together: tags of threads that store as one.
            starts: whether a reduction's start is stored: every element has one, but of the user's
                condition what is about threads says which of them.
        """
        conditions: list[Expr] = []
        given = self.plan.stage.store_predicate
        if given is not None:
            threads = {self.kernel.plan.thread_var(self.plan, tag) for tag in self.kernel.block}
            for part in conjuncts(substitute(given, self._predicate_values(given))):
                if not starts or not threads.isdisjoint(variables(part)):
                    conditions.append(self._simplify(part))
        own = self.plan.scope == nest.LOCAL or "." in self.plan.scope
        shared = self.plan.parent is None or not own
        if self.reduction is not None and shared:
            used_tags = self.kernel.bound[self.plan] | self._tags_around()
            for tag in self.kernel.block:
                if tag not in used_tags and tag not in together:
                    var = self.kernel.plan.thread_var(self.plan, tag)
                    conditions.append(Binary("eq", var, index(0), BOOL))
        return conjunction(conditions)

    def _tags_around(self) -> set[str]:
        """Threads over whose iterations the result is spread: each has its own part."""
        around = set[Var]().union(*map(variables, self.plan.mins))
        thread_var = self.kernel.plan.thread_var
        return {tag for tag in self.kernel.block if thread_var(self.plan, tag) in around}

    def _predicate_values(self, given: Expr) -> dict[Expr, Expr]:
        values = dict(self.plan.values)
        known = set(self.plan.loop_values.values()) | set(self.plan.path)
        for var in variables(given):
            if not isinstance(var, IterVar) or var in values or var in known:
                continue
            where = f"set_store_predicate of stage '{self.plan.name}'"
            if var in self.plan.loop_values:
                values[var] = self.plan.loop_values[var]
            elif not var.tag:
                raise ScheduleError(
                    f"{where}: '{var.name}' is neither an axis of the stage nor a thread axis"
                )
            else:
                thread = self.kernel.plan.thread_var(self.plan, var.tag)
                # Of what no loop is bound to there is one, with the number 0.
                known_thread = thread in self.arithmetic.bounds or self.plan.said
                values[var] = thread if known_thread else index(0)
        return values
