"""Sliding windows: convolutions and pooling as tiles of accumulators in vector registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar
from tilewright.sketch.fetching import fetched_ahead
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.sliding import sliding_reduction
from tilewright.sketch.structure import extent, tile_sizes, widest_bits
from tilewright.sketch.window_cost import NEAR, WindowNest
from tilewright.sketch.window_rewriting import Computed, written_anew
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Tiles of which the best pieces are looked for.
_MOST_TILES = 48
_ORDERS = ("panels rows columns", "rows panels columns", "rows columns panels")
# Vector instructions that one step of the innermost loop may be unrolled to.
_MOST_UNROLLED = 512
# Windows of so many elements are short.
_SHORT = 9
# Channels of a picture, of which an element is as quickly read where it is: a first layer of 16, 32
# and 64 channels took 0.045, 0.068 and 0.69 ms in place, 0.058, 0.089 and 0.74 with a copy.
_FEW = 4
# Of the stack, for the sums of a tile.
_STACK_SHARE = 4


class WindowsSketch(Sketch):
    """Tiles of sums in vector registers, added up over all windows and channels.

    What vectors are is a subclass's. Knobs: `columns`, `rows` and `width`, a tile in elements,
    `width` of them along vectors; `blocks`, the same along further output channels; `piece_rows`,
    tiles of rows in one piece of parallel work (of columns, where there are no rows);
    `piece_panels`, tiles of channels in one; `order` of the loops within it; `reduction`, whether
    windows or channels are the outer loops; `depth`, how many channels are added to all tiles of a
    panel before further ones are; `unroll` and `unroll_windows`, channels and innermost axes of the
    window that are written out; `image`, whether the part of it that a piece reads is copied,
    padded, into memory of its own, or read in place with the edges cut off.
    """

    # Of tiles, by their roles; None where there is no such axis.
    _vector: IterVar
    _block: IterVar | None
    _column: IterVar | None
    _row: IterVar | None
    # Products that an element of a copied image is the sum of.
    _made_of = 0

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._found = found = sliding_reduction(site)
        self._target = target
        self._lanes = target.lanes(widest_bits(found.body))
        self._choose()
        tiled = (self._row, self._block, self._column, self._vector)
        # Innermost last.
        self._tiled = [axis for axis in tiled if axis is not None]
        others = [a for a in found.order if a is not None and a not in {*tiled, *found.slides}]
        channels = None if self._vector in found.slides else self._vector
        wide = [axis for axis in others if extent(axis) > 1]
        # Along which pieces have several tiles beside those of rows.
        self._panel = next((a for a in (self._block, channels, *wide[-1:]) if a is not None), None)
        self._nest = WindowNest(
            found,
            target,
            self._lanes,
            self._vector,
            self._block,
            self._column,
            self._row,
            self._panel,
            self._made_of,
        )
        knobs = self._knobs()
        self.space = space_near(
            self.name, knobs, self._constraints(), self._start(knobs), prior_many=self._nest.prior
        )

    @abstractmethod
    def _choose(self) -> None:
        """Sets the axes of tiles; raises Unfit."""

    # -- the space ---------------------------------------------------------------------------------

    def _knobs(self) -> list[Knob]:
        found, lanes = self._found, self._lanes
        channels, blocks = extent(self._vector), _size(self._block)
        registers = self._target.vector_registers
        column, row = _size(self._column), _size(self._row)
        most = min(4 * lanes, -(-channels // lanes) * lanes)
        whole = channels >= lanes or self._vector in found.slides
        widths = tuple(range(lanes, most + 1, lanes)) if whole else (channels,)
        # Tiles of rows and of channels in a piece: what divides them, whatever the size of a tile.
        high = range(1, min(row, 4) + 1) if self._pieced is self._row else (1,)
        wide = widths if self._panel is self._vector else (1,)
        inner = extent(found.channels[-1]) if found.channels else 1
        return [
            TileKnob("columns", tuple(range(1, min(column, registers) + 1))),
            TileKnob("rows", tuple(range(1, min(row, 4) + 1))),
            TileKnob("width", widths),
            TileKnob("blocks", tuple(range(1, min(blocks, registers) + 1))),
            TileKnob("piece_rows", _shares(_size(self._pieced), high)),
            TileKnob("piece_panels", _shares(_size(self._panel), wide)),
            ChoiceKnob("order", _ORDERS),
            ChoiceKnob("reduction", ("windows", "channels") if found.channels else ("windows",)),
            TileKnob("depth", _depths(inner)),
            TileKnob("unroll", tuple(u for u in (1, 2, 3, 4, 8, 16) if u <= inner)),
            TileKnob("unroll_windows", tuple(range(len(found.windows) + 1))),
            ChoiceKnob("image", ("copied", "in place")),
        ]

    def _copies(self) -> bool:
        """Whether the image is usually copied."""
        found = self._found
        if self._vector in found.slides:
            dim = found.dim_of(self._vector)
            apart = dim is not None and dim.stride > NEAR
            if apart or extent(self._vector) < self._lanes:
                return True
        # Where columns are innermost, the channels of a tile are in lines and pages of their own.
        strewn = found.dims[-1].slides and self._vector in found.outputs
        if self._vector in found.outputs and prod(map(extent, found.channels)) <= _FEW:
            return False
        return bool(found.channels) and (found.is_padded or strewn)

    @property
    def _pieced(self) -> IterVar:
        """The axis whose tiles pieces of parallel work share out beside the panels."""
        return next(a for a in (self._row, self._column, self._vector) if a is not None)

    def _knob_of(self, axis: IterVar) -> str:
        """The knob with the size of tiles along an axis."""
        roles = ((self._row, "rows"), (self._block, "blocks"), (self._column, "columns"))
        return next((name for role, name in roles if role is axis), "width")

    def _constraints(self) -> list[Constraint]:
        found, lanes = self._found, self._lanes
        registers = self._target.vector_registers
        stack = self._target.stack_bytes // _STACK_SHARE
        inner = extent(found.channels[-1]) if found.channels else 1
        written = np.cumprod([1, *(extent(axis) for axis in reversed(found.windows))])
        pieced = extent(self._pieced)
        tile = ("columns", "rows", "width", "blocks")

        def vectors(c: Any, r: Any, w: Any, b: Any) -> Any:
            return c * r * b * -(-w // lanes)

        def code(c: Any, r: Any, w: Any, b: Any, u: Any, n: Any) -> Any:
            return vectors(c, r, w, b) * u * written[n]

        return [
            Constraint(
                "registers",
                tile,
                lambda *sizes: vectors(*sizes) <= registers,
                lambda *sizes: f"{vectors(*sizes)} vectors of sums; registers: {registers}",
                vectorised=True,
            ),
            Constraint(
                "rows of a piece",
                ("piece_rows", self._knob_of(self._pieced)),
                lambda tiles, size: (tiles - 1) * size < pieced,
                lambda tiles, size: f"{tiles} tiles of {size}; elements: {pieced}",
                vectorised=True,
            ),
            Constraint(
                "parts of the reduction",
                ("order", "depth", "unroll"),
                lambda order, depth, unroll: (
                    (depth == inner) | ((order == _ORDERS[0]) & (depth > unroll))
                ),
                lambda order, depth, unroll: (
                    f"{depth} of {inner} channels a pass take the order '{_ORDERS[0]}' (here "
                    f"'{order}') and more channels than are unrolled ({unroll})"
                ),
                vectorised=True,
            ),
            Constraint(
                "stack",
                tile,
                lambda *sizes: vectors(*sizes) * self._target.vector_bytes <= stack,
                lambda *sizes: f"{vectors(*sizes)} vectors of sums; bytes for them: {stack}",
                vectorised=True,
            ),
            Constraint(
                "unrolled code",
                (*tile, "unroll", "unroll_windows"),
                lambda *sizes: code(*sizes) <= _MOST_UNROLLED,
                lambda *sizes: f"{code(*sizes)} vector operations; allowed: {_MOST_UNROLLED}",
                vectorised=True,
            ),
            Constraint(
                "unrolled windows",
                ("reduction", "unroll", "unroll_windows"),
                lambda order, u, n: (order == "channels") | (u >= inner) | (n == 0),
                lambda order, u, n: (
                    f"{n} axes of the window are written out around a loop of {inner // u} steps "
                    "over channels"
                ),
                vectorised=True,
            ),
        ]

    def _start(self, knobs: Sequence[Knob]) -> Configuration:
        """The best of some tiles by the prior, with what else is usual."""
        usual = self._usual()
        tile = ("columns", "rows", "width", "blocks", "depth")
        pieces = ("piece_rows", "piece_panels")
        sizes = {knob.name: np.array(_values(knob)) for knob in knobs if knob.name in tile + pieces}
        # Tiles by one piece of all the work, then pieces for the best of them.
        grid = np.meshgrid(*(sizes[n] for n in tile), indexing="ij")
        values = {n: one.reshape(-1) for n, one in zip(tile, grid, strict=True)}
        values |= {n: np.full(grid[0].size, sizes[n].max()) for n in pieces}
        few = self._best(values, usual, _MOST_TILES, pieced=False)
        chosen, rows, panels = np.meshgrid(few, *(sizes[n] for n in pieces), indexing="ij")
        values = {n: values[n][chosen.reshape(-1)] for n in tile}
        values |= {"piece_rows": rows.reshape(-1), "piece_panels": panels.reshape(-1)}
        (best,) = self._best(values, usual, 1, pieced=True)
        return Configuration.of({**usual, **{n: int(values[n][best]) for n in (*tile, *pieces)}})

    def _usual(self) -> dict[str, Value]:
        """Knobs that are not chosen by the prior."""
        found = self._found
        inner = extent(found.channels[-1]) if found.channels else 1
        return {
            "order": _ORDERS[0] if found.outputs or self._column is None else _ORDERS[1],
            # Also where vectors are columns: 0.99 to 1.32 times as fast as with channels outside.
            "reduction": "windows",
            "unroll": max(u for u in (1, 2, 3, 4) if u <= inner and (u != 3 or inner == 3)),
            "unroll_windows": 0 if found.channels else 1 if self._is_long else len(found.windows),
            "image": "copied" if self._copies() else "in place",
        }

    @property
    def _is_long(self) -> bool:
        """Whether the code for windows that are cut off at edges would be long: 5x5 ones of which
        only rows are written out took 0.13 to 0.59 s to build, 0.30 to 0.90 as a whole."""
        found = self._found
        return found.is_padded and prod(map(extent, found.windows)) > _SHORT

    def _best(
        self, values: Mapping[str, Any], usual: Mapping[str, Value], most: int, *, pieced: bool
    ) -> Any:
        """The places of the best by the guess, of those that the rules allow."""
        count = len(values["depth"])
        values = {**{n: np.full(count, value) for n, value in usual.items()}, **values}
        allowed = np.ones(count, dtype=bool)
        for rule in self._constraints():
            if pieced or rule.name != "rows of a piece":
                allowed &= np.asarray(rule.check(*(values[n] for n in rule.knobs)))
        if not allowed.any():
            raise Unfit("the rules leave no tile")
        seconds = np.where(allowed, self._nest.seconds(values, whole=not pieced), np.inf)
        return np.argsort(seconds, kind="stable")[: min(most, int(allowed.sum()))]

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        found = self._found
        values = dict(configuration.items)
        numbers = numbers_of(values)
        tile = {axis: numbers[self._knob_of(axis)] for axis in self._tiled}
        by_windows = values["reduction"] == "windows"
        *outer, inner = found.channels or (None,)
        split_last = [inner] if inner is not None else []
        reduced = (
            [*found.windows, *outer, *split_last]
            if by_windows
            else [*outer, *split_last, *found.windows]
        )
        copied = values["image"] == "copied"
        made = written_anew(
            found,
            tile,
            self._vector,
            [a for a in reduced if a is not None],
            copied=copied,
            depth=numbers["depth"],
            computed=self._computed(numbers),
        )
        s = made.schedule
        output, sums = s[made.output], s[made.sums]
        sums.set_scope("local")

        # Loops of the output: pieces of parallel work, then tiles, then the elements of a tile.
        pieces: list[IterVar] = []
        phases: list[IterVar] = []
        loops: dict[str, list[IterVar]] = {"panels": [], "rows": [], "columns": []}
        inside: dict[IterVar, IterVar] = {}
        counts: dict[IterVar, int] = {}
        columns = self._column if self._vector not in found.slides else self._vector
        for axis in found.order:
            if axis is None:
                continue
            tiles = made.axes[axis]
            if axis in found.phases:
                tiles, phase = output.split(tiles, found.phases[axis].count)
                phases.append(phase)
            if axis in tile:
                # Whole vectors also where the result ends before.
                most = tile[axis] if axis is self._vector else min(tile[axis], extent(axis))
                tiles, inside[axis] = output.split(tiles, most)
                count = -(-extent(axis) // most)
            elif axis is not self._panel:
                pieces.append(tiles)
                continue
            else:
                count = extent(axis)
            if axis is self._pieced or axis is self._panel:
                share = numbers["piece_rows" if axis is self._pieced else "piece_panels"]
                piece, tiles = output.split(tiles, share)
                pieces.append(piece)
                count = min(share, count)
            counts[tiles] = count
            kind = "columns" if axis is columns else "rows" if axis is self._row else "panels"
            loops[kind].append(tiles)
        units = [a for a, old in zip(output.op.axis, found.order, strict=True) if old is None]
        ordered = [loop for kind in str(values["order"]).split() for loop in loops[kind]]
        elements = [inside[axis] for axis in self._tiled]
        output.reorder(*units, *pieces, *phases, *ordered, *elements)
        part = output.fuse(*units, *pieces) if len(units) + len(pieces) > 1 else pieces[0]
        output.parallel(part)
        self._unrolled(output, elements)

        # The image: the piece's part of it in memory of its own, or read where it is.
        if copied:
            image = s[made.image]
            image.compute_at(output, part)
            image.set_scope("shared")
            self._fill(s, image, values)

        # The sums: of one tile, or of all tiles of a panel where the reduction comes in parts.
        deep = inner is not None and numbers["depth"] < extent(inner)
        sums.compute_at(output, loops["panels"][-1] if deep else ordered[-1])
        axes = dict(made.places)
        steps = [made.axes[a] for a in reduced if a is not None]
        windows = [made.axes[a] for a in found.windows]
        at = steps.index(made.axes[inner]) if inner is not None else 0
        if deep:
            part, steps[at] = sums.split(steps[at], numbers["depth"])
            parts = s[s.rfactor(made.sums, part)]
            parts.set_scope("local")
            whole = dict(zip(axes, parts.op.axis[1:], strict=True))
            around = [a for a in (self._row, columns) if a is not None]
            each = [sums.split(axes[a], tile[a]) for a in around]
            rest = [new for old, new in axes.items() if old not in tile]
            axes |= {a: within for a, (_, within) in zip(around, each, strict=True)}
            elements = [axes[a] for a in self._tiled]
            sums.reorder(*rest, *sums.op.reduce_axis, *(tiles for tiles, _ in each), *elements)
            self._unrolled(sums, elements)
            parts.compute_at(sums, each[-1][0])
            sums, axes = parts, whole
        unrolled: list[IterVar] = []
        if inner is not None:
            steps[at], last = sums.split(steps[at], numbers["unroll"])
            steps.insert(at + 1, last)
            unrolled.append(last)
            in_panels = self._panel in found.outputs and values["order"] == _ORDERS[0]
            if made.packings and in_panels:
                (position,) = made.packings
                turns = [counts[loop] for loop in (*loops["rows"], *loops["columns"])]
                steps[at : at + 1] = fetched_ahead(
                    sums,
                    made.arguments[position],
                    loops["panels"][-1],
                    steps[at],
                    count=-(-numbers["depth"] // numbers["unroll"]),
                    turns=prod((*turns, *map(extent, found.op.reduce_axis))) // numbers["depth"],
                    share=prod(-(-extent(a) // tile[a]) for a in found.outputs if a in tile),
                    cache_bytes=self._target.l2_bytes,
                    work=numbers["unroll"] * prod(tile.values()) // self._lanes,
                )
        unrolled += windows[len(windows) - numbers["unroll_windows"] :]
        rest = [new for old, new in axes.items() if old not in tile]
        elements = [axes[a] for a in self._tiled]
        sums.reorder(*rest, *steps, *elements)
        for step in unrolled:
            sums.unroll(step)
        self._unrolled(sums, elements)
        return SketchedKernel(s, made.arguments, made.packings)

    def _computed(self, numbers: Mapping[str, int]) -> Computed | None:
        """What makes the elements of a copied image; None where it is the image's own."""
        return None

    def _fill(self, schedule: Schedule, image: Stage, values: Mapping[str, Value]) -> None:
        """Schedules the loops that copy the image."""
        image.vectorize(image.op.axis[-1])

    @staticmethod
    def _unrolled(stage: Stage, elements: Sequence[IterVar]) -> None:
        """Writes a tile's elements out, the last axis as vectors."""
        for axis in elements[:-1]:
            stage.unroll(axis)
        stage.vectorize(elements[-1])


