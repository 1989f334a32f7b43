"""Sliding windows: convolutions and pooling as tiles of accumulators in vector registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.schedule.codegen.versions import MOST_VERSIONED
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.sliding import SlidingReduction, sliding_reduction
from tilewright.sketch.structure import extent, tile_sizes, widest_bits
from tilewright.sketch.window_cost import NEAR, WindowNest
from tilewright.sketch.window_rewriting import Computed, written_anew
from tilewright.sketch.window_schedule import ORDERS, WindowSchedule, turn
from tilewright.sketch.window_tiles import WindowTiles
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.search_space import SearchSpace
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Tiles of which the best pieces are looked for.
_MOST_TILES = 48
# Vector instructions that one step of the innermost loop may be unrolled to.
_MOST_UNROLLED = 512
# Those of the versions of it together, where sizes do not divide.
_MOST_WRITTEN = 2 * _MOST_UNROLLED
# Of a tile, elements times unrolled channels, where its code is written for each of the edges: the
# emitter writes no versions of longer code.
_MOST_CUT = MOST_VERSIONED // 4
# Windows of so many elements are short.
_SHORT = 9
# Channels of a picture, of which an element is as quickly read where it is: a first layer of 16, 32
# and 64 channels took 0.045, 0.068 and 0.69 ms in place, 0.058, 0.089 and 0.74 with a copy.
_FEW = 4
# Of the stack, for the sums of a tile.
_STACK_SHARE = 4
# Rules about what is asked for once there are tiles.
_ROWS_OF_A_PIECE, _PANELS_OF_A_PIECE = "rows of a piece", "panels of a piece"


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

    # Products that an element of a copied image is the sum of.
    _made_of = 0

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._found = found = sliding_reduction(site)
        self._target = target
        self._lanes = target.lanes(widest_bits(found.body))
        self._tiles = self._choose(found)
        self._nest = WindowNest(self._tiles, target, self._lanes, self._made_of)

    @cached_property
    def work(self) -> float:  # type: ignore[override]
        """See :class:`Sketch`; of windows side by side little lies beyond the edges."""
        apart = any(dim.dilation > 1 for dim in self._found.dims)
        copied = self._usual()["image"] == "copied"
        return self._nest.in_place if apart and not copied else 1.0

    @abstractmethod
    def _choose(self, found: SlidingReduction) -> WindowTiles:
        """The axes of tiles; raises Unfit."""

    # -- the space ---------------------------------------------------------------------------------

    @cached_property
    def space(self) -> SearchSpace:  # type: ignore[override]
        """The knobs; made when it is asked for, since who compiles a kernel does not. Raises Unfit
        where the rules leave no tile."""
        knobs = self._knobs()
        default = self.best[0] if self.best else self._start(knobs)
        return space_near(
            self.name, knobs, self._constraints(), default, prior_many=self._nest.prior
        )

    def _knobs(self) -> list[Knob]:
        found, lanes = self._found, self._lanes
        channels, blocks = extent(self._tiles.vector), _size(self._tiles.block)
        registers = self._target.vector_registers
        column, row = _size(self._tiles.column), _size(self._tiles.row)
        most = min(4 * lanes, -(-channels // lanes) * lanes)
        vector = self._tiles.vector
        # A filter that is packed ahead has whole vectors, whatever the channels.
        packed = vector in found.outputs and found.filter_input is not None
        whole = channels >= lanes or packed or vector in found.slides
        widths = tuple(range(lanes, most + 1, lanes)) if whole else (channels,)
        if vector in found.outputs and not packed:
            # LLVM has what multiplies a shorter vector beside whole ones in registers of two kinds,
            # and spills (AVX2, 64x64x64 to 12 channels, as 8 and 4 in a tile: 1.48 ms; 16: 0.85).
            widths = tuple(w for w in widths if channels % w <= lanes or not channels % w % lanes)
        # Tiles of rows and of channels in a piece: what divides them, whatever the size of a tile.
        high = range(1, min(row, 4) + 1) if self._tiles.pieced is self._tiles.row else (1,)
        wide = widths if self._tiles.panel is self._tiles.vector else (1,)
        inner = extent(found.channels[-1]) if found.channels else 1
        depths, panels = _depths(inner), _shares(_size(self._tiles.panel), wide)
        images: tuple[str, ...] = ("copied", "in place")
        if self._tiles.turns:
            # One copy is for all channels of the result: these are few, and copying takes long.
            depths, panels, images = (inner,), panels[-1:], ("copied",)
        return [
            TileKnob("columns", tuple(range(1, min(column, registers) + 1))),
            TileKnob("rows", tuple(range(1, min(row, 4) + 1))),
            TileKnob("width", widths),
            TileKnob("blocks", tuple(range(1, min(blocks, registers) + 1))),
            TileKnob("piece_rows", _shares(_size(self._tiles.pieced), high)),
            TileKnob("piece_panels", panels),
            ChoiceKnob("order", ORDERS),
            ChoiceKnob("reduction", ("windows", "channels") if found.channels else ("windows",)),
            TileKnob("depth", depths),
            TileKnob("unroll", tuple(u for u in (1, 2, 3, 4, 8, 16) if u <= inner)),
            TileKnob("unroll_windows", tuple(range(len(found.windows) + 1))),
            ChoiceKnob("image", images),
        ]

    def _copies(self) -> bool:
        """Whether the image is usually copied."""
        found = self._found
        if self._tiles.turns:
            return True
        if self._tiles.vector in found.slides:
            dim = found.dim_of(self._tiles.vector)
            apart = dim is not None and dim.stride > NEAR
            if apart or extent(self._tiles.vector) < self._lanes:
                return True
        # Where columns are innermost, the channels of a tile are in lines and pages of their own.
        edges = self._nest.edges
        innermost = found.dims[-1] if edges is None else edges.innermost(found.dims)
        strewn = innermost is not None and innermost.slides
        strewn = strewn and self._tiles.vector in found.outputs
        if self._tiles.vector in found.outputs and prod(map(extent, found.channels)) <= _FEW:
            return False
        checked = found.is_padded and not self._nest.leaves_out
        return bool(found.channels) and (checked or strewn)

    def _constraints(self) -> list[Constraint]:
        found, lanes = self._found, self._lanes
        registers = self._target.vector_registers
        stack = self._target.stack_bytes // _STACK_SHARE
        inner = extent(found.channels[-1]) if found.channels else 1
        written = np.cumprod([1, *(extent(axis) for axis in reversed(found.windows))])
        pieced = extent(self._tiles.pieced)
        column, row = _size(self._tiles.column), _size(self._tiles.row)
        channels = extent(self._tiles.vector)
        is_cut = self._nest.leaves_out and bool(found.channels)
        most_cut = _MOST_CUT if is_cut else _MOST_UNROLLED
        tile = ("columns", "rows", "width", "blocks")

        def vectors(c: Any, r: Any, w: Any, b: Any) -> Any:
            return c * r * b * -(-w // lanes)

        def code(c: Any, r: Any, w: Any, b: Any, u: Any, n: Any) -> Any:
            return vectors(c, r, w, b) * u * written[n]

        def versions(c: Any, r: Any, w: Any, b: Any, u: Any, n: Any) -> Any:
            tiled = ((column, c), (row, r), (channels, w), (inner, u))
            return prod(1 + ((size > tile) & (size % tile > 0)) for size, tile in tiled)

        return [
            Constraint(
                "registers",
                tile,
                lambda *sizes: vectors(*sizes) <= registers,
                lambda *sizes: f"{vectors(*sizes)} vectors of sums; registers: {registers}",
                vectorised=True,
            ),
            Constraint(
                _ROWS_OF_A_PIECE,
                ("piece_rows", self._tiles.knob_of(self._tiles.pieced)),
                lambda tiles, size: (tiles - 1) * size < pieced,
                lambda tiles, size: f"{tiles} tiles of {size}; elements: {pieced}",
                vectorised=True,
            ),
            *self._panels_of_pieces(),
            Constraint(
                "parts of the reduction",
                ("order", "depth", "unroll"),
                lambda order, depth, unroll: (
                    (depth == inner) | ((order == ORDERS[0]) & (depth > unroll))
                ),
                lambda order, depth, unroll: (
                    f"{depth} of {inner} channels a pass take the order '{ORDERS[0]}' (here "
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
                "code of remainders",
                (*tile, "unroll", "unroll_windows"),
                lambda *sizes: code(*sizes) * versions(*sizes) <= _MOST_WRITTEN,
                lambda *sizes: (
                    f"{code(*sizes)} vector operations in {versions(*sizes)} versions, for what "
                    f"does not divide; allowed: {_MOST_WRITTEN}"
                ),
                vectorised=True,
            ),
            Constraint(
                "edges",
                ("image", *tile, "unroll", "unroll_windows"),
                lambda image, c, r, _, b, u, n: (
                    (image == "copied") | (c * r * b * u * written[n] <= most_cut)
                ),
                lambda image, c, r, _, b, u, n: (
                    f"{c * r * b * u * written[n]} elements in a step of windows that are cut off "
                    f"at edges; allowed: {most_cut}"
                ),
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
            Constraint(
                "unrolled channels",
                ("reduction", "unroll", "unroll_windows"),
                lambda order, u, n: (order == "windows") | (u == 1) | (written[n] == written[-1]),
                lambda order, u, n: (
                    f"{u} channels are written out around loops over {len(found.windows) - n} axes "
                    "of the window"
                ),
                vectorised=True,
            ),
        ]

    def _panels_of_pieces(self) -> list[Constraint]:
        """No more panels in a piece than there are, where their number hangs on a tile's size."""
        tiles = self._tiles
        panel = tiles.panel
        if panel is None or panel not in tiles.tiled or tiles.turns:
            return []
        size = extent(panel)
        return [
            Constraint(
                _PANELS_OF_A_PIECE,
                ("piece_panels", tiles.knob_of(panel)),
                lambda count, tile: (count - 1) * tile < size,
                lambda count, tile: f"{count} tiles of {tile}; channels: {size}",
                vectorised=True,
            )
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
            "order": ORDERS[0] if found.outputs or self._tiles.column is None else ORDERS[1],
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
            if pieced or rule.name not in (_ROWS_OF_A_PIECE, _PANELS_OF_A_PIECE):
                allowed &= np.asarray(rule.check(*(values[n] for n in rule.knobs)))
        if not allowed.any():
            raise Unfit("the rules leave no tile")
        seconds = np.where(allowed, self._nest.seconds(values, whole=not pieced), np.inf)
        return np.argsort(seconds, kind="stable")[: min(most, int(allowed.sum()))]

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = dict(configuration.items)
        numbers = numbers_of(values)
        tiles = self._tiles
        steps = tiles.steps(by_windows=values["reduction"] == "windows")
        copied = values["image"] == "copied"
        made = written_anew(
            self._found,
            {axis: numbers[tiles.knob_of(axis)] for axis in tiles.tiled},
            tiles.vector,
            steps,
            copied=copied,
            lanes=self._lanes,
            depth=numbers["depth"],
            computed=self._computed(numbers),
        )
        s = made.schedule
        loops = WindowSchedule(
            tiles, made, numbers, str(values["order"]), self._target, self._lanes
        )
        if copied:
            # The piece's part of the image in memory of its own.
            image = s[made.image]
            image.compute_at(s[made.output], loops.part)
            image.set_scope("shared")
            self._fill(s, image, values)
        loops.add_up(steps)
        return SketchedKernel(s, made.arguments, made.packings)

    def _computed(self, numbers: Mapping[str, int]) -> Computed | None:
        """What makes the elements of a copied image; None where it is the image's own."""
        return None

    def _fill(self, schedule: Schedule, image: Stage, values: Mapping[str, Value]) -> None:
        """Schedules the loops that copy the image."""
        if self._tiles.turns:
            turn(self._found, schedule, image, self._tiles.vector, self._lanes)
        else:
            image.vectorize(image.op.axis[-1])


class ChannelWindowsSketch(WindowsSketch):
    """Vectors of neighbouring channels; tiles of them by columns and rows.

    Where the vectors are output channels (a convolution), an element of the image is multiplied
    with all vectors of the tile; where they are the image's own channels (depthwise, pooling), the
    elements of a window that neighbouring columns share are read once.
    """

    name = "channel-windows"

    def _choose(self, found: SlidingReduction) -> WindowTiles:
        wide = [a for a in found.order if a is not None and (extent(a) > 1 or a in found.slides)]
        outputs = [axis for axis in wide if axis in found.outputs]
        if wide[-1] not in found.slides:
            vector = wide[-1]
        elif outputs:
            vector = outputs[-1]
        else:
            # The result is transposed: channels are where the image has them.
            channels = found.dims[-1].data
            if channels is None or channels not in wide or channels in found.slides:
                raise Unfit("columns are innermost, and nothing else is in the image or the result")
            vector = channels
        others = [axis for axis in outputs if axis is not vector]
        block = others[-1] if others else None
        *rows, column = found.slides
        return WindowTiles(found, vector, block, column, rows[-1] if rows else None)


class ColumnWindowsSketch(WindowsSketch):
    """Vectors of neighbouring columns, where these lie side by side in the image and the result, or
    the output channels are fewer than a vector has lanes; tiles of them by output channels, and by
    rows. An element of the filter is multiplied with all vectors of its channel.
    """

    name = "column-windows"

    def _choose(self, found: SlidingReduction) -> WindowTiles:
        wide = [a for a in found.order if a is not None and (extent(a) > 1 or a in found.slides)]
        *rows, vector = found.slides
        thin = self._is_thin(found)
        if wide[-1] is not vector and not thin:
            raise Unfit("columns are not innermost in the result")
        if extent(vector) == 1:
            raise Unfit("there is one column")
        block = found.outputs[-1] if found.outputs else None
        tiles = WindowTiles(found, vector, block, None, rows[-1] if rows else None)
        if tiles.turns and not thin:
            raise Unfit("columns are not innermost in the image, and channels fill vectors")
        return tiles

    def _is_thin(self, found: SlidingReduction) -> bool:
        """Whether the result has fewer channels than a vector lanes, of an image of channels that
        lie side by side."""
        innermost = found.dims[-1]
        channels = prod(map(extent, found.outputs))
        return innermost.data is None and bool(found.channels) and channels < self._lanes


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
