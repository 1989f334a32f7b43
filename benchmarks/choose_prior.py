"""Choose the constants of the analytic prior on the recorded spaces, leaving each of them out.

    python benchmarks/choose_prior.py

Every combination of the values below orders every space. It is judged by how well: the rank
correlation with the measured times, over all configurations and over the faster half, and how far
the thirty that it likes best are from the optimum (mean of the logarithm, cut at 1, counted twice).
For each space the combination that is best on the *others* is taken; the last lines show how the
prior orders the spaces that had no say in it, beside the constants that it has.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from tilewright.replay.arena import Arena, open_arena
from tilewright.replay.recording import find_all
from tilewright.space import cost_model
from tilewright.space.arrays import FloatArray

VALUES = {
    "loads_per_cycle": (1.0, 1.4, 2.0),
    "unrolled": (32.0, 48.0, 64.0, 96.0, 128.0, 256.0),
    "masked": (1.4, 2.0, 2.5, 3.0),
}
_FAVOURITES = 30


def correlation(a: FloatArray, b: FloatArray) -> float:
    """Spearman's; equal values come in the order in which they stand."""
    ranks = [np.argsort(np.argsort(v, kind="stable")) for v in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def order(arena: Arena, costs: cost_model.Costs) -> tuple[float, float, float]:
    """How the prior with these constants orders a space: see above."""
    cost_model.COSTS = costs
    ok = arena.ok
    prior = arena.space.tables.inner.prior_many(arena.space.members)[ok]
    times = np.log(arena.time_s[ok])
    fast = times <= np.median(times)
    best = times[np.argsort(-prior, kind="stable")[:_FAVOURITES]] - times.min()
    return (
        correlation(-prior, times),
        correlation(-prior[fast], times[fast]),
        float(np.minimum(best, 1.0).mean()),
    )


def main() -> None:
    arenas = [open_arena(path) for path in find_all(())]
    arenas = [arena for arena in arenas if arena.space.has_prior]
    shipped = cost_model.COSTS
    tried = [
        dataclasses.replace(shipped, **dict(zip(VALUES, values, strict=True)))
        for values in itertools.product(*VALUES.values())
    ]
    table = np.array([[order(arena, costs) for arena in arenas] for costs in tried])
    worth = table[:, :, 0] + table[:, :, 1] - 2 * table[:, :, 2]
    held_out = []
    for at, arena in enumerate(arenas):
        best = int(np.delete(worth, at, axis=1).mean(axis=1).argmax())
        held_out.append(table[best, at])
        print(f"{arena.name:28s} best on the others: {tried[best]}")
    print(f"best on all: {tried[int(worth.mean(axis=1).argmax())]}")
    own = np.array([order(arena, shipped) for arena in arenas])
    for label, rows in (("left out", np.array(held_out)), ("as shipped", own)):
        all_, fast, far = rows.mean(axis=0)
        print(
            f"{label:10s} correlation {all_:.2f}, of the faster half {fast:.2f}; "
            f"the {_FAVOURITES} favourites are {np.expm1(far):.0%} above the optimum"
        )


if __name__ == "__main__":
    main()
