"""What tiles of split numbers on a matrix unit have in common: their knobs, and about how long they
take (`split_tiles`, `split_windows`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.schedule.expr import Cast, Const, Expr, Select, const
from tilewright.schedule.matrix_shapes import MOST_TILES, ROWS, SUMS, split_tiles_taken
from tilewright.schedule.splitting import GROUP
from tilewright.schedule.tensor import IterVar, TensorRead
from tilewright.sketch.packing import Packing
from tilewright.sketch.tile_operand import tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.pipeline import Unfit
from tilewright.space.turns import turns
from tilewright.target import PACKED_AHEAD_BYTES, Target
from tilewright.trial import Configuration

#: Into how many pieces rows or columns are cut at most.
MOST_PIECES = 64
# For each core, of what is shared out.
_PIECES_EACH = 8
#: Of the second-level cache, what numbers that are read again and again may take.
KEPT = 0.75
#: How many times the innermost steps of the depth the filled ones may be.
MOST_FILLED = 2.0
# Cycles of a product of two registers, until it is added to its sums, of a load of a register from
# the first-level cache and from the second, of a byte from beyond, of a tile's sums, of a number
# that is split, and until workers begin what comes first.
_PRODUCT, _LATENCY, _NEAR, _FAR, _BYTE = 16.0, 52.0, 8.0, 24.0, 0.12
_SUMS, _SPLIT, _BEGIN = 150.0, 1.0, 2e5


def unit_of(target: Target) -> None:
    """See that a processor has the unit.

    Args:
        target: has the processor.

    Raises:
        Unfit: it has none.
    """
    if "amx-bf16" not in {name.strip("+") for name in target.features.split(",")}:
        raise Unfit("the processor has no matrix unit for bf16")


def widths_of(columns: int) -> tuple[int, ...]:
    """Columns of tiles.

    Args:
        columns: that there are.
    """
    return tuple(n for n in (SUMS, 2 * SUMS, 3 * SUMS) if n == SUMS or columns >= n)


def number_of(factor: Expr, dtype: str) -> Expr | None:
    """What a factor of products that are added up in f32 is the number of.

    Args:
        factor: of f32, or of the number's type.
        dtype: of the number.

    Returns:
        The factor itself; of another type what it is converted from, chosen where 0 is chosen
        instead of it; None where it is no such number.
    """
    match factor:
        case _ if factor.dtype == dtype:
            return factor
        case Cast(value=value) if (factor.dtype, value.dtype) == ("f32", dtype):
            return value
        case Select(b=Const() as nothing) if not nothing.value:
            one = number_of(factor.a, dtype)
            return None if one is None else replace(factor, a=one, b=const(0, dtype))
    return None


def read_of(factor: Expr, dtype: str) -> TensorRead | None:
    """What a factor is read from, element by element.

    Args:
        factor: of products that are added up in f32.
        dtype: of the numbers that are split.

    Returns:
        The read of a number of that type, or of one that it is converted from unchanged; None for
        anything else.
    """
    match number_of(factor, dtype):
        case TensorRead() as read:
            return read
        case Cast(value=TensorRead() as read) if dtype == "f32" and read.dtype in ("f16", "bf16"):
            return read
    return None


def check_growth(packing: Packing, dtype: str) -> None:
    """See that the compiler splits constants ahead.

    Args:
        packing: of the constants.
        dtype: their element type.

    Raises:
        Unfit: they grow too much.
    """
    if (grown := packing.added(dtype)) > PACKED_AHEAD_BYTES:
        raise Unfit(f"its constants grow by {grown} bytes where split, of {PACKED_AHEAD_BYTES}")


def heights_of(counts: Sequence[int]) -> tuple[int, ...]:
    """Rows of tiles: one or two full registers, or equal ones that rows fill best.

    Args:
        counts: of rows, of different pieces.
    """
    found = set()
    for rows in counts:
        for most, step in ((ROWS, 1), (2 * ROWS, 2)):
            some = range(most, most // 2, -step)
            found |= {most, min(some, key=lambda n: tiles_of(rows, n) * n)}
    return tuple(sorted(n for n in found if n <= max(ROWS, *counts)))


def split_panels(stage: Any, lanes: int, parts: int, dtype: str) -> IterVar:
    """Have the columns of an operand split pair by pair.

    Args:
        stage: makes its panels: by panels, groups, taps of a window, parts, vectors, pairs, lanes
            and the two of a pair.
        lanes: columns of a panel.
        parts: that each number is split into.
        dtype: of the numbers.

    Returns:
        The axis of the panels.
    """
    # The intrinsics write operations of MLIR.
    from tilewright.schedule import intrinsics

    panel, group, *taps, part, vector, pair, lane, one = stage.op.axis
    # As they mostly lie in memory.
    stage.reorder(panel, *taps, group, pair, part, vector, lane, one)
    stage.tensorize(part, intrinsics.split_pairs(lanes, parts, dtype))
    found: IterVar = panel
    return found


def place_copy(copy: Any, axis: IterVar, at: tuple[Any, IterVar] | None) -> None:
    """Place what is split.

    Args:
        copy: the stage that splits it.
        axis: that workers share where it comes first.
        at: a stage and its axis within which it is made; None: it comes first.
    """
    if at is None:
        copy.parallel(axis)
    else:
        copy.set_scope("local")
        copy.compute_at(*at)


@dataclass(frozen=True)
class SplitWork:
    """What a kernel of split numbers has to do; each an array over configurations, or a number.

    products: of parts, those that are added up. rows, columns: of a tile. down, across: tiles of a
    piece. groups, at_once: of 32 steps of the depth, those of a sum, and those that a tile is
    computed over at once. again: how often each is read and multiplied further on. far: bytes that
    a piece reads and writes beyond the second cache. split, first: numbers that a piece splits, and
    that are split before all pieces. pieces: that are shared out. begins: how often workers are
    waited for.
    """

    products: Sequence[tuple[int, int]]
    rows: Any
    columns: Any
    down: Any
    across: Any
    groups: int
    at_once: Any
    far: Any
    split: Any
    pieces: Any
    again: float = 1.0
    first: Any = 0
    begins: Any = 0

    def cycles(self, target: Target) -> FloatArray:
        """About how many cycles it takes: those of the products and of what is loaded for them; of
        sums that are added to in memory; of splitting; pieces that are not shared out evenly.

        Args:
            target: has the caches and cores.
        """
        height, width = self.rows, self.columns
        registers = np.ceil(height / ROWS) * width / SUMS
        high = height / np.ceil(height / ROWS)
        factors = height / ROWS + width / SUMS
        products, parts = len(self.products), 1 + max(mine for mine, _ in self.products)
        size = 2 * parts * GROUP
        near = np.minimum(height, width) * self.at_once * size < target.l1_bytes / 2
        loads = factors * (parts + 1) * np.where(near, (_NEAR + _FAR) / 2, _FAR)
        product = np.maximum(registers * _PRODUCT * high / ROWS, _LATENCY)
        step = np.maximum(products * product, loads) + loads / 2
        times = np.where(self.at_once == self.groups, 1, self.groups / self.at_once)
        tile = step * self.groups * self.again + registers * _SUMS * times
        piece = self.down * self.across * tile + self.split * _SPLIT + self.far * _BYTE
        total = piece * turns(self.pieces, target.cores, spread=True)
        total += self.first * _SPLIT / target.cores + _BEGIN * self.begins
        cycles: FloatArray = total * (1 + self.pieces / 1000)
        return cycles


def best_of(
    knobs: Sequence[TileKnob | ChoiceKnob],
    rules: Sequence[Constraint],
    prior: Callable[[list[Configuration]], FloatArray],
    target: Target,
) -> Configuration:
    """The most promising of all configurations with as many pieces as cores may share.

    Args:
        knobs: with their values.
        rules: that hold.
        prior: how promising configurations are.
        target: has the cores.
    """
    made: list[dict[str, Any]] = [{}]
    for knob in knobs:
        values: Sequence[Any] = knob.values
        if knob.name.endswith("pieces"):
            values = tuple(v for v in values if v <= _PIECES_EACH * target.cores)
        made = [{**one, knob.name: value} for one in made for value in values]
        known = set(made[0])
        held = [rule for rule in rules if set(rule.knobs) <= known]
        made = [one for one in made if all(rule.holds(one) for rule in held)]
    found = [Configuration.of(one) for one in made]
    return found[int(np.argmax(prior(found)))]


def tile_rules(columns: int) -> tuple[Constraint, Constraint]:
    """What the unit's registers hold, and panels in pieces of equal size.

    Args:
        columns: of the result.
    """
    return (
        Constraint(
            "tile in registers",
            ("rows", "columns"),
            lambda r, c: split_tiles_taken(r, c) <= MOST_TILES,
            lambda r, c: f"{r}x{c} sums are more than the unit's registers hold",
        ),
        Constraint(
            "column_pieces of tiles",
            ("column_pieces", "columns"),
            lambda p, c: tiles_of(columns, c) % p == 0,
            lambda p, c: f"{tiles_of(columns, c)} tiles are no {p} equal pieces",
        ),
    )


def column_knobs(columns: int, widths: Sequence[int], groups: int) -> tuple[TileKnob, ...]:
    """Columns of a tile, pieces of them, and groups of the depth at once.

    Args:
        columns: of the result.
        widths: of tiles.
        groups: of a sum.
    """
    counts = {tiles_of(columns, width) for width in widths}
    pieces = [p for p in range(1, MOST_PIECES + 1) if any(n % p == 0 for n in counts)]
    return (
        TileKnob("columns", tuple(widths)),
        TileKnob("column_pieces", tuple(pieces)),
        TileKnob("groups", tuple(n for n in range(1, groups + 1) if groups % n == 0)),
    )
