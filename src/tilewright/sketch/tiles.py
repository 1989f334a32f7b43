"""Contractions in tiles: matrix products and what is like them, at the speed of BLAS libraries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.schedule.tensor import reads
from tilewright.schedule.types import bits
from tilewright.sketch.contraction import MatrixForm, MatrixOperand, contraction_of
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.structure import source_read
from tilewright.sketch.tile_cost import ContractionFacts, OperandFacts, seconds
from tilewright.sketch.tile_kernel import TileChoice, TileKernel, adds_in_result, sum_type
from tilewright.sketch.tile_operand import (
    AHEAD,
    BY_BLOCK,
    FIRST,
    IN_PLACE,
    ahead_packing,
    pieces_of,
    tiles_of,
)
from tilewright.space.arrays import FloatArray, as_column
from tilewright.space.constraints import Constraint, product_at_most
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import space_near
from tilewright.space.search_space import SearchSpace
from tilewright.target import Target
from tilewright.trial import Configuration

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
_VECTORS = (1, 2, 3, 4, 6, 8)
_PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
_UNROLLS = (1, 2, 4)
# Statements of the innermost loop that are written out: more miss the cache of decoded
# instructions, and remainders of rows, columns and depth each write them out again.
_MOST_UNROLLED = 32
_LEAST_DEPTH = 64
# Of the second-level cache, for what a workgroup keeps in memory of its own.
_CACHE_SHARE = 0.5
# How many times the prior's time of its best another way to read the operands takes at most to be
# tried: it is wrong by as much. A product of 784x128x1152 took 0.69 ms by its first, and 0.64 by
# the one that it had third.
_WORTH_A_TRIAL = 1.25
# The knobs that say how the operands are read, and the others that the prior looks at.
_WAYS = ("left", "right")
_NUMBERS = ("rows", "columns", "row_pieces", "column_pieces", "depth_pieces", "unroll")
_SWITCHES = ("rows_inside", "depth_apart")
_PRIOR_KNOBS = (*_NUMBERS, *_SWITCHES, *_WAYS)
# Where the search for the default begins, and its steps at most.
_SAMPLES, _STARTS, _STEPS = 512, 5, 40

# Of the values of each knob, how promising configurations look.
_Prior = Callable[[Mapping[str, Any]], FloatArray]

# Of this process: what was found for a product, by all that it depends on.
_FOUND: dict[Hashable, tuple[Configuration, ...]] = {}


class TilesSketch(Sketch):
    """Blocks of the result are pieces of parallel work; a tile of it stays in registers while the
    depth passes by; operands come from panels that are packed for it.

    Knobs: `rows`, `columns`, of the tile in registers; `row_pieces`, `column_pieces`, into how many
    blocks the result is cut; `depth_pieces`, into how many parts the depth, each of which is summed
    up in registers; `unroll`, steps of the depth that are written out; `left`, `right`, how the
    operand with the rows, and that with the columns, is read; `rows_inside`, `rows_near`, whether
    tiles, and blocks, follow each other along the rows first; `depth_apart`, whether parts of the
    depth are parallel work, for results of few tiles.
    """

    name = "tiles"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._contraction = contraction_of(site)
        self._target = target
        self._facts = _facts(self._contraction, target)
        self._in_result = adds_in_result(self._contraction)

    # -- the space ---------------------------------------------------------------------------------

    @cached_property
    def space(self) -> SearchSpace:  # type: ignore[override]
        """The knobs; made when it is asked for, since who compiles a kernel does not."""
        knobs = self._knobs()
        constraints = self._constraints()
        best = self.best or self._looked_for(knobs, constraints)
        default, *also = best
        return SearchSpace(
            self.name, knobs, constraints, default, prior_many=self._prior, also=also
        )

    def _looked_for(
        self, knobs: Sequence[Knob], constraints: Sequence[Constraint]
    ) -> tuple[Configuration, ...]:
        """What the prior takes for best, and for worth a trial: looked for once for all products of
        a network that differ by what becomes of their results."""
        sides = self._contraction.left, self._contraction.right
        ahead = any(one.position is not None for one in sides)
        panels = tuple(_last_extent(one) for one in sides)
        key = (self._facts, tuple(knobs), self._in_result, ahead, panels)
        if key not in _FOUND:
            start = self._start(knobs)
            free = space_near(self.name, knobs, constraints, start, prior_many=self._prior)
            best = _climbed(free, self._heights)
            # Panels that are packed ahead cost a call nothing. Where neither operand is known ahead
            # it is close whether copies pay, and the prior cannot tell.
            _FOUND[key] = (best,) if ahead else (best, *_other_ways(free, self._heights, best))
        return _FOUND[key]

    def _knobs(self) -> list[Knob]:
        contraction, target = self._contraction, self._target
        rows, columns, depth = contraction.sizes
        lanes = target.lanes(8 * self._facts.sum_bytes)
        widths = [n * lanes for n in _VECTORS if (n - 1) * lanes < columns]
        if columns < lanes:
            widths = [1 << (columns - 1).bit_length()]
        pieces = [p for p in range(1, depth + 1) if depth % p == 0 and depth // p >= _LEAST_DEPTH]
        return [
            TileKnob("rows", tuple(r for r in _ROWS if r <= rows)),
            TileKnob("columns", tuple(widths)),
            TileKnob("row_pieces", tuple(p for p in _PIECES if p <= rows)),
            TileKnob("column_pieces", tuple(p for p in _PIECES if p <= tiles_of(columns, lanes))),
            TileKnob("depth_pieces", tuple(pieces) or (1,)),
            TileKnob("unroll", tuple(u for u in _UNROLLS if u <= depth)),
            ChoiceKnob("left", self._places(contraction.left, False)),
            ChoiceKnob("right", self._places(contraction.right, True)),
            BoolKnob("rows_inside"),
            BoolKnob("rows_near"),
            BoolKnob("depth_apart"),
        ]

    def _places(self, operand: MatrixOperand, vectors: bool) -> tuple[str, ...]:
        """How an operand can be read. In place where its depth is one axis in memory; of vectors
        their elements have to lie beside each other, and rows may be anywhere, also in blocks of
        the depth where they are one axis."""
        if not operand.tile:
            return (IN_PLACE,)
        found = []
        plain = operand.flat[1] and (not vectors or (operand.flat[0] and operand.contiguous[0]))
        if plain or (operand.in_blocks and not vectors):
            found.append(IN_PLACE)
        ahead = ahead_packing(operand, 1) is not None
        return (*found, AHEAD, BY_BLOCK) if ahead else (*found, FIRST, BY_BLOCK)

    def _constraints(self) -> list[Constraint]:
        target, contraction = self._target, self._contraction
        lanes = target.lanes(8 * self._facts.sum_bytes)
        registers = target.vector_registers
        found = [
            Constraint(
                "registers",
                ("rows", "columns"),
                lambda r, c: _registers(r, -(-c // lanes)) <= registers,
                lambda r, c: (
                    f"{r} rows of {-(-c // lanes)} vectors need {_registers(r, -(-c // lanes))} "
                    f"registers, more than {registers}"
                ),
                vectorised=True,
            ),
            product_at_most("unrolled code", ("rows", "unroll"), _MOST_UNROLLED, unit="statements"),
            self._pieces("row_pieces", "rows", contraction.sizes[0]),
            self._pieces("column_pieces", "columns", contraction.sizes[1]),
        ]
        found.append(
            Constraint(
                "parts of the depth",
                ("depth_apart", "depth_pieces"),
                lambda apart, pieces: (pieces > 1) | ~np.asarray(apart, dtype=np.bool_),
                lambda apart, pieces: "the depth is one piece, which is nothing apart",
                vectorised=True,
            )
        )
        found.append(
            # Without it one in ten trials of some products was of a program that had been tried.
            Constraint(
                "order of blocks",
                ("rows_near", "row_pieces", "column_pieces"),
                lambda near, rows, columns: (
                    ~np.asarray(near, dtype=np.bool_) | ((rows > 1) & (columns > 1))
                ),
                lambda near, rows, columns: f"{rows} by {columns} blocks have one order",
                vectorised=True,
            )
        )
        for name, operand in (("left", contraction.left), ("right", contraction.right)):
            if len(operand.tile) > 1:
                found.append(self._whole_panels(name, operand))
        limit = int(target.l2_bytes * _CACHE_SHARE)
        scope = (
            *("rows", "columns", "row_pieces", "column_pieces"),
            *("depth_pieces", "depth_apart", "left", "right"),
        )
        found.append(
            Constraint(
                "memory of a workgroup",
                scope,
                lambda *values: self._memory(*values) <= limit,
                lambda *values: (
                    f"a block with its panels needs {self._memory(*values)} bytes, more than "
                    f"{limit}, which is {_CACHE_SHARE:.0%} of the second-level cache"
                ),
                vectorised=True,
            )
        )
        return found

    @staticmethod
    def _pieces(pieces: str, tile: str, size: int) -> Constraint:
        return Constraint(
            f"{pieces} of tiles",
            (pieces, tile),
            # What comes to fewer pieces is the program of these.
            lambda p, t: pieces_of(-(-size // t), p) == p,
            lambda p, t: f"{p} pieces of {-(-size // t)} tiles",
            vectorised=True,
        )

    @staticmethod
    def _whole_panels(name: str, operand: MatrixOperand) -> Constraint:
        """Panels that are packed ahead do not go from one row of a dimension into the next."""
        size = _last_extent(operand)
        tile = "rows" if name == "left" else "columns"
        return Constraint(
            f"{name} panels",
            (name, tile),
            lambda place, t: (place != AHEAD) | (size % t == 0),
            lambda place, t: f"a dimension of {size} elements is no whole number of panels of {t}",
            vectorised=True,
        )

    def _memory(
        self,
        rows: Any,
        columns: Any,
        row_pieces: Any,
        column_pieces: Any,
        depth_pieces: Any,
        depth_apart: Any,
        left: Any,
        right: Any,
    ) -> Any:
        """Bytes of a workgroup's own memory, for one value of each knob or for columns of them."""
        height, width, depth = self._contraction.sizes
        tall = tiles_of(tiles_of(height, rows), row_pieces) * rows
        wide = tiles_of(tiles_of(width, columns), column_pieces) * columns
        deep = depth // depth_pieces
        in_turn = (depth_pieces > 1) & ~np.asarray(depth_apart, dtype=np.bool_)
        return (
            in_turn * tall * wide * (0 if self._in_result else self._facts.sum_bytes)
            + (left == BY_BLOCK) * tall * deep * self._facts.left.panel_bytes
            + (right == BY_BLOCK) * wide * deep * self._facts.right.panel_bytes
        )

    # -- the default and the prior -----------------------------------------------------------------

    def _start(self, knobs: Sequence[Knob]) -> Configuration:
        """A plain choice of which every value is in its domain, where the search for the default
        begins."""
        first = {knob.name: knob.value(0) for knob in knobs}
        domains = {knob.name: knob for knob in knobs}
        lanes = self._target.lanes(8 * self._facts.sum_bytes)
        wanted: dict[str, Any] = {
            "rows": 6,
            "columns": 2 * lanes,
            "row_pieces": 4,
            "column_pieces": 4,
            "unroll": 2,
            "rows_inside": True,
        }
        for name, value in wanted.items():
            first[name] = domains[name].nearest(value)
        return Configuration.of(first)

    def _prior(self, configurations: Sequence[Configuration]) -> FloatArray:
        values = [dict(one.items) for one in configurations]
        return self._heights({n: as_column([one[n] for one in values]) for n in _PRIOR_KNOBS})

    def _heights(self, columns: Mapping[str, Any]) -> FloatArray:
        """The prior of configurations, by the values of each knob."""
        given: dict[str, Any] = {
            name: np.asarray(columns[name], dtype=np.float64) for name in _NUMBERS
        }
        given |= {name: np.asarray(columns[name], dtype=np.bool_) for name in _SWITCHES}
        for side in _WAYS:
            given[f"{side}_packed"] = columns[side] != IN_PLACE
            given[f"{side}_first"] = columns[side] == FIRST
            given[f"{side}_block"] = columns[side] == BY_BLOCK
        return -np.log(seconds(self._facts, given))

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values: dict[str, Any] = dict(configuration.items)
        rows, columns, depth = self._contraction.sizes
        choice = TileChoice(
            rows=values["rows"],
            columns=values["columns"],
            block_rows=tiles_of(tiles_of(rows, values["rows"]), values["row_pieces"]),
            block_columns=tiles_of(tiles_of(columns, values["columns"]), values["column_pieces"]),
            depth=depth // values["depth_pieces"],
            unroll=values["unroll"],
            left=values["left"],
            right=values["right"],
            rows_inside=values["rows_inside"],
            rows_near=values["rows_near"],
            apart=values["depth_apart"],
        )
        return TileKernel(self._contraction, choice, self._target).kernel()


