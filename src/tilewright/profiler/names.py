"""Names of configurations and dispatches, and back.

`tile_config_default` is what the compiler chooses by itself. Others tell the tile sizes of the root
op, one for each of its loops, outermost first, 0 where a level does not tile a loop:
`tile_config_64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel`. First the tiles that are handed to
workers (distribution), then the levels inside them that tile anything: `cp` and `cr` tiles for the
caches (of parallel loops, of reductions), `vp`, `vr` and `vi` tiles that become vectors (of
parallel loops, of reductions, of the innermost parallel loop). Last the pipeline, as IREE calls it,
and what is switched on in it (`peel`: loop peeling).

On GPUs names are those of IREE's first dispatch profiler, with more behind them:
`tile_config_128x128_32x5_tensorcore_mmasync` has the elements of the result that a workgroup
computes, those of each sum that it takes in a step, the steps in flight, the core class
(`tensorcore`, `matrixcore` of AMD, `simt`) and the class of the matrix instruction (`mmasync`,
`wmma`, `mfma`, `coopmatrix`). Words behind that tell the pipeline and its other knobs:
`..._mmasync_TileAndFuse_sg-0.4_sg-1.8`.

A dispatch is called by the names of its operation (:mod:`tilewright.kernels.operation`) and of its
configuration, joined by `_`; `parse_dispatch` reads all of that. `format_*` and `parse_*` are
inverse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.gpu import STAGES_OPTION, GpuTiles
from tilewright.kernels.kinds import EXAMPLE, parse_operation
from tilewright.kernels.operation import Operation
from tilewright.tiling import LEVELS, PEELING, Tiling, Translation
from tilewright.trial import Value

PREFIX = "tile_config_"
DEFAULT = f"{PREFIX}default"

_LEVEL_WORDS: Mapping[str, str] = dict(zip(LEVELS, ("", "cp", "cr", "vp", "vr", "vi"), strict=True))
_LEVELS = {word: level for level, word in _LEVEL_WORDS.items()}
_OPTION_WORDS = {PEELING: "peel"}
_OPTIONS = {word: option for option, word in _OPTION_WORDS.items()}
# Another option is written out; its underscores would read as separators.
_OTHER_OPTION = "with-"
_TILES = re.compile(r"([a-z]*)([0-9]+(?:x[0-9]+)*)")
_PIPELINE = re.compile(r"[A-Z][A-Za-z0-9]*")

SIMT = "simt"
# What matrix intrinsics begin with, their core class, and the class of the instruction.
_INTRINSICS = (
    ("NV_MMA_SYNC", "tensorcore", "mmasync"),
    ("NV_WMMA", "tensorcore", "wmma"),
    ("COOPMATRIX", "tensorcore", "coopmatrix"),
    ("MFMA", "matrixcore", "mfma"),
    ("VMFMA", "matrixcore", "mfma"),
    ("WMMA", "matrixcore", "wmma"),
)
_CLASSES = {(core, instruction) for _, core, instruction in _INTRINSICS} | {(SIMT, "")}
_SIZES = "[0-9]+(?:x[0-9]+)*"
_GPU = re.compile(
    f"(?P<tiles>{_SIZES})_(?P<steps>{_SIZES})x(?P<stages>[0-9]+)_"
    f"(?P<core>{'|'.join(sorted({core for core, _ in _CLASSES}))})"
    f"(?:_(?P<instruction>{'|'.join(sorted({i for _, i in _CLASSES if i}))}))?"
    r"(?P<details>(?:_[A-Za-z][A-Za-z0-9.-]*)*)"
)
# Knobs whose values are the tiles of the name.
_TILE_KNOBS = ("wg", "workgroup", "red", "reduction")
_STAGE_KNOBS = ("pipeline_depth", STAGES_OPTION)


@dataclass(frozen=True)
class NamedTiling:
    """What the name of a configuration says: the root op's tiling, the pipeline, its options."""

    tiling: Tiling
    translation: Translation

    @property
    def tiles(self) -> str:
        """The tile sizes alone, as the name has them."""
        return "_".join(
            _LEVEL_WORDS[level] + "x".join(map(str, sizes)) for level, sizes in self.tiling.levels
        )


