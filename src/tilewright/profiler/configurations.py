"""Which configurations of an operation `--configs` asks for: the compiler's own, those named, and
those from search spaces and the database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import read_text
from tilewright.gpu import STAGES_OPTION, GpuCompilationInfo
from tilewright.profiler.folder import TunedConfiguration
from tilewright.profiler.names import (
    DEFAULT,
    PREFIX,
    NamedGpuTiling,
    NamedTiling,
    format_configuration,
    parse_configuration,
)
from tilewright.space.gpu_pipeline import GpuPipeline
from tilewright.space.gpu_smt import StatedPipeline
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB
from tilewright.store import Database
from tilewright.tiling import CompilationInfo
from tilewright.trial import Configuration
from tilewright.tuning.parse import parse_count
from tilewright.tuning.task import DispatchTask

# `all` is for spaces that are small, or restricted; more would never be compiled.
MOST_CONFIGURATIONS = 10_000
# Draws for each configuration asked for: some are drawn twice.
_DRAWS = 8
# Draws from a space that is held to the tiles of a name, of which the most promising is taken.
_NAMED_DRAWS = 512
# Steps in flight, where they are a knob and not an option beside the space.
_DEPTH_KNOB = "pipeline_depth"
# What the k of a matrix intrinsic can be, in which some spaces count their steps.
_STEP_UNITS = (1, 2, 4, 8, 16, 32, 64, 128)

# Tiles and stages that IREE's first dispatch profiler generated for tensor cores.
_CLASSIC = (
    *("128x256_32x3", "128x128_64x4", "128x128_32x5", "128x64_32x5", "64x64_64x5", "64x64_32x10"),
    "128x128_16x5",
)

Way = Literal["default", "sample", "all", "best", "classic", "named"]


@dataclass(frozen=True)
class ConfigurationChoice:
    """One word of `--configs`; `count` is that of `sample:N`, `name` that of a named one."""

    way: Way
    count: int = 0
    name: str = ""


def parse_configs(text: str, option: str = "--configs") -> tuple[ConfigurationChoice, ...]:
    """The choices of `--configs`.

    Args:
        text: `default`, `sample:N`, `all`, `best`, `classic`, names of configurations, files that
            have such words in lines (`#` begins a remark), or several of them, separated by commas.
        option: what it was written for, for messages.

    Returns:
        Each choice once, in order.

    Raises:
        UserError: it is none of these, or a number is missing or too large.
    """
    choices: dict[ConfigurationChoice, None] = {}
    for part in text.split(","):
        word = part.strip()
        if word and Path(word).is_file():
            lines = (line.partition("#")[0] for line in read_text(Path(word), option).splitlines())
            words = [one.strip() for line in lines for one in line.split(",") if one.strip()]
            found = [_choice(one, f"{option}: {word}") for one in words]
        else:
            found = [_choice(word, option)]
        choices.update(dict.fromkeys(found))
    return tuple(choices)


def _choice(text: str, option: str) -> ConfigurationChoice:
    if text.startswith(PREFIX):
        if parse_configuration(text) is None:
            return ConfigurationChoice("default")
        return ConfigurationChoice("named", name=text)
    word, colon, number = text.partition(":")
    if word == "sample":
        if not colon:
            raise UserError(f"{option}: '{text}': sample needs a number, such as sample:10")
        count = parse_count(number, f"{option} sample")
        if count > MOST_CONFIGURATIONS:
            raise UserError(
                f"{option}: sample:{count} is more than {MOST_CONFIGURATIONS:,} configurations "
                "of one operation"
            )
        return ConfigurationChoice("sample", count)
    if not colon and word in ("default", "all", "best", "classic"):
        return ConfigurationChoice(word)  # type: ignore[arg-type]
    allowed = ("default", "sample:N", "all", "best", "classic", f"{PREFIX}...", "a file of them")
    raise UnknownNameError("choice of configurations", text, allowed, option)


class ConfigurationChooser:
    """Configurations of an operation by name (None: the compiler's own), and remarks.

    `taken` has the choices by name that the operation has.

    Args:
        name: of the operation.
        subject: its dispatch, or why there is none.
        seed: of samples.
        store: the database; None where there is none.
    """

    def __init__(
        self, name: str, subject: DispatchTask | str, seed: int, store: Database | None
    ) -> None:
        self.configurations: dict[str, TunedConfiguration | None] = {}
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self._name = name
        self._subject = subject
        self._seed = seed
        self._store = store

    def choose(self, choices: Sequence[ConfigurationChoice]) -> None:
        """Add what choices ask for.

        Args:
            choices: of `--configs`.

        Raises:
            UserError: a space is too large for `all`.
        """
        subject = self._subject
        for choice in choices:
            if choice.way == "default":
                self.configurations[DEFAULT] = None
            elif isinstance(subject, str):
                self.notes.append(f"{self._name}: only the default: {subject}")
                self.configurations[DEFAULT] = None
            elif choice.way == "named":
                self._named(subject, choice.name)
            elif choice.way == "classic":
                self._classic(subject)
            elif choice.way == "sample":
                self._sample(subject, choice.count)
            elif choice.way == "all":
                self._all(subject)
            else:
                self._best(subject)

    def _add(self, subject: DispatchTask, configurations: Iterable[Configuration]) -> None:
        self.configurations.update(name_configuration(subject, c) for c in configurations)

    def _sample(self, subject: DispatchTask, count: int) -> None:
        digest = hashlib.sha256(self._name.encode()).digest()
        rng = np.random.default_rng([self._seed, int.from_bytes(digest[:8], "little")])
        found: dict[str, TunedConfiguration] = {}
        for configuration in subject.space.space.sample(rng, _DRAWS * count):
            label, tuned = name_configuration(subject, configuration)
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

    def _best(self, subject: DispatchTask) -> None:
        result = self._store.result_for(subject.key) if self._store is not None else None
        if result is None:
            self.notes.append(f"{self._name}: the database has no result for it: only the default")
        if result is None or result.configuration is None:
            self.configurations[DEFAULT] = None
        else:
            self._add(subject, [result.configuration])

    def _classic(self, subject: DispatchTask) -> None:
        """Those of the first profiler that the dispatch has, by whichever matrix instructions."""
        for classes in _matrix_classes(subject):
            for tiles in _CLASSIC:
                name = f"{PREFIX}{tiles}_{classes}"
                wanted = parse_configuration(name)
                assert isinstance(wanted, NamedGpuTiling)
                found = find_gpu_tiling(subject, wanted)
                if not isinstance(found, str):
                    self.configurations[name] = found

    def _named(self, subject: DispatchTask, name: str) -> None:
        wanted = parse_configuration(name)
        if isinstance(wanted, NamedGpuTiling):
            found = find_gpu_tiling(subject, wanted)
        else:
            assert wanted is not None
            found = find_tiling(subject, wanted)
        if isinstance(found, str):
            self.notes.append(f"{self._name}: left out {name}: {found}")
        else:
            self.configurations[name] = found
            self.taken.add(name)


def name_configuration(
    task: DispatchTask, configuration: Configuration
) -> tuple[str, TunedConfiguration | None]:
    """A configuration with its name; the default's for what comes to the same.

    Args:
        task: the dispatch.
        configuration: a member of its space.
    """
    lowered = task.space.lower(configuration)
    assert task.template is not None
    if lowered == task.template.default:
        return DEFAULT, None
    values = dict(configuration.items)
    member = task.space.members[str(values.pop(MEMBER_KNOB))]
    if isinstance(member, GpuPipeline | StatedPipeline):
        named: NamedTiling | NamedGpuTiling = NamedGpuTiling.of(
            member.tiles_of(Configuration.of(values)), member.name, values
        )
    else:
        root = dict(lowered.tilings)[task.template.root]
        named = NamedTiling(root, lowered.translation)
    return format_configuration(named), _tuned(task, lowered, configuration)


def _tuned(
    task: DispatchTask, lowered: CompilationInfo, configuration: Configuration | None = None
) -> TunedConfiguration:
    items = configuration.items if configuration is not None else ()
    knobs = {name: list(v) if isinstance(v, tuple) else v for name, v in items}
    return TunedConfiguration(task.dispatch.executable, task.name, lowered, knobs)


def find_tiling(task: DispatchTask, named: NamedTiling) -> TunedConfiguration | str:
    """The configuration of a name, on a CPU: the name has all of it.

    Args:
        task: the dispatch.
        named: what the name says.

    Returns:
        The configuration, or why the dispatch has none of this name.
    """
    assert task.template is not None
    if isinstance(task.template.default, GpuCompilationInfo):
        return f"it is for CPUs; write it as {PREFIX}128x128_32x5_tensorcore_mmasync"
    loops = len(task.template.root_op.extents)
    if any(len(sizes) != loops for _, sizes in named.tiling.levels):
        return f"the dispatch has {loops} loops"
    return _tuned(task, task.template.configure(named.tiling, named.translation))


def _matrix_classes(task: DispatchTask) -> list[str]:
    """The classes of the matrix instructions that its space has, as names have them."""
    found: dict[str, None] = {}
    for member in task.space.members.values():
        if isinstance(member, GpuPipeline | StatedPipeline):
            default = member.space.default
            named = NamedGpuTiling.of(member.tiles_of(default), member.name, dict(default.items))
            if named.instruction:
                found[named.classes] = None
    return list(found)


def find_gpu_tiling(task: DispatchTask, named: NamedGpuTiling) -> TunedConfiguration | str:
    """The most promising configuration that a name stands for, on a GPU.

    The pipeline that the compiler itself chose comes first; in each, what is drawn has the tiles of
    the name.

    Args:
        task: the dispatch.
        named: what the name says.

    Returns:
        The configuration, or why the dispatch has none of this name.
    """
    members = sorted(task.space.members.values(), key=lambda m: m.name != task.space.own)
    classes = set()
    for member in members:
        if not isinstance(member, GpuPipeline | StatedPipeline):
            continue
        for space in _held_to_tiles(member.space, named):
            drawn = set(space.sample(np.random.default_rng(0), _NAMED_DRAWS))
            is_knob = _DEPTH_KNOB in (knob.name for knob in space.knobs)
            fitting = []
            for one in sorted(drawn, key=lambda c: c.items):
                tiles = member.tiles_of(one)
                whole = NamedGpuTiling.of(tiles, member.name, dict(one.items))
                classes.add(whole.classes)
                same_stages = tiles.stages == named.stages
                if named.names(tiles, whole) and (same_stages or not is_knob):
                    fitting.append((same_stages, space.prior(one), one))
            if fitting:
                same_stages, _, best = max(fitting, key=lambda one: one[:2])
                lowered = member.configure(best)
                if not same_stages and STAGES_OPTION in dict(member.template.own.options):
                    stages = (STAGES_OPTION, str(named.stages))
                    lowered = replace(lowered, options=(*lowered.options, stages))
                whole_one = Configuration.of({**dict(best.items), MEMBER_KNOB: member.name})
                return _tuned(task, lowered, whole_one)
    if classes and named.classes not in classes:
        return f"the dispatch has no {named.classes} here, only {', '.join(sorted(classes))}"
    return "no member of its search space has these tiles"


def _held_to_tiles(space: SearchSpace, named: NamedGpuTiling) -> list[SearchSpace]:
    """The space with its tile knobs held to what a name says; empty where that leaves nothing."""
    values: dict[str, list[int]] = {}
    for heads, sizes, units in (
        (("wg", "workgroup"), named.parallel, (1,)),
        (("red", "reduction"), named.reduction, _STEP_UNITS),
    ):
        knobs = [k.name for k in space.knobs if k.name.rpartition("_")[0] in heads]
        # The last loops have the sizes that the name has; those before them take one element.
        padded = [*[1] * (len(knobs) - len(sizes)), *sizes][-len(knobs) :] if knobs else []
        for knob, size in zip(knobs, padded, strict=True):
            wanted = [size // u for u in units if size % u == 0 and space.admits(knob, size // u)]
            if not wanted:
                return []
            values[knob] = wanted
    try:
        held = space.restrict(values).space
    except UserError:
        return []
    assert isinstance(held, SearchSpace)
    return [held]
