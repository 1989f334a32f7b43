"""Hostile input for everything that tilewright reads, and what became of each.

A case is a variant of a good file, or a hostile one made by hand, and a command that reads it, in a
folder and a home folder of its own. It has to end within its limit, with exit status 0 or one line
that says what is wrong, with nothing executed and no file touched but those that it was told to
write.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_commands import REPOSITORY, Ended, limit_s, run_command
from fault_kinds import KINDS, SERVING, command_lines, sources
from fault_mutations import mutated
from fault_seeds import EXECUTED, hand_made

# What a command may say of a fault that is its own: 0, an error of the user's, findings.
_STATUSES = (0, 2, 3)
# What goes on for ever is interrupted after so many seconds.
_SERVING_S = 1.5
# Commands that write into the folder that they are given.
_WRITING = (("cluster", "certs"), ("specs", "push"))
# Of so many commands one is started anew, as a user's are.
_ANEW = 100
# Where tilewright keeps what it keeps of itself.
_OWN = (".cache/tilewright", ".local/share/tilewright")
_DUMPS = ("Traceback (most recent call last)", "Stack dump:", "PLEASE submit a bug report")


@dataclass(frozen=True)
class Case:
    """One hostile input: of a kind, made of `source` (or given as it is), read by `command`."""

    number: int
    kind: str
    source: str
    command: tuple[str, ...]
    seed: int
    given: Path | None = None


@dataclass
class Verdict:
    """What a case showed; `faults` is empty where all is as it should be."""

    case: Case
    status: int | None
    seconds: float
    message: str
    faults: list[str] = field(default_factory=list)


def cases(seeds: Path, count: int, seed: int) -> Iterator[Case]:
    """Cases in a fixed order: the same number and seed make the same case.

    Args:
        seeds: the folder of good files.
        count: how many.
        seed: of chance.
    """
    chance = random.Random(seed)
    made = hand_made(seeds.parent / "hand-made")
    number = 0
    by_name = {kind.name: kind for kind in KINDS}
    for name, paths in made.items():
        for path in paths:
            for command in (*by_name[name].commands, *by_name[name].slow):
                if number < count:
                    yield Case(number, name, path.name, tuple(command.split()), number, path)
                    number += 1
    lines = command_lines(count, seed)
    there = [kind for kind in KINDS if kind.name == "command line" or sources(seeds, kind)]
    weighted = [kind for kind in there for _ in range(kind.weight)]
    while number < count:
        kind = chance.choice(weighted)
        own = chance.randrange(1 << 62)
        if kind.name == "command line":
            yield Case(number, kind.name, "", lines[number % len(lines)], own)
        else:
            source = chance.choice(sorted(sources(seeds, kind)))
            command = tuple(chance.choice(kind.drawn).split())
            yield Case(number, kind.name, source, command, own)
        number += 1


def run_case(case: Case, seeds: Path, folder: Path) -> Verdict:
    """Make a case's input, run its command, and see what became of it.

    Args:
        case: what to try.
        seeds: the folder of good files, which is to stay as it is.
        folder: a folder for this case alone; it is made anew.
    """
    shutil.rmtree(folder, ignore_errors=True)
    home, here, output = folder / "home", folder / "here", folder / "out"
    for one in (home, here, output):
        one.mkdir(parents=True)
    (home / "private.txt").write_text("must stay as it is")
    (here / "beside.txt").write_text("must stay as it is")
    place, owner = _place(case, seeds, here)
    values = {"f": str(place), "d": str(owner), "s": str(seeds), "o": str(output)}
    arguments = [_filled(word, values) for word in case.command]
    script = ""
    if arguments and arguments[0] == "schedule":
        script, arguments = str(REPOSITORY / "benchmarks" / "fault_schedule.py"), arguments[1:]
    before = _snapshot([home, seeds, folder.parent / "hand-made"], seeds)
    serving = any(tuple(arguments[: len(words)]) == words for words in SERVING)
    until = time.monotonic() + _SERVING_S
    ended = run_command(
        arguments,
        here,
        home,
        limit_s(),
        lambda: serving and time.monotonic() > until,
        script,
        anew=case.number % _ANEW == _ANEW - 1,
    )
    statuses = (*_STATUSES, 130) if serving else _STATUSES
    verdict = Verdict(case, ended.status, ended.seconds, _last_line(ended.err))
    verdict.faults += _faults_of_end(ended, statuses)
    after = _snapshot([home, seeds, folder.parent / "hand-made"], seeds)
    touched = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if touched:
        verdict.faults.append(f"touched {', '.join(touched[:5])}")
    if any(folder.rglob(EXECUTED)) or any(seeds.rglob(EXECUTED)):
        verdict.faults.append("executed")
    if ended.status is not None and any((home / "tmp").iterdir()):
        verdict.faults.append("left temporary files")
    if case.kind != "command line" and case.command[:2] not in _WRITING:
        strays = [p.name for p in here.iterdir() if p.name not in _placed(place, owner, here)]
        if strays:
            verdict.faults.append(f"wrote {', '.join(strays[:5])} beside its input")
    return verdict


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _place(case: Case, seeds: Path, here: Path) -> tuple[Path, Path]:
    """Write the case's input; its path, and the folder that a command may be given."""
    chance = random.Random(case.seed)
    if case.kind == "command line":
        for one in (seeds / name for name in ("small.mlir", "a.npy", "tuned.db", "tuned")):
            if one.is_dir():
                shutil.copytree(one, here / one.name)
            elif one.exists():
                shutil.copy(one, here / one.name)
        return here / "small.mlir", here
    if case.given is not None:
        name = "pyproject.toml" if case.kind == "project options" else case.given.name
        shutil.copy(case.given, here / name)
        return here / name, here
    source = seeds / case.source
    top = Path(case.source).parts[0]
    if len(Path(case.source).parts) > 1 and top != "examples":
        shutil.copytree(seeds / top, here / top)
        place, owner = here / case.source, here / top
    else:
        place, owner = here / source.name, here
    changed = mutated(source.read_bytes(), chance, _suffix_of(source))
    if chance.random() < 0.02:
        place.unlink(missing_ok=True)
        _odd_place(place, chance)
    else:
        place.write_bytes(changed)
    return place, owner


