"""Which tiles of promoted operands the threads of a workgroup can copy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.space.gpu_copies import is_shared_out
from tilewright.space.terms import evaluator, variable

# IREE 3.13 refused the first three ("failed to derive layout for promoted read-like op"); the rest
# follows from the same lines of its source.
TILES = [
    ((16, 384), 128, 16, False),
    ((64, 384), 128, 16, False),
    ((128, 96), 128, 16, False),
    ((16, 256), 128, 16, True),
    ((64, 64), 128, 16, True),
    ((32, 96), 96, 16, True),
    ((1, 64, 32), 256, 16, True),
    ((1, 1, 16, 8), 64, 32, True),
    ((4, 2, 4), 4, 32, True),
]


@pytest.mark.parametrize(("shape", "threads", "bits", "good"), TILES)
def test_as_the_compiler(shape, threads, bits, good):
    assert bool(is_shared_out(shape, threads, bits)) is good


def test_numbers_arrays_and_terms_agree():
    sizes = (1, 2, 3, 8, 16, 24, 48, 64, 96, 100)
    grid = np.array(list(itertools.product(sizes, sizes, (32, 96, 128, 256))))
    rows, columns, threads = grid.T
    together = is_shared_out((rows, columns), threads, 16)
    names = ("r", "c", "t")
    r, c, t = map(variable, names)
    as_term = evaluator(is_shared_out((r, c), t, 16), names)
    assert np.array_equal(as_term(rows, columns, threads), together)
    for one, expected in list(zip(grid.tolist(), together.tolist(), strict=True))[::7]:
        assert bool(is_shared_out(tuple(one[:2]), one[2], 16)) is expected
        assert bool(as_term(*one)) is expected
    assert 0 < together.sum() < len(together)
