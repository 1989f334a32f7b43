"""Configurations of operations: what `--configs` asks for, from search spaces and the database.

An operation's program can be several dispatches (padding before a convolution, slices added up
behind a product). The one that does most of the work is the one that is configured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from tilewright import scratch
from tilewright.errors import UnknownNameError, UserError
from tilewright.ir.program import Program
from tilewright.kernels.operation import Operation
from tilewright.measure.pool import Job, WorkerPool
from tilewright.profiler.folder import OperationFolder, TunedConfiguration
from tilewright.profiler.names import DEFAULT, NamedTiling, format_configuration
from tilewright.store import Database, TaskKey
from tilewright.target import Target
from tilewright.toolchain import Toolchain
from tilewright.trial import Configuration
from tilewright.tuning.extract_tasks import Extraction
from tilewright.tuning.opening import LOAD_TIMEOUT_S, OpenProgram
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.parse import parse_count
from tilewright.tuning.prepare import extraction_job, learn, read_tasks
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import LoadRequest, read_user_program

# `all` is for spaces that are small, or restricted; more would never be compiled.
MOST_CONFIGURATIONS = 10_000
# Draws for each configuration asked for: some are drawn twice.
_DRAWS = 8

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


def need_spaces(choices: Sequence[ConfigurationChoice]) -> bool:
    """Whether the choices ask for more than the compiler's own configuration.

    Args:
        choices: of `--configs`.
    """
    return any(choice.way != "default" for choice in choices)


@dataclass(frozen=True)
class ConfiguredOperation:
    """The dispatch of an operation that is configured, and its key in the database."""

    task: DispatchTask
    key: TaskKey


@dataclass
class Chosen:
    """Configurations by name (None: the compiler's own), and remarks."""

    configurations: dict[str, TunedConfiguration | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Chooser:
    """Chooses configurations for operations whose programs have been written.

    store: the database that `best` is looked up in; None when there is none.
    """

    def __init__(
        self,
        choices: Sequence[ConfigurationChoice],
        target: Target,
        iree_flags: tuple[str, ...],
        seed: int,
        store: Database | None,
    ) -> None:
        self._choices = choices
        self._target = target
        self._iree_flags = iree_flags
        self._seed = seed
        self._store = store

    def choose(
        self, folders: Sequence[OperationFolder], pool: WorkerPool
    ) -> Iterator[tuple[OperationFolder, Chosen]]:
        """The configurations of each operation, in their order.

        Args:
            folders: of operations whose programs are there.
            pool: compile workers.

        Returns:
            Pairs of a folder and what was chosen for it.
        """
        if not need_spaces(self._choices):
            for folder in folders:
                yield folder, Chosen({DEFAULT: None})
            return
        with scratch.folder() as work:
            jobs = [
                Job(
                    read_user_program,
                    LoadRequest(f.program, work / str(i), None),
                    LOAD_TIMEOUT_S,
                    tag=f,
                )
                for i, f in enumerate(folders)
            ]
            found = pool.run(jobs)
            extracted = iter(
                pool.run(
                    extraction_job(
                        self._open(one.job.tag.operation, one.value, pool, work / str(i))
                    )
                    for i, one in enumerate(found)
                    if one.failure is None
                )
            )
            for read in found:
                subject: ConfiguredOperation | str
                if read.failure is not None:
                    subject = read.failure.message
                elif (result := next(extracted)).failure is not None:
                    subject = result.failure.message
                else:
                    subject = _subject(result.job.tag, result.value)
                yield read.job.tag, self._chosen(read.job.tag.operation, subject)

    def _open(
        self, operation: Operation, program: Program, pool: WorkerPool, work: Path
    ) -> OpenProgram:
        options = TuneOptions(iree_flags=(*operation.flags, *self._iree_flags))
        return OpenProgram(program, self._target, options, Toolchain(), pool, work)

    # -- configurations of a dispatch ----------------------------------------------------------

    def _chosen(self, operation: Operation, subject: ConfiguredOperation | str) -> Chosen:
        chosen, name = Chosen(), operation.name
        for choice in self._choices:
            if choice.way == "default":
                chosen.configurations[DEFAULT] = None
            elif isinstance(subject, str):
                chosen.notes.append(f"{name}: only the default: {subject}")
                chosen.configurations[DEFAULT] = None
            elif choice.way == "sample":
                self._sample(chosen, name, subject, choice.count)
            elif choice.way == "all":
                self._all(chosen, name, subject)
            else:
                self._best(chosen, operation, subject)
        return chosen

    def _sample(self, chosen: Chosen, name: str, subject: ConfiguredOperation, count: int) -> None:
        digest = hashlib.sha256(name.encode()).digest()
        rng = np.random.default_rng([self._seed, int.from_bytes(digest[:8], "little")])
        found: dict[str, TunedConfiguration] = {}
        for configuration in subject.task.space.space.sample(rng, _DRAWS * count):
            label, tuned = _named(subject, configuration)
            if tuned is not None and len(found) < count:
                found[label] = tuned
        if len(found) < count:
            chosen.notes.append(f"{name}: {len(found)} different configurations, {count} asked for")
        chosen.configurations.update(found)

    def _all(self, chosen: Chosen, name: str, subject: ConfiguredOperation) -> None:
        space = subject.task.space.space
        size = space.size_estimate(np.random.default_rng(0))
        if size.points > MOST_CONFIGURATIONS or space.order_size > 100 * MOST_CONFIGURATIONS:
            raise UserError(
                f"--configs all: {name} has {size} configurations, more than "
                f"{MOST_CONFIGURATIONS:,}; ask for sample:N"
            )
        for configuration in space.ordered(range(space.order_size)):
            if configuration is not None:
                label, tuned = _named(subject, configuration)
                chosen.configurations[label] = tuned

    def _best(self, chosen: Chosen, operation: Operation, subject: ConfiguredOperation) -> None:
        result = self._store.result_for(subject.key) if self._store is not None else None
        if result is None:
            chosen.notes.append(
                f"{operation.name}: the database has no result for it: only the default"
            )
        if result is None or result.configuration is None:
            chosen.configurations[DEFAULT] = None
            return
        label, tuned = _named(subject, result.configuration)
        chosen.configurations[label] = tuned


def _subject(opened: OpenProgram, extraction: Extraction) -> ConfiguredOperation | str:
    """The dispatch that does most, or why none can be configured."""
    prepared = read_tasks(opened, learn(opened, extraction))
    if not prepared.tasks:
        reasons = [one.reason for one in prepared.skipped]
        return reasons[0] if reasons else "the program has no dispatch"
    task = max(prepared.tasks, key=lambda t: (t.workload.flops, t.workload.bytes))
    return ConfiguredOperation(task, task.key)


def _named(
    subject: ConfiguredOperation, configuration: Configuration
) -> tuple[str, TunedConfiguration | None]:
    """A configuration with its name; the default's for what comes to the same."""
    task = subject.task
    lowered = task.space.lower(configuration)
    if lowered == task.template.default:
        return DEFAULT, None
    root = dict(lowered.tilings)[task.template.root]
    label = format_configuration(NamedTiling(root, lowered.translation))
    knobs = {name: list(v) if isinstance(v, tuple) else v for name, v in configuration.items}
    return label, TunedConfiguration(task.dispatch.executable, task.name, lowered, knobs)
