"""Every fault that a tuning run can meet, made on purpose; prints a table of what became of them.

    python benchmarks/faults.py --quick                  # some of each, in a few minutes
    python benchmarks/faults.py                          # all: hours on two cores
    python benchmarks/faults.py --cases inputs --count 5000 --seed 1
    python benchmarks/faults.py --cases inputs --only 17  # one case again, with all that it says
    python benchmarks/faults.py --table                  # the table of what has been run so far

What is done is written to `--output` case by case. A run that is stopped, by whatever, goes on
where it was when it is started again; `--shard 1/4` does a quarter of the cases, so that four
processes, or four machines, share the work (put the files of machines together in one folder for
the table).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import fault_candidates  # noqa: E402
import fault_inputs  # noqa: E402
import fault_kills  # noqa: E402
import fault_seeds  # noqa: E402
import fault_system  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Part:
    """A kind of faults.

    count, quick: how many cases a whole run has, and a quick one. run: does cases from a first
    number to before a last one, and hands each over as a line: `case`, `group`, `faults` and what
    else there is to say.
    """

    name: str
    title: str
    count: int
    quick: int
    run: Callable[[Options, Iterable[int]], Iterable[dict[str, Any]]]
    unit: int = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """Where things are: `output` has the lines, `shared` what is made once for all shares, `work`
    what cases of this share leave behind."""

    output: Path
    shared: Path
    work: Path
    seed: int
    count: int
    verbose: bool


def inputs(options: Options, wanted: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Fuzzed inputs."""
    seeds = options.shared / "seeds"
    with _alone(options.shared):
        fault_seeds.make_seeds(seeds)
    numbers = set(wanted)
    for case in fault_inputs.cases(seeds, options.count, options.seed):
        if case.number not in numbers:
            continue
        found = fault_inputs.run_case(case, seeds, options.work / "case")
        if options.verbose:
            print(" ".join(case.command), case.source, found.status, found.message, sep="\n  ")
        yield {
            "case": case.number,
            "group": case.kind,
            "source": case.source,
            "command": " ".join(case.command),
            "status": found.status,
            "seconds": round(found.seconds, 2),
            "message": found.message,
            "faults": found.faults,
        }


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other shares on this machine wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def candidates(options: Options, wanted: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Tuning runs with candidates that do harm; a run is done whole."""
    size = fault_candidates.RUN
    for run in sorted({number // size for number in wanted}):
        first = run * size
        lines = fault_candidates.run(
            options.work / "run",
            options.seed + run,
            min(size, options.count - first),
            options.shared / "programs",
        )
        for number, line in enumerate(lines, start=first):
            yield {"case": number, **line}


def kills(options: Options, wanted: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Processes killed at random moments."""
    return fault_kills.kills(options.work / "killed", options.seed, sorted(wanted))


def system(options: Options, wanted: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Disks, clocks, signals, damage, memory."""
    for number in sorted(wanted):
        yield fault_system.run_case(options.work / "system", options.seed, number)


PARTS = (
    Part("candidates", "Hostile candidates", 10_000, 100, candidates, fault_candidates.RUN),
    Part("kills", "Kills", 1000, 20, kills),
    Part("system", "System", 300, 12, system),
    Part("inputs", "Hostile input", 5000, 100, inputs),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--cases", choices=names, action="append", help="only these (default: all)")
    parser.add_argument("--count", type=int, help="of each part (default: as docs/reliability.md)")
    parser.add_argument("--quick", action="store_true", help="few of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N shares")
    parser.add_argument("--only", type=int, metavar="CASE", help="this case again, and say more")
    parser.add_argument("--output", type=Path, default=Path("faults-results"))
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    given = parser.parse_args(arguments)
    # A shell has what it starts behind `&` ignore it, and what that starts: nothing could be
    # interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given.output.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if given.cases is None or part.name in given.cases]
    if not given.table:
        for part in chosen:
            _run(part, given)
    lines = {part.name: _lines(given.output, part.name) for part in chosen}
    print(table(lines))
    return 1 if any(line["faults"] for found in lines.values() for line in found) else 0


def _run(part: Part, given: argparse.Namespace) -> None:
    """Do what is left of a part, and write each case down when it has ended."""
    count = given.count or (part.quick if given.quick else part.count)
    share, shares = map(int, given.shard.split("/"))
    shared, work = (given.output.absolute() / name for name in ("shared", f"work-{share}"))
    options = Options(given.output, shared, work, given.seed, count, given.only is not None)
    if given.only is not None:
        for line in part.run(options, [given.only]):
            print(json.dumps(line, indent=1))
        return
    done = {(one["seed"], one["case"]) for one in _lines(given.output, part.name)}
    mine = [n for n in range(count) if n // part.unit % shares == share - 1]
    left = [n for n in mine if (given.seed, n) not in done]
    print(f"{part.title}: {len(left)} of {count} to do (seed {given.seed})", flush=True)
    began = time.monotonic()
    with (given.output / f"{part.name}-{given.seed}-{share}.jsonl").open("a") as file:
        for number, line in enumerate(part.run(options, left), start=1):
            date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(json.dumps({"seed": given.seed, "date": date, **line}) + "\n")
            file.flush()
            if line["faults"]:
                print(f"  FAULT {json.dumps(line)}", flush=True)
            if number % 50 == 0:
                took = time.monotonic() - began
                print(f"  {number} of {len(left)} after {took:.0f} s", flush=True)


def _lines(output: Path, name: str) -> list[dict[str, Any]]:
    """What has been done of a part, whoever did it."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for path in sorted(output.glob(f"{name}-*.jsonl")):
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # it was cut off when the script was killed, and is done again
            found[line["seed"], line["case"]] = line
    return [found[key] for key in sorted(found)]


def table(lines: dict[str, list[dict[str, Any]]]) -> str:
    """What was run and what became of it, as Markdown.

    Args:
        lines: of each part.
    """
    rows = ["| part | fault | cases | outcomes | faults of tilewright |", "| --- " * 5 + "|"]
    for part in PARTS:
        groups: dict[str, list[dict[str, Any]]] = {}
        for line in lines.get(part.name, []):
            groups.setdefault(line["group"], []).append(line)
        for name, found in sorted(groups.items()):
            outcomes = collections.Counter(str(one.get("status")) for one in found)
            said = ", ".join(f"{n} {what}" for what, n in outcomes.most_common())
            wrong = sum(bool(one["faults"]) for one in found)
            rows.append(f"| {part.title} | {name} | {len(found)} | {said} | {wrong} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
