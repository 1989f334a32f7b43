"""Tilings and pipelines of a dispatch, as plain data.

IREE's CPU backend reads a tile size for each loop at up to six levels from the `lowering_config`
of every op, and the pipeline from the `translation_info` of the function. A
:class:`DispatchTemplate` is a dispatch as the compiler configures it by itself; every candidate is
that template with another tiling of the root op, carried over to the other ops by `propagate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilewright.attributes import (
    ATTRIBUTE,
    BODY,
    UNIT,
    Tree,
    attribute,
    named_value,
    print_attribute,
)
from tilewright.plain_data import fields_of, tupled

CPU_LOWERING_CONFIG, CPU_PIPELINE = "#iree_cpu.lowering_config", "#iree_cpu.pipeline"

LEVELS = (
    "distribution",
    "cache_parallel",
    "cache_reduction",
    "vector_common_parallel",
    "vector_reduction",
    "vector_inner_parallel",
)
"""The tiling levels of `#iree_cpu.lowering_config`, in the order in which they are applied."""

DISTRIBUTION = LEVELS[0]
REDUCTION_LEVELS = ("cache_reduction", "vector_reduction")

PEELING = "enable_loop_peeling"


def translation_info(
    pipeline: Tree,
    settings: Mapping[str, Tree],
    workgroup_size: Sequence[int] = (),
    subgroup_size: int = 0,
) -> Tree:
    """The attribute of a function that says how it becomes code.

    Args:
        pipeline: an attribute.
        settings: of the pipeline, by name.
        workgroup_size: threads in each dimension; empty where that is not said.
        subgroup_size: 0 where it is not said.
    """
    parts = [named_value("pipeline", pipeline)]
    if workgroup_size:
        parts.append(named_value("workgroup_size", list(workgroup_size)))
    if subgroup_size:
        parts.append(named_value("subgroup_size", subgroup_size))
    name = "#iree_codegen.translation_info"
    return attribute(name, tuple(parts), *([dict(settings)] if settings else []))


@dataclass(frozen=True)
class Tiling:
    """Tile sizes of one op: for each level one size per loop, outermost first; 0 is not tiled."""

    levels: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @staticmethod
    def of(levels: Mapping[str, tuple[int, ...]]) -> Tiling:
        """Puts the levels in their own order and leaves out those that tile nothing.

        Only `distribution` stays even so: the compiler insists on one for the root op.

        Args:
            levels: tile sizes by the name of their level, one for each loop.
        """
        return Tiling(
            tuple(
                (k, levels[k])
                for k in LEVELS
                if any(levels.get(k, ())) or (k == DISTRIBUTION and k in levels)
            )
        )

    @property
    def by_level(self) -> Mapping[str, tuple[int, ...]]:
        return MappingProxyType(dict(self.levels))

    def size(self, level: str, loop: int) -> int:
        """The tile size of a loop at a level; 0 when the level does not tile it.

        Args:
            level: its name.
            loop: its position.
        """
        sizes = self.by_level.get(level, ())
        return sizes[loop] if loop < len(sizes) else 0

    def to_attribute(self) -> str:
        """The text of the `#iree_cpu.lowering_config` attribute."""
        empty: dict[str, Tree] = {} if self.levels else {BODY: []}
        return print_attribute({ATTRIBUTE: CPU_LOWERING_CONFIG, **empty, **dict(self.levels)})

    def to_json(self) -> list[Any]:
        """Plain data for JSON: each level with its sizes."""
        return list(self.levels)

    @staticmethod
    def from_json(data: Iterable[Any]) -> Tiling:
        """The tiling of `to_json`.

        Args:
            data: what JSON was.
        """
        return Tiling(tupled(list(data)))

    def __str__(self) -> str:
        return "; ".join(
            f"{level} {','.join(map(str, sizes))}" for level, sizes in self.levels if any(sizes)
        )


@dataclass(frozen=True)
class Translation:
    """The pipeline of a dispatch and the names of its options (`enable_loop_peeling`, …)."""

    pipeline: str
    options: tuple[str, ...] = ()

    def to_attribute(self) -> str:
        """The text of the `#iree_codegen.translation_info` attribute."""
        pipeline = attribute(CPU_PIPELINE, self.pipeline)
        made = translation_info(pipeline, dict.fromkeys(self.options, UNIT))
        return print_attribute(made)

    def __str__(self) -> str:
        return " ".join((self.pipeline, *self.options))


@dataclass(frozen=True)
class OpTemplate:
    """One compute op of a dispatch with its loops (outermost first) and default tiling.

    `extents`: trip counts, -1 unknown; `reduction`: which loops combine values; `shared`: a number
    for each loop, equal for loops that are the same loop in several ops; `tiling`: None when the
    compiler gives the op no configuration; `before_root`: the root op uses its result.
    `operand_loops`: the loops that index each operand, inputs first; `operand_inner`: the loop that
    steps through each operand's memory one element at a time, -1 if none does. `scales`: numerator
    and denominator, for each loop, of its tile to that of the shared loop (all 1 when empty):
    packing and unpacking step through whole inner tiles.
    """

    name: str
    extents: tuple[int, ...]
    reduction: tuple[bool, ...]
    shared: tuple[int, ...]
    tiling: Tiling | None
    element_bits: int = 32
    before_root: bool = False
    operand_loops: tuple[tuple[int, ...], ...] = ()
    operand_inner: tuple[int, ...] = ()
    scales: tuple[tuple[int, int], ...] = ()

    def scaled(self, size: int, loop: int) -> int:
        """The tile of a loop for a tile of the shared loop; at least 1, 0 stays untiled.

        Args:
            size: the tile of the shared loop, in points.
            loop: its position.
        """
        if not self.scales or size == 0:
            return size
        numerator, denominator = self.scales[loop]
        return max(1, size * numerator // denominator)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: the fields by their names."""
        return {
            **fields_of(self),
            "tiling": self.tiling.to_json() if self.tiling is not None else None,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> OpTemplate:
        """The op of `to_json`.

        Args:
            data: what JSON was.
        """
        own = {name: tupled(value) for name, value in data.items()}
        tiling = data["tiling"]
        own["tiling"] = None if tiling is None else Tiling.from_json(tiling)
        return OpTemplate(**own)


@dataclass(frozen=True)
class CompilationInfo:
    """What a candidate sets: the function's pipeline and the tiling of each configured op.

    `tilings` pairs an op's position among the dispatch's compute ops, in program order, with its
    tiling. This is the one form in which both the candidates that are measured and the tuning spec
    that is shipped carry a configuration.
    """

    translation: Translation
    tilings: tuple[tuple[int, Tiling], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "pipeline": self.translation.pipeline,
            "options": list(self.translation.options),
            "tilings": [[i, tiling.to_json()] for i, tiling in self.tilings],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CompilationInfo:
        """The configuration of `to_json`.

        Args:
            data: what JSON was.
        """
        return CompilationInfo(
            Translation(data["pipeline"], tuple(data["options"])),
            tuple((i, Tiling.from_json(levels)) for i, levels in data["tilings"]),
        )

    def describe(self, root: int) -> str:
        """The configuration in words: the pipeline and the tile sizes of the root op.

        Args:
            root: position of the root op.
        """
        tiling = dict(self.tilings).get(root)
        return f"{self.translation}" + (f": {tiling}" if tiling and tiling.levels else "")


@dataclass(frozen=True)
class DispatchTemplate:
    """A dispatch as the compiler configures it: its compute ops in program order, and the root."""

    translation: Translation
    ops: tuple[OpTemplate, ...]
    root: int

    @property
    def root_op(self) -> OpTemplate:
        return self.ops[self.root]

    @property
    def default(self) -> CompilationInfo:
        return CompilationInfo(
            self.translation,
            tuple((i, op.tiling) for i, op in enumerate(self.ops) if op.tiling is not None),
        )

    def configure(self, root: Tiling, translation: Translation) -> CompilationInfo:
        """The dispatch with another tiling of its root op, carried over to the other ops.

        Args:
            root: tiling of the root op.
            translation: the pipeline with its options.
        """
        tilings: list[tuple[int, Tiling]] = []
        for index, op in enumerate(self.ops):
            if index == self.root:
                tilings.append((index, root))
            elif op.tiling is not None:
                tilings.append((index, propagate(self.root_op, root, op)))
        return CompilationInfo(translation, tuple(tilings))

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "pipeline": self.translation.pipeline,
            "options": list(self.translation.options),
            "ops": [op.to_json() for op in self.ops],
            "root": self.root,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DispatchTemplate:
        """The template of `to_json`.

        Args:
            data: what JSON was.
        """
        return DispatchTemplate(
            Translation(data["pipeline"], tuple(data["options"])),
            tuple(OpTemplate.from_json(op) for op in data["ops"]),
            data["root"],
        )


def propagate(root: OpTemplate, tiling: Tiling, op: OpTemplate) -> Tiling:
    """The tiling of another op of the dispatch that fits a tiling of the root op.

    Follows IREE's `MultiLoweringConfigGenerator::setNewTilingConfigs`: a loop that the op shares
    with the root is tiled as in the root, parallel levels for parallel loops and reduction levels
    for reductions (and, in an op whose result the root reads, for parallel loops that the root
    reduces over); loops of the op's own keep the compiler's sizes.

    Args:
        root: the root op.
        tiling: of the root op.
        op: the other op, which has a tiling of its own by default.
    """
    assert op.tiling is not None
    partners = shared_loops(root, op)
    levels: dict[str, tuple[int, ...]] = {}
    for level in LEVELS[1:]:
        sizes = [0] * len(op.extents)
        for loop, (at, reduction) in enumerate(zip(partners, op.reduction, strict=True)):
            own = op.tiling.size(level, loop)
            if at is None:
                sizes[loop] = own
            elif level == "vector_inner_parallel":
                sizes[loop] = op.scaled(tiling.size(level, at), loop) or own
            elif reduction == (level in REDUCTION_LEVELS) or (
                level in REDUCTION_LEVELS and op.before_root and not reduction
            ):
                sizes[loop] = op.scaled(tiling.size(level, at), loop)
        levels[level] = tuple(sizes)
    return Tiling.of(levels)


def shared_loops(root: OpTemplate, op: OpTemplate) -> list[int | None]:
    """For each loop of an op the loop of the root that it is, None for one of its own.

    When several loops of the root are one (the rows and columns of X times its transpose), those
    of the op are matched with them in order.

    Args:
        root: the root op.
        op: the other op.
    """
    places: dict[int, list[int]] = {}
    for at, number in enumerate(root.shared):
        places.setdefault(number, []).append(at)
    seen: dict[int, int] = {}
    found: list[int | None] = []
    for number in op.shared:
        at_root = places.get(number)
        turn = seen.get(number, 0)
        seen[number] = turn + 1
        found.append(None if at_root is None else at_root[min(turn, len(at_root) - 1)])
    return found
