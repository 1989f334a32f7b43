"""Count and number the solutions of small-scope relations without enumerating them.

Bucket elimination (R. Dechter, "Bucket elimination: A unifying framework for reasoning", Artificial
Intelligence 113, 1999) over sparse relations. Variables are eliminated one by one: the relations
that mention a variable are joined, the join is kept, and what goes on is, for each assignment of
the other variables in it, the number of ways to complete it. The kept joins make a forest in which
every solution has a rank: :meth:`SolutionSet.unrank` walks it from the roots down. A uniform random
rank gives a uniform random solution, at a cost that depends on the number of variables and not on
the number of solutions. All counts are exact integers below 2^62.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import IntArray

# A join of more rows than this is not made: the relation of largest scope is left out instead.
MAX_JOIN_ROWS = 400_000
_MAX_COUNT = 2**62


class TooWide(Exception):
    """A join would be too large; `sources` are the ids of the relations that take part in it."""

    def __init__(self, sources: frozenset[int]) -> None:
        super().__init__("join too large")
        self.sources = sources


@dataclass(frozen=True)
class Relation:
    """Allowed combinations: `rows[i]` holds one value index for each of `variables`."""

    variables: tuple[int, ...]
    rows: IntArray
    source: int


@dataclass(frozen=True)
class _Factor:
    """A relation with the number of completions of each row, on its way through the elimination."""

    variables: tuple[int, ...]
    rows: IntArray
    weights: IntArray
    sources: frozenset[int]
    node: _Node | None


@dataclass(frozen=True)
class _Node:
    """The join made when `variable` was eliminated, grouped by the values of `parents`."""

    variable: int
    parents: tuple[int, ...]
    radix: IntArray
    keys: IntArray  # distinct keys of the parents, ascending
    starts: IntArray  # first row of each group, and the end of the last
    values: IntArray  # value of the variable in each row
    cumulative: IntArray  # sum of the weights of all rows before this one; one longer than values
    children: tuple[_Node, ...]

    def groups(self, assignment: IntArray) -> IntArray:
        keys = assignment[:, self.parents] @ self.radix
        return np.searchsorted(self.keys, keys).astype(np.int64)

    def totals(self, assignment: IntArray) -> IntArray:
        """Completions of each assignment (rows) of the parents."""
        group = self.groups(assignment)
        ends = self.cumulative[self.starts[group + 1]]
        return np.asarray(ends - self.cumulative[self.starts[group]], dtype=np.int64)

    def unrank(self, ranks: IntArray, assignment: IntArray) -> None:
        """Fill in this variable and those below it, by ranks in [0, totals)."""
        group = self.groups(assignment)
        target = self.cumulative[self.starts[group]] + ranks
        row = np.searchsorted(self.cumulative, target, side="right") - 1
        assignment[:, self.variable] = self.values[row]
        rest = target - self.cumulative[row]
        for child in self.children:
            total = child.totals(assignment)
            child.unrank(rest % total, assignment)
            rest = rest // total


class SolutionSet:
    """The assignments of variables (with `cardinalities`) that satisfy all relations.

    Raises :class:`TooWide` when a join or a count gets too large.
    """

    def __init__(self, cardinalities: Sequence[int], relations: Sequence[Relation]) -> None:
        self._cardinalities = tuple(cardinalities)
        bound = {v for r in relations for v in r.variables}
        self._free = tuple(v for v in range(len(cardinalities)) if v not in bound)
        self._roots: list[tuple[_Node, int]] = []
        self._eliminate(relations)
        # Mixed radix: the roots first, then the variables that no relation mentions.
        self._digits = [c for _, c in self._roots] + [self._cardinalities[v] for v in self._free]
        self.count = math.prod(self._digits)

    def _eliminate(self, relations: Sequence[Relation]) -> None:
        factors = [
            _Factor(
                r.variables, r.rows, np.ones(len(r.rows), np.int64), frozenset((r.source,)), None
            )
            for r in relations
        ]
        while any(f.variables for f in factors):
            variable = min(
                sorted({v for f in factors for v in f.variables}),
                key=lambda v: self._join_estimate(v, factors),
            )
            bucket = [f for f in factors if variable in f.variables]
            factors = [f for f in factors if variable not in f.variables]
            message = self._close(variable, self._join_all(bucket), bucket)
            if message.variables:
                factors.append(message)
            else:
                assert message.node is not None
                self._roots.append((message.node, int(message.weights.sum())))

    def _join_estimate(self, variable: int, factors: Sequence[_Factor]) -> float:
        bucket = [f for f in factors if variable in f.variables]
        scope = {v for f in bucket for v in f.variables}
        dense = math.prod(self._cardinalities[v] for v in scope)
        return float(min(dense, math.prod(len(f.rows) for f in bucket)))

    def _radix(self, variables: Sequence[int], sources: frozenset[int]) -> IntArray:
        """Multipliers that turn values of `variables` into one integer key, the first slowest."""
        sizes = [self._cardinalities[v] for v in variables]
        if math.prod(sizes) >= _MAX_COUNT:
            raise TooWide(sources)
        return np.array([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=np.int64)

    def _join_all(self, bucket: Sequence[_Factor]) -> _Factor:
        ordered = sorted(bucket, key=lambda f: len(f.rows))
        joined = ordered[0]
        for other in ordered[1:]:
            joined = self._join(joined, other)
        return joined

    def _join(self, a: _Factor, b: _Factor) -> _Factor:
        sources = a.sources | b.sources
        shared = [v for v in a.variables if v in b.variables]
        extra = [v for v in b.variables if v not in a.variables]
        radix = self._radix(shared, sources)
        key_a = a.rows[:, [a.variables.index(v) for v in shared]] @ radix
        key_b = b.rows[:, [b.variables.index(v) for v in shared]] @ radix
        order = np.argsort(key_b, kind="stable")
        sorted_b = key_b[order]
        first = np.searchsorted(sorted_b, key_a, side="left")
        matches = np.searchsorted(sorted_b, key_a, side="right") - first
        total = int(matches.sum())
        if total > MAX_JOIN_ROWS:
            raise TooWide(sources)
        left = np.repeat(np.arange(len(a.rows)), matches)
        within = np.arange(total) - np.repeat(np.cumsum(matches) - matches, matches)
        right = order[np.repeat(first, matches) + within]
        columns = b.rows[:, [b.variables.index(v) for v in extra]]
        weights = _product(a.weights[left], b.weights[right], sources)
        rows = np.concatenate([a.rows[left], columns[right]], axis=1)
        return _Factor((*a.variables, *extra), rows, weights, sources, None)

    def _close(self, variable: int, joined: _Factor, bucket: Sequence[_Factor]) -> _Factor:
        """Sum the variable out of a join: keeps the node, returns the message about its parents."""
        parents = tuple(v for v in joined.variables if v != variable)
        radix = self._radix(parents, joined.sources)
        columns = joined.rows[:, [joined.variables.index(v) for v in parents]]
        values = joined.rows[:, joined.variables.index(variable)]
        keys = columns @ radix if parents else np.zeros(len(values), np.int64)
        order = np.lexsort((values, keys))
        keys, weights = keys[order], joined.weights[order]
        if float(weights.astype(np.float64).sum()) >= _MAX_COUNT:
            raise TooWide(joined.sources)
        distinct, starts = np.unique(keys, return_index=True)
        cumulative = np.concatenate([[0], np.cumsum(weights)]).astype(np.int64)
        bounds = np.append(starts, len(keys)).astype(np.int64)
        node = _Node(
            variable,
            parents,
            radix,
            distinct.astype(np.int64),
            bounds,
            values[order],
            cumulative,
            tuple(f.node for f in bucket if f.node is not None),
        )
        totals = cumulative[bounds[1:]] - cumulative[bounds[:-1]]
        return _Factor(parents, columns[order][starts], totals, joined.sources, node)

    def unrank(self, ranks: Sequence[int]) -> IntArray:
        """Solutions of the given ranks (0 to count - 1): one row of value indices each."""
        columns: list[list[int]] = []
        rest = list(ranks)
        for size in reversed(self._digits):
            columns.append([r % size for r in rest])
            rest = [r // size for r in rest]
        columns.reverse()
        digits = np.array(columns, dtype=np.int64).reshape(len(self._digits), len(rest))
        return self._assemble(digits)

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """`n` independent, uniformly distributed solutions (none if there are none)."""
        if self.count == 0:
            return np.zeros((0, len(self._cardinalities)), dtype=np.int64)
        digits = np.array([rng.integers(size, size=n) for size in self._digits], dtype=np.int64)
        return self._assemble(digits.reshape(len(self._digits), n))

    def _assemble(self, digits: IntArray) -> IntArray:
        out = np.zeros((digits.shape[1], len(self._cardinalities)), dtype=np.int64)
        for (node, _), ranks in zip(self._roots, digits, strict=False):
            node.unrank(ranks, out)
        out[:, self._free] = digits[len(self._roots) :].T
        return out


def _product(a: IntArray, b: IntArray, sources: frozenset[int]) -> IntArray:
    if len(a) and float(a.max()) * float(b.max()) >= _MAX_COUNT:
        raise TooWide(sources)
    return np.asarray(a * b, dtype=np.int64)
