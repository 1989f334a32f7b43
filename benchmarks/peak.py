"""The measured peak of this machine beside that of a loop in C.

    python benchmarks/peak.py                      # all cores
    python benchmarks/peak.py --threads 1 --output peak.json

`tilewright` is what `tilewright devices` shows, measured anew with kernels that IREE compiles. `C`
is a loop of fused multiply-adds on independent vectors of accumulators, compiled with
`-O3 -march=native` by the C compiler of the system, one thread on each core; it is left out where
there is no compiler. Both are the best of several attempts, taken in turns, so that neither has the
machine at a better moment. Exit status 1 if they are more than 10% apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tilewright.measure.machine import describe, warnings
from tilewright.measure.peak import Peak, measure_peak
from tilewright.target import usable_cores

ALLOWED = 0.10

C_SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifndef CHAINS
#define CHAINS 16
#endif
#define LANES (BYTES / (int)sizeof(T))
#define STEPS 2000000L
static T factor = (T)0.75, term = (T)0.5;

static void *work(void *result) {
  T acc[CHAINS][LANES];
  T a = *(volatile T *)&factor, b = *(volatile T *)&term;
  for (int c = 0; c < CHAINS; ++c)
    for (int l = 0; l < LANES; ++l) acc[c][l] = (T)(c + l + 1);
  for (long i = 0; i < STEPS; ++i)
    for (int c = 0; c < CHAINS; ++c)
      for (int l = 0; l < LANES; ++l) acc[c][l] = acc[c][l] * a + b;
  T sum = 0;
  for (int c = 0; c < CHAINS; ++c)
    for (int l = 0; l < LANES; ++l) sum += acc[c][l];
  *(T *)result = sum;
  return 0;
}

int main(int argc, char **argv) {
  int threads = atoi(argv[1]);
  pthread_t team[1024];
  T results[1024];
  double best = 0;
  for (int attempt = 0; attempt < 60; ++attempt) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < threads; ++t) pthread_create(&team[t], 0, work, &results[t]);
    for (int t = 0; t < threads; ++t) pthread_join(team[t], 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double s = (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec);
    double rate = 2.0 * STEPS * CHAINS * LANES * threads / s / 1e9;
    if (rate > best) best = rate;
  }
  T all = 0;
  for (int t = 0; t < threads; ++t) all += results[t];
  fprintf(stderr, "%g\n", (double)all);
  printf("%.6f\n", best);
  return 0;
}
"""
C_TYPES = {"f32": "float", "f64": "double"}


def c_programs(folder: Path) -> dict[str, list[Path]]:
    """The loop for each type, in both widths of vectors that the processor may have."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return {}
    source = folder / "peak.c"
    source.write_text(C_SOURCE)
    made: dict[str, list[Path]] = {}
    for element_type, name in C_TYPES.items():
        for size, chains in ((64, 16), (32, 12), (16, 12)):
            program = folder / f"peak_{element_type}_{size}"
            command = [
                compiler, "-O3", "-march=native", f"-mprefer-vector-width={8 * size}",
                f"-DT={name}", f"-DBYTES={size}", f"-DCHAINS={chains}", str(source),
                "-o", str(program), "-lpthread",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                # Other processors than x86 have one width, and do not know the option.
                command.remove(f"-mprefer-vector-width={8 * size}")
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{compiler} does not compile the loop:\n{done.stderr}")
            made.setdefault(element_type, []).append(program)
    return made


def c_rate(programs: list[Path], threads: int) -> float:
    outputs = [
        subprocess.run([str(p), str(threads)], capture_output=True, text=True, check=True).stdout
        for p in programs
    ]
    return max(map(float, outputs))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=2, help="turns of each")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    arguments = parser.parse_args()
    machine = describe()
    print(f"{machine.cpu}, {arguments.threads} threads")
    for warning in warnings(machine):
        print(f"warning: {warning}")
    peaks: list[Peak] = []
    loops: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs = c_programs(Path(folder))
        for _ in range(arguments.rounds):
            peaks.append(measure_peak(arguments.threads))
            for element_type, variants in programs.items():
                rate = c_rate(variants, arguments.threads)
                loops[element_type] = max(rate, loops.get(element_type, 0.0))
    rows = []
    print(f"{'type':>6} {'tilewright':>12} {'C':>10} {'ratio':>6}  instruction")
    for element_type in peaks[0].compute:
        best = max(peaks, key=lambda p: p.compute.get(element_type, 0.0))
        rate, loop = best.compute[element_type], loops.get(element_type)
        ratio = rate / loop if loop else None
        rows.append({"type": element_type, "gflops": rate, "c_gflops": loop, "ratio": ratio})
        print(
            f"{element_type:>6} {rate:>12.1f} {f'{loop:.1f}' if loop else '-':>10} "
            f"{f'{ratio:.3f}' if ratio else '-':>6}  {best.instructions[element_type]}"
        )
    memory = {kind: max(p.memory[kind] for p in peaks) for kind in peaks[0].memory}
    print("memory: " + ", ".join(f"{kind} {rate:.1f} GB/s" for kind, rate in memory.items()))
    if arguments.output:
        data = {"threads": arguments.threads, "compute": rows, "memory": memory}
        arguments.output.write_text(json.dumps(data, indent=2) + "\n")
    apart = [row for row in rows if row["ratio"] and abs(row["ratio"] - 1) > ALLOWED]
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
