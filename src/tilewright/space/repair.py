"""The nearest valid combination of knobs' values, by best-first search."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob
from tilewright.trial import Value

# Combinations looked at.
_MOST = 2000


def repaired(
    knobs: Sequence[Knob],
    constraints: Sequence[Constraint],
    values: Mapping[str, Value],
    gap: Callable[[Knob, Value], float],
) -> dict[str, Value] | None:
    """The nearest valid values, by single steps of the knobs that a violated constraint looks at.

    Args:
        knobs: that may be moved.
        constraints: that must hold.
        values: of all knobs that constraints look at, where the search begins.
        gap: how far a value of a knob is from what was asked for; their sum is the distance.

    Returns:
        All values; None where the combinations looked at had no valid one among them.
    """
    # A state is the varied knobs' values in their order: thousands of them are looked at.
    places = {knob.name: place for place, knob in enumerate(knobs)}
    looks = [tuple(places[n] for n in c.knobs if n in places) for c in constraints]
    first = tuple(values[knob.name] for knob in knobs)
    decided: dict[tuple[int, tuple[Value, ...]], bool] = {}
    steps: dict[tuple[int, Value], tuple[float, list[tuple[Value, float]]]] = {}

    def holds(number: int, state: tuple[Value, ...]) -> bool:
        key = (number, tuple(state[place] for place in looks[number]))
        if key not in decided:
            changed = {knob.name: v for knob, v in zip(knobs, state, strict=True)}
            decided[key] = constraints[number].holds({**values, **changed})
        return decided[key]

    def steps_from(place: int, value: Value) -> tuple[float, list[tuple[Value, float]]]:
        """The gap of a value, and its neighbours with theirs."""
        found = steps.get((place, value))
        if found is None:
            near = [(v, gap(knobs[place], v)) for v in knobs[place].neighbours(value)]
            found = steps[place, value] = gap(knobs[place], value), near
        return found

    start = sum(gap(knob, value) for knob, value in zip(knobs, first, strict=True))
    heap: list[tuple[float, int, tuple[Value, ...]]] = [(start, 0, first)]
    seen = {first}
    pushed = 0
    for _ in range(_MOST):
        if not heap:
            return None
        far, _, state = heapq.heappop(heap)
        violated = [n for n in range(len(looks)) if not holds(n, state)]
        if not violated:
            return {**values, **{knob.name: v for knob, v in zip(knobs, state, strict=True)}}
        for place in dict.fromkeys(place for n in violated for place in looks[n]):
            own, near = steps_from(place, state[place])
            here, before, after = far - own, state[:place], state[place + 1 :]
            for value, more in near:
                moved = (*before, value, *after)
                if moved not in seen:
                    seen.add(moved)
                    pushed += 1
                    heapq.heappush(heap, (here + more, pushed, moved))
    return None