@dataclass(frozen=True)
class NamedGpuTiling:
    """What the name of a configuration for a GPU says.

    parallel, reduction, stages: see `gpu.GpuTiles`. core, instruction: the classes of what
    computes; no instruction where that is `simt`. details: the words behind them.
    """

    parallel: tuple[int, ...]
    reduction: tuple[int, ...]
    stages: int
    core: str
    instruction: str = ""
    details: tuple[str, ...] = ()

    @property
    def tiles(self) -> str:
        """The tile sizes and the number of stages, as the name has them."""
        steps = "x".join(map(str, (*(self.reduction or (0,)), self.stages)))
        return f"{'x'.join(map(str, self.parallel))}_{steps}"

    @property
    def classes(self) -> str:
        """Core class and class of the instruction, as the name has them."""
        return "_".join(filter(None, (self.core, self.instruction)))

    @staticmethod
    def of(tiles: GpuTiles, member: str, values: Mapping[str, Value]) -> NamedGpuTiling:
        """The name's parts of a configuration.

        Args:
            tiles: what it amounts to.
            member: the pipeline in the search space.
            values: of its knobs.
        """
        found = [one for one in _INTRINSICS if tiles.intrinsic.startswith(one[0])]
        family, core, instruction = found[0] if found else ("", SIMT, "")
        words = [member]
        for name, value in values.items():
            if name.rpartition("_")[0] in _TILE_KNOBS or value is False or value == "none":
                continue
            if name in _STAGE_KNOBS and value == tiles.stages:
                continue
            if value == tiles.intrinsic:
                words.append(tiles.intrinsic.removeprefix(f"{family}_"))
            else:
                words.append(name if value is True else f"{name}.{value}")
        details = tuple(_OTHERS.sub("-", word) for word in words)
        return NamedGpuTiling(
            tiles.parallel, tiles.reduction, tiles.stages, core, instruction, details
        )

    def names(self, tiles: GpuTiles, other: NamedGpuTiling) -> bool:
        """Whether this name, as a user may have shortened it, stands for a configuration.

        The number of stages is not compared: it is a choice beside the space. Leading loops of
        which one element is computed may be left out, and all words behind the instruction.

        Args:
            tiles: what the configuration amounts to.
            other: its whole name.
        """
        return (
            _from_first_tile(self.parallel) == _from_first_tile(tiles.parallel)
            and _from_first_tile(self.reduction) == _from_first_tile(tiles.reduction)
            and (self.core, self.instruction) == (other.core, other.instruction)
            and set(self.details) <= set(other.details)
        )


# What a word of a name cannot have in it.
_OTHERS = re.compile("[^A-Za-z0-9.-]")


def _from_first_tile(sizes: tuple[int, ...]) -> tuple[int, ...]:
    start = next((i for i, size in enumerate(sizes) if size > 1), len(sizes))
    return sizes[start:]


def format_configuration(configuration: NamedTiling | NamedGpuTiling | None) -> str:
    """The name of a configuration; None is the compiler's own choice.

    Args:
        configuration: None: the compiler's own.
    """
    if configuration is None:
        return DEFAULT
    if isinstance(configuration, NamedGpuTiling):
        words = (configuration.tiles, configuration.classes, *configuration.details)
        return PREFIX + "_".join(words)
    translation = configuration.translation
    options = [
        _OPTION_WORDS.get(o) or _OTHER_OPTION + o.replace("_", "-") for o in translation.options
    ]
    parts = [configuration.tiles, translation.pipeline, *options]
    return PREFIX + "_".join(part for part in parts if part)


def parse_configuration(name: str) -> NamedTiling | NamedGpuTiling | None:
    """The configuration of a name.

    Args:
        name: as `format_configuration` writes it.

    Returns:
        None for the compiler's own.

    Raises:
        UserError: it names none.
    """
    if name == DEFAULT:
        return None
    gpu = _GPU.fullmatch(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    if gpu is not None and (gpu["core"], gpu["instruction"] or "") in _CLASSES:
        steps = tuple(map(int, gpu["steps"].split("x")))
        return NamedGpuTiling(
            tuple(map(int, gpu["tiles"].split("x"))),
            () if steps == (0,) else steps,
            int(gpu["stages"]),
            gpu["core"],
            gpu["instruction"] or "",
            tuple(gpu["details"].split("_")[1:]),
        )
    words = name.removeprefix(PREFIX).split("_")
    levels: dict[str, tuple[int, ...]] = {}
    while words and (match := _TILES.fullmatch(words[0])) and match[1] in _LEVELS:
        levels[_LEVELS[match[1]]] = tuple(map(int, match[2].split("x")))
        words.pop(0)
    options = tuple(_option(word) for word in words[1:])
    lengths = {len(sizes) for sizes in levels.values()}
    if (
        not name.startswith(PREFIX)
        or not words
        or not _PIPELINE.fullmatch(words[0])
        or "" in options
        or len(lengths) > 1
    ):
        raise UserError(
            f"'{name}' names no configuration; a name is {DEFAULT} or such as "
            f"{PREFIX}64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel, on GPUs "
            f"{PREFIX}128x128_32x5_tensorcore_mmasync"
        )
    return NamedTiling(Tiling.of(levels), Translation(words[0], options))


def _option(word: str) -> str:
    if word.startswith(_OTHER_OPTION):
        return word.removeprefix(_OTHER_OPTION).replace("-", "_")
    return _OPTIONS.get(word, "")


# -- dispatches ------------------------------------------------------------------------------------


def format_dispatch(operation: str, configuration: str) -> str:
    """The name of a dispatch from those of its operation and its configuration.

    Args:
        operation: its name.
        configuration: its name.
    """
    return f"{operation}_{configuration}"


def parse_dispatch(name: str) -> tuple[Operation, NamedTiling | NamedGpuTiling | None]:
    """What the name of a dispatch says: all of it.

    Args:
        name: as `format_dispatch` writes it.

    Returns:
        The operation, and the configuration (None: the compiler's own).

    Raises:
        UserError: it names none.
    """
    operation, mark, rest = name.partition(f"_{PREFIX}")
    if not mark:
        raise UserError(f"'{name}' names no dispatch; a name is such as {EXAMPLE}_{DEFAULT}")
    return parse_operation(operation), parse_configuration(PREFIX + rest)
