"""What takes a fixed time for the sake of a user's numbers, in less: no test asserts them.

For every process of the tests that has it imported: this one, and those that
`warm_start` forks.
"""

from __future__ import annotations

from tilewright.tuning import how_to_run


def be_brief() -> None:
    """Set it."""
    # Beside each other: the ways to run each result of each tuning run, for two seconds.
    how_to_run._ROUNDS, how_to_run._SAMPLE_S = 6, 0.002
