"""The valid set of a space: counting, ordering and uniform sampling.

Constraints are split into two groups. Those whose scope has at most `MAX_TABLE` combinations are
tabulated, those with a :class:`~tilewright.space.constraints.Fold` become a chain of tables over
the fold's states; both are exact (see :class:`SolutionSet`). The rest ("wide") are
checked on candidates drawn uniformly from the exact set, and a candidate that fails is drawn again:
rejection keeps the distribution uniform. Where hardly any candidate passes and the exact set is
small enough to be listed, it is listed once and drawn from.

Setting up evaluates a constraint at most `MAX_TABLE` times, whatever the size of the space; a
sample then costs one evaluation of each wide constraint per candidate.

Counting is bucket elimination (R. Dechter, "Bucket elimination: A unifying framework for
reasoning", Artificial Intelligence 113, 1999) over sparse relations. Variables are eliminated one
by one: the relations that mention a variable are joined, the join is kept, and what goes on is, for
each assignment of the other variables in it, the number of ways to complete it. The kept joins make
a forest in which every solution has a rank: :meth:`SolutionSet.unrank` walks it from the roots
down. A uniform random rank gives a uniform random solution, at a cost that depends on the number of
variables and not on the number of solutions. All counts are exact integers below 2^62.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import BoolArray, IntArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob

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


MAX_TABLE = 200_000
# The exact set is listed when it is at most this large and hardly anything of it passes.
MAX_LISTED = 2**20
# Candidates drawn for one call before a sample gives up (returning what it found).
MAX_CANDIDATES = 2**20
_LOW_ACCEPTANCE = 1 / 1024
_PROBES = 4096
_BATCH = 256


@dataclass(frozen=True)
class SizeEstimate:
    """Number of valid points, with a 95% interval where it is sampled.

    `total` is the product of all domains (of the knobs that have an effect). With `exact` set,
    `low`, `points` and `high` are equal.
    """

    points: int
    low: int
    high: int
    exact: bool
    total: int

    def __str__(self) -> str:
        if self.exact:
            return f"{self.points:,}"
        return f"about {self.points:.2e} ({self.low:.2e} to {self.high:.2e})"


@dataclass(frozen=True)
class _Step:
    """One knob of a fold: rows (state, value, next state); the last step has no next state."""

    variable: int
    states: int
    rows: IntArray


class ValidSet:
    """The valid index vectors over some knobs (one column for each knob).

    `order_size` counts the ranks of a fixed order; with wide constraints some of them are invalid.
    """

    def __init__(self, knobs: Sequence[Knob], constraints: Sequence[Constraint]) -> None:
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self._at = {k.name: i for i, k in enumerate(knobs)}
        self.total = math.prod(k.cardinality for k in knobs)
        self._exact, self.wide = self._build()
        self.order_size = self._exact.count
        self._listed: IntArray | None = self._list_if_thin()
        if self._listed is not None:
            self.order_size = len(self._listed)

    # -- deciding ------------------------------------------------------------------------------

    def holds(self, constraint: Constraint, rows: IntArray) -> BoolArray:
        """Which rows satisfy one constraint."""
        if len(rows) == 0:
            return np.zeros(0, dtype=np.bool_)
        columns = [self.knobs[self._at[k]].column(rows[:, self._at[k]]) for k in constraint.knobs]
        return constraint.mask(columns)

    def passes(self, rows: IntArray, constraints: Sequence[Constraint]) -> BoolArray:
        """Which rows satisfy all of the constraints; each sees what the ones before left over."""
        alive = np.arange(len(rows))
        for constraint in constraints:
            alive = alive[self.holds(constraint, rows[alive])]
        mask = np.zeros(len(rows), dtype=np.bool_)
        mask[alive] = True
        return mask

    # -- building ------------------------------------------------------------------------------

    def _build(self) -> tuple[SolutionSet, tuple[Constraint, ...]]:
        tables: dict[int, Relation | list[_Step]] = {}
        for i, constraint in enumerate(self.constraints):
            if self._scope_size(constraint) <= MAX_TABLE:
                tables[i] = self._tabulate(i, constraint)
            elif constraint.fold is not None:
                chain = self._unfold(constraint)
                if chain:
                    tables[i] = chain
        while True:
            try:
                exact = self._solve(tables)
            except TooWide as too_wide:
                del tables[
                    max(too_wide.sources, key=lambda i: (self._scope_size(self.constraints[i]), i))
                ]
                continue
            wide = tuple(c for i, c in enumerate(self.constraints) if i not in tables)
            return exact, wide

    def _solve(self, tables: Mapping[int, Relation | list[_Step]]) -> SolutionSet:
        """Count the exact part. The states of a fold become variables after those of the knobs;
        they follow from the knobs, so the number of solutions stays that of configurations."""
        cardinalities = [k.cardinality for k in self.knobs]
        relations: list[Relation] = []
        for source, table in tables.items():
            if isinstance(table, Relation):
                relations.append(table)
                continue
            state: tuple[int, ...] = ()
            for step in table:
                after: tuple[int, ...] = ()
                if step.states:
                    after = (len(cardinalities),)
                    cardinalities.append(step.states)
                rows = step.rows if state else step.rows[:, 1:]
                relations.append(Relation((*state, step.variable, *after), rows, source))
                state = after
        return SolutionSet(cardinalities, relations)

    def _scope_size(self, constraint: Constraint) -> int:
        return math.prod(self.knobs[self._at[k]].cardinality for k in constraint.knobs)

    def _tabulate(self, source: int, constraint: Constraint) -> Relation:
        variables = tuple(self._at[k] for k in constraint.knobs)
        sizes = [self.knobs[v].cardinality for v in variables]
        rows = np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int64)
        columns = [self.knobs[v].column(rows[:, i]) for i, v in enumerate(variables)]
        return Relation(variables, rows[constraint.mask(columns)], source)

    def _unfold(self, constraint: Constraint) -> list[_Step]:
        """The tables (state, knob, next state) of a fold; none when it has too many states."""
        fold = constraint.fold
        assert fold is not None
        states = np.array([fold.start], dtype=np.int64)
        steps: list[_Step] = []
        for position, name in enumerate(constraint.knobs):
            variable = self._at[name]
            knob = self.knobs[variable]
            if len(states) * knob.cardinality > MAX_TABLE:
                return []
            grid = np.indices((len(states), knob.cardinality)).reshape(2, -1).astype(np.int64)
            after = np.asarray(fold.step(states[grid[0]], knob.column(grid[1])))
            if position == len(constraint.knobs) - 1:
                accepted = np.asarray(fold.accept(after), dtype=np.bool_)
                steps.append(_Step(variable, 0, grid.T[accepted]))
            else:
                states, following = np.unique(after, return_inverse=True)
                rows = np.column_stack([grid.T, following.reshape(-1)]).astype(np.int64)
                steps.append(_Step(variable, len(states), rows))
        return steps

    # -- ordering ------------------------------------------------------------------------------

    def unrank(self, ranks: Sequence[int]) -> IntArray:
        """Index vectors of ranks 0 to order_size - 1, wide constraints not yet checked."""
        if self._listed is not None:
            return self._listed[np.asarray(ranks, dtype=np.int64)]
        return self._exact.unrank(ranks)[:, : len(self.knobs)]

    def _pieces(self) -> Iterator[IntArray]:
        for first in range(0, self.order_size, 4096):
            ranks = range(first, min(first + 4096, self.order_size))
            rows = self._exact.unrank(ranks)[:, : len(self.knobs)]
            yield rows[self.passes(rows, self.wide)]

    def _list_if_thin(self) -> IntArray | None:
        """All valid rows, where wide constraints leave few of few candidates.

        Decided once, by a fixed seed, so that later draws depend on their own seed alone.
        """
        if not self.wide or not 0 < self.order_size <= MAX_LISTED:
            return None
        if self.order_size > _PROBES:
            probes = self._candidates(np.random.default_rng(0), _PROBES)
            if self.passes(probes, self.wide).sum() > _PROBES * _LOW_ACCEPTANCE:
                return None
        return np.concatenate(list(self._pieces()))

    # -- sampling ------------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """Up to `n` independent rows, uniform over the valid set.

        Fewer (or none) only when the set is empty or so thin that `MAX_CANDIDATES` candidates did
        not hit it often enough.
        """
        if not self.wide or self.order_size == 0:
            return self._candidates(rng, n)
        if self._listed is not None:
            at = rng.integers(len(self._listed), size=n) if len(self._listed) else np.zeros(0, int)
            return self._listed[at]
        found: list[IntArray] = []
        have = tried = 0
        batch = max(_BATCH, n)
        while have < n and tried < MAX_CANDIDATES:
            rows = self._candidates(rng, batch)
            rows = rows[self.passes(rows, self.wide)]
            found.append(rows)
            have, tried = have + len(rows), tried + batch
            batch = min(2 * batch, 2**15)
        return np.concatenate(found)[:n]

    def _candidates(self, rng: np.random.Generator, n: int) -> IntArray:
        return self._exact.draw(rng, n)[:, : len(self.knobs)]

    def estimate(self, rng: np.random.Generator, n: int = 4096) -> SizeEstimate:
        """Number of valid rows: exact without wide constraints, else from `n` candidates."""
        if not self.wide or self.order_size == 0:
            count = self.order_size
            return SizeEstimate(count, count, count, True, self.total)
        if self._listed is not None:
            count = len(self._listed)
            return SizeEstimate(count, count, count, True, self.total)
        hits = int(self.passes(self._candidates(rng, n), self.wide).sum())
        low, high = wilson(hits, n)
        size = self.order_size
        points = [max(1, round(size * share)) for share in (hits / n, low, high)]
        return SizeEstimate(points[0], points[1], points[2], False, self.total)

    def rejections(self, rng: np.random.Generator, n: int) -> dict[str, float]:
        """Share of all combinations that each constraint alone rejects, from `n` random ones."""
        columns = [rng.integers(k.cardinality, size=n) for k in self.knobs]
        rows = np.column_stack(columns).astype(np.int64) if columns else np.zeros((n, 0), np.int64)
        return {c.name: float(1 - self.holds(c, rows).mean()) for c in self.constraints}


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval for a share (E. B. Wilson, JASA 22, 1927).

    Args:
        hits: how many of the draws were hits.
        n: how many draws there were, at least 1.
        z: deviations of the normal distribution; 1.96 for 95%.

    Returns:
        The interval's ends, within 0 and 1.
    """
    share = hits / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (
        max(0.0, (centre - spread) / (1 + z * z / n)),
        min(1.0, (centre + spread) / (1 + z * z / n)),
    )
