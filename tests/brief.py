"""What takes a fixed time for the sake of a user's numbers, in less: no test asserts them.

For every process of the tests that asks for it: this one, and those that `warm_start` forks.
"""

from __future__ import annotations


def be_brief() -> None:
    """Measure the ways to run a result, as each tuning run does at its end, in a tenth of 2 s."""
    # Not at the top: the process that hands out the tests has no use for it.
    from tilewright.measure import ways
    from tilewright.tuning import how_to_run

    how_to_run._ROUNDS, ways._SAMPLE_S = 6, 0.002
