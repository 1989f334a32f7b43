"""Checks within loops, by which these come in versions: where no bounds need checking, and where
they do.

The check that a split does not run past the end of its axis holds for nearly all iterations, and
so do the checks at the border of a padded tensor. A loop over which a check depends on its
variable alone is cut into the iterations where the check holds whatever the loops within do, and
the others. Where it depends on what is around as well, a loop that takes long enough begins and
ends where the check does when it runs (`cuts`), and else a branch asks at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.schedule import nest
from tilewright.schedule.codegen.sums import SumEmitter, is_pure
from tilewright.schedule.expr import Binary, Const, Expr, Select, Var, variables
from tilewright.schedule.linear import Linear
from tilewright.schedule.nest import Stmt, expressions, inner, statements
from tilewright.schedule.types import INDEX
from tilewright.schedule.unrolling import LIMITS, kind_of, steps
from tilewright.schedule.walk import nodes

#: Statements of a loop's body beyond which it is not written out several times.
MOST_VERSIONED = 256
# Statements that each iteration of a loop runs at least, for it to be worth asking.
_WORTH_ASKING = 32

_ORDER = ("lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Check:
    """A comparison within a loop's body: it holds in every iteration of the loops within if
    `bound` is negative (op `lt`) or not negative (op `ge`)."""

    part: Expr
    op: str
    bound: Linear

    def is_of(self, var: Var) -> bool:
        """Whether the bound is a multiple of one variable, and a number.

        Args:
            var: a loop's variable.
        """
        return [atom.args[0] for atom in self.bound.terms] == [var]

    def range(self, extent: int) -> tuple[int, int]:
        """The values of that variable for which it holds: from, up to but without.

        Args:
            extent: iterations of that variable's loop.
        """
        (factor,) = self.bound.terms.values()
        offset = self.bound.constant
        if self.op == "lt":
            factor, offset = -factor, -offset - 1
        # factor * v + offset >= 0
        if factor > 0:
            return max(0, -(offset // factor)), extent
        return 0, min(extent, offset // -factor + 1)


@dataclass(frozen=True)
class GuardedComparison:
    """A comparison of indices within a statement.

    part: the comparison. loops: around it, within the statement, outermost first. guards: further
    ones around it; where one does not hold it is not asked.
    """

    part: Expr
    loops: tuple[nest.For, ...]
    guards: tuple[Expr, ...]

    @cached_property
    def is_asked_within(self) -> bool:
        """Whether one of the loops begins and ends where this does, so that nothing around that
        needs versions for it."""
        if any(LIMITS & loop.pragmas.keys() for loop in self.loops):
            # Which loops stay loops is known when these are emitted.
            return False
        return any(_is_term(loop.var, self.part) and is_worth_asking(loop) for loop in self.loops)


def _is_term(var: Var, part: Expr) -> bool:
    """Whether a comparison has a multiple of a variable, and the variable nowhere else."""
    assert isinstance(part, Binary)
    return var in variables(part) and _is_sum_of(var, part.a) and _is_sum_of(var, part.b)


def _is_sum_of(var: Var, expr: Expr) -> bool:
    """Whether an expression is a sum of a multiple of a variable, or of none, and others."""
    match expr:
        case Binary(op="add" | "sub"):
            return _is_sum_of(var, expr.a) and _is_sum_of(var, expr.b)
        case Binary(op="mul") if isinstance(expr.b, Const):
            return _is_sum_of(var, expr.a)
        case Var():
            return True
    return var not in variables(expr)


def is_worth_asking(loop: nest.For) -> bool:
    """Whether each iteration of a loop takes so long that it costs little to ask, whenever the loop
    begins, from which iteration on a check holds.

    Args:
        loop: any.
    """
    serial = kind_of(loop) == nest.SERIAL and loop.extent > 1
    return serial and steps(loop.body) >= _WORTH_ASKING


def comparisons(body: Stmt) -> Iterator[GuardedComparison]:
    """The comparisons in the conditions of a statement that need versions: those of splits that do
    not divide, of what is reduced only under a condition, and of values that are there only under
    one. A condition around whole loops needs none unless it is a split's: to ask at run time is
    little beside these.

    Args:
        body: of the loop that may come in versions.
    """

    def visit(
        stmt: Stmt, loops: tuple[nest.For, ...], guards: tuple[Expr, ...]
    ) -> Iterator[GuardedComparison]:
        if isinstance(stmt, nest.If):
            parts = tuple(parts_of(stmt.condition))
            if stmt.likely or not _is_around_loops(stmt):
                yield from (GuardedComparison(part, loops, guards) for part in parts)
            yield from visit(stmt.then, loops, (*guards, *parts))
            if stmt.otherwise is not None:
                yield from visit(stmt.otherwise, loops, guards)
            return
        if isinstance(stmt, nest.Store):
            for expr in expressions(stmt):
                for node in nodes(expr):
                    if isinstance(node, Select) and node.guarded:
                        for part in parts_of(node.condition):
                            yield GuardedComparison(part, loops, guards)
        if isinstance(stmt, nest.For):
            loops = (*loops, stmt)
        for below in inner(stmt):
            yield from visit(below, loops, guards)

    return visit(body, (), ())


def _is_around_loops(stmt: Stmt) -> bool:
    """Whether loops that stay loops are within."""
    return any(
        isinstance(part, nest.For) and kind_of(part) == nest.SERIAL and part.extent > 1
        for part in statements(stmt)
    )


def parts_of(condition: Expr) -> Iterator[Expr]:
    """The comparisons of indices that a conjunction is made of.

    Args:
        condition: of type `bool`.
    """
    if isinstance(condition, Binary):
        if condition.op == "logical_and":
            yield from parts_of(condition.a)
            yield from parts_of(condition.b)
        elif condition.op in _ORDER and condition.a.dtype == INDEX and is_pure(condition):
            yield condition


def checks(
    emitter: SumEmitter, found: Sequence[GuardedComparison], outer: frozenset[Var]
) -> list[Check]:
    """The checks that depend on nothing but the loops `outer`, and hold for some of their values.

    A comparison that is used in several places is there if all of them are so.

    Args:
        emitter: knows the values of the variables around.
        found: what :func:`comparisons` gives.
        outer: variables that the emitter's loops have.
    """
    made, useless = [], set()
    for one in found:
        if id(one.part) in emitter.assumed:
            continue
        if one.is_asked_within:
            useless.add(id(one.part))
            continue
        check = check_of(emitter, one)
        bound = check.bound
        never = bound.low >= 0 if check.op == "lt" else bound.high < 0
        if never or not bound.variables <= outer:
            useless.add(id(one.part))
        elif bound.terms:
            made.append(check)
    return [check for check in made if id(check.part) not in useless]


def check_of(emitter: SumEmitter, found: GuardedComparison) -> Check:
    """When a comparison holds in all iterations of the loops around it.

    Args:
        emitter: knows the values of the variables around these.
        found: the comparison.
    """
    extents = {loop.var: loop.extent for loop in found.loops}
    if extents:
        # Iterations that a guard leaves out ask nothing: columns beyond the end of a row.
        for guard in found.guards:
            asked, within = _difference(emitter, guard, extents)
            for var, extent in extents.items():
                if asked.is_of(within[var]):
                    extents[var] = max(1, asked.range(extent)[1])
    return _extreme_check(emitter, found.part, extents, hardest=True)


def easiest_check(emitter: SumEmitter, found: GuardedComparison) -> Check:
    """When a comparison holds in some iteration of the loops around it.

    Args:
        emitter: knows the values of the variables around these.
        found: the comparison.
    """
    extents = {loop.var: loop.extent for loop in found.loops}
    return _extreme_check(emitter, found.part, extents, hardest=False)


def _extreme_check(
    emitter: SumEmitter, part: Expr, extents: Mapping[Var, int], *, hardest: bool
) -> Check:
    """A comparison as the iterations decide for which it is the hardest to hold, or the easiest."""
    whole, within = _difference(emitter, part, extents)
    hidden = frozenset(within.values())
    inside, bound = whole.bound.part(lambda atom, _: bool(atom.variables & hidden))
    extreme = inside.high if (whole.op == "lt") == hardest else inside.low
    return Check(part, whole.op, bound.plus(whole.bound.constant + extreme))


def _difference(
    emitter: SumEmitter, part: Expr, extents: Mapping[Var, int]
) -> tuple[Check, dict[Var, Var]]:
    """A comparison with variables in the place of those of the loops within."""
    assert isinstance(part, Binary)
    within = {var: emitter.stand_in(var, extent) for var, extent in extents.items()}
    with emitter.bound({v: emitter.sums.variable(w) for v, w in within.items()}):
        difference = emitter.linear(part.a).plus(emitter.linear(part.b), -1)
    op = part.op
    if op in ("le", "gt"):
        op, difference = ("lt" if op == "le" else "ge"), difference.plus(-1)
    return Check(part, op, difference), within
