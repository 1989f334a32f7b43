"""A recorded space in numbers: what it holds, and how hard it is for random search."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.replay.arena import Arena, open_arena
from tilewright.trial import Status, Value

# Of what is known of a recording, what a reader wants to see.
_RECORDED = ("processor", "threads", "date", "iree", "program", "dispatch", "imported")


@dataclass(frozen=True)
class Description:
    """What `tilewright replay show` shows. Times in seconds; None where there is no default.

    `knobs` holds the values of those that vary, `failures` the number of configurations by status.
    `optimum` is the best configuration, in words. `budget` and `random_trials` count random
    search's trials: to close 95% of the gap between the median and the optimum, and (as a median)
    to come within 5% of it.
    """

    name: str
    kind: str
    workload: str
    configurations: int
    ok: int
    failures: dict[str, int]
    knobs: dict[str, tuple[Value, ...]]
    optimum_s: float
    median_s: float
    worst_s: float
    default_s: float | None
    optimum: str
    budget: int
    random_trials: int
    recorded: dict[str, Any]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def describe_space(path: Path) -> Description:
    """The description of a file; UserError when it cannot be read, or there is nothing to find."""
    arena = open_arena(path)
    race = arena.race(True)
    recording = arena.recording
    statuses = Counter(arena.status(member) for member in range(len(arena.rows)))
    default = arena.default
    default_s = None
    if default is not None and arena.ok[arena.number[default]]:
        default_s = float(arena.time_s[arena.number[default]])
    varied = {knob.name: knob.values for knob in recording.knobs if len(knob.values) > 1}
    return Description(
        name=recording.name,
        kind=recording.kind,
        workload="" if recording.subject is None else recording.subject.workload.name,
        configurations=len(arena.rows),
        ok=statuses[Status.OK],
        failures={str(s): n for s, n in sorted(statuses.items()) if s is not Status.OK},
        knobs=varied,
        optimum_s=race.optimum,
        median_s=race.median,
        worst_s=race.worst,
        default_s=default_s,
        optimum=_words(arena, list(varied)),
        budget=race.budget,
        random_trials=race.random_trials,
        recorded={key: recording.facts[key] for key in _RECORDED if recording.facts.get(key)},
        notes=arena.notes,
    )


def _words(arena: Arena, varied: list[str]) -> str:
    race = arena.race(True)
    best = int(np.where(arena.ok & race.counts, arena.time_s, np.inf).argmin())
    values = dict(arena.space.members[best].items)
    return ", ".join(f"{name} {values[name]}" for name in varied if name in values)
