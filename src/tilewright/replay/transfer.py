"""What recorded spaces of other shapes teach the search of one, as the database does in tuning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tilewright.replay.arena import Arena, open_arena
from tilewright.search.transfer import Experience, ranges


def teachers(arena: Arena, paths: Iterable[Path]) -> list[Path]:
    """Those of the recorded spaces that are of the same kind and pipeline, and of other shapes.

    Args:
        arena: the space that is searched.
        paths: of the recordings to learn from.
    """
    subject = arena.recording.subject
    if subject is None:
        return []
    found = []
    for path in paths:
        other = open_arena(path).recording.subject
        if (
            other is not None
            and other.workload.kind == subject.workload.kind
            and other.workload.key != subject.workload.key
            and other.template.translation.pipeline == subject.template.translation.pipeline
        ):
            found.append(path)
    return found


def experience(paths: Sequence[Path], trials: int, seed: int) -> tuple[Experience, ...]:
    """Random trials of recorded spaces, to learn from.

    Args:
        paths: the spaces' files.
        trials: how many of each.
        seed: the same one draws the same.
    """
    return tuple(
        _drawn(open_arena(path), trials, np.random.default_rng([seed, number, 3]))
        for number, path in enumerate(paths)
    )


def _drawn(arena: Arena, trials: int, rng: np.random.Generator) -> Experience:
    drawn = rng.permutation(len(arena.rows))[:trials]
    times = np.where(arena.ok[drawn], arena.time_s[drawn], np.nan)
    described = arena.space.tables.described
    names = tuple(arena.space.descriptor_names)
    return Experience(names, described[drawn], times, ranges(described))
