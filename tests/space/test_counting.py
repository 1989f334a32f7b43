import itertools
import math

import numpy as np
import pytest

from tilewright.space import sampling
from tilewright.space.sampling import Relation, SolutionSet, TooWide


def random_problem(rng):
    n = int(rng.integers(1, 6))
    cards = [int(c) for c in rng.integers(1, 5, n)]
    relations = []
    for source in range(int(rng.integers(0, 5))):
        scope = tuple(int(v) for v in rng.permutation(n)[: int(rng.integers(1, min(n, 3) + 1))])
        rows = [
            r for r in itertools.product(*(range(cards[v]) for v in scope)) if rng.random() < 0.7
        ]
        relations.append(Relation(scope, np.array(rows, np.int64).reshape(-1, len(scope)), source))
    return cards, relations


def brute_force(cards, relations):
    allowed = [(r.variables, set(map(tuple, r.rows.tolist()))) for r in relations]
    return {
        point
        for point in itertools.product(*map(range, cards))
        if all(tuple(point[v] for v in scope) in rows for scope, rows in allowed)
    }


@pytest.mark.parametrize("seed", range(150))
def test_ranks_number_exactly_the_solutions(seed):
    cards, relations = random_problem(np.random.default_rng(seed))
    expected = brute_force(cards, relations)
    found = SolutionSet(cards, relations)
    assert found.count == len(expected)
    rows = [tuple(r) for r in found.unrank(range(found.count)).tolist()]
    assert len(set(rows)) == len(rows)
    assert set(rows) == expected
    drawn = found.draw(np.random.default_rng(0), 20)
    assert len(drawn) == (20 if expected else 0)
    assert {tuple(r) for r in drawn.tolist()} <= expected


def test_counts_stay_exact_far_beyond_what_could_be_listed():
    # A chain x0 < x1 < ... has binomial(cardinality, length) solutions.
    cards, length = 60, 12
    rows = np.array([(a, b) for a in range(cards) for b in range(a + 1, cards)], np.int64)
    chain = [Relation((i, i + 1), rows, i) for i in range(length - 1)]
    found = SolutionSet([cards] * length, chain)
    assert found.count == math.comb(cards, length)
    last = found.unrank([found.count - 1, 0])
    assert (np.diff(last, axis=1) > 0).all()


def test_too_large_a_join_names_its_relations(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_JOIN_ROWS", 10)
    full = np.indices((5, 5)).reshape(2, -1).T.astype(np.int64)
    with pytest.raises(TooWide) as caught:
        SolutionSet([5, 5, 5], [Relation((0, 1), full, 7), Relation((1, 2), full, 9)])
    assert caught.value.sources == {7, 9}
