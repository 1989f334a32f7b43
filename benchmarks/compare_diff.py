"""How far `tilewright compare diff` is to be trusted on this machine: false alarms and misses.

    python benchmarks/compare_diff.py                  # 21 runs of two products: some 4 minutes
    python benchmarks/compare_diff.py --repeats 6 --save runs.json    # again: adds to them
    python benchmarks/compare_diff.py --load runs.json

The same comparison is run again and again. Each run is compared with the one before: anything but
`same` is a false alarm, since nothing has changed. Then each row of the later run in turn has all
of its times made 10% longer, which must be found.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.compare import (
    CompareOptions,
    ComparisonRun,
    compare,
    diff,
    find_providers,
    find_workloads,
    read_runs,
    write_run,
)
from tilewright.target import parse_target

MATMULS = ("256x256x256", "512x512x512")
PROVIDERS = "iree,numpy"
SLOW_DOWN = 1.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=20, help="comparisons of runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path, help="keep the runs, behind those that it has")
    parser.add_argument("--load", type=Path, help="judge runs that were kept")
    given = parser.parse_args()
    if given.load:
        judge(read_runs(given.load))
        return
    runs = read_runs(given.save) if given.save and given.save.exists() else []
    for _ in range(given.repeats if runs else given.repeats + 1):
        runs.append(measure(given.threads))
        if given.save:
            write_run(given.save, runs[-1], append=True)
    judge(runs)


def measure(threads: int) -> ComparisonRun:
    options = CompareOptions(parse_target("cpu", threads), peak=False)
    return compare(find_workloads([], MATMULS), find_providers(PROVIDERS), options)


def judge(runs: Sequence[ComparisonRun]) -> None:
    pairs = list(itertools.pairwise(runs))
    slower = faster = found = 0
    total = sum(len(new.rows) for _, new in pairs)
    worst = 1.0
    for old, new in pairs:
        changes = diff(old, new)
        slower += any(c.verdict.is_regression for c in changes)
        faster += any(str(c.verdict) == "faster" for c in changes)
        worst = max([worst, *(c.ratio.value for c in changes if c.ratio is not None)])
    per_row = {}
    for old, new in pairs:
        for number, row in enumerate(new.rows):
            slowed = replace(
                row,
                samples=tuple(SLOW_DOWN * s for s in row.samples),
                fastest=tuple(SLOW_DOWN * s for s in row.fastest),
                processor=tuple(SLOW_DOWN * s for s in row.processor),
            )
            rows = (*new.rows[:number], slowed, *new.rows[number + 1 :])
            changes = diff(old, replace(new, rows=rows))
            hit = any(
                c.verdict.is_regression
                for c in changes
                if (c.workload, c.provider) == (row.workload, row.provider)
            )
            found += hit
            key = (row.workload, row.provider)
            per_row[key] = per_row.get(key, 0) + hit
    print(f"{len(pairs)} comparisons of {len(runs)} runs, {len(runs[0].rows)} rows each")
    print(f"false alarms (slower): {slower} of {len(pairs)} comparisons")
    print(f"false joys (faster):   {faster} of {len(pairs)} comparisons")
    print(f"largest ratio of equal rows: {worst:.3f}")
    print(f"10% slow-downs found:  {found} of {total} rows")
    for (workload, provider), hits in per_row.items():
        print(f"  {workload} {provider}: {hits} of {len(pairs)}")


if __name__ == "__main__":
    main()
