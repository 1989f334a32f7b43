"""Steps through a space: neighbours of a configuration, and repair of an invalid one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from tilewright.space.arrays import BoolArray, as_column
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob
from tilewright.trial import Value

Values = dict[str, Value]

# Steps checked together, doubled for every further piece.
_FIRST_PIECE = 32


def coupled_pairs(
    knobs: Sequence[Knob], constraints: Sequence[Constraint]
) -> list[tuple[Knob, Knob]]:
    """Pairs of knobs that share a constraint, in the order of the knobs."""
    scopes = [set(c.knobs) for c in constraints]
    return [(a, b) for a, b in combinations(knobs, 2) if any({a.name, b.name} <= s for s in scopes)]


def neighbours(
    values: Values,
    knobs: Sequence[Knob],
    pairs: Sequence[tuple[Knob, Knob]],
    constraints: Mapping[str, Sequence[Constraint]],
    rng: np.random.Generator,
    reach: int,
) -> Iterator[Values]:
    """Valid steps in one knob, then in two of a pair, each group in random order.

    Only the constraints of the knobs that moved are checked again, for a piece of the steps at a
    time.

    Args:
        values: of all knobs; must be valid.
        knobs: those that move.
        pairs: knobs that move together.
        constraints: those that look at each knob, by its name.
        rng: decides the order.
        reach: how many steps a knob may go.
    """
    steps = {k.name: k.neighbours(values[k.name], reach) for k in knobs}
    for stage in (0, 1):
        if stage == 0:
            changes: list[Values] = [{name: v} for name, vs in steps.items() for v in vs]
        else:
            changes = [
                {a.name: va, b.name: vb}
                for a, b in pairs
                for va in steps[a.name]
                for vb in steps[b.name]
            ]
        order = rng.permutation(len(changes)).tolist()
        first, size = 0, _FIRST_PIECE
        while first < len(order):
            piece = [changes[i] for i in order[first : first + size]]
            valid = _valid(values, piece, constraints)
            yield from (values | c for c, ok in zip(piece, valid, strict=True) if ok)
            first, size = first + size, 2 * size


def _valid(
    values: Values, changes: Sequence[Values], constraints: Mapping[str, Sequence[Constraint]]
) -> BoolArray:
    """Which changes of valid values leave them valid."""
    valid = np.ones(len(changes), dtype=np.bool_)
    touched = {c.name: c for change in changes for name in change for c in constraints[name]}
    for constraint in touched.values():
        columns = [as_column([c.get(k, values[k]) for c in changes]) for k in constraint.knobs]
        valid &= constraint.mask(columns)
    return valid


def repair(
    values: Values,
    knobs: Sequence[Knob],
    constraints: Sequence[Constraint],
    gap: Callable[[Knob, Value], float],
    limit: int = 2000,
) -> Values | None:
    """The nearest valid values, by best-first search over single steps.

    Moves only the knobs that a violated constraint looks at.

    Args:
        values: of the domains; where the search begins.
        knobs: those that may move.
        constraints: what has to hold.
        gap: how far a value of a knob is from what was asked for; their sum is the distance.
        limit: how many combinations are looked at.

    Returns:
        None where none was found within the limit.
    """
    by_name = {k.name: k for k in knobs}
    start = sum(gap(k, values[k.name]) for k in knobs)
    heap: list[tuple[float, int, Values]] = [(start, 0, values)]
    seen = {tuple(values[k.name] for k in knobs)}
    decided: dict[tuple[str, tuple[Value, ...]], bool] = {}

    def holds(constraint: Constraint, state: Values) -> bool:
        key = (constraint.name, tuple(state[k] for k in constraint.knobs))
        if key not in decided:
            decided[key] = constraint.holds(state)
        return decided[key]

    pushed = 0
    for _ in range(limit):
        if not heap:
            return None
        far, _, state = heapq.heappop(heap)
        violated = [c for c in constraints if not holds(c, state)]
        if not violated:
            return state
        for name in dict.fromkeys(n for c in violated for n in c.knobs if n in by_name):
            knob = by_name[name]
            here = far - gap(knob, state[name])
            for value in knob.neighbours(state[name]):
                moved = state | {name: value}
                key = tuple(moved[k.name] for k in knobs)
                if key not in seen:
                    seen.add(key)
                    pushed += 1
                    heapq.heappush(heap, (here + gap(knob, value), pushed, moved))
    return None