def _last_extent(operand: MatrixOperand) -> int:
    """Elements of the innermost dimension of those that tiles are of; 0 where it is one or none."""
    if len(operand.tile) < 2:
        return 0
    last = operand.tile[-1].dom
    return last.extent if last else 1


def _registers(rows: Any, vectors: Any) -> Any:
    """Vector registers that a tile takes: its sums, an element of a row, and the columns' vectors,
    one at a time where there is one row to use it."""
    return rows * vectors + np.where(rows > 1, vectors, 1) + 1


def _climbed(space: SearchSpace, prior: _Prior) -> Configuration:
    """The best that the prior knows of: from the space's default and the best of random ones by
    another value of one knob, or steps of two. Of each way to read the operands, in each order,
    one begins: from one to the other there are many steps."""
    rng = np.random.default_rng(0)
    found = sorted(_best_of_each(space, (*_WAYS, "rows_inside"), rng), key=lambda start: -start[0])
    starts = (space.default, *(one for _, one in found[:_STARTS]))
    return max(_tops(space, prior, starts, rng), key=lambda top: top[0])[1]


def _other_ways(space: SearchSpace, prior: _Prior, best: Configuration) -> list[Configuration]:
    """The best that the prior knows of each other way to read the operands, if it is worth a trial,
    the most promising first."""
    rng = np.random.default_rng(0)
    least = float(space.prior_many([best])[0]) - np.log(_WORTH_A_TRIAL)
    tops = []
    for _, start in _best_of_each(space, _WAYS, rng):
        way = {name: dict(start.items)[name] for name in _WAYS}
        if any(dict(best.items)[name] != value for name, value in way.items()):
            held = space.restrict({name: [value] for name, value in way.items()}).space
            assert isinstance(held, SearchSpace)
            tops += _tops(held, prior, [start], rng)
    return [one for height, one in sorted(tops, key=lambda top: -top[0]) if height > least]


