"""Tune whole programs end to end and print where the time went before and after.

    python benchmarks/models.py model.mlir --parameters model=model.irpa
    python benchmarks/models.py a.mlir b.onnx --effort quick --output results.json

`default` and `tuned` are the times of the whole program in the same interleaved rounds; the
dispatches below a program are those that changed, with their own interleaved comparison.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tilewright.errors import UserError
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.parse import parse_duration, parse_parameters
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession


def report(name: str, result: TuneResult) -> str:
    program = result.program
    lines = [
        f"{name}: {program.default_ms:.3f} ms by default, {program.tuned_ms:.3f} ms tuned, "
        f"{program.speedup:.3f}x (95% interval {program.speedup_ci[0]:.3f} to "
        f"{program.speedup_ci[1]:.3f}), variant {program.variant}, "
        f"{'verified' if program.verified else 'NOT VERIFIED'}, {result.trials_total} trials in "
        f"{result.wall_s:.0f} s, {len(result.changed)} dispatches changed"
    ]
    lines += [
        f"  {variant}: {value if isinstance(value, str) else f'{value:.3f} ms'}"
        for variant, value in program.variants.items()
    ]
    for dispatch in result.dispatches:
        if dispatch.default_ms is None or dispatch.tuned_ms is None:
            lines.append(f"  {dispatch.name[:60]:60} {dispatch.status}")
            continue
        lines.append(
            f"  {dispatch.name[:60]:60} {dispatch.share:>6.1%} {dispatch.default_ms:>9.4f} ms "
            f"{dispatch.tuned_ms:>9.4f} ms {dispatch.speedup:>6.2f}x {dispatch.trials:>4} trials "
            f"of {dispatch.space_points:.1e}  {dispatch.status}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--parameters", action="append", default=[], metavar="SCOPE=FILE")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--time-limit", metavar="DURATION")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the summaries as JSON")
    arguments = parser.parse_args()
    summaries = {}
    with tempfile.TemporaryDirectory(prefix="tilewright-benchmark-") as scratch:
        for index, program in enumerate(arguments.programs):
            options = TuneOptions(
                effort=arguments.effort,
                time_limit_s=parse_duration(arguments.time_limit) if arguments.time_limit else None,
                parameters=tuple(parse_parameters(p) for p in arguments.parameters),
                threads=arguments.threads,
                seed=arguments.seed,
                db=Path(scratch) / "benchmark.db",
                output=Path(scratch) / f"out{index}",
                fresh=True,
            )
            try:
                result = TuningSession(program, options).run()
            except (UserError, RuntimeError) as error:
                print(f"{program.name}: failed: {error}", flush=True)
                continue
            summaries[program.name] = result.to_json()
            print(report(program.name, result), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(summaries, indent=2) + "\n")


if __name__ == "__main__":
    main()
