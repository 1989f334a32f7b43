"""Choose the options of `auto` on the recorded spaces, leaving each scored space out.

    python benchmarks/choose_auto.py --runs 40

Every combination of the values below is run on every space. For each space the combination that is
best on the *others* is taken, and its score on that space counts: so no space has had a say in the
options that it is scored with. The combination that is best on all is what `auto` has by default.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from tilewright.replay.recording import find_all
from tilewright.replay.score import score_strategies
from tilewright.replay.simulate import Conditions, StrategyChoice
from tilewright.target import usable_cores

VALUES = {
    "length": ("0.5", "0.8"),
    "noise": ("0.15", "0.3"),
    "belief": ("2", "4"),
    "doubt_least": ("0.1", "0.25"),
    "reach": ("2", "4"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("spaces", nargs="*")
    arguments = parser.parse_args()
    paths = find_all(tuple(arguments.spaces))
    choices = [
        StrategyChoice(
            " ".join(f"{k}={v}" for k, v in options.items()), "auto", tuple(options.items())
        )
        for options in (
            dict(zip(VALUES, values, strict=True)) for values in itertools.product(*VALUES.values())
        )
    ]
    found = score_strategies(
        paths, choices, Conditions(), runs=arguments.runs, seed=arguments.seed, jobs=arguments.jobs
    )
    table = np.array([[space.mean for space in one.spaces] for one in found])
    for one, row in sorted(zip(found, table, strict=True), key=lambda item: -item[1].mean()):
        print(f"{row.mean():.3f} {row.min():.3f}  {one.label}")
    held_out = []
    for at, space in enumerate(found[0].spaces):
        others = np.delete(table, at, axis=1).mean(axis=1)
        best = int(np.argmax(others))
        held_out.append(table[best, at])
        print(f"{space.space}: {table[best, at]:.3f} with {found[best].label}, best on the others")
    print(f"mean of the spaces left out: {np.mean(held_out):.3f}, lowest {np.min(held_out):.3f}")


if __name__ == "__main__":
    main()
