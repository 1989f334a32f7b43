"""Chains of a 1x1 convolution and windows over its result, in bands of rows.

What the first makes is written and read again, and in a network is several times as large as what
it is made of. Here each piece of the windows' work computes the part of it that it reads, in memory
of its own that the second-level cache holds; the rows that neighbouring bands both read are
computed twice. (The fused layer of Alwani et al., "Fused-layer CNN accelerators", MICRO 2016.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.schedule.expr import Expr, const, substitute
from tilewright.schedule.functions import maximum, minimum
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
    compute,
    placeholder,
    reads,
    reduce_axis,
)
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import transform
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.sketch.sliding import SlidingReduction, with_producers
from tilewright.sketch.structure import computed_stages, extent, rewritten
from tilewright.sketch.tile_operand import tiles_of
from tilewright.sketch.window_cost import made_width
from tilewright.sketch.window_rewriting import Computed, Element
from tilewright.sketch.window_tiles import WindowTiles
from tilewright.sketch.windows import ChannelWindowsSketch, numbers_of
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Unfit
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Which loop is outside: whether weights or what they are multiplied with stay in the first cache.
_ORDERS = ("panels rows", "rows panels")
# Steps of the first sums that are written out.
_UNROLLED = 4


class BandsSketch(ChannelWindowsSketch):
    """Windows over what sums of products make, which each piece of the work computes for itself.

    Knobs: those of windows, whose image is copied; `made_columns` and `made_width`, the tile in
    registers in which the copy is computed, `made_width` of it along vectors; `made_order`, whether
    panels of as many channels or rows are the outer loop there.
    """

    name = "bands"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._whole = site
        self._first, self._made = _first_sums(site)
        self._made_of = prod(map(extent, self._first.reduce_axis))
        self._packings: dict[tuple[int, int], _Weights | None] = {}
        output = rewritten(site.output, {self._first.outputs[0]: lambda at: self._made(*at)})
        inputs, constant = (*site.inputs, self._made), (*site.constant, False)
        super().__init__(SiteExpression(inputs, constant, output), target)

    def _choose(self, found: SlidingReduction) -> WindowTiles:
        tiles = super()._choose(found)
        if tiles.column is None or found.dims[-1].data is not tiles.vector or found.channels:
            raise Unfit("the windows' image has no columns, or its channels are added up")
        image = [
            r for r in reads(with_producers(found.image, self._made)) if r.tensor is self._made
        ]
        if len(image) != 1 or not _is_read_once(found.site.output, self._made):
            raise Unfit("the first sums are read elsewhere, or not by the windows")
        return tiles

    def _knobs(self) -> list[Knob]:
        knobs = [k for k in super()._knobs() if k.name != "image"]
        lanes, registers = self._lanes, self._target.vector_registers
        wide = tiles_of(min(4 * lanes, extent(self._tiles.vector)), lanes) * lanes
        return [
            *knobs,
            ChoiceKnob("image", ("copied",)),
            ChoiceKnob("made_order", _ORDERS),
            TileKnob("made_columns", tuple(range(1, registers))),
            TileKnob("made_width", tuple(range(lanes, wide + 1, lanes))),
        ]

    def _constraints(self) -> list[Constraint]:
        lanes, registers = self._lanes, self._target.vector_registers
        channels = extent(self._tiles.vector)

        def needed(columns: Any, width: Any) -> Any:
            return (columns + 1) * (width // lanes)

        return [
            *super()._constraints(),
            Constraint(
                "registers of the image",
                ("made_columns", "made_width"),
                lambda *sizes: needed(*sizes) < registers,
                lambda *sizes: (
                    f"{needed(*sizes)} vectors of sums and weights beside an element; "
                    f"registers: {registers}"
                ),
                vectorised=True,
            ),
            Constraint(
                "panels of the image",
                ("piece_panels", "width", "made_width"),
                lambda panels, width, made: (
                    ((panels * width) % made == 0) | (panels * width >= channels)
                ),
                lambda panels, width, made: (
                    f"{panels * width} channels of a piece are no multiple of {made}"
                ),
                vectorised=True,
            ),
        ]

    def _usual(self) -> dict[str, Value]:
        usual = {**super()._usual(), "image": "copied", "made_order": _ORDERS[1]}
        return {**usual, "made_columns": 1, "made_width": self._lanes}

    def _start(self, knobs: Sequence[Knob]) -> Configuration:
        chosen = dict(super()._start(knobs).items)
        lanes, most = self._lanes, self._target.vector_registers - 1
        channels, numbers = extent(self._tiles.vector), numbers_of(chosen)
        together = numbers["piece_panels"] * numbers["width"]
        best, _ = made_width(np.array([min(together, channels)]), lanes)
        width = int(best[0])
        if together < channels and together % width:
            width = lanes
        # As few tiles along the columns as there can be, of one size.
        assert self._tiles.column is not None
        columns = extent(self._tiles.column)
        tiles = tiles_of(columns, max(1, most // (width // lanes) - 2))
        made = {"made_columns": tiles_of(columns, tiles), "made_width": width}
        return Configuration.of({**chosen, **made})

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        kernel = super().schedule(configuration)
        inputs, packings = list(kernel.arguments[:-2]), dict(kernel.packings)
        weights = self._packed(numbers_of(dict(configuration.items)))
        if weights is not None:
            inputs[weights.position] = weights.packed
            packings[weights.position] = weights.packing
        return replace(kernel, arguments=(*inputs, kernel.arguments[-1]), packings=packings)

    def _computed(self, numbers: Mapping[str, int]) -> Computed:
        weights = self._packed(numbers)

        def computed(shape: tuple[int, ...], image: Element) -> Element:
            band = compute(
                shape, lambda *at: self._sum(self._read(image, at), weights), name="band"
            )

            def element(at: Sequence[Expr]) -> Expr:
                def computed_here(node: Expr) -> Expr | None:
                    is_sum = isinstance(node, TensorRead) and node.tensor is self._made
                    return TensorRead(band, tuple(at)) if is_sum else None

                return transform(with_producers(image(at), self._made), computed_here)

            return element

        return computed

    def _read(self, image: Element, at: Sequence[Expr]) -> TensorRead:
        """The one read of the first sums in an element of the image."""
        found = reads(with_producers(image(at), self._made))
        return next(read for read in found if read.tensor is self._made)

    def _sum(self, read: TensorRead, weights: _Weights | None) -> Reduce:
        """What a read of the first sums stands for."""
        first = self._first
        body = with_producers(first.body[0], self._made)
        assert isinstance(body, Reduce)
        fresh = {a: reduce_axis((0, extent(a)), a.name) for a in first.reduce_axis}
        values: dict[Expr, Expr] = dict(fresh.items())
        for axis, place in zip(first.axis, read.indices, strict=True):
            there = weights.channels if weights is not None and axis is weights.data else 0
            inside = isinstance(place, IterVar) and extent(place) <= max(extent(axis), there)
            # Beyond an edge any element will do: it is not used.
            last = const(extent(axis) - 1, INDEX)
            values[axis] = place if inside else minimum(maximum(place, const(0, INDEX)), last)

        def packed(node: Expr) -> Expr | None:
            if weights is None or not isinstance(node, TensorRead):
                return None
            mine = node.tensor is weights.tensor
            return weights.packing.read(weights.packed, node.indices) if mine else None

        return replace(
            body,
            sources=tuple(substitute(transform(one, packed), values) for one in body.sources),
            axes=tuple(fresh[a] for a in body.axes),
            condition=substitute(body.condition, values),
        )

    def _fill(self, schedule: Schedule, image: Stage, values: Mapping[str, Value]) -> None:
        numbers = numbers_of(values)
        (band,) = (
            tensor
            for tensor in image.compute.input_tensors
            if isinstance(tensor.op, ComputeOp) and tensor.op.reduction is not None
        )
        *outer, columns, channels = image.op.axis
        tiles, columns = image.split(columns, numbers["made_columns"])
        panels, channels = image.split(channels, numbers["made_width"])
        if values["made_order"] == _ORDERS[0]:
            image.reorder(panels, *outer, tiles, columns, channels)
        else:
            image.reorder(*outer, panels, tiles, columns, channels)
        image.unroll(columns)
        image.vectorize(channels)
        sums = schedule[band]
        sums.set_scope("local")
        sums.compute_at(image, tiles)
        *outer, columns, channels = sums.op.axis
        *steps, last = sums.op.reduce_axis
        last, written = sums.split(last, min(_UNROLLED, extent(last)))
        sums.reorder(*outer, *steps, last, written, columns, channels)
        sums.unroll(written)
        sums.unroll(columns)
        sums.vectorize(channels)

    def _packed(self, numbers: Mapping[str, int]) -> _Weights | None:
        """The first sums' weights in panels; None where they are read in place."""
        key = numbers["made_width"], numbers["width"]
        if key not in self._packings:
            self._packings[key] = self._packing(*key)
        return self._packings[key]

    def _packing(self, width: int, together: int) -> _Weights | None:
        """The weights in panels of a width, for all channels of whole tiles."""
        first, site = self._first, self._whole
        for read in reads(with_producers(first.body[0], self._made)):
            if read.tensor not in site.inputs:
                continue
            position = site.inputs.index(read.tensor)
            plain = all(isinstance(one, IterVar) for one in read.indices)
            data = [a for a in first.axis if a in read.indices and extent(a) > 1]
            if not site.constant[position] or not plain or len(data) != 1:
                continue
            split: list[tuple[int, ...]] = []
            pad: list[int] = []
            ranks: list[tuple[int, int]] = []
            channels = 0
            for index, size in zip(read.indices, read.tensor.shape, strict=True):
                if index is data[0]:
                    panels = tiles_of(tiles_of(size, together) * together, width)
                    channels = panels * width
                    split.append((panels, width))
                    pad.append(channels - size)
                    ranks += [(0, 0), (2, 0)]
                else:
                    split.append((size,))
                    pad.append(0)
                    ranks.append((1, first.reduce_axis.index(index) if size > 1 else -1))
            order = tuple(sorted(range(len(ranks)), key=lambda part: ranks[part]))
            packing = Packing(tuple(pad), tuple(split), order)
            packed = packing.placeholder(read.tensor)
            return _Weights(position, read.tensor, packing, packed, data[0], channels)
        return None


