"""Evaluates the compiler's constraints with NumPy, and finds the domains of their knobs.

A constraint program (`tilewright.gpu`) has unknowns without domains. Here they get some:
bounds follow from the assertions by interval arithmetic, and every value that no combination of the
other values of an assertion supports is taken out. What follows from other knobs by an equation
(the threads of a workgroup from its subgroups) is computed instead of searched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.gpu import Assertion, ConstraintProgram
from tilewright.space.arrays import IntArray
from tilewright.space.terms import (
    LEAVES,
    OPERATIONS,
    Term,
    divided,
    looked_up,
    product,
    term,
    variable,
)

# A knob without a bound in the constraints is tried up to this value.
LARGEST = 1 << 16
# An assertion is used to thin out domains when it has at most this many combinations.
_MAX_GRID = 1 << 20


class Unbounded(ValueError):
    """The constraints leave more values for a knob than can be listed."""


class ConstraintModel:
    """The constraints of one pipeline: domains of the free variables, and what follows from them.

    `domains` has the values of every variable that is free, `computed` names those that follow.
    Raises Unbounded where a domain is too large.
    """

    def __init__(self, program: ConstraintProgram) -> None:
        self.program = program
        unknown = {n.operation for n in program.nodes} - {*LEAVES, *OPERATIONS}
        if unknown:
            raise ValueError(f"unknown operations in a constraint: {', '.join(sorted(unknown))}")
        self._options = {k.name: len(k.options) for k in program.knobs if k.options}
        self._quotients: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._terms: dict[int, Term] = {}
        knobs = {k.name for k in program.knobs}
        self._names = tuple(dict.fromkeys((*program.variables, *sorted(knobs))))
        self._declared = {name for name in self._names if name not in knobs}
        self._find_computed()
        self._low = dict.fromkeys(self._names, 0)
        self._high = dict.fromkeys(self._names, 2 * LARGEST)
        for name, count in self._options.items():
            self._high[name] = count - 1
        for _ in range(4):
            for assertion in program.assertions:
                self._bound(assertion.node)
        self.domains: dict[str, IntArray] = {
            name: np.arange(self._low[name], self._high[name] + 1, dtype=np.int64)
            for name in self._names
            if name not in self._quotients
        }
        self._thin_out()

    @property
    def computed(self) -> tuple[str, ...]:
        """The variables that follow from the free ones."""
        return tuple(self._quotients)

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, node: int, values: Mapping[str, Any]) -> Any:
        """The value of a node for values (numbers or arrays of one shape) of the free variables.

        Division and remainder are those of SMT-LIB (the remainder is never negative); by zero they
        give 0 and the dividend. Booleans are 0 and 1 where integers are wanted.
        """
        return self._evaluate(node, values, {})

    def compute(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value of a variable that follows from the free ones."""
        return self._variable(name, values, {})

    def holds(self, assertion: Assertion, values: Mapping[str, Any]) -> Any:
        """Whether an assertion holds for values (or arrays of them) of the free variables."""
        return np.asarray(self._evaluate(assertion.node, values, {})) != 0

    def term(self, node: int) -> Term:
        """A node as a term over the free variables."""
        if node not in self._terms:
            own = self.program.nodes[node]
            operands = tuple(self.term(i) for i in own.operands)
            if own.operation == "variable":
                self._terms[node] = self.variable_term(own.name)
            elif own.operation == "dim":
                self._terms[node] = term(self.program.dims[own.value])
            else:
                self._terms[node] = Term(own.operation, operands, own.value, table=own.table)
        return self._terms[node]

    def variable_term(self, name: str) -> Term:
        """A variable as a term: its value where there is one, what it follows from, or itself."""
        if name in self._quotients:
            total, divisors = self._quotients[name]
            whole = self.term(total)
            return whole // product(map(self.term, divisors)) if divisors else whole
        domain = self.domains[name]
        return term(domain[0]) if len(domain) == 1 else variable(name, self._option_names(name))

    def _option_names(self, name: str) -> tuple[str, ...]:
        return next((k.options for k in self.program.knobs if k.name == name), ())

    def _variable(self, name: str, values: Mapping[str, Any], known: dict[int, Any]) -> Any:
        if name not in self._quotients:
            return values[name]
        total, divisors = self._quotients[name]
        whole = self._evaluate(total, values, known)
        if not divisors:
            return whole
        by: Any = np.int64(1)
        for one in divisors:
            by = by * self._evaluate(one, values, known)
        return divided(whole, by)

    def _evaluate(self, at: int, values: Mapping[str, Any], known: dict[int, Any]) -> Any:
        if at not in known:
            node = self.program.nodes[at]
            if node.operation == "constant":
                known[at] = np.int64(node.value)
            elif node.operation == "dim":
                known[at] = np.int64(self.program.dims[node.value])
            elif node.operation == "variable":
                known[at] = self._variable(node.name, values, known)
            elif node.operation == "lookup":
                key = self._evaluate(node.operands[0], values, known)
                known[at] = looked_up(key, node.table)
            else:
                operands = [self._evaluate(i, values, known) for i in node.operands]
                known[at] = OPERATIONS[node.operation](*operands)
        return known[at]

    def scope(self, node: int) -> tuple[str, ...]:
        """The free variables that a node depends on, in their order."""
        found = self._reached[node]
        return tuple(name for name in self._names if name in found)

    def scope_of(self, name: str) -> frozenset[str]:
        """The free variables that one of the `computed` ones follows from."""
        total, divisors = self._quotients[name]
        return frozenset().union(*(self.scope(i) for i in (total, *divisors)))

    @cached_property
    def _reached(self) -> tuple[frozenset[str], ...]:
        return self._dependencies(self._quotients)

    def _dependencies(
        self, quotients: Mapping[str, tuple[int, tuple[int, ...]]]
    ) -> tuple[frozenset[str], ...]:
        direct: list[frozenset[str]] = []
        for node in self.program.nodes:
            own = {node.name} if node.operation == "variable" else set()
            direct.append(frozenset(own.union(*(direct[i] for i in node.operands))))
        while True:
            changed = False
            for at, names in enumerate(direct):
                wider = set(names)
                for name in names & set(quotients):
                    total, divisors = quotients[name]
                    wider.discard(name)
                    for i in (total, *divisors):
                        wider |= direct[i]
                if wider != names:
                    direct[at] = frozenset(wider)
                    changed = True
            if not changed:
                return tuple(direct)

    # -- what follows --------------------------------------------------------------------------

    def _find_computed(self) -> None:
        """Variables that an equation gives: `v == e`, and unknowns of the constraints' own (that no
        configuration carries) also as factors, `e == a * v * b`."""
        for assertion in self.program.assertions:
            node = self.program.nodes[assertion.node]
            if node.operation != "eq" or len(node.operands) != 2:
                continue
            for left, right in (node.operands, node.operands[::-1]):
                if self._take(left, right):
                    break

    def _take(self, left: int, right: int) -> bool:
        node = self.program.nodes[left]
        factors = self._factors(left)
        if node.operation == "variable":
            if self.program.nodes[right].operation in ("constant", "dim"):
                return False
            return self._follows(node.name, right, ())
        for i, at in enumerate(factors):
            factor = self.program.nodes[at]
            if factor.operation == "variable" and factor.name in self._declared:
                others = (*factors[:i], *factors[i + 1 :])
                if self._follows(factor.name, right, others):
                    return True
        return False

    def _follows(self, name: str, total: int, divisors: tuple[int, ...]) -> bool:
        if name in self._quotients or name in self._options:
            return False
        reached = self._dependencies(self._quotients)
        if any(name in reached[i] for i in (total, *divisors)):
            return False
        if not any(reached[i] for i in (total, *divisors)):
            return False
        self._quotients[name] = (total, divisors)
        return True

    def _factors(self, at: int) -> tuple[int, ...]:
        node = self.program.nodes[at]
        if node.operation != "mul":
            return (at,)
        return tuple(factor for i in node.operands for factor in self._factors(i))

    # -- bounds --------------------------------------------------------------------------------

    def _interval(self, at: int) -> tuple[int, int]:
        """The least and the greatest value that a node can have, within the bounds so far."""
        node = self.program.nodes[at]
        if node.operation == "constant":
            return node.value, node.value
        if node.operation == "dim":
            size = self.program.dims[node.value]
            return size, size
        if node.operation == "variable":
            return self._low[node.name], self._high[node.name]
        if node.operation == "lookup":
            values = [v for _, v in node.table]
            return min(values), max(values)
        parts = [self._interval(i) for i in node.operands]
        if node.operation == "add":
            return sum(p[0] for p in parts), sum(p[1] for p in parts)
        if node.operation == "sub":
            return parts[0][0] - sum(p[1] for p in parts[1:]), parts[0][1] - sum(
                p[0] for p in parts[1:]
            )
        if node.operation == "mul" and all(p[0] >= 0 for p in parts):
            return math.prod(p[0] for p in parts), math.prod(p[1] for p in parts)
        if node.operation == "div" and parts[0][0] >= 0 and parts[1][0] >= 1:
            return parts[0][0] // parts[1][1], parts[0][1] // parts[1][0]
        if node.operation == "mod" and parts[1][0] >= 0:
            return 0, max(0, parts[1][1] - 1)
        if node.operation == "ite":
            return min(p[0] for p in parts[1:]), max(p[1] for p in parts[1:])
        return -(1 << 62), 1 << 62

    def _bound(self, at: int) -> None:
        """What a node that must hold says of the bounds of variables."""
        node = self.program.nodes[at]
        if node.operation == "and":
            for i in node.operands:
                self._bound(i)
        elif node.operation in ("le", "lt"):
            self._at_most(node.operands[0], node.operands[1], int(node.operation == "lt"))
        elif node.operation in ("ge", "gt"):
            self._at_most(node.operands[1], node.operands[0], int(node.operation == "gt"))
        elif node.operation == "eq" and len(node.operands) == 2:
            left, right = node.operands
            self._at_most(left, right, 0)
            self._at_most(right, left, 0)
            for one, other in ((left, right), (right, left)):
                rest = self.program.nodes[one]
                if rest.operation == "mod" and self._interval(other) == (0, 0):
                    # A divisor of something positive is no larger than it.
                    low, _ = self._interval(rest.operands[0])
                    if low >= 1:
                        self._at_most(rest.operands[1], rest.operands[0], 0)

    def _at_most(self, small: int, large: int, strictly: int) -> None:
        """`small <= large` (or `<`)."""
        high = self._interval(large)[1] - strictly
        factors = self._factors(small)
        for i, at in enumerate(factors):
            node = self.program.nodes[at]
            if node.operation == "variable":
                others = [self._interval(f)[0] for j, f in enumerate(factors) if j != i]
                if all(o >= 1 for o in others):
                    bound = high // math.prod(others) if others else high
                    self._high[node.name] = min(self._high[node.name], bound)
        node = self.program.nodes[large]
        if node.operation == "variable":
            low = self._interval(small)[0] + strictly
            self._low[node.name] = max(self._low[node.name], low)

    # -- domains -------------------------------------------------------------------------------

    def _thin_out(self) -> None:
        """Take out values that no combination supports, by every assertion small enough."""
        scopes = [(self.scope(a.node), a) for a in self.program.assertions]
        changed = True
        while changed:
            changed = False
            for names, assertion in sorted(scopes, key=lambda s: self._grid_size(s[0])):
                if names and self._grid_size(names) <= _MAX_GRID:
                    changed |= self._support(names, assertion)
        for name, domain in self.domains.items():
            if len(domain) > LARGEST:
                raise Unbounded(f"the constraints give no bound for '{name}'")

    def _grid_size(self, names: Sequence[str]) -> int:
        return math.prod(len(self.domains[n]) for n in names)

    def grid(self, names: Sequence[str]) -> dict[str, IntArray]:
        """All combinations of the variables' values, flat."""
        axes = np.meshgrid(*(self.domains[n] for n in names), indexing="ij")
        return {n: axis.ravel() for n, axis in zip(names, axes, strict=True)}

    def _support(self, names: Sequence[str], assertion: Assertion) -> bool:
        values = self.grid(names)
        good = np.broadcast_to(self.holds(assertion, values), next(iter(values.values())).shape)
        if good.all():
            return False
        changed = False
        for name in names:
            kept = np.unique(values[name][good])
            changed |= len(kept) < len(self.domains[name])
            self.domains[name] = kept
        return changed
