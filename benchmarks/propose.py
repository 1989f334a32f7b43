"""Time how long each strategy takes to propose 64 configurations from a large space.

    python benchmarks/propose.py                             # every strategy
    python benchmarks/propose.py --strategy xgboost --batch 16 --trials 500

The space is that of a 2048x3072x2048 matmul on a CPU, more than 10^9 configurations of two
pipelines, with its prior. The trials told before are uniform draws with times made up from the
prior. `first` is the first batch after all of them were told at once, `next` the one after that
batch was told, in seconds on one core.
"""

from __future__ import annotations

import argparse
import os
import time

if hasattr(os, "sched_setaffinity"):
    # Before NumPy is loaded, which starts a thread for each core it may use.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

from tilewright.errors import UserError
from tilewright.search import create_strategy, strategies
from tilewright.space import Space, UnionSpace
from tilewright.space.cpu_double_tiling import DoubleTiling
from tilewright.space.cpu_tiles import CpuPipeline
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate, OpTemplate, Tiling, Translation
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload

EXTENTS = {"m": 2048, "n": 3072, "k": 2048}


class FewerLevels(CpuPipeline):
    """A pipeline that reads fewer levels."""

    name = "FewerLevels"
    levels = ("distribution", "vector_common_parallel")

    @classmethod
    def fits(cls, template: DispatchTemplate, workload: Workload) -> bool:
        return True


def make_space() -> Space:
    """The space of the matmul, and beside it a pipeline that reads fewer levels."""
    root = OpTemplate(
        name="linalg.matmul",
        extents=tuple(EXTENTS.values()),
        reduction=(False, False, True),
        shared=(0, 1, 2),
        tiling=Tiling.of(
            {
                "distribution": (64, 64, 0),
                "vector_common_parallel": (8, 16, 0),
                "vector_reduction": (0, 0, 1),
            }
        ),
        operand_loops=((0, 2), (2, 1), (0, 1)),
        operand_inner=(2, 1, 1),
    )
    dims = tuple(Dim(role, size, role == "k") for role, size in EXTENTS.items())
    workload = Workload("contraction", dims, ("f32",) * 3, ("",) * 3, "")
    target = Target("cpu", "host", 2, 64, 32, 32 << 10, 1 << 20, 16 << 20, 512 * 64)
    template = DispatchTemplate(Translation(DoubleTiling.name), (root,), 0)
    members = [made(template, workload, target) for made in (DoubleTiling, FewerLevels)]
    return UnionSpace("dispatch", [m.space for m in members])


def measured(space: Space, configs: list[Configuration], rng: np.random.Generator) -> list[Trial]:
    """Trials: the prior's guess with noise, every tenth a failure."""
    times = np.exp(-space.prior_many(configs) + rng.normal(0, 0.2, len(configs))) * 1e-9
    failed = rng.random(len(configs)) < 0.1
    return [
        Trial(c, Status.COMPILE_ERROR) if broken else Trial(c, Status.OK, float(t))
        for c, t, broken in zip(configs, times, failed, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the proposals of strategies.")
    parser.add_argument("--strategy", action="append", metavar="NAME", help="only this one")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--trials", type=int, default=2000, metavar="N", help="default: 2000")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    space = make_space()
    told = measured(space, list(dict.fromkeys(space.sample(rng, given.trials))), rng)
    size = space.size_estimate(np.random.default_rng(0)).points
    print(f"{size:.2e} configurations, {len(told)} trials, batches of {given.batch}")
    print(f"{'strategy':<12} {'first':>8} {'next':>8}")
    for name in given.strategy or strategies():
        try:
            strategy = create_strategy(name, space, 0, known=told)
        except UserError as error:
            print(f"{name:<12} {error}")
            continue
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            batch = strategy.ask(given.batch)
            seconds.append(time.perf_counter() - begin)
            strategy.tell(measured(space, batch, rng))
        print(f"{name:<12} {seconds[0]:>8.3f} {seconds[1]:>8.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
