"""Names of configurations and dispatches, and back.

`tile_config_default` is what the compiler chooses by itself. Others tell the tile sizes of the root
op, one for each of its loops, outermost first, 0 where a level does not tile a loop:
`tile_config_64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel`. First the tiles that are handed to
workers (distribution), then the levels inside them that tile anything: `cp` and `cr` tiles for the
caches (of parallel loops, of reductions), `vp`, `vr` and `vi` tiles that become vectors (of
parallel loops, of reductions, of the innermost parallel loop). Last the pipeline, as IREE calls it,
and what is switched on in it (`peel`: loop peeling).

A dispatch is called by the names of its operation (:mod:`tilewright.kernels.operation`) and of its
configuration, joined by `_`; `parse_dispatch` reads all of that. `format_*` and `parse_*` are
inverse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.kernels.kinds import EXAMPLE, parse_operation
from tilewright.kernels.operation import Operation
from tilewright.tiling import LEVELS, PEELING, Tiling, Translation

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


def format_configuration(configuration: NamedTiling | None) -> str:
    """The name of a configuration; None is the compiler's own choice.

    Args:
        configuration: None: the compiler's own.
    """
    if configuration is None:
        return DEFAULT
    translation = configuration.translation
    options = [
        _OPTION_WORDS.get(o) or _OTHER_OPTION + o.replace("_", "-") for o in translation.options
    ]
    parts = [configuration.tiles, translation.pipeline, *options]
    return PREFIX + "_".join(part for part in parts if part)


def parse_configuration(name: str) -> NamedTiling | None:
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
            f"{PREFIX}64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel"
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


def parse_dispatch(name: str) -> tuple[Operation, NamedTiling | None]:
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
