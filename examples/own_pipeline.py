"""A code generator that is not IREE's: its space from workload and rules, searched and measured.

The "compiler" here is a product of matrices in blocks, written in NumPy: blocks of rows, columns
and depth, an order of the loops over them, and whether the columns are packed first. No template of
IREE's is needed: knobs come from the workload's sizes, rules are conditions on knobs, declared as
data. So the same rules are counted and sampled here and written for any SMT solver.

python examples/own_pipeline.py [TRIALS]
"""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
from numpy.typing import NDArray

from tilewright.search import create_strategy
from tilewright.space import BoolKnob, ChoiceKnob, Knob, SearchSpace, TileKnob, declared
from tilewright.space.knobs import knob_term
from tilewright.space.smtlib import to_smtlib
from tilewright.space.terms import product, where
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload

Matrix = NDArray[np.float32]
ORDERS = ("mnk", "nmk", "kmn")


def product_of(m: int, n: int, k: int) -> Workload:
    """What is computed: an f32 product."""
    dims = (Dim("m", m), Dim("n", n), Dim("k", k, reduction=True))
    return Workload("contraction", dims, ("f32",) * 3, ("",) * 3, "", flops=2 * m * n * k)


def blocked_space(workload: Workload, cache_bytes: int) -> SearchSpace:
    """The blocks that divide their loops and stay in the cache together."""
    sizes = {dim.role: dim.size for dim in workload.dims}
    tiles = {
        role: TileKnob(f"block_{role}", tuple(s for s in range(8, size + 1) if size % s == 0))
        for role, size in sizes.items()
    }
    order, pack = ChoiceKnob("order", ORDERS), BoolKnob("pack")
    m, n, k = (knob_term(tiles[role]) for role in "mnk")
    used = 4 * (m * k + k * n + m * n)
    blocks = product(size // knob_term(tiles[role]) for role, size in sizes.items())
    names = tuple(knob.name for knob in tiles.values())
    rules = [
        declared(
            "blocks fit the cache",
            names,
            used <= cache_bytes,
            lambda m, n, k: f"{4 * (m * k + k * n + m * n)} bytes, there are {cache_bytes}",
        ),
        # A packed block of columns has to be used by several blocks of rows.
        declared(
            "packing pays",
            ("pack", "block_m"),
            where(knob_term(pack), m < sizes["m"], m == m),
            lambda pack, m: f"all {m} rows are one block",
        ),
        declared(
            "not too many blocks",
            names,
            blocks <= 4096,
            lambda m, n, k: "more than 4096 calls",
        ),
    ]
    knobs: list[Knob] = [*tiles.values(), order, pack]
    start = {f"block_{role}": max(s for s in tiles[role].values if s <= 64) for role in sizes}
    default = Configuration.of({**start, "order": ORDERS[0], "pack": False})
    return SearchSpace("blocked", knobs, rules, default)


def multiply(a: Matrix, b: Matrix, configuration: Configuration) -> Matrix:
    """The product as a configuration says."""
    (m, k), n = a.shape, b.shape[1]
    steps = {"m": (m, "block_m"), "n": (n, "block_n"), "k": (k, "block_k")}
    block = {axis: int(str(configuration[name])) for axis, (_, name) in steps.items()}
    order = str(configuration["order"])
    result = np.zeros((m, n), np.float32)
    packed: dict[tuple[int, int], Matrix] = {}
    for where_from in itertools.product(*(range(0, steps[x][0], block[x]) for x in order)):
        at = dict(zip(order, where_from, strict=True))
        rows = slice(at["m"], at["m"] + block["m"])
        columns = slice(at["n"], at["n"] + block["n"])
        depth = slice(at["k"], at["k"] + block["k"])
        right = b[depth, columns]
        if configuration["pack"]:
            right = packed.setdefault((at["k"], at["n"]), np.ascontiguousarray(right))
        result[rows, columns] += a[rows, depth] @ right
    return result


def trial(a: Matrix, b: Matrix, expected: Matrix, configuration: Configuration) -> Trial:
    """The shortest of three runs, and whether the numbers are right."""
    samples = []
    for _ in range(3):
        begin = time.perf_counter()
        result = multiply(a, b, configuration)
        samples.append(time.perf_counter() - begin)
    if not np.allclose(result, expected, rtol=1e-3, atol=1e-3):
        return Trial(configuration, Status.WRONG_RESULT)
    return Trial(configuration, Status.OK, min(samples), tuple(samples))


def main(trials: int = 48) -> Trial:
    workload = product_of(192, 256, 320)
    space = blocked_space(workload, 512 << 10)
    print(f"{workload.name}: {space.size_estimate(np.random.default_rng(0))} configurations")
    asserted = [line for line in to_smtlib(space).splitlines() if ":named" in line]
    print(f"{len(asserted)} rules as SMT-LIB, the first:\n  {asserted[0]}")

    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((192, 320), (320, 256)))
    expected = a @ b
    default = trial(a, b, expected, space.default)
    strategy = create_strategy("auto", space, seed=0, known=[default], trials=trials)
    found = [default]
    while len(found) < trials and (batch := strategy.ask(8)):
        told = [trial(a, b, expected, configuration) for configuration in batch]
        strategy.tell(told)
        found += told
    best = min((t for t in found if t.ok), key=lambda t: t.time_s or 0.0)
    assert default.time_s is not None
    assert best.time_s is not None
    print(f"{len(found)} trials, {sum(t.ok for t in found)} with the right numbers")
    print(f"default {default.time_s * 1e3:.2f} ms, best {best.time_s * 1e3:.2f} ms:")
    print(f"  {dict(best.configuration.items)}")
    return best


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
