"""Recorded spaces made up from a formula: real search spaces, no compiler and no machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from hand_made import matmul

from tilewright.replay.choose import select
from tilewright.replay.recording import KnobValues, RecordedDispatch, Recording, write_recording
from tilewright.space.interface import Space
from tilewright.trial import Configuration, Status, Trial

LISTS = {
    "distribution_m": "16,32,64",
    "distribution_n": "32,64",
    "vector_common_parallel_m": "2,4,8",
    "vector_common_parallel_n": "16,32",
    "vector_reduction_k": "1,2,4",
}


def seconds(configuration: Configuration) -> float | None:
    """The true time; None where the candidate fails to compile."""
    v = dict(configuration.items)
    rows, columns, depth = (
        int(v[f"{level}"])
        for level in (
            "vector_common_parallel_m",
            "vector_common_parallel_n",
            "vector_reduction_k",
        )
    )
    if rows == 8 and columns == 32 and depth == 4:
        return None
    cost = abs(math.log2(rows * columns / 128)) + 0.3 * abs(math.log2(depth / 2))
    spread = 0.1 * abs(math.log2(int(v["distribution_m"]) / 32))
    spread += 0.05 * abs(math.log2(int(v["distribution_n"]) / 64))
    return 1e-3 * (1 + cost + spread)


def trial(
    configuration: Configuration, time_s: float | None, noise: float, rng: np.random.Generator
) -> Trial:
    if time_s is None:
        return Trial(configuration, Status.COMPILE_ERROR, phase_s={"compile": 0.5})
    samples = time_s * np.exp(noise * rng.standard_normal(12))
    return Trial(
        configuration,
        Status.OK,
        time_s=float(np.quantile(samples, 0.25)) if noise else time_s,
        samples=tuple(samples.tolist()),
        binary=repr(configuration.items),
        phase_s={"compile": 0.2, "measure": 0.05},
    )


def recording(
    name: str = "made_up",
    *,
    time: Callable[[Configuration], float | None] = seconds,
    noise: float = 0.0,
    keep: Callable[[Configuration], bool] = lambda configuration: True,
    shape: tuple[int, int, int] = (256, 128, 64),
) -> Recording:
    """108 configurations of a matmul, six of which fail, as far as they are kept."""
    dispatch = matmul(*shape)
    chosen = select(dispatch, LISTS, 0, 0)
    rng = np.random.default_rng(1)
    trials = [trial(c, time(c), noise, rng) for c in chosen.members if keep(c)]
    member = dispatch.members[dispatch.own]
    knobs = [KnobValues(k, v) for k, v in chosen.lists.items()]
    return Recording.of(
        name,
        knobs,
        trials,
        default=dispatch.default,
        subject=RecordedDispatch(member.workload, member.template, member.target),
        facts={"date": "2026-11-21T12:00:00Z", "processor": "made up"},
    )


def foreign(times: Sequence[float | None], name: str = "foreign") -> Recording:
    """Another tool's recording over two parameters, one of them a text."""
    configurations = [
        Configuration.of({"block": 16 * (1 + i // 3), "mode": "abc"[i % 3]})
        for i in range(len(times))
    ]
    knobs = [
        KnobValues("block", tuple(16 * (1 + i) for i in range(1 + (len(times) - 1) // 3))),
        KnobValues("mode", ("a", "b", "c")),
    ]
    rng = np.random.default_rng(0)
    return Recording.of(
        name, knobs, [trial(c, t, 0.0, rng) for c, t in zip(configurations, times, strict=True)]
    )


def written(folder: Path, made: Recording) -> Path:
    path = folder / f"{made.name}.npz"
    write_recording(path, made)
    return path


class Told:
    """A search that proposes members in an order given by their true times: best first, or worst
    first."""

    def __init__(self, space: Space, worst_first: bool = False) -> None:
        found = [c for c in space.ordered(range(space.order_size)) if c is not None]
        timed = sorted(found, key=lambda c: seconds(c) or math.inf, reverse=worst_first)
        self._waiting = timed
        self.trials: list[Trial] = []

    def ask(self, n: int) -> list[Configuration]:
        out, self._waiting = self._waiting[:n], self._waiting[n:]
        return out

    def tell(self, trials: Sequence[Trial]) -> None:
        self.trials += trials
