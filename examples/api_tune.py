"""Tune a program from Python, follow the run through its events, and read the result.

python examples/api_tune.py
python examples/api_tune.py examples/mlp.mlir --effort standard
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tilewright
from tilewright.tuning import events

HERE = Path(__file__).resolve().parent


def follow(event: tilewright.Event) -> None:
    """Print what is worth a line; every class of events is in `tilewright.tuning.events`."""
    match event:
        case events.PhaseStarted(name, detail):
            print(f"-- {name} {detail}")
        case events.ProgramMeasured(variant, time_s) if time_s is not None:
            print(f"   the program as {variant}: {time_s * 1e3:.3f} ms")
        case events.TrialDone(task, trial, best_s, default_s, done, limit) if best_s:
            if trial.time_s == best_s < default_s:
                print(f"   trial {done} of {limit}: {default_s / best_s:.2f}x for {task}")
        case events.WinnerFound(task, speedup, low, high, configuration, kept) if kept:
            print(f"   {task}: {speedup:.2f}x ({low:.2f} to {high:.2f}): {configuration}")
        case events.Note(text, warning):
            print(f"   {'warning: ' if warning else ''}{text}")


def main(arguments: list[str] | None = None) -> tilewright.TuneResult:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?", type=Path, default=HERE / "matmul.mlir")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--max-trials", type=int)
    parser.add_argument("--db", type=Path, help="default: the user's database")
    parser.add_argument("--output", type=Path, default=Path("tilewright-out"))
    options = parser.parse_args(arguments)

    result = tilewright.tune(
        options.program,
        effort=options.effort,
        max_trials=options.max_trials,
        db=options.db,
        output=options.output,
        on_event=follow,
    )

    low, high = result.program.speedup_ci
    print(f"{result.program.default_ms:.3f} ms before, {result.program.tuned_ms:.3f} ms after:")
    print(f"{result.program.speedup:.2f}x, 95% interval {low:.2f} to {high:.2f}")
    for dispatch in result.dispatches:
        print(f"{dispatch.name}: {dispatch.status}, {dispatch.configuration}")
    print((result.output / "command.txt").read_text())
    return result


if __name__ == "__main__":
    try:
        main()
    except tilewright.UserError as error:
        raise SystemExit(f"error: {error}") from None