def _best_of_each(
    space: SearchSpace, names: Sequence[str], rng: np.random.Generator
) -> list[tuple[float, Configuration]]:
    """The best of random configurations with each combination of some knobs' values."""
    random = space.sample(rng, _SAMPLES)
    found: dict[Any, tuple[float, Configuration]] = {}
    for height, one in zip(space.prior_many(random), random, strict=True):
        values = dict(one.items)
        kind = tuple(values[name] for name in names)
        if height > found.get(kind, (-np.inf,))[0]:
            found[kind] = (float(height), one)
    return list(found.values())


def _tops(
    space: SearchSpace,
    prior: _Prior,
    starts: Sequence[Configuration],
    rng: np.random.Generator,
) -> list[tuple[float, Configuration]]:
    """The tops of the prior's hills that configurations stand on: by another value of one knob as
    long as one is better, else by steps in two. All climb together; where one has been, another
    goes no further."""
    # Orders of blocks the prior does not ask for, and not all pieces have.
    at = [Configuration.of(dict(one.items) | {"rows_near": False}) for one in starts]
    heights = space.prior_many(at).tolist()
    climbing, seen = list(range(len(at))), set[Configuration]()
    for _ in range(_STEPS):
        fresh = {at[number]: number for number in reversed(climbing) if at[number] not in seen}
        climbing = sorted(fresh.values())
        if not climbing:
            break
        seen.update(fresh)
        near = space.changed_once([at[number] for number in climbing])
        values = prior(near.columns)
        moved = []
        for place, number in enumerate(climbing):
            mine = np.flatnonzero(near.of == place)
            top = int(mine[values[mine].argmax()]) if len(mine) else None
            if top is not None and values[top] > heights[number]:
                at[number], heights[number] = near.at(top), float(values[top])
            else:
                further = list(space.neighbours(at[number], rng, 2))
                others = space.prior_many(further)
                if not further or others.max() <= heights[number]:
                    continue
                best = int(others.argmax())
                at[number], heights[number] = further[best], float(others[best])
            moved.append(number)
        climbing = moved
    return list(zip(heights, at, strict=True))


def _facts(contraction: MatrixForm, target: Target) -> ContractionFacts:
    def operand(one: MatrixOperand, converted: bool) -> OperandFacts:
        read = source_read(one.factor)
        memory = bits(read.dtype if read is not None else one.factor.dtype) // 8
        wide = bits(sum_type(contraction)) // 8
        panel = memory if read is not None and not converted else wide
        return OperandFacts(
            memory,
            panel,
            one.stride * memory,
            any(one.contiguous) if converted else one.contiguous[0],
            read is None and len(reads(one.factor)) > 1,
        )

    rows, columns, depth = contraction.sizes
    return ContractionFacts(
        contraction.batches,
        rows,
        columns,
        depth,
        bits(sum_type(contraction)) // 8,
        operand(contraction.left, True),
        operand(contraction.right, False),
        target,
    )


SKETCHES: tuple[type[Sketch], ...] = (TilesSketch,)
