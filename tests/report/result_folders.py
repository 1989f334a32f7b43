"""Result folders made up for tests: as large as one likes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from tilewright.tuning.tables import TRIAL_COLUMNS

# Without entries, as the writer of specs makes it.
SPEC = """\
module attributes {transform.with_named_sequence} {
  transform.named_sequence @__kernel_config(%module: !transform.any_op {transform.readonly})
      -> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {
    transform.yield %module : !transform.any_op
  }
}
"""
_MACHINE = {
    "cpu": 'A processor <with> "odd" & letters',
    "architecture": "x86_64",
    "cores": 2,
    "threads": 2,
    "caches": [{"level": 1, "kind": "Data", "bytes": 32768, "shared_by": 1}],
    "memory_bytes": 1 << 34,
    "governor": None,
    "frequency_mhz": 2000.0,
    "load": 0.1,
    "virtual": True,
    "system": "Linux",
    "python": "3.11",
}


def make_result_folder(
    folder: Path, dispatches: int = 3, trials: int = 60, knobs: int = 6, seed: int = 0
) -> Path:
    """A folder with `trials` for each of `dispatches`; every tenth trial failed."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    rows = []
    with (folder / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, TRIAL_COLUMNS, restval="")
        writer.writeheader()
        for number in range(dispatches):
            name = f"main_dispatch_{number}_matmul_{16 * (number + 1)}x512x1024_f32"
            times = _trials(writer, name, trials, knobs, rng)
            rows.append(_summary_row(name, number, times, trials))
    summary = {
        "program": {
            "default_ms": 3.0,
            "tuned_ms": 2.0,
            "speedup": 1.5,
            "speedup_ci": [1.4, 1.6],
            "verified": True,
            "variant": "default",
            "variants": {"default": 3.0, "data-tiling": "does not compile"},
        },
        "dispatches": rows,
        "trials_total": dispatches * trials,
        "wall_s": 60.0,
        "phase_s": {},
        "output": str(folder),
        "changed": [],
        "notes": ["a note with </script> in it"],
        "interrupted": False,
        "runs": [_way("local-sync", 1, 1.0, False), _way("local-task", 2, 1.5, True)],
    }
    manifest = {
        "versions": {"tilewright": "0.1.0", "numpy": "2.0"},
        "flags": ["--iree-hal-target-device=local"],
        "target": "cpu",
        "machine": _MACHINE,
        "seed": 0,
        "options": {"target": "cpu", "effort": "quick", "threads": 2, "variants": ["default"]},
        "program": {"source": "/somewhere/net.mlir"},
        "date": "2026-01-01T00:00:00+0000",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "command.txt").write_text("iree-compile net.mlir -o net.vmfb\n# 1 ms: runs it\n")
    (folder / "tuning_spec.mlir").write_text(SPEC)
    return folder


def _way(device: str, threads: int, ms: float, advised: bool) -> dict[str, object]:
    return {
        "device": device,
        "threads": threads,
        "ms": ms,
        "ratio_ci": [0.5, 1.25],
        "advised": advised,
        "command": f"iree-benchmark-module --device={device}",
    }


def _trials(
    writer: csv.DictWriter[str], name: str, trials: int, knobs: int, rng: np.random.Generator
) -> list[float]:
    times = []
    for ordinal in range(trials):
        values = {f"level_{k}_dim{k}": int(2 ** rng.integers(0, 7)) for k in range(knobs)}
        failed = ordinal % 10 == 9
        # The first knob decides; the others are noise.
        time = (1 + abs(np.log2(values["level_0_dim0"]) - 3)) * float(rng.uniform(0.9, 1.1))
        writer.writerow(
            {
                "trial": ordinal,
                "dispatch": name,
                "variant": "default",
                "workload": "contraction",
                "status": "compile_error" if failed else "ok",
                "time_ms": "" if failed else f"{time:.6g}",
                "compile_s": "0.1",
                "measure_s": "0.2",
                "message": "exceeded stack allocation limit" if failed else "",
                "knobs": json.dumps(values),
            }
        )
        if not failed:
            times.append(time)
    return times


def _summary_row(name: str, number: int, times: list[float], trials: int) -> dict[str, object]:
    best = min(times, default=1.0)
    flops = 2 * 16 * (number + 1) * 512 * 1024
    tuned = number % 2 == 0
    return {
        "name": name,
        "workload": "contraction 16x512x1024 f32",
        "count": 1 + number % 3,
        "share": 1 / (number + 1),
        "default_ms": 2 * best,
        "tuned_ms": best if tuned else 2 * best,
        "speedup": 2.0 if tuned else 1.0,
        "trials": trials,
        "status": "tuned" if tuned else "default kept",
        "configuration": "DoubleTilingExpert: distribution 64,64,0",
        "default_configuration": "DoubleTilingExpert: distribution 32,32,0",
        "speedup_ci": [1.9, 2.1] if tuned else None,
        "gflops_default": flops / best / 2e6,
        "gflops_tuned": flops / best / 1e6,
        "verification": "float64 NumPy",
        "failed_trials": trials - len(times),
        "space_points": 10_000.0,
        "tried_share": trials / 10_000,
        "variant": "default",
        "names": [name],
        "key": "k",
        "flops": flops,
        "bytes": 4 * 512 * 1024,
        "entry": "",
    }
