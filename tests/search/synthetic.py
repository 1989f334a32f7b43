"""Analytic cost functions over search spaces: stand-ins for a compiler and a machine.

They have what makes real spaces hard: sharp cliffs (register spills, failed compiles), wide
valleys, couplings between knobs, noise, and a prior that knows only part of it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.search import create_strategy
from tilewright.space import (
    BoolKnob,
    ChoiceKnob,
    Constraint,
    PermutationKnob,
    SearchSpace,
    Space,
    TileKnob,
    product_at_most,
)
from tilewright.trial import Configuration, Status, Trial


@dataclass(frozen=True)
class Problem:
    """A space with its true time in seconds (None: the candidate fails)."""

    name: str
    space: Space
    time: Callable[[Configuration], float | None]
    noise: float = 0.03

    def trial(self, config: Configuration) -> Trial:
        """Run a configuration: the noise depends on it alone."""
        time = self.time(config)
        if time is None:
            return Trial(config, Status.COMPILE_ERROR)
        rng = np.random.default_rng(zlib.crc32(repr(config.items).encode()))
        return Trial(config, Status.OK, time * float(np.exp(rng.normal(0, self.noise))))

    def search(self, strategy: str, seed: int, trials: int, batch: int = 10) -> float:
        """True time of what looked best after that many trials."""
        run = create_strategy(strategy, self.space, seed)
        best: Trial | None = None
        done = 0
        while done < trials:
            configs = run.ask(min(batch, trials - done))
            if not configs:
                break
            results = [self.trial(c) for c in configs]
            run.tell(results)
            done += len(configs)
            for t in results:
                if t.ok and (best is None or (t.time_s or 0) < (best.time_s or 0)):
                    best = t
        if best is None:
            return math.inf
        return self.time(best.configuration) or math.inf


def sizes(n: int, most: int = 10**9) -> tuple[int, ...]:
    """Divisors and powers of two up to the extent of a loop."""
    powers = {2**i for i in range(20) if 2**i <= n}
    return tuple(
        sorted(d for d in powers | {d for d in range(1, n + 1) if n % d == 0} if d <= most)
    )


def _waste(extent: int, tile: int) -> float:
    return math.ceil(extent / tile) * tile / extent


def matmul(m: int, n: int, k: int, *, cores: int = 2, prior: str = "partial") -> Problem:
    """A tiled f32 matmul on a machine with 16-wide vectors, 32 registers, 1 MB of L2."""
    extent = {"m": m, "n": n, "k": k}
    knobs = [TileKnob(f"dist_{d}", sizes(extent[d])) for d in "mn"]
    knobs += [TileKnob(f"cache_{d}", sizes(extent[d])) for d in "mnk"]
    knobs += [TileKnob(f"vec_{d}", sizes(extent[d], 128)) for d in "mnk"]
    nested = [
        Constraint(
            f"{inner}_in_{outer}",
            (inner, outer),
            lambda a, b: a <= b,
            lambda a, b: f"{a} is larger than {b}",
            vectorised=True,
        )
        for inner, outer in (
            ("cache_m", "dist_m"),
            ("cache_n", "dist_n"),
            ("vec_m", "cache_m"),
            ("vec_n", "cache_n"),
            ("vec_k", "cache_k"),
        )
    ]
    stack = product_at_most("stack", ["vec_m", "vec_n", "vec_k"], 32768, factor=4, unit="bytes")

    def register_time(v: dict[str, int]) -> float:
        rows, columns = v["vec_m"], math.ceil(v["vec_n"] / 16)
        accumulators = rows * columns
        lanes = v["vec_n"] / (16 * columns)
        # Two FMA units with 4 cycles of latency want 8 chains; loads: one per column and row.
        busy = min(1.0, accumulators / 8) * lanes
        loads = (rows + columns) / accumulators
        time = max(1 / busy, 0.7 * loads + 0.3)
        if accumulators > 28:
            time *= 1 + 0.15 * (accumulators - 28) ** 0.8
        return time * _waste(m, v["vec_m"]) * _waste(n, v["vec_n"]) * _waste(k, v["vec_k"])

    def time(config: Configuration) -> float | None:
        v: dict[str, int] = {key: int(x) for key, x in config.items}  # type: ignore[arg-type]
        if v["vec_m"] * v["vec_k"] > 600 or (v["vec_m"] % 7 == 3 and v["vec_n"] > 32):
            return None
        compute = register_time(v)
        compute *= 1 + 0.6 / v["vec_k"] + (0.02 * v["vec_k"] if v["vec_k"] > 8 else 0)
        tiles = math.ceil(m / v["dist_m"]) * math.ceil(n / v["dist_n"])
        balance = math.ceil(tiles / cores) * cores / tiles
        overhead = tiles * 2e-6 / cores
        footprint = 4 * (
            v["cache_m"] * v["cache_k"] + v["cache_k"] * v["cache_n"] + v["cache_m"] * v["cache_n"]
        )
        l1 = 4 * v["cache_k"] * v["vec_n"]
        traffic = 4 * m * n * k * (1 / v["cache_m"] + 1 / v["cache_n"] + 1 / v["cache_k"])
        bandwidth = 2e10 if footprint > 2**20 else 1.2e11
        compute *= 1.35 if l1 > 2**15 else 1.0
        flops = 2.0 * m * n * k
        return float(flops / 2.2e11 * compute * balance + traffic / bandwidth + overhead)

    def partial(config: Configuration) -> float:
        v: dict[str, int] = {key: int(x) for key, x in config.items}  # type: ignore[arg-type]
        tiles = math.ceil(m / v["dist_m"]) * math.ceil(n / v["dist_n"])
        balance = math.ceil(tiles / cores) * cores / tiles
        return -math.log(register_time(v) * balance)

    chosen = {"partial": partial, "none": None, "wrong": lambda c: -partial(c)}[prior]
    start = {key: min(64, e) for key, e in (("dist_m", m), ("dist_n", n))}
    start |= {key: min(32, e) for key, e in (("cache_m", m), ("cache_n", n), ("cache_k", k))}
    start |= {"vec_m": 1, "vec_n": min(16, n), "vec_k": 1}
    for knob in knobs:
        start[knob.name] = int(knob.nearest(start[knob.name]))  # type: ignore[call-overload]
    space = SearchSpace("matmul", knobs, [*nested, stack], Configuration.of(start), chosen)
    return Problem(f"matmul {m}x{n}x{k} prior {prior}", space, time)


def rugged(seed: int, knobs: int = 8, values: int = 12) -> Problem:
    """Random smooth effects of each knob and of pairs, plus a categorical one; no prior."""
    rng = np.random.default_rng(seed)
    tiles = [TileKnob(f"t{i}", tuple(2**j for j in range(values))) for i in range(knobs)]
    choice = ChoiceKnob("mode", ("a", "b", "c"))
    best = rng.integers(0, values, knobs)
    weight = rng.uniform(0.005, 0.05, knobs)
    pairs = [(int(a), int(b)) for a, b in rng.integers(0, knobs, (knobs, 2)) if a != b]
    mode = dict(zip("abc", rng.uniform(0, 0.5, 3), strict=True))
    limit = Constraint(
        "sum",
        ("t0", "t1", "t2"),
        lambda a, b, c: a * b * c <= 2**20,
        lambda a, b, c: f"{a * b * c} is over {2**20}",
        vectorised=True,
    )

    def time(config: Configuration) -> float | None:
        v = dict(config.items)
        at = np.array([math.log2(int(v[f"t{i}"])) for i in range(knobs)])  # type: ignore[arg-type]
        if at[3] + at[4] > 1.7 * values:
            return None
        cost = float((weight * (at - best) ** 2).sum()) + mode[str(v["mode"])]
        cost += sum(0.02 * abs(at[a] - best[a] - at[b] + best[b]) for a, b in pairs)
        return 1e-3 * math.exp(min(cost, 6.0))

    default = Configuration.of({**{t.name: 1 for t in tiles}, "mode": "a"})
    space = SearchSpace(f"rugged{seed}", [*tiles, choice], [limit], default)
    return Problem(space.name, space, time)


def tiny() -> SearchSpace:
    """38 members of 64 combinations: three knob kinds, a fold and a scalar constraint."""
    knobs = [
        TileKnob("a", (1, 2, 4, 8)),
        TileKnob("b", (1, 2, 4, 8)),
        BoolKnob("peel"),
        PermutationKnob("order", 2),
    ]
    bound = product_at_most("area", ["a", "b"], 8)
    rule = Constraint(
        "peel_small",
        ("a", "peel"),
        lambda a, peel: not (peel and a == 8),
        lambda a, peel: f"peeling a tile of {a}",
    )
    default = Configuration.of({"a": 1, "b": 1, "peel": False, "order": (0, 1)})
    return SearchSpace("tiny", knobs, [bound, rule], default)