class ChannelWindowsSketch(WindowsSketch):
    """Vectors of neighbouring channels; tiles of them by columns and rows.

    Where the vectors are output channels (a convolution), an element of the image is multiplied
    with all vectors of the tile; where they are the image's own channels (depthwise, pooling), the
    elements of a window that neighbouring columns share are read once.
    """

    name = "channel-windows"

    def _choose(self) -> None:
        found = self._found
        wide = [a for a in found.order if a is not None and (extent(a) > 1 or a in found.slides)]
        outputs = [axis for axis in wide if axis in found.outputs]
        if wide[-1] not in found.slides:
            self._vector = wide[-1]
        elif outputs:
            self._vector = outputs[-1]
        else:
            # The result is transposed: channels are where the image has them.
            channels = found.dims[-1].data
            if channels is None or channels not in wide or channels in found.slides:
                raise Unfit("columns are innermost, and nothing else is in the image or the result")
            self._vector = channels
        others = [axis for axis in outputs if axis is not self._vector]
        self._block = others[-1] if others else None
        *rows, self._column = found.slides
        self._row = rows[-1] if rows else None


class ColumnWindowsSketch(WindowsSketch):
    """Vectors of neighbouring columns, where these lie side by side in the image and the result;
    tiles of them by output channels, and by rows. An element of the filter is multiplied with all
    vectors of its channel.
    """

    name = "column-windows"

    def _choose(self) -> None:
        found = self._found
        wide = [a for a in found.order if a is not None and (extent(a) > 1 or a in found.slides)]
        *rows, self._vector = found.slides
        if wide[-1] is not self._vector or found.dims[-1].data is not self._vector:
            raise Unfit("columns are not innermost in the image and the result")
        if extent(self._vector) == 1:
            raise Unfit("there is one column")
        self._column = None
        self._row = rows[-1] if rows else None
        self._block = found.outputs[-1] if found.outputs else None


def numbers_of(values: Mapping[str, Value]) -> dict[str, int]:
    """Those of a configuration's values that are numbers.

    Args:
        values: by their knobs.
    """
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _size(axis: IterVar | None) -> int:
    return extent(axis) if axis is not None else 1


def _values(knob: Knob) -> list[int]:
    return [int(str(knob.value(at))) for at in range(knob.cardinality)]


def _shares(size: int, tiles: Sequence[int]) -> tuple[int, ...]:
    """How many tiles a piece may have along an axis."""
    counts = {-(-size // tile) for tile in tiles}
    return tuple(sorted({share for count in counts for share in tile_sizes(count, count)}))


def _depths(channels: int) -> tuple[int, ...]:
    """Parts of the channels: all, and halves of these down to what is worth a pass of its own."""
    found = [channels]
    while found[-1] % 2 == 0 and found[-1] >= 32:
        found.append(found[-1] // 2)
    return tuple(reversed(found))


SKETCHES: tuple[type[Sketch], ...] = (ChannelWindowsSketch, ColumnWindowsSketch)
