"""The schedule of tiles of sliding windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.schedule.expr import variables
from tilewright.schedule.intrinsics import transpose
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import ComputeOp, IterVar, Tensor, reads
from tilewright.schedule.types import bits
from tilewright.sketch.access import laid_out
from tilewright.sketch.fetching import fetched_ahead
from tilewright.sketch.sliding import ImageDim, SlidingReduction
from tilewright.sketch.structure import extent
from tilewright.sketch.window_rewriting import Rewritten
from tilewright.sketch.window_tiles import WindowTiles
from tilewright.target import Target

ORDERS = ("panels rows columns", "rows panels columns", "rows columns panels")


@dataclass(frozen=True)
class _OutputLoops:
    """Of a scheduled result: the innermost parallel loop, the loops over tiles of channels, those
    over all tiles of a piece in their order, and how many tiles there are for each of channels."""

    part: IterVar
    panels: Sequence[IterVar]
    ordered: Sequence[IterVar]
    turns: int


class WindowSchedule:
    """Puts the loops of an expression in order by a sketch's knobs.

    Args:
        tiles: the axes.
        made: the expression, not yet scheduled.
        numbers: the knobs that are numbers.
        order: one of :data:`ORDERS`, of the loops over a piece's tiles.
        target: the processor.
        lanes: of a vector.
    """

    def __init__(
        self,
        tiles: WindowTiles,
        made: Rewritten,
        numbers: Mapping[str, int],
        order: str,
        target: Target,
        lanes: int,
    ) -> None:
        self._tiles, self._made, self._numbers = tiles, made, numbers
        self._order, self._target, self._lanes = order, target, lanes
        self._size = {axis: numbers[tiles.knob_of(axis)] for axis in tiles.tiled}
        self._loops = self._share_out()

    @property
    def part(self) -> IterVar:
        """The loop of the result within which a piece of parallel work is."""
        return self._loops.part

    def _share_out(self) -> _OutputLoops:
        """Schedules the result: pieces of parallel work, then tiles, then their elements."""
        roles, numbers = self._tiles, self._numbers
        found, panel = roles.found, roles.panel
        output = self._made.schedule[self._made.output]
        others: list[IterVar] = []
        pieces: list[IterVar] = []
        phases: list[IterVar] = []
        tiles_of: dict[str, list[IterVar]] = {"panels": [], "rows": [], "columns": []}
        inside: dict[IterVar, IterVar] = {}
        counts: dict[IterVar, int] = {}
        for axis in found.order:
            if axis is None:
                continue
            tiles = self._made.axes[axis]
            if axis in found.phases:
                tiles, phase = output.split(tiles, found.phases[axis].count)
                phases.append(phase)
            if axis in self._size:
                # Whole vectors also where the result ends before.
                whole = axis is roles.vector
                most = self._size[axis] if whole else min(self._size[axis], extent(axis))
                tiles, inside[axis] = output.split(tiles, most)
                count = -(-extent(axis) // most)
            elif axis is not panel:
                others.append(tiles)
                continue
            else:
                count = extent(axis)
            if axis is roles.pieced or axis is panel:
                share = numbers["piece_rows" if axis is roles.pieced else "piece_panels"]
                piece, tiles = output.split(tiles, share)
                pieces.append(piece)
                count = min(share, count)
            counts[tiles] = count
            columns, rows = axis is roles.across, axis is roles.row
            tiles_of["columns" if columns else "rows" if rows else "panels"].append(tiles)
        again = found.repeated(output.op.axis)
        units = [a for a, old in zip(output.op.axis, found.order, strict=True) if old is None]
        units = [axis for axis in units if axis not in again]
        ordered = tuple(loop for kind in self._order.split() for loop in tiles_of[kind])
        elements = [inside[axis] for axis in roles.tiled]
        output.reorder(*units, *others, *pieces, *phases, *ordered, *again, *elements)
        part = in_parallel(output, [*units, *others], pieces)
        _write_out(output, elements)
        turns = prod(counts[loop] for loop in (*tiles_of["rows"], *tiles_of["columns"]))
        return _OutputLoops(part, tiles_of["panels"], ordered, turns)

    def add_up(self, reduced: Sequence[IterVar]) -> None:
        """Schedules the sums: those of one tile, or of all tiles of a panel where the reduction
        comes in parts.

        Args:
            reduced: what is summed over, outermost first.
        """
        made, numbers, found = self._made, self._numbers, self._tiles.found
        sums = made.schedule[made.sums]
        sums.set_scope("local")
        inner = found.channels[-1] if found.channels else None
        deep = inner is not None and numbers["depth"] < extent(inner)
        at = (self._loops.panels if deep else self._loops.ordered)[-1]
        sums.compute_at(made.schedule[made.output], at)
        axes = dict(made.places)
        steps = [made.axes[a] for a in reduced]
        unrolled: list[IterVar] = []
        if inner is not None:
            place = reduced.index(inner)
            if deep:
                self._whole_vectors(sums, axes)
                part, steps[place] = sums.split(steps[place], numbers["depth"])
                sums, axes = self._in_parts(part)
            outer, last = sums.split(steps[place], numbers["unroll"])
            steps[place : place + 1] = [*self._fetched(sums, outer), last]
            unrolled.append(last)
        windows = [made.axes[a] for a in found.windows]
        unrolled += windows[len(windows) - numbers["unroll_windows"] :]
        rest = [new for old, new in axes.items() if old not in self._size]
        elements = [axes[a] for a in self._tiles.tiled]
        self._whole_vectors(sums, axes)
        sums.reorder(*rest, *steps, *elements)
        for step in unrolled:
            sums.unroll(step)
        _write_out(sums, elements)

    def _whole_vectors(self, sums: Stage, axes: Mapping[IterVar, IterVar]) -> None:
        """Has whole vectors added up, where there are more elements than the result has."""
        vector = self._tiles.vector
        sums.align_extent(axes[vector], min(self._lanes, self._size[vector]))

    def _in_parts(self, part: IterVar) -> tuple[Stage, dict[IterVar, IterVar]]:
        """Adds up a panel's tiles over one part of the channels before the next.

        Returns:
            What computes one tile of one part, and its axes.
        """
        s, size = self._made.schedule, self._size
        sums, axes = s[self._made.sums], dict(self._made.places)
        parts = s[s.rfactor(self._made.sums, part)]
        parts.set_scope("local")
        whole = dict(zip(axes, parts.op.axis[1:], strict=True))
        around = [a for a in (self._tiles.row, self._tiles.across) if a is not None]
        each = [sums.split(axes[a], size[a]) for a in around]
        rest = [new for old, new in axes.items() if old not in size]
        axes |= {a: within for a, (_, within) in zip(around, each, strict=True)}
        elements = [axes[a] for a in self._tiles.tiled]
        sums.reorder(*rest, *sums.op.reduce_axis, *(tiles for tiles, _ in each), *elements)
        _write_out(sums, elements)
        parts.compute_at(sums, each[-1][0])
        return parts, whole

    def _fetched(self, sums: Stage, step: IterVar) -> Sequence[IterVar]:
        """The loops of a step over channels, in which a packed filter's next panel is fetched."""
        made, numbers, found = self._made, self._numbers, self._tiles.found
        if not made.packings or self._tiles.panel not in found.outputs or self._order != ORDERS[0]:
            return [step]
        (position,) = made.packings
        turns = self._loops.turns * prod(map(extent, found.op.reduce_axis)) // numbers["depth"]
        shared = [a for a in found.outputs if a in self._size]
        return fetched_ahead(
            sums,
            made.arguments[position],
            self._loops.panels[-1],
            step,
            count=-(-numbers["depth"] // numbers["unroll"]),
            turns=turns,
            share=prod(-(-extent(a) // self._size[a]) for a in shared),
            cache_bytes=self._target.l2_bytes,
            work=numbers["unroll"] * prod(self._size.values()) // self._lanes,
        )


def in_parallel(stage: Stage, alike: Sequence[IterVar], pieces: Sequence[IterVar]) -> IterVar:
    """Makes the outermost loops of a stage those over its workgroups.

    Pieces that may be cut off at an end are counted by a loop of their own each, so that a branch
    knows which is the last, and no step within asks.

    Args:
        stage: whose outermost loops, in this order, are these.
        alike: loops of which every iteration does the same.
        pieces: at most two loops whose last iteration may do less.

    Returns:
        The innermost of them.
    """
    for loop in [*([stage.fuse(*alike)] if alike else []), *pieces]:
        stage.parallel(loop)
    return pieces[-1]


def turn(
    found: SlidingReduction, schedule: Schedule, image: Stage, columns: IterVar, lanes: int
) -> None:
    """Has the rows of an image transposed, in registers, before its copy takes them.

    Where squares of registers do not fill rows, pieces of work do not read whole ones, or the image
    is more than an input with edges, the copy gathers its elements, some columns at a time.

    Args:
        found: the reduction.
        schedule: of it.
        image: the copy, of whose dimensions the columns are the last, before them channels.
        columns: the axis of the result along which vectors are.
        lanes: of a vector.
    """
    source = _padded(found)
    *_, last = axes = image.op.axis
    (read,) = reads(image.compute.body[0])
    channels = next(i for i, axis in enumerate(axes) if axis is read.indices[-1])
    at = next(i for i, dim in enumerate(found.dims) if dim.data is columns)
    side = 0
    if source is not None and _reads_whole_rows(found, found.dims[at]):
        sides = (s for s in (16, 8, 4) if s <= lanes)
        whole = (s for s in sides if not (source.shape[at] % s or source.shape[-1] % s))
        side = next(whole, 0) if bits(source.dtype) == 32 else 0
    if source is None or not side:
        # Lines of the image, each read for many channels, stay in the first cache meanwhile.
        around, last = image.split(last, lanes)
        image.reorder(*axes[:channels], around, *axes[channels:-1], last)
        image.vectorize(last)
        return
    image.vectorize(last)
    around, channel = image.split(axes[channels], side)
    image.unroll(channel)
    copy = schedule[schedule.cache_read(source, "local", schedule.readers(schedule[source]))]
    of_source = copy.op.axis
    made = laid_out(schedule, copy, [of_source[-1], of_source[at]])
    made.compute_at(image, around)
    row, column = made.op.axis[-2:]
    _, _, square, _ = made.tile(row, column, side, side)
    made.tensorize(square, transpose(side, source.dtype, len(of_source) - at - 2))


def _reads_whole_rows(found: SlidingReduction, dim: ImageDim) -> bool:
    """Whether a piece of work reads all columns of a row: pieces are of rows, and windows leave no
    columns out between them."""
    window = 1 if dim.reduced is None else extent(dim.reduced)
    apart = dim.stride > 1 and (dim.dilation > 1 or window < dim.stride)
    return len(found.slides) > 1 and not apart


def _padded(found: SlidingReduction) -> Tensor | None:
    """The input that an image is, or that has edges in it; None where it is more."""
    tensor = found.image.tensor
    while isinstance(tensor.op, ComputeOp):
        before = reads(tensor.op.body[0])
        if len(before) != 1 or len(before[0].indices) != len(tensor.op.axis):
            return None
        (read,) = before
        if any(
            not variables(index) <= {axis}
            for index, axis in zip(read.indices, tensor.op.axis, strict=True)
        ):
            return None
        tensor = read.tensor
    return tensor


def _write_out(stage: Stage, elements: Sequence[IterVar]) -> None:
    """Writes a tile's elements out, the last axis as vectors."""
    for axis in elements[:-1]:
        stage.unroll(axis)
    stage.vectorize(elements[-1])