def _odd_place(place: Path, chance: random.Random) -> None:
    """Something that is there and no file."""
    kind = chance.randrange(4)
    if kind == 0:
        place.mkdir()
    elif kind == 1:
        place.symlink_to(place)
    elif kind == 2:
        place.symlink_to("/dev/null")


def _suffix_of(path: Path) -> str:
    return ".txt" if path.suffix in (".log", "") else path.suffix


def _placed(place: Path, owner: Path, here: Path) -> set[str]:
    """Names in the folder that are there by right: the input, and what goes with a database."""
    names = {"beside.txt", place.name, *(f"{place.name}{s}" for s in ("-wal", "-shm", "-journal"))}
    return names if owner == here else names | {owner.name}


def _faults_of_end(ended: Ended, statuses: tuple[int, ...]) -> list[str]:
    found = []
    said = ended.out + ended.err
    if ended.status is None:
        found.append(f"hung: not done after {ended.seconds:.0f} s")
    elif ended.status not in statuses:
        found.append(f"ended with status {ended.status}")
    if "internal error" in ended.err:
        found.append("internal error")
    found += [f"printed '{dump}'" for dump in _DUMPS if dump in said]
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    if ended.status == 2 and len(errors) != 1:
        found.append(f"{len(errors)} lines of errors")
    if any(len(line) > 4000 for line in errors):
        found.append(f"an error of {max(map(len, errors))} characters")
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _snapshot(folders: Sequence[Path], seeds: Path) -> dict[str, tuple[int, str]]:
    """What every file is, but for what tilewright keeps of its own."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if not path.is_file() or name.startswith((*_OWN, "tmp/", "home/")):
                continue
            status = path.stat()
            key = f"{folder.name}/{name}"
            if folder == seeds:
                found[key] = (status.st_size, str(status.st_mtime_ns))
            else:
                found[key] = (status.st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found
