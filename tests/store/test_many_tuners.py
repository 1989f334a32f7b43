"""Eight tuners on one store: a small form of `benchmarks/many_tuners.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from many_tuners import many


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_eight_tuners_lose_and_double_nothing(place: Path | str) -> None:
    """They make the tables together, share the tasks, and store at the same time."""
    outcome = many(str(place), tuners=8, trials=200)
    assert (outcome.stored, outcome.lost, outcome.doubled) == (200, 0, 0)
