"""`profile generate`: programs of operations, and the configurations of each that `--configs` asks
for, from search spaces and the database.

An operation's program can be several dispatches (padding before a convolution, slices added up
behind a product). The one that does most of the work is the one that is configured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from tilewright import scratch
from tilewright.errors import UnknownNameError, UserError
from tilewright.kernels.operation import Operation
from tilewright.kernels.worker_tasks import EmitRequest, emit_programs
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.pool import Job, WorkerPool
from tilewright.profiler.folder import (
    DispatchEntry,
    GeneratedFolder,
    OperationFolder,
    TunedConfiguration,
)
from tilewright.profiler.names import DEFAULT, NamedTiling, format_configuration
from tilewright.store import Database, default_path
from tilewright.target import Target
from tilewright.toolchain import Toolchain
from tilewright.trial import Configuration
from tilewright.tuning.opening import LOAD_TIMEOUT_S, OpenProgram
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.parse import parse_count
from tilewright.tuning.prepare import PreparedVariant, extraction_job, learn, read_all_tasks
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import LoadRequest, read_user_program

Say = Callable[[str], None]

# `all` is for spaces that are small, or restricted; more would never be compiled.
MOST_CONFIGURATIONS = 10_000
# Draws for each configuration asked for: some are drawn twice.
_DRAWS = 8
_EMIT_TIMEOUT_S = 120.0
# Operations that one job builds the programs of.
_PER_JOB = 32

Way = Literal["default", "sample", "all", "best"]


@dataclass(frozen=True)
class ConfigurationChoice:
    """One word of `--configs`; `count` is that of `sample:N`."""

    way: Way
    count: int = 0


def parse_configs(text: str, option: str = "--configs") -> tuple[ConfigurationChoice, ...]:
    """The choices of `--configs`.

    Args:
        text: `default`, `sample:N`, `all`, `best`, or several of them, separated by commas.
        option: what it was written for, for messages.

    Returns:
        Each choice once, in order.

    Raises:
        UserError: it is none of these, or a number is missing or too large.
    """
    choices: dict[ConfigurationChoice, None] = {}
    for part in text.split(","):
        word, colon, number = part.strip().partition(":")
        if word == "sample":
            if not colon:
                raise UserError(f"{option}: '{text}': sample needs a number, such as sample:10")
            count = parse_count(number, f"{option} sample")
            if count > MOST_CONFIGURATIONS:
                raise UserError(
                    f"{option}: sample:{count} is more than {MOST_CONFIGURATIONS:,} configurations "
                    "of one operation"
                )
            choices[ConfigurationChoice("sample", count)] = None
        elif not colon and word in ("default", "all", "best"):
            choices[ConfigurationChoice(word)] = None  # type: ignore[arg-type]
        else:
            allowed = ("default", "sample:N", "all", "best")
            raise UnknownNameError("choice of configurations", part.strip(), allowed, option)
    return tuple(choices)


@dataclass(frozen=True)
class GenerateOptions:
    """How to generate: `choices` of configurations, `seed` of samples, `jobs` workers. `db` is the
    database (None: the user's own, if there is one)."""

    target: Target
    choices: tuple[ConfigurationChoice, ...] = (ConfigurationChoice("default"),)
    iree_flags: tuple[str, ...] = ()
    jobs: int = 1
    seed: int = 0
    db: Path | None = None


@dataclass
class Generated:
    """What was generated: programs written (the others were there), dispatches that are new."""

    operations: int = 0
    written: int = 0
    dispatches: int = 0
    new: int = 0
    notes: list[str] = field(default_factory=list)


def generate(
    directory: Path,
    operations: Sequence[Operation],
    options: GenerateOptions,
    say: Say = lambda line: None,
) -> Generated:
    """Write the programs and manifests of operations under `directory/generated`; what is there
    stays, and compiled dispatches stay valid as long as their programs do not change.

    Args:
        directory: that of `--generated-dir`.
        operations: what to write.
        options: how.
        say: gets a line for each operation.

    Returns:
        What was written, with notes.

    Raises:
        UserError: a program cannot be built, or the folder is held or cannot be written.
    """
    generated = GeneratedFolder(directory)
    flags = (*options.target.flags, *options.iree_flags)
    summary = Generated(operations=len(operations))
    store = _open_store(options)
    try:
        with generated.locked(), compile_pool(options.jobs, flags=(flags,)) as pool:
            folders = [generated.folder_of(operation) for operation in operations]
            written = _emit(folders, flags, pool)
            summary.written = len(written)
            for folder, subject in zip(folders, _subjects(folders, options, pool), strict=True):
                chosen = _Chooser(folder.operation.name, subject, options, store)
                new = [name for name in chosen.configurations if name not in folder.dispatches]
                for name, tuned in chosen.configurations.items():
                    entry = folder.dispatches.setdefault(name, DispatchEntry())
                    entry.tuned = tuned
                if folder.operation.name in written:
                    # What was compiled from another program is no more.
                    for entry in folder.dispatches.values():
                        entry.compiled = None
                folder.save()
                summary.dispatches += len(chosen.configurations)
                summary.new += len(new)
                summary.notes += chosen.notes
                say(f"{folder.program}: {', '.join(chosen.configurations)}")
    finally:
        if store is not None:
            store.close()
    return summary


def _open_store(options: GenerateOptions) -> Database | None:
    """The database where one is needed and there is one; a named one must be there."""
    if all(choice.way != "best" for choice in options.choices):
        return None
    if options.db is None and not default_path().is_file():
        return None
    return Database.open(options.db, create=False)


def _emit(folders: Sequence[OperationFolder], flags: tuple[str, ...], pool: WorkerPool) -> set[str]:
    programs = [(folder.operation.name, folder.program) for folder in folders]
    jobs = [
        Job(emit_programs, EmitRequest(tuple(programs[i : i + _PER_JOB]), flags), _EMIT_TIMEOUT_S)
        for i in range(0, len(programs), _PER_JOB)
    ]
    written: set[str] = set()
    for result in pool.run(jobs):
        if result.failure is not None:
            names = ", ".join(name for name, _ in result.job.request.programs)
            raise UserError(f"the programs of {names} cannot be built: {result.failure.message}")
        written.update(result.value)
    return written


# -- the dispatch that is configured ---------------------------------------------------------------


def _subjects(
    folders: Sequence[OperationFolder], options: GenerateOptions, pool: WorkerPool
) -> Sequence[DispatchTask | str]:
    """For each operation the dispatch that does most, or why none can be configured. Each step is
    taken for all operations at once, so that all workers have work."""
    if all(choice.way == "default" for choice in options.choices):
        return [""] * len(folders)
    found: list[DispatchTask | str] = [""] * len(folders)
    with scratch.folder() as work:
        reading = [LoadRequest(f.program, work / str(i), None) for i, f in enumerate(folders)]
        extractions = []
        for i, read in enumerate(
            pool.run([Job(read_user_program, r, LOAD_TIMEOUT_S) for r in reading])
        ):
            if read.failure is not None:
                found[i] = read.failure.message
                continue
            flags = (*folders[i].operation.flags, *options.iree_flags)
            own = TuneOptions(iree_flags=flags, kernels="off")
            opened = OpenProgram(
                read.value, options.target, own, Toolchain(), pool, reading[i].folder
            )
            extractions.append((i, extraction_job(opened)))
        extracted = []
        for (i, job), result in zip(
            extractions, pool.run([job for _, job in extractions]), strict=True
        ):
            if result.failure is not None:
                found[i] = result.failure.message
            else:
                extracted.append((i, job.tag, learn(job.tag, result.value)))
        prepared = read_all_tasks([(opened, one) for _, opened, one in extracted])
        for (i, *_), variant in zip(extracted, prepared, strict=True):
            found[i] = _subject(variant)
    return found


def _subject(prepared: PreparedVariant) -> DispatchTask | str:
    if not prepared.tasks:
        reasons = [one.reason for one in prepared.skipped]
        return reasons[0] if reasons else "the program has no dispatch"
    return max(prepared.tasks, key=lambda t: (t.workload.flops, t.workload.bytes))


# -- its configurations ----------------------------------------------------------------------------


class _Chooser:
    """Configurations of an operation by name (None: the compiler's own), and remarks.

    name: of the operation. subject: its dispatch, or why there is none.
    """

    def __init__(
        self,
        name: str,
        subject: DispatchTask | str,
        options: GenerateOptions,
        store: Database | None,
    ) -> None:
        self.configurations: dict[str, TunedConfiguration | None] = {}
        self.notes: list[str] = []
        self._name = name
        for choice in options.choices:
            if choice.way == "default":
                self.configurations[DEFAULT] = None
            elif isinstance(subject, str):
                self.notes.append(f"{name}: only the default: {subject}")
                self.configurations[DEFAULT] = None
            elif choice.way == "sample":
                self._sample(subject, choice.count, options.seed)
            elif choice.way == "all":
                self._all(subject)
            else:
                self._best(subject, store)

    def _add(self, subject: DispatchTask, configurations: Iterable[Configuration]) -> None:
        self.configurations.update(_named(subject, c) for c in configurations)

    def _sample(self, subject: DispatchTask, count: int, seed: int) -> None:
        digest = hashlib.sha256(self._name.encode()).digest()
        rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
        found: dict[str, TunedConfiguration] = {}
        for configuration in subject.space.space.sample(rng, _DRAWS * count):
            label, tuned = _named(subject, configuration)
            if tuned is not None and len(found) < count:
                found[label] = tuned
        if len(found) < count:
            self.notes.append(
                f"{self._name}: {len(found)} different configurations, {count} asked for"
            )
        self.configurations.update(found)

    def _all(self, subject: DispatchTask) -> None:
        space = subject.space.space
        size = space.size_estimate(np.random.default_rng(0))
        if size.points > MOST_CONFIGURATIONS or space.order_size > 100 * MOST_CONFIGURATIONS:
            raise UserError(
                f"--configs all: {self._name} has {size} configurations, more than "
                f"{MOST_CONFIGURATIONS:,}; ask for sample:N"
            )
        self._add(subject, filter(None, space.ordered(range(space.order_size))))

    def _best(self, subject: DispatchTask, store: Database | None) -> None:
        result = store.result_for(subject.key) if store is not None else None
        if result is None:
            self.notes.append(f"{self._name}: the database has no result for it: only the default")
        if result is None or result.configuration is None:
            self.configurations[DEFAULT] = None
        else:
            self._add(subject, [result.configuration])


def _named(
    task: DispatchTask, configuration: Configuration
) -> tuple[str, TunedConfiguration | None]:
    """A configuration with its name; the default's for what comes to the same."""
    lowered = task.space.lower(configuration)
    assert task.template is not None
    if lowered == task.template.default:
        return DEFAULT, None
    root = dict(lowered.tilings)[task.template.root]
    label = format_configuration(NamedTiling(root, lowered.translation))
    knobs = {name: list(v) if isinstance(v, tuple) else v for name, v in configuration.items}
    return label, TunedConfiguration(task.dispatch.executable, task.name, lowered, knobs)
