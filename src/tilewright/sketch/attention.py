"""Attention: two contractions around a softmax, a block of queries at a time.

The scores of a block are kept as keys by queries, vectors across queries: maxima and sums of the
softmax are then maxima and sums of vectors, and no vector is ever reduced within itself. Queries
are transposed once; keys are read element by element and values in vectors, where they lie. Whole
rows of scores are in the workgroup's memory, so nothing is rescaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE, ComputeOp, IterVar, Tensor, TensorRead
from tilewright.schedule.types import bits
from tilewright.sketch.access import (
    computed,
    element_bits,
    inline_all,
    laid_out,
    row_scalars,
    same_axes,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.row_chain import with_reciprocals
from tilewright.sketch.structure import axes_of, extent, factors, source_read
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.trial import Configuration, Value

# Registers of a softmax's maxima and sums that are made together.
_ROW_REGISTERS = 8
_MOST_UNROLLED = 512
# Seconds: a vector multiplication and addition, a function of a vector, an element moved alone.
_FMA_S, _FUNCTION_S, _MOVE_S = 0.15e-9, 4e-9, 0.5e-9


class AttentionChain:
    """A schedule, without loops yet, of an attention.

    result: what the schedule is of. scores, product: the stages that are contractions. weights:
    what the product has of the scores.
    between: kept stages from the scores to the weights, producers first; before: those from which
    scores and product are made, to be computed first.
    patterns: of all stages that are not inlined, producers first. row, width: axes of the output,
    queries and the values' own. queries, widths, keys: which axis of a stage is that of the
    queries, of the values, of the keys, where it has one.
    """

    def __init__(self, site: SiteExpression) -> None:
        """Raises Unfit for what is no attention."""
        self.result = with_reciprocals(site.output)
        self.schedule = create_schedule(self.result.op)
        self.output = self.schedule[self.result]
        if self.output.compute.reduction is not None:
            self.schedule.cache_write(self.result, "global")
        reductions = [s for s in computed(self.schedule) if s.compute.reduction is not None]
        contractions = [s for s in reductions if _own_axes(s.compute) is not None]
        if len(contractions) != 2 or len(reductions) < 3:
            raise Unfit("it is not two contractions with a reduction between them")
        self.scores, self.product = contractions
        self.weights = self._weights()
        shared = self._shared_scores()
        if shared is self.scores:
            (made,) = self.schedule.cache_write([*shared.op.outputs], "local")
            self.scores = self.schedule[made]
        most = prod(self.scores.op.output(0).shape)
        scalars = [
            stage
            for stage in row_scalars(self.schedule)
            if prod(stage.op.output(0).shape) < most
            and not self.schedule.feeds(self.product, stage)
        ]
        kept = {s for s in worth_keeping(self.schedule) if s not in scalars}
        kept |= {shared, self.weights}
        self.patterns = inline_all(self.schedule, {*kept, *scalars})
        self.between = [s for s in self.patterns if s in kept and self._follows_scores(s)]
        self.before = [s for s in self.patterns if s in kept and s not in self.between]
        self._find_axes()

    def _follows_scores(self, stage: Stage) -> bool:
        return self.schedule.feeds(self.scores, stage)

    def _weights(self) -> Stage:
        """The stage that the product reads of what the scores became."""
        for factor in factors(self.product.compute.body[0]):
            read = source_read(factor)
            if read is not None and isinstance(read.tensor.op, ComputeOp):
                stage = self.schedule[read.tensor]
                if self.schedule.feeds(self.scores, stage) and stage is not self.scores:
                    return stage
        raise Unfit("the second contraction reads nothing that is made from the first alone")

    def _shared_scores(self) -> Stage:
        """The last elementwise stage behind the scores before several stages read them."""
        stage = self.scores
        while True:
            readers = self.schedule.readers(stage)
            if len(readers) != 1 or readers[0].compute.reduction is not None:
                return stage
            if prod(readers[0].op.output(0).shape) != prod(stage.op.output(0).shape):
                return stage
            stage = readers[0]

    def _find_axes(self) -> None:
        output, patterns = self.output, self.patterns
        own = _own_axes(self.product.compute)
        assert own is not None
        (first, second), reads = own, factors(self.product.compute.body[0])
        weights = source_read(reads[0])
        if weights is None or self.schedule[weights.tensor] is not self.weights:
            first, second = second, first
            weights = source_read(reads[1])
        assert weights is not None
        self.row, self.width = (self._of_output(axis) for axis in (first, second))
        self.queries = same_axes(self.schedule, patterns, output, self.row)
        self.widths = same_axes(self.schedule, patterns, output, self.width)
        (over,) = self.product.op.reduce_axis or (None,)
        at = [a for a, i in zip(self.weights.op.axis, weights.indices, strict=True) if i is over]
        if len(at) != 1:
            raise Unfit("the second contraction is not over keys alone")
        self.keys = same_axes(self.schedule, patterns, self.weights, at[0])
        for stage in (self.scores, *self.between):
            if stage not in self.queries or stage not in self.keys:
                raise Unfit(f"'{stage.name}' is not queries by keys")
        mine = _own_axes(self.scores.compute)
        if mine is None or {*mine} != {self.queries[self.scores], self.keys[self.scores]}:
            raise Unfit("the first contraction is not of queries with keys")

    def _of_output(self, axis: IterVar) -> IterVar:
        """The axis of the output along which it reads the product along one of its axes."""
        pattern = self.patterns[self.output]
        at = self.product.op.axis.index(axis)
        for read in pattern.reads:
            if self.schedule[read.tensor] is self.product:
                for mine in self.output.op.axis:
                    if pattern.linear(read.indices[at]).step(mine)[0] == 1:
                        return mine
        raise Unfit("the output is not of queries by values")


def _own_axes(op: ComputeOp) -> tuple[IterVar, IterVar] | None:
    """The axis that only the first factor of a contraction has, and that of the second; None where
    it is no contraction with one each."""
    parts = factors(op.body[0])
    if len(parts) != 2:
        return None
    axes = [a for a in op.axis if extent(a) > 1]
    first, second = (set(axes_of(part, axes)) for part in parts)
    mine, others = first - second, second - first
    if len(mine) != 1 or len(others) != 1:
        return None
    return mine.pop(), others.pop()


class AttentionSketch(Sketch):
    """All of a block of queries together, blocks are the pieces of parallel work.

    Knobs: `block`, queries in a block; `keys` and `vectors`, a tile of scores in registers: keys,
    and vectors of queries; `rows` and `columns`, a tile of the result in registers: queries, and
    vectors of values; `unroll`, how many steps of both contractions are written out.
    """

    name = "attention"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._site, self._target = site, target
        chain = AttentionChain(site)
        self._lanes = target.lanes(element_bits(chain.patterns[chain.scores]))
        self._queries, self._width = extent(chain.row), extent(chain.width)
        self._keys = extent(chain.keys[chain.weights])
        self._depth = prod(map(extent, chain.scores.op.reduce_axis))
        if self._queries < self._lanes:
            raise Unfit(
                f"{self._queries} queries are fewer than the {self._lanes} lanes of a vector"
            )
        self._batches = prod(chain.output.op.output(0).shape) // (self._queries * self._width)
        self._buffers = len(chain.between)
        self._element = element_bits(chain.patterns[chain.scores]) // 8
        lanes, registers = self._lanes, target.vector_registers
        most = -(-self._queries // lanes) * lanes
        blocks = tuple(b for b in (lanes << e for e in range(6)) if b < 2 * most)
        counts = tuple(c for c in (1, 2, 3, 4) if c < registers)
        columns = tuple(c for c in counts if (c - 1) * lanes < self._width)
        tiles = tuple(range(1, registers))
        knobs = (
            TileKnob("block", blocks),
            TileKnob("keys", tuple(t for t in tiles if t <= self._keys)),
            TileKnob("vectors", counts),
            TileKnob("rows", tuple(t for t in tiles if t <= self._queries)),
            TileKnob("columns", columns),
            TileKnob("unroll", tuple(u for u in (1, 2, 4) if u <= min(self._depth, self._keys))),
        )
        start = self._start(blocks, columns)
        self.space = space_near(
            self.name, knobs, self._constraints(), start, prior_many=self._prior_many
        )

    def _start(self, blocks: Sequence[int], columns: Sequence[int]) -> Configuration:
        """A tile of two vectors (or three, where there are registers for it), and a block whose
        scores are in half of the second-level cache and that leaves work for all cores."""
        registers = self._target.vector_registers
        limit = self._target.l2_bytes // 2
        wide = max(c for c in columns if c <= 2)
        block = blocks[0]
        for one in blocks:
            pieces = self._batches * -(-self._queries // one)
            if self._scratch(one) <= limit and pieces >= 4 * self._target.cores:
                block = one
        vectors = min(2, block // self._lanes)
        most = min(self._queries, (registers - wide - 1) // wide)
        rows = max(r for r in range(1, most + 1) if self._divides(block, vectors, r))
        return Configuration.of(
            {
                "block": block,
                "keys": min(self._keys, (registers - vectors - 1) // vectors),
                "vectors": vectors,
                "rows": rows,
                "columns": wide,
                "unroll": 1,
            }
        )

    def _divides(self, block: int, vectors: int, rows: int) -> bool:
        """Whether tiles of queries end where their block does, where it does not end with all."""
        across = vectors * self._lanes
        whole = block >= self._queries
        return across <= block and (whole or (block % across == 0 and block % rows == 0))

    def _scratch(self, block: int) -> int:
        """Bytes of the workgroup's memory."""
        return block * self._element * (self._keys * self._buffers + self._depth)

    def _constraints(self) -> list[Constraint]:
        registers, limit, lanes = self._target.vector_registers, self._target.l2_bytes, self._lanes

        def tile(name: str, rows: str, vectors: str) -> Constraint:
            return Constraint(
                name,
                (rows, vectors),
                lambda r, v: r * v + v + 1 <= registers,
                lambda r, v: (
                    f"{r} times {v} vectors of sums, {v} and 1 for what is multiplied; "
                    f"registers: {registers}"
                ),
                vectorised=True,
            )

        return [
            tile("registers of scores", "keys", "vectors"),
            tile("registers of results", "rows", "columns"),
            Constraint(
                "tile",
                ("block", "vectors", "rows"),
                self._divides,
                lambda block, vectors, rows: (
                    f"tiles of {vectors * lanes} and of {rows} queries do not divide {block}, of "
                    f"{self._queries}"
                ),
            ),
            Constraint(
                "scratch",
                ("block",),
                lambda block: self._scratch(block) <= max(limit, self._scratch(lanes)),
                lambda block: (
                    f"{self._scratch(block)} bytes for the scores of a block; the "
                    f"second-level cache has {limit}"
                ),
            ),
            Constraint(
                "unrolled code",
                ("keys", "vectors", "rows", "columns", "unroll"),
                lambda k, v, r, c, u: np.maximum(k * v, r * c) * u <= _MOST_UNROLLED,
                lambda k, v, r, c, u: (
                    f"{max(k * v, r * c) * u} vector operations written out; "
                    f"allowed: {_MOST_UNROLLED}"
                ),
                vectorised=True,
            ),
        ]

    def _prior_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        return np.array([-np.log(self._seconds(dict(c.items))) for c in configurations])

    def _seconds(self, values: Mapping[str, Value]) -> float:
        """Of a configuration, estimated."""
        n = {name: int(str(value)) for name, value in values.items()}
        block = n["block"]

        def contraction(steps: int, rows: int, count: int, tile: int, vectors: int) -> float:
            """rows in tiles of `tile` by `count` vectors in tiles of `vectors`."""
            made = -(-rows // tile) * -(-count // vectors)
            # Two multiplications or two loads at a time; sums have to wait for the ones before.
            cycles = max(tile * vectors, tile + vectors, 8)
            return steps * made * cycles * _FMA_S

        scores = contraction(
            self._depth, self._keys, -(-block // self._lanes), n["keys"], n["vectors"]
        )
        result = contraction(
            self._keys, block, -(-self._width // self._lanes), n["rows"], n["columns"]
        )
        softmax = self._keys * block / self._lanes * (_FUNCTION_S + self._buffers * 1e-9)
        # Where a block's scores leave the first-level cache.
        far = self._scratch(block) / self._target.l1_bytes
        moved = block * self._depth * _MOVE_S
        one = (scores + result) * (1 + min(0.3, 0.02 * far)) + softmax + moved + 1e-6
        pieces = self._batches * -(-self._queries // block)
        return one * float(turns(pieces, self._target.cores, spread=True))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = {name: int(str(value)) for name, value in configuration.items}
        chain = AttentionChain(self._site)
        _AttentionWriter(chain, self._lanes, values).write()
        return SketchedKernel(chain.schedule, (*self._site.inputs, chain.result))


class _AttentionWriter:
    """Writes the loops of an attention."""

    def __init__(self, chain: AttentionChain, lanes: int, values: Mapping[str, int]) -> None:
        self.chain, self.lanes, self.values = chain, lanes, values
        self.schedule = chain.schedule

    def write(self) -> None:
        """All stages of a block at its loop."""
        chain, output = self.chain, self.chain.output
        rows = [
            stage
            for stage in chain.patterns
            if stage not in (output, chain.product, chain.scores, *chain.between, *chain.before)
        ]
        place, tile = self._output()
        for stage in chain.before:
            *_, last = stage.op.axis
            stage.parallel(stage.op.axis[0])
            if last is not stage.op.axis[0]:
                stage.vectorize(last)
        for stage in rows:
            self._row(stage)
            stage.compute_at(output, place)
        width = chain.widths[chain.product]
        for stage, axis in ((chain.product, width), (chain.scores, chain.queries[chain.scores])):
            self._packed(stage, axis, place)
        for stage in chain.between:
            axes = [chain.keys[stage], chain.queries[stage]]
            made = laid_out(self.schedule, stage, axes)
            made.compute_at(output, place)
            *others, key, query = made.op.axis
            if stage is chain.between[0]:
                self._scores(made, others, key, query)
            else:
                made.vectorize(query)
        chain.product.set_scope("local")
        chain.product.compute_at(output, tile)
        self._sums(chain.product, chain.queries[chain.product], width)

    def _output(self) -> tuple[IterVar, IterVar]:
        """Returns the loop over blocks, and the one over tiles in registers."""
        chain, output, values = self.chain, self.chain.output, self.values
        others = [a for a in output.op.axis if a not in (chain.row, chain.width)]
        block, inside = output.split(chain.row, values["block"])
        row_tiles, rows = output.split(inside, values["rows"])
        width_tiles, columns = output.split(chain.width, values["columns"] * self.lanes)
        output.reorder(*others, block, row_tiles, width_tiles, rows, columns)
        output.unroll(rows)
        output.vectorize(columns)
        place = output.fuse(*others, block) if others else block
        output.parallel(place)
        return place, width_tiles

    def _scores(self, made: Stage, others: Sequence[IterVar], key: IterVar, query: IterVar) -> None:
        """The scores as they are kept, made from tiles in registers."""
        values, chain = self.values, self.chain
        key_tiles, keys = made.split(key, values["keys"])
        query_tiles, queries = made.split(query, values["vectors"] * self.lanes)
        made.reorder(*others, query_tiles, key_tiles, keys, queries)
        made.unroll(keys)
        made.vectorize(queries)
        # Vectors of queries have to lie together in registers too.
        scores = laid_out(
            self.schedule, chain.scores, [chain.keys[chain.scores], chain.queries[chain.scores]]
        )
        scores.set_scope("local")
        scores.compute_at(made, key_tiles)
        self._sums(scores, *scores.op.axis[-2:])

    def _sums(self, stage: Stage, tiled: IterVar, vector: IterVar) -> None:
        """A tile of sums in registers: the reduced axes outside of it."""
        others = [a for a in stage.op.axis if a not in (tiled, vector)]
        *reduced, last = stage.op.reduce_axis
        steps, written = stage.split(last, self.values["unroll"])
        stage.reorder(*others, *reduced, steps, written, tiled, vector)
        stage.unroll(written)
        stage.unroll(tiled)
        stage.vectorize(vector)

    def _row(self, stage: Stage) -> None:
        """A stage of the softmax with an element for each query, in vectors of queries."""
        query = self.chain.queries.get(stage)
        if query is None:
            return
        others = [a for a in stage.op.axis if a is not query]
        reduced = [a for a in stage.leaf_iter_vars if a.kind == REDUCE]
        parts, vectors = stage.split(query, _ROW_REGISTERS * self.lanes)
        stage.reorder(*others, parts, *reduced, vectors)
        stage.vectorize(vectors)

    def _packed(self, stage: Stage, axis: IterVar, place: IterVar) -> None:
        """Lays out what a contraction reads along an axis in vectors, where it does not lie so."""
        pattern = self.chain.patterns[stage]
        mine = [r for r in pattern.reads if axis in pattern.variables(r)]
        if len(mine) == 1 and pattern.step(mine[0], axis) == 1:
            return
        for factor in factors(stage.compute.body[0]):
            read = source_read(factor)
            if read is None or axis not in axes_of(factor, [axis]):
                continue
            tensor = read.tensor
            if self._is_whole(tensor):
                tensor = self.schedule.cache_read(tensor, "global", [stage])
            copied = self.schedule[tensor]
            along = [
                d
                for d, index in enumerate(read.indices)
                if pattern.linear(index).step(axis)[0] not in (0, None)
            ]
            if len(along) != 1:
                continue
            dims = copied.op.axis
            made = laid_out(self.schedule, copied, [dims[-1], dims[along[0]]])
            made.compute_at(self.chain.output, place)
            self._transposed(made, stage, read, along[0])

    def _is_whole(self, tensor: Tensor) -> bool:
        """Whether a tensor is in memory before the first block."""
        return not isinstance(tensor.op, ComputeOp) or self.schedule[tensor] in self.chain.before

    def _transposed(self, made: Stage, stage: Stage, read: TensorRead, along: int) -> None:
        """The loops of a copy whose last two dimensions are another one and the first of those:
        squares in registers where there are only whole ones, else vectors that are gathered."""
        lanes, depth = self.lanes, read.indices[-1]
        whole = (
            stage is self.chain.scores
            and extent(self.chain.row) % self.values["block"] == 0
            and along < len(read.indices) - 1
            and bits(read.tensor.dtype) == 32
            and self._is_whole(read.tensor)
            and any(depth is axis and extent(axis) % lanes == 0 for axis in stage.op.reduce_axis)
        )
        *_, row, column = made.op.axis
        if not whole:
            made.vectorize(column)
            return
        from tilewright.schedule.intrinsics import transpose

        between = len(read.indices) - 2 - along
        _, _, rows, _ = made.tile(row, column, lanes, lanes)
        made.tensorize(rows, transpose(lanes, read.tensor.dtype, between))


SKETCHES: tuple[type[Sketch], ...] = (AttentionSketch,)
