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
from tilewright.kernels.operation import Operation
from tilewright.measure.pool import Job, Result, WorkerPool
from tilewright.profiler.folder import OperationFolder, TunedConfiguration
from tilewright.profiler.names import DEFAULT, NamedTiling, format_configuration
from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.store import Database, TaskKey
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration
from tilewright.tuning.extract_tasks import (
    ConfigureRequest,
    DispatchFacts,
    ExtractedDispatch,
    ExtractRequest,
    configure_dispatch,
    extract_dispatches,
)
from tilewright.tuning.parse import parse_count
from tilewright.tuning.variants import flags_key
from tilewright.workload import Workload

# `all` is for spaces that are small, or restricted; more would never be compiled.
MOST_CONFIGURATIONS = 10_000
_TIMEOUT_S = 300.0
# Draws for each configuration asked for: some are drawn twice.
_DRAWS = 8

Way = Literal["default", "sample", "all", "best"]


@dataclass(frozen=True)
class ConfigurationChoice:
    """One word of `--configs`; `count` is that of `sample:N`."""

    way: Way
    count: int = 0


def parse_configs(text: str, option: str = "--configs") -> tuple[ConfigurationChoice, ...]:
    """`default`, `sample:N`, `all`, `best`, or several of them, separated by commas."""
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
    """Whether the choices ask for more than the compiler's own configuration."""
    return any(choice.way != "default" for choice in choices)


@dataclass(frozen=True)
class ConfiguredOperation:
    """The dispatch of an operation that is configured, as the compiler does it, with its space."""

    executable: str
    entry: str
    template: DispatchTemplate
    workload: Workload
    space: DispatchSpace
    target: Target


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
        """The configurations of each operation, in their order."""
        if not need_spaces(self._choices):
            for folder in folders:
                yield folder, Chosen({DEFAULT: None})
            return
        with scratch.folder() as work:
            for folder, subject in self._subjects(folders, pool, work):
                yield folder, self._chosen(folder.operation, subject)

    # -- the dispatch that is configured -------------------------------------------------------

    def _subjects(
        self, folders: Sequence[OperationFolder], pool: WorkerPool, work: Path
    ) -> Iterator[tuple[OperationFolder, ConfiguredOperation | str]]:
        """For each operation the dispatch, or why there is none."""
        jobs = [
            Job(
                extract_dispatches,
                ExtractRequest(f.program, self._flags_of(f.operation), work / str(i)),
                _TIMEOUT_S,
                tag=f,
            )
            for i, f in enumerate(folders)
        ]
        extracted = pool.run(jobs)
        configure: list[Job[ConfigureRequest, DispatchFacts]] = []
        for result in extracted:
            found = () if result.failure else result.value.dispatches
            configure += [
                Job(
                    configure_dispatch,
                    ConfigureRequest(d, self._flags_of(result.job.tag.operation)),
                    _TIMEOUT_S,
                    tag=(result.job.tag, d),
                )
                for d in found
                if d.isolated is not None
            ]
        by_folder: dict[int, list[Result[DispatchFacts]]] = {}
        for done in pool.run(configure):
            by_folder.setdefault(id(done.job.tag[0]), []).append(done)
        for result in extracted:
            folder = result.job.tag
            if result.failure is not None:
                yield folder, result.failure.message
            else:
                yield folder, self._main(by_folder.get(id(folder), []))

    def _flags_of(self, operation: Operation) -> tuple[str, ...]:
        return (*self._target.flags, *operation.flags, *self._iree_flags)

    def _main(self, results: Sequence[Result[DispatchFacts]]) -> ConfiguredOperation | str:
        """The dispatch that does most, or why none can be configured."""
        reasons = [r.failure.message for r in results if r.failure is not None]
        candidates: list[ConfiguredOperation] = []
        for result in results:
            if result.failure is not None:
                continue
            info = result.value
            dispatch: ExtractedDispatch = result.job.tag[1]
            if info.workload is None or info.template is None:
                reasons.append(info.reason)
                continue
            target = self._target.with_vectors(info.vector_bytes, info.features, info.processor)
            space = dispatch_space(info.template, info.workload, target)
            if space is None:
                pipeline = info.template.translation.pipeline
                reasons.append(f"no search space for pipeline {pipeline}")
                continue
            candidates.append(
                ConfiguredOperation(
                    dispatch.executable,
                    dispatch.entry,
                    info.template,
                    info.workload,
                    space,
                    target,
                )
            )
        if not candidates:
            return reasons[0] if reasons else "the program has no dispatch"
        return max(candidates, key=lambda s: (s.workload.flops, s.workload.bytes))

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
        for configuration in subject.space.space.sample(rng, _DRAWS * count):
            label, tuned = _named(subject, configuration)
            if tuned is not None and len(found) < count:
                found[label] = tuned
        if len(found) < count:
            chosen.notes.append(f"{name}: {len(found)} different configurations, {count} asked for")
        chosen.configurations.update(found)

    def _all(self, chosen: Chosen, name: str, subject: ConfiguredOperation) -> None:
        space = subject.space.space
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
        key = TaskKey(
            subject.workload,
            subject.target.key,
            installed_version("iree-base-compiler"),
            flags_key((*operation.flags, *self._iree_flags)),
        )
        result = self._store.result_for(key) if self._store is not None else None
        if result is None:
            chosen.notes.append(
                f"{operation.name}: the database has no result for it: only the default"
            )
        if result is None or result.configuration is None:
            chosen.configurations[DEFAULT] = None
            return
        label, tuned = _named(subject, result.configuration)
        chosen.configurations[label] = tuned


def _named(
    subject: ConfiguredOperation, configuration: Configuration
) -> tuple[str, TunedConfiguration | None]:
    """A configuration with its name; the default's for what comes to the same."""
    lowered = subject.space.lower(configuration)
    if lowered == subject.template.default:
        return DEFAULT, None
    root = dict(lowered.tilings)[subject.template.root]
    label = format_configuration(NamedTiling(root, lowered.translation))
    knobs = {name: list(v) if isinstance(v, tuple) else v for name, v in configuration.items}
    return label, TunedConfiguration(subject.executable, subject.entry, lowered, knobs)