@dataclass(frozen=True)
class _Weights:
    """An input that is packed ahead: which it is, how, what stands for it then, and how many
    channels that has along which axis of the first sums."""

    position: int
    tensor: Tensor
    packing: Packing
    packed: Tensor
    data: IterVar
    channels: int


def _is_read_once(output: Tensor, tensor: Tensor) -> bool:
    """Whether there is one read of a tensor, and of what is computed of it element by element."""
    stages = computed_stages(output)
    while True:
        found = [op for op in stages for body in op.body for r in reads(body) if r.tensor is tensor]
        if len(found) != 1 or found[0].reduction is not None or output in found[0].outputs:
            return len(found) == 1
        (tensor,) = found[0].outputs


def _first_sums(site: SiteExpression) -> tuple[ComputeOp, Tensor]:
    """The first of two reductions, and an input in the place of its result."""
    found = [op for op in computed_stages(site.output) if op.reduction is not None]
    if len(found) != 2:
        raise Unfit(f"{len(found)} reductions instead of two")
    first, _ = found
    if first.num_outputs > 1:
        raise Unfit("its first reduction has several results")
    (made,) = first.outputs
    return first, placeholder(made.shape, made.dtype, name=made.name)


SKETCHES: tuple[type[Sketch], ...] = (BandsSketch,)
