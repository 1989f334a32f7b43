"""Steps through a space: neighbours of a configuration, and repair of an invalid one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob
from tilewright.trial import Value

Values = dict[str, Value]


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

    `values` must be valid; only the constraints of the knobs that moved are checked again
    (`constraints` holds them for each knob).
    """
    steps = {k.name: k.neighbours(values[k.name], reach) for k in knobs}
    singles: list[Values] = [{name: v} for name, vs in steps.items() for v in vs]
    doubles: list[tuple[str, Value, str, Value]] = []
    for stage in (0, 1):
        if stage == 1:
            doubles = [
                (a.name, va, b.name, vb)
                for a, b in pairs
                for va in steps[a.name]
                for vb in steps[b.name]
            ]
        count = len(doubles) if stage else len(singles)
        for i in rng.permutation(count):
            if stage:
                a, va, b, vb = doubles[i]
                change: Values = {a: va, b: vb}
            else:
                change = singles[i]
            moved = values | change
            touched = {c.name: c for name in change for c in constraints[name]}
            if all(c.holds(moved) for c in touched.values()):
                yield moved


def repair(
    values: Values,
    knobs: Sequence[Knob],
    constraints: Sequence[Constraint],
    distance: Callable[[Values], float],
    limit: int = 2000,
) -> Values | None:
    """Nearest valid values by best-first search over single steps; None after `limit` states.

    Starts from values of the domains and moves only the knobs that a violated constraint looks at.
    `distance` measures how far a state is from what was asked for.
    """
    by_name = {k.name: k for k in knobs}
    key = tuple(values[k.name] for k in knobs)
    heap: list[tuple[float, int, Values]] = [(distance(values), 0, values)]
    seen = {key}
    pushed = 0
    for _ in range(limit):
        if not heap:
            return None
        _, _, state = heapq.heappop(heap)
        violated = [c for c in constraints if not c.holds(state)]
        if not violated:
            return state
        for name in dict.fromkeys(n for c in violated for n in c.knobs if n in by_name):
            for value in by_name[name].neighbours(state[name]):
                moved = state | {name: value}
                key = tuple(moved[k.name] for k in knobs)
                if key not in seen:
                    seen.add(key)
                    pushed += 1
                    heapq.heappush(heap, (distance(moved), pushed, moved))
    return None
