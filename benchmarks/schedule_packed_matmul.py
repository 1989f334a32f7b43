"""The packed matrix product of the schedule language against OpenBLAS (NumPy), f32.

    python benchmarks/schedule_packed_matmul.py
    python benchmarks/schedule_packed_matmul.py --sizes 512 1024 --threads 1 --rounds 20

For every size and number of threads a process of its own (OpenBLAS is told its threads when it
starts) times both in turn; what is printed are medians, and the median of the ratios of each round.
Also how long lowering to loops and MLIR takes, and building, once the compiler runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "schedule"))

# The best blocks seen for each size and number of threads (an EPYC with 1 MB of L2 cache a core).
BLOCKS = {
    (512, 1): {"mr": 4, "nr": 64},
    (1024, 1): {"nc": 1024, "kc": 512},
    (2048, 1): {},
    # With two threads many small blocks: a worker takes several workgroups at a time.
    (512, 2): {"mc": 64, "nc": 256, "kc": 512},
    (1024, 2): {"mc": 128, "nc": 128, "kc": 512},
    (2048, 2): {"mc": 128, "nc": 128, "kc": 512},
}


# OpenBLAS's threads wait for more work at full speed, for 2^26 ticks of the processor's clock by
# default (25 ms): what begins meanwhile has one core less.
SETTLE_S = 0.1


def settled(call: Callable[[], object]) -> float:
    """Seconds of a call that begins when all threads have come to rest."""
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def one(n: int, threads: int, rounds: int) -> dict[str, float]:
    """Medians in seconds, and the ratio, in this process."""
    import numpy as np
    from packed_matmul import Blocks, packed_matmul

    from tilewright import te

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    lowering = []
    for _ in range(3):
        schedule, tensors = packed_matmul(n, Blocks(**BLOCKS.get((n, threads), {})))
        begin = time.perf_counter()
        lowered = te.lower(schedule, tensors)
        lowered.mlir()
        lowering.append(time.perf_counter() - begin)
    te.build(lowered, threads=threads)
    f = te.build(schedule, tensors, threads=threads)
    f.verify(a.astype(np.float64) @ b.astype(np.float64), a, b)
    call = f.bind(a, b)
    ours, theirs = [], []
    for number in range(rounds + 2):
        mine, other = settled(call), settled(lambda: a @ b)
        if number > 1:
            ours.append(mine)
            theirs.append(other)
    return {
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(t / o for o, t in zip(ours, theirs, strict=True)),
        "lower": min(lowering),
        "build": f.build_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.sizes[0], args.threads[0], args.rounds)))
        return
    print("size   threads  OpenBLAS GFLOP/s  schedule GFLOP/s  ratio  lower ms  build s")
    for threads in args.threads:
        for n in args.sizes:
            command = [sys.executable, __file__, "--one", "--rounds", str(args.rounds)]
            command += ["--sizes", str(n), "--threads", str(threads)]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            rate = 2 * n**3 / 1e9
            print(
                f"{n:<6} {threads:<8} {rate / found['theirs']:<17.1f} "
                f"{rate / found['ours']:<17.1f} {found['ratio']:<6.2f} "
                f"{found['lower'] * 1e3:<9.1f} {found['build']:.2f}"
            )


if __name__ == "__main__":
    main()
