"""Names of operations and configurations, and back.

**Operations.** `matmul_768x512x1024_f16t_f16t_f16t`: the kind, its variant where it has several
(`conv2d_nhwc_hwcf_…`, `reduction_sum_…`), the sizes of its dimensions in their order, and for each
operand and the result an element type with a letter: `t` stored row-major, `n` transposed.
Dimensions that are not the extent of anything are written apart, with a word before them:
`conv2d_nhwc_hwcf_1x56x56x64x64_k3x3_s1x1_d1x1_p1x1_f32t_f32t_f32t` has the filter's size, strides,
dilations and padding, `matmul_splitk_128x128x4096_splitk4_f32t_f32t_f32t` the number of slices.

**Configurations.** `tile_config_default` is what the compiler chooses by itself. Others tell the
tile sizes of the root op, one for each of its loops, outermost first, 0 where a level does not tile
a loop: `tile_config_64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel`. First the tiles that are
handed to workers (distribution), then the levels inside them that tile anything: `cp` and `cr`
tiles for the caches (of parallel loops, of reductions), `vp`, `vr` and `vi` tiles that become
vectors (of parallel loops, of reductions, of the innermost parallel loop). Last the pipeline, as
IREE calls it, and what is switched on in it (`peel`: loop peeling).

A dispatch is called by both names, joined by `_`; `parse_dispatch` reads all of that. `format_*`
and `parse_*` are inverse.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.errors import UnknownNameError, UserError
from tilewright.profiler.operation import (
    ROW_MAJOR,
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
    make_operation,
)
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
_EXAMPLE = "matmul_768x512x1024_f16t_f16t_f16t"


# -- operations ------------------------------------------------------------------------------------


def format_operation(operation: Operation) -> str:
    """The name of an operation."""
    kind = operation.kind
    words = [kind.name, *([operation.variant] if operation.variant else [])]
    sizes = iter(operation.sizes)
    for word, dimensions in _groups(kind):
        words.append(word + "x".join(str(next(sizes)) for _ in dimensions))
    types = operation.types
    words += [types.operand + letter for letter in operation.layout]
    return "_".join([*words, types.result + ROW_MAJOR])


def parse_operation(name: str) -> Operation:
    """The operation of a name. Raises UserError for what is none."""
    from tilewright.profiler.kinds import KINDS

    for kind in KINDS.values():
        match = _pattern(kind).fullmatch(name)
        if match is not None and kind.has_variant(match["variant"] or ""):
            return _matched(kind, match, name)
    raise UserError(f"'{name}' names no operation; a name is such as {_EXAMPLE}")


def _matched(kind: OperationKind, match: re.Match[str], name: str) -> Operation:
    words = match["operands"].split("_")
    types = {word[:-1] for word in words[:-1]}
    variant = match["variant"] or ""
    layout = "".join(word[-1] for word in words[:-1])
    found = [t for t in kind.types(variant) if {t.operand} == types and t.result == words[-1][:-1]]
    if not found or layout not in kind.layouts or words[-1][-1] != ROW_MAJOR:
        raise UserError(
            f"'{name}': {kind.name} has no operands {match['operands']} (types: "
            f"{', '.join(t.name for t in kind.types(variant))}; layouts: {', '.join(kind.layouts)})"
        )
    sizes = [int(s) for s in re.findall(r"[0-9]+", match["sizes"])]
    dims = {d.name: size for d, size in zip(kind.dimensions, sizes, strict=True)}
    return make_operation(kind, dims, found[0], layout, variant)


def _groups(kind: OperationKind) -> Iterator[tuple[str, list[Dimension]]]:
    """Dimensions that are written together, with the word before them."""
    for word, dimensions in itertools.groupby(kind.dimensions, lambda d: d.word):
        yield word, list(dimensions)


def _pattern(kind: OperationKind) -> re.Pattern[str]:
    sizes = "_".join(
        re.escape(word) + "x".join(["[0-9]+"] * len(dimensions))
        for word, dimensions in _groups(kind)
    )
    variant = "(?:_(?P<variant>[a-z_]+))?" if kind.variants != ("",) else "(?P<variant>)"
    operands = "_".join(["[a-z]+[0-9]+[tn]"] * (len(kind.operands) + 1))
    return re.compile(f"{kind.name}{variant}_(?P<sizes>{sizes})_(?P<operands>{operands})")


def parse_types(text: str, option: str = "--types") -> ElementTypes:
    """Element types by their name: `f32`, `i8`, `f16-f32`. Raises UnknownNameError."""
    from tilewright.profiler.operation import ALL_TYPES

    known = {types.name: types for types in ALL_TYPES}
    if text not in known:
        raise UnknownNameError("element type", text, known, option)
    return known[text]


# -- configurations --------------------------------------------------------------------------------


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
    """The name of a configuration; None is the compiler's own choice."""
    if configuration is None:
        return DEFAULT
    translation = configuration.translation
    options = [
        _OPTION_WORDS.get(o) or _OTHER_OPTION + o.replace("_", "-") for o in translation.options
    ]
    parts = [configuration.tiles, translation.pipeline, *options]
    return PREFIX + "_".join(part for part in parts if part)


def parse_configuration(name: str) -> NamedTiling | None:
    """The configuration of a name; None for the compiler's own. Raises UserError for no name."""
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
    """The name of a dispatch from those of its operation and its configuration."""
    return f"{operation}_{configuration}"


def parse_dispatch(name: str) -> tuple[Operation, NamedTiling | None]:
    """What the name of a dispatch says: all of it. Raises UserError for what names none."""
    operation, mark, rest = name.partition(f"_{PREFIX}")
    if not mark:
        raise UserError(f"'{name}' names no dispatch; a name is such as {_EXAMPLE}_{DEFAULT}")
    return parse_operation(operation), parse_configuration(PREFIX + rest)
