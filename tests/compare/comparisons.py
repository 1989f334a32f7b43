"""Runs made up for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tilewright.compare import ComparisonRow, ComparisonRun, ProviderOutcome
from tilewright.compare.machine_state import MachineState, Moment

MOMENT = Moment(0.1, (2000.0,), 100.0, 10.0)
STATE = MachineState({"cpu": "a processor", "warnings": []}, MOMENT, MOMENT)
M64 = "matmul_64x64x64_f32t_f32t_f32t"
M32 = "matmul_32x32x32_f32t_f32t_f32t"
VALLEY = "softmax_32x32_f32t_f32t"


def row(
    workload: str = M64,
    provider: str = "numpy",
    seconds: float = 1e-3,
    *,
    seed: int = 0,
    noise: float = 0.01,
    outcome: ProviderOutcome = ProviderOutcome.OK,
    **more: object,
) -> ComparisonRow:
    rng = np.random.default_rng(seed)
    samples = (
        seconds * np.exp(np.abs(rng.normal(0, noise, 15))) if outcome is ProviderOutcome.OK else ()
    )
    return ComparisonRow(
        workload,
        workload.split("_")[0],
        provider,
        outcome,
        flops=2 * 64**3,
        bytes=3 * 4 * 64**2,
        element_type="f32",
        samples=tuple(map(float, samples)),
        fastest=tuple(map(float, samples)),
        **more,  # type: ignore[arg-type]
    )


def timed(one: ComparisonRow, samples: Iterable[float]) -> ComparisonRow:
    """The row with other samples, each in one part."""
    taken = tuple(map(float, samples))
    return replace(one, samples=taken, fastest=taken)


def run(*rows: ComparisonRow, threads: int = 1, state: MachineState = STATE) -> ComparisonRun:
    return ComparisonRun(
        "2026-01-01T00:00:00+00:00", "tilewright compare", threads, {}, state, {}, rows
    )
