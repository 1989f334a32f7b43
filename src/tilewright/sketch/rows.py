"""Chains of reductions over the same rows, with elementwise stages between and after them.

Softmax, normalisations, means, variances: everything of a row (or of a few) happens while the row
is in the first-level cache, or in registers. Which axes of the result are rows is read off the
expression: those by which it reads the results of reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar
from tilewright.schedule.types import bits
from tilewright.sketch.access import (
    AccessPattern,
    element_bits,
    is_costly,
    joined_tail,
    reduce_order,
    same_axes,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.pieces import piece_count, pieces_for, pieces_knob, shared_seconds
from tilewright.sketch.row_chain import LAST_LANES, RowChain, reduce_in_lanes
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration, Value

ALONG, ACROSS = "along", "across"
# Seconds: what the parts of a reduction in lanes cost besides the elements; an operation on a
# vector register, and a function such as exp; reading one register's elements once, which in a
# program another core may have written.
_LANES_S, _VECTOR_S, _FUNCTION_S, _READ_S = 4e-9, 0.4e-9, 6e-9, 1.5e-9


class RowsSketch(Sketch):
    """All stages of a row together, rows in pieces of parallel work.

    Knobs: `lanes`, whether vectors go along a row or across rows; `vectors`, registers of partial
    results (along), or of rows (across); `rows`, rows that are computed stage by stage together
    (along); `keep`, whether costly values that are used twice are kept in memory or computed again;
    `pieces`, how many pieces of work each core has, 0: one in all.
    """

    name = "rows"

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._site, self._target = site, target
        chain = RowChain(site, keep=True)
        if not chain.rows:
            raise Unfit("there is one row only")
        self._cost = _Cost(chain, target)
        forms = self._forms(chain)
        registers = target.vector_registers
        knobs: list[Knob] = [
            ChoiceKnob("lanes", forms),
            TileKnob("vectors", tuple(v for v in (1, 2, 4, 8, 16) if v < registers)),
            TileKnob("rows", (1, 2, 4, 8)),
            BoolKnob("keep", effect=bool(chain.whole)),
            pieces_knob(target),
        ]
        start: dict[str, Value] = {
            "lanes": forms[0],
            "vectors": self._cost.vectors(forms[0]),
            "rows": 1,
            "keep": True,
            "pieces": 4,
        }
        one_core = self._cost.one_core(start)[0]
        start["pieces"] = pieces_for(one_core, 4, target)
        self.space = space_near(
            self.name,
            knobs,
            self._constraints(),
            Configuration.of(start),
            prior_many=self._prior_many,
        )

    def _forms(self, chain: RowChain) -> tuple[str, ...]:
        """The forms in which vectors are contiguous, the better one first."""
        along = across = False
        for stage in chain.reductions:
            pattern = chain.patterns[stage]
            if pattern.largest is None:
                continue
            axes = reduce_order(pattern)
            along |= bool(axes) and pattern.step(pattern.largest, axes[-1]) == 1
            across |= any(pattern.step(pattern.largest, a) == 1 for a in stage.op.axis)
        # Short rows are gathered across rather than masked along.
        across |= self._cost.columns < self._cost.lanes
        if across and any(row.part == 1 for row in chain.rows):
            return (ACROSS, ALONG) if along else (ACROSS,)
        return (ALONG,)

    def _constraints(self) -> list[Constraint]:
        limit = self._target.l2_bytes // 2
        cost = self._cost

        def scratch(lanes: str, vectors: int, rows: int, keep: bool) -> int:
            together = vectors * cost.lanes if lanes == ACROSS else rows
            return cost.kept_bytes * together * keep

        return [
            Constraint(
                "scratch",
                ("lanes", "vectors", "rows", "keep"),
                lambda *values: scratch(*values) <= limit or not values[3],
                lambda *values: (
                    f"rows of {scratch(*values)} bytes are kept, more than {limit}, "
                    "half of the second-level cache"
                ),
            ),
            Constraint(
                "row",
                ("lanes", "vectors"),
                lambda lanes, vectors: (
                    vectors == 1 or vectors * cost.lanes < 2 * cost.length(lanes)
                ),
                lambda lanes, vectors: (
                    f"{vectors} vectors of {cost.lanes} lanes {lanes} rows, "
                    f"where there are {cost.length(lanes)} elements"
                ),
            ),
            Constraint(
                "across",
                ("lanes", "rows"),
                lambda lanes, rows: lanes == ALONG or rows == 1,
                lambda lanes, rows: f"rows is {rows}; vectors across rows are rows together",
            ),
        ]

    def _prior_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        return np.array([-np.log(self._cost.seconds(dict(c.items))) for c in configurations])

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        values = dict(configuration.items)
        chain = RowChain(self._site, bool(values["keep"]))
        writer = _Writer(chain, self._target, values)
        writer.write()
        return SketchedKernel(chain.schedule, (*self._site.inputs, chain.result))


class _Cost:
    """What a configuration takes, estimated."""

    def __init__(self, chain: RowChain, target: Target) -> None:
        self.target = target
        stages = [*chain.reductions, *chain.whole, chain.output]
        self.lanes = min(target.lanes(element_bits(chain.patterns[s])) for s in stages)
        self.rows = prod(row.count for row in chain.rows)
        work = [prod(a.dom.extent for a in chain.patterns[s].axes if a.dom) for s in stages]
        self.columns = max(1, max(work) // self.rows)
        last = chain.rows[-1].count if chain.rows else 1
        self._lengths = {ALONG: self.columns, ACROSS: last}
        self.kept_bytes = sum(
            -(-prod(stage.op.outputs[0].shape) // self.rows) * bits(stage.op.outputs[0].dtype) // 8
            for stage in chain.whole
        )
        self._reductions = len(chain.reductions)
        self._operations = sum(work)
        # A costly value is computed once for each of its readers where it is not kept.
        kept = set(chain.whole)
        self._functions = {True: 0, False: 0}
        for stage, size in zip(stages, work, strict=True):
            costly = any(map(is_costly, chain.patterns[stage].body))
            self._functions[True] += size * costly
            readers = len(chain.schedule.readers(stage)) if stage in kept else 1
            self._functions[False] += size * costly * readers

    def length(self, lanes: str) -> int:
        """Elements one after the other, along or across rows."""
        return self._lengths[lanes]

    def vectors(self, lanes: str) -> int:
        """Registers of partial results that a row can use."""
        most = self.target.vector_registers // 2 if lanes == ALONG else 4
        while most > 1 and most * self.lanes * 2 > self._lengths[lanes]:
            most //= 2
        return most

    def seconds(self, values: Mapping[str, Value]) -> float:
        """Of a configuration."""
        total, groups = self.one_core(values)
        pieces = min(groups, piece_count(int(str(values["pieces"])), self.target))
        return shared_seconds(total, pieces, self.target)

    def one_core(self, values: Mapping[str, Value]) -> tuple[float, int]:
        """Seconds on one core, and how many groups of rows can be shared out."""
        lanes, vectors = str(values["lanes"]), int(str(values["vectors"]))
        length = self._lengths[lanes]
        width = min(self.lanes, length)
        chunk = vectors * self.lanes
        used = length / (-(-length // chunk) * chunk)
        work = self._operations * _VECTOR_S * (1 + 1 / vectors)
        work += self._functions[bool(values["keep"])] * _FUNCTION_S
        total = work / width / max(0.3, used) + self.rows * self.columns / self.lanes * _READ_S
        if lanes == ALONG:
            total += self.rows * self._reductions * _LANES_S * (2 + vectors / 4)
            groups = -(-self.rows // int(str(values["rows"])))
        else:
            groups = -(-self.rows // chunk)
        return total, groups


class _Writer:
    """Writes the loops of a chain."""

    def __init__(self, chain: RowChain, target: Target, values: Mapping[str, Value]) -> None:
        self.chain, self.target, self.values = chain, target, values
        self.output = chain.output
        self.across = values["lanes"] == ACROSS
        self.vectors = int(str(values["vectors"]))

    def write(self) -> None:
        chain, output = self.chain, self.output
        outer: list[IterVar] = []
        inner: list[IterVar] = []
        columns: list[IterVar] = []
        plain: list[IterVar] = []
        leaf = {}
        for row in chain.rows:
            leaf[row.axis] = row.axis
            if row.part > 1:
                leaf[row.axis], part = output.split(row.axis, row.part)
                columns.append(part)
            outer.append(leaf[row.axis])
        plain = [a for a in output.op.axis if a not in leaf]
        columns += plain
        order = {a: i for i, a in enumerate(output.leaf_iter_vars)}
        columns.sort(key=lambda a: order[a])
        together = int(str(self.values["rows"]))
        lane_axis: IterVar | None = None
        if self.across:
            lane_axis = self._lane_axis()
            together = self.vectors * self.target.lanes(element_bits(chain.patterns[output]))
            split = lane_axis
        else:
            split = chain.rows[-1].axis
        assert split.dom is not None
        if together > 1:
            at = outer.index(leaf[split])
            outer[at], within = output.split(leaf[split], together)
            inner.append(within)
        if self.across:
            output.reorder(*outer, *columns, *inner)
            output.vectorize(inner[0])
        else:
            output.reorder(*outer, *inner, *columns)
            self._vector_columns(columns, plain, inner)
        place = self._pieces(outer)
        lanes: dict[Stage, IterVar] = {}
        if lane_axis is not None:
            lanes = same_axes(chain.schedule, chain.patterns, output, lane_axis)
        for stage in chain.patterns:
            if stage is not output:
                self._stage(stage, place, lanes.get(stage))

    def _lane_axis(self) -> IterVar:
        """The row axis across which vectors go."""
        pattern = self.chain.patterns[self.output]
        plain = [row.axis for row in self.chain.rows if row.part == 1]
        for axis in reversed(plain):
            if axis is self.output.op.axis[-1]:
                return axis
        steps = {a: pattern.step(read, a) for read in pattern.reads for a in plain}
        near = [a for a in plain if steps.get(a) == 1]
        return near[-1] if near else plain[-1]

    def _vector_columns(
        self, columns: list[IterVar], plain: list[IterVar], inner: list[IterVar]
    ) -> None:
        """Vectors of the output: along its columns, or of rows where it has none."""
        pattern = self.chain.patterns[self.output]
        if not columns:
            if inner:
                self.output.vectorize(inner[-1])
            return
        if not plain or columns[-1] is not plain[-1]:
            self.output.vectorize(columns[-1])
            return
        tail = plain[-joined_tail(pattern, plain) :]
        tail = [a for a in tail if columns.index(a) >= len(columns) - len(tail)]
        self.output.vectorize(self.output.fuse(*tail) if len(tail) > 1 else tail[0])

    def _pieces(self, outer: list[IterVar]) -> IterVar:
        """Fuses the loops over rows, shares them out; returns the loop at which rows are made."""
        fused = self.output.fuse(*outer) if len(outer) > 1 else outer[0]
        pieces = piece_count(int(str(self.values["pieces"])), self.target)
        piece, place = self.output.split(fused, nparts=pieces)
        self.output.parallel(piece)
        return place

    def _stage(self, stage: Stage, place: IterVar, lane: IterVar | None) -> None:
        pattern = self.chain.patterns[stage]
        if lane is not None:
            others = [a for a in stage.op.axis if a is not lane]
            stage.reorder(*others, *reduce_order(pattern), lane)
            stage.vectorize(lane)
        elif stage.compute.reduction is not None:
            self._reduction(stage, pattern, place)
        elif stage.op.axis:
            axes = list(stage.op.axis)
            tail = axes[-joined_tail(pattern, axes) :]
            stage.vectorize(stage.fuse(*tail) if len(tail) > 1 else tail[0])
        stage.compute_at(self.output, place)

    def _reduction(self, stage: Stage, pattern: AccessPattern, place: IterVar) -> None:
        """A reduction in lanes: partial results, of which fewer and fewer are made."""
        op = stage.compute
        axes = reduce_order(pattern)
        stage.reorder(*op.axis, *axes)
        tail = axes[-joined_tail(pattern, axes) :]
        extent = prod(a.dom.extent for a in tail if a.dom)
        lanes = self.target.lanes(element_bits(pattern))
        if extent < 2 * min(lanes, LAST_LANES):
            return
        inner = stage.fuse(*tail) if len(tail) > 1 else tail[0]
        schedule = self.chain.schedule
        for partial in reduce_in_lanes(schedule, stage, inner, extent, lanes, self.vectors):
            partial.compute_at(self.output, place)


SKETCHES: tuple[type[Sketch], ...] = (RowsSketch,)
