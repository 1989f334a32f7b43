"""Elementwise operations, broadcasts, transposes, slices: one pass over the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.schedule.expr import Select
from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar, TensorRead
from tilewright.schedule.types import bits
from tilewright.schedule.walk import nodes
from tilewright.sketch.access import (
    AccessPattern,
    computed,
    element_bits,
    inline_all,
    is_costly,
    joined_tail,
    laid_out,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.pieces import piece_count, pieces_for, pieces_knob, shared_seconds
from tilewright.sketch.structure import extent
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import BoolKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Vectors of a row up to which it is written out as a whole.
_ROW_VECTORS = 8
_MOST_UNROLLED = 128
# Seconds: a turn of a loop, a vector, a function of it, an element that
# is moved alone. A vector is read where another core may have written it: what a dispatch reads in
# a program comes from further away than where it is measured over and over.
_TURN_S, _VECTOR_S, _FUNCTION_S, _MOVE_S = 1e-9, 2.4e-9, 4e-9, 0.6e-9


class ElementwiseSketch(Sketch):
    """One loop nest over the output, whose outer loops are pieces of parallel work.

    The innermost loop is as many of the last axes as are one to all that is read. Where something
    large is read along another axis, both are tiled, so that reads and writes take whole cache
    lines. Stages that are costly and read more than once are computed before.

    Knobs: `pieces`, how many pieces of work each core has, 0: one in all; `vectors`, registers
    that one turn of the innermost loop fills; `lines`, elements of a tile along the other axis;
    `shuffled`, whether tiles are transposed in registers, or gathered.
    """

    name = "elementwise"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        schedule = create_schedule(site.output.op)
        if any(stage.compute.reduction is not None for stage in computed(schedule)):
            raise Unfit("it reduces")
        if not site.output.shape:
            raise Unfit("it computes one element")
        self._site, self._target = site, target
        pattern = inline_all(schedule, worth_keeping(schedule))[schedule[site.output]]
        self._lanes = target.lanes(element_bits(pattern))
        axes = site.output.op.axis
        tail = axes[len(axes) - joined_tail(pattern, axes) :]
        self._length = prod(map(extent, tail))
        self._last = axes[-1]
        across = _across(pattern)
        self._across = across[1] if across is not None else None
        whole = len(computed(schedule)) == 1 or not worth_keeping(schedule)
        shuffles = whole and across is not None and _shuffles(pattern, *across)
        self._costly = sum(map(is_costly, pattern.body))
        lines = tuple(n for n in (1, 4, 8, 16, 32) if n == 1 or n <= self._lines)
        knobs = (
            pieces_knob(target),
            TileKnob("vectors", tuple(v for v in (1, 2, 4, 8) if self._fits(v)) or (1,)),
            TileKnob("lines", lines, effect=len(lines) > 1),
            BoolKnob("shuffled", (False, True) if shuffles else (False,), effect=shuffles),
        )
        wide = max(v for v in knobs[1].values if v <= (4 if self._lines == 1 else 2))
        start: dict[str, Value] = {
            "pieces": 2,
            "vectors": wide,
            "lines": max(n for n in lines if n <= 16),
            "shuffled": False,
        }
        tiles = [(v, n) for v in knobs[1].values for n in lines if self._is_whole(v, n)]
        if shuffles and tiles:
            # Near a cache line on both sides.
            start["vectors"], start["lines"] = min(
                tiles, key=lambda t: abs(t[0] * self._lanes - 16) + abs(t[1] - 16)
            )
            start["shuffled"] = True
        started = _numbers(Configuration.of(start))
        start["pieces"] = pieces_for(self._one_core(started), 2, target)
        rules = (
            Constraint(
                "whole tiles",
                ("vectors", "lines", "shuffled"),
                lambda v, n, shuffled: not shuffled or self._is_whole(v, n),
                lambda v, n, shuffled: (
                    f"tiles of {n} by {v * self._lanes} are not made of whole "
                    f"squares of {self._lanes}, or do not divide {self._lines} and "
                    f"{extent(self._last)}"
                ),
            ),
            Constraint(
                "unrolled code",
                ("vectors", "lines"),
                lambda v, n: v * n <= _MOST_UNROLLED,
                lambda v, n: f"{n} times {v} vectors written out; allowed: {_MOST_UNROLLED}",
                vectorised=True,
            ),
        )
        self.space = space_near(
            self.name, knobs, rules, Configuration.of(start), prior_many=self._prior_many
        )

    @property
    def _lines(self) -> int:
        return extent(self._across) if self._across is not None else 1

    def _is_whole(self, vectors: int, lines: int) -> bool:
        """Whether all tiles are of whole squares of vectors."""
        lanes = self._lanes
        divided = self._lines % lines == 0 and extent(self._last) % (vectors * lanes) == 0
        return divided and lines % lanes == 0

    def _fits(self, vectors: int) -> bool:
        return vectors == 1 or (vectors - 1) * self._lanes < self._length

    def _prior_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        return np.array([-np.log(self._seconds(_numbers(c))) for c in configurations])

    def _seconds(self, values: Mapping[str, int]) -> float:
        """Of a configuration, estimated."""
        turns = -(-prod(self._site.output.shape) // self._width(values))
        pieces = min(turns, piece_count(values["pieces"], self._target))
        return shared_seconds(self._one_core(values), pieces, self._target)

    def _width(self, values: Mapping[str, int]) -> int:
        return min(self._length, values["vectors"] * self._lanes)

    def _one_core(self, values: Mapping[str, int]) -> float:
        """Seconds on one core."""
        size = prod(self._site.output.shape)
        turns = size / self._width(values)
        one = size / min(self._length, self._lanes) * (_VECTOR_S + self._costly * _FUNCTION_S)
        if self._across is not None:
            # A cache line that is read for each element; part of it is used again in a tile.
            moved = _MOVE_S / 2 if values["shuffled"] else _MOVE_S
            one += size * moved * (1 + 16 / min(16, values["lines"]))
        return one + turns * _TURN_S

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = _numbers(configuration)
        schedule = create_schedule(self._site.output.op)
        patterns = inline_all(schedule, worth_keeping(schedule))
        for stage, pattern in patterns.items():
            across = _across(pattern) if values["lines"] > 1 else None
            place = self._loops(stage, pattern, across[1] if across else None, values)
            if across is not None and values["shuffled"] and place is not None:
                _transposed(schedule, stage, across[0], across[1], place, self._lanes)
        return SketchedKernel(schedule, (*self._site.inputs, self._site.output))

    def _loops(
        self,
        stage: Stage,
        pattern: AccessPattern,
        across: IterVar | None,
        values: Mapping[str, int],
    ) -> IterVar | None:
        """The loops of a stage; returns the one around a tile."""
        axes = stage.op.axis
        if not axes:
            return None
        count = 1 if across is not None else joined_tail(pattern, axes)
        outer, tail = list(axes[: len(axes) - count]), axes[len(axes) - count :]
        length = prod(map(extent, tail))
        inner = stage.fuse(*tail) if count > 1 else tail[0]
        width = values["vectors"] * self._lanes
        around = line = None
        if length > _ROW_VECTORS * self._lanes or not outer or across is not None:
            around, inner = stage.split(inner, width)
        if across is not None:
            at = outer.index(across)
            outer[at], line = stage.split(across, values["lines"])
            stage.unroll(line)
        # A loop that does not end with a whole vector is cut where it stands alone.
        rows = prod(map(extent, axes[: len(axes) - count])) // (
            values["lines"] if line is not None else 1
        )
        if around is not None and (length % width == 0 or rows < 2 * self._target.cores):
            outer.append(around)
            around = None
        loops = [loop for loop in (*outer, around, line, inner) if loop is not None]
        stage.reorder(*loops)
        shared = stage.fuse(*outer) if len(outer) > 1 else outer[0]
        part, place = stage.split(shared, nparts=piece_count(values["pieces"], self._target))
        stage.parallel(part)
        stage.vectorize(inner)
        return place if around is None else around


def _across(pattern: AccessPattern) -> tuple[TensorRead, IterVar] | None:
    """A large read whose neighbours are along another axis than the last one, and that axis."""
    *others, last = pattern.axes
    for read in pattern.reads:
        if pattern.elements(read) * 2 < prod(pattern.output.shape):
            continue
        near = [a for a in others if extent(a) > 1 and pattern.step(read, a) == 1]
        if near and extent(last) > 1 and pattern.step(read, last) != 1:
            return read, near[-1]
    return None


def _places(pattern: AccessPattern, read: TensorRead, axis: IterVar) -> list[int]:
    """The dimensions of a read that depend on an axis."""
    return [i for i, index in enumerate(read.indices) if axis in pattern.linear(index).variables]


def _shuffles(pattern: AccessPattern, read: TensorRead, across: IterVar) -> bool:
    """Whether tiles of a read can be transposed in registers: elements of 32 bits, read once, where
    each of the two axes is a dimension, and nothing is read outside of the tensor."""
    along = [_places(pattern, read, axis) for axis in (across, pattern.axes[-1])]
    if bits(read.tensor.dtype) != 32 or sum(r.tensor is read.tensor for r in pattern.reads) > 1:
        return False
    if along[0] != [len(read.indices) - 1] or len(along[1]) != 1:
        return False
    exact = [read.indices[along[0][0]] is across, read.indices[along[1][0]] is pattern.axes[-1]]
    guarded = any(isinstance(n, Select) and n.guarded for e in pattern.body for n in nodes(e))
    return all(exact) and not guarded


def _transposed(
    schedule: Schedule,
    stage: Stage,
    read: TensorRead,
    across: IterVar,
    place: IterVar,
    lanes: int,
) -> None:
    """Has a tile of what is read transposed in registers before the stage reads it."""
    from tilewright.schedule.intrinsics import transpose

    last = stage.op.axis[-1]
    readers = schedule.readers(schedule[read.tensor])
    copy = schedule[schedule.cache_read(read.tensor, "global", readers)]
    places = [next(i for i, e in enumerate(read.indices) if e is a) for a in (across, last)]
    made = laid_out(schedule, copy, [copy.op.axis[i] for i in places])
    made.compute_at(stage, place)
    row, column = made.op.axis[-2:]
    _, _, rows, _ = made.tile(row, column, lanes, lanes)
    made.tensorize(rows, transpose(lanes, read.tensor.dtype, places[0] - places[1] - 1))


def _numbers(configuration: Configuration) -> dict[str, int]:
    return {name: int(value) for name, value in configuration.items if isinstance(value, int)}


SKETCHES: tuple[type[Sketch], ...] = (ElementwiseSketch,)
