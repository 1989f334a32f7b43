"""What a chain of reductions over the same rows is, and how a reduction is done in lanes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.schedule.linear import Atom
from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE, IterVar
from tilewright.sketch.access import (
    AccessPattern,
    computed,
    inline_all,
    row_scalars,
    shared_stages,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression
from tilewright.space.pipeline import Unfit

#: Lanes that are reduced one by one at last.
LAST_LANES = 4


@dataclass(frozen=True)
class RowAxis:
    """An axis of the result that rows are counted by; `part` neighbours of it belong to one row."""

    axis: IterVar
    part: int = 1

    @property
    def count(self) -> int:
        """How many different values it has for rows."""
        assert self.axis.dom is not None
        return -(-self.axis.dom.extent // self.part)


class RowChain:
    """A schedule, without loops yet, of a chain of reductions.

    patterns: of the stages that are not inlined, the output's last. rows: the axes of the output
    that rows are counted by. columns: its other axes.
    """

    def __init__(self, site: SiteExpression, keep: bool) -> None:
        """keep: whether costly elementwise stages that several read stay in memory.

        Raises:
            Unfit: it is no chain of reductions over rows.
        """
        self.schedule = create_schedule(site.output.op)
        self.output = self.schedule[site.output]
        if self.output.compute.reduction is not None:
            self.schedule.cache_write(site.output, "global")
        stages = computed(self.schedule)
        reductions = [stage for stage in stages if stage.compute.reduction is not None]
        if not reductions:
            raise Unfit("it reduces nothing")
        self.scalars = row_scalars(self.schedule)
        shared = worth_keeping(self.schedule)
        if not keep:
            shared = [stage for stage in shared if stage not in shared_stages(self.schedule)]
        self.whole = [stage for stage in shared if stage not in self.scalars]
        self.patterns = inline_all(self.schedule, {*self.whole, *self.scalars})
        for stage in reductions:
            check_reuse(self.patterns[stage])
        self.reductions = reductions
        self.rows = self._row_axes()
        row_axes = {row.axis for row in self.rows}
        self.columns = [
            axis
            for axis in self.output.op.axis
            if axis not in row_axes or next(r for r in self.rows if r.axis is axis).part > 1
        ]

    def _row_axes(self) -> list[RowAxis]:
        pattern = self.patterns[self.output]
        few = {t for s in (*self.reductions, *self.scalars) for t in s.op.outputs}
        parts: dict[IterVar, int] = {}
        for read in pattern.reads:
            if read.tensor not in few:
                continue
            for index in read.indices:
                for atom in pattern.linear(index).terms:
                    for axis, part in _parts(atom):
                        parts[axis] = gcd(parts.get(axis, 0), part)
        return [RowAxis(a, parts[a]) for a in self.output.op.axis if a in parts]


def _parts(atom: Atom) -> list[tuple[IterVar, int]]:
    """The axes that an index depends on, and how many neighbours of each give the same."""
    divided = atom.divided("floordiv")
    if divided is not None:
        inside, divisor = divided
        terms = list(inside.terms.items())
        if len(terms) == 1 and terms[0][0].kind == "var" and terms[0][1] == 1:
            axis = terms[0][0].args[0]
            return [(axis, divisor)] if inside.constant == 0 else [(axis, 1)]
    return [(axis, 1) for axis in atom.variables if isinstance(axis, IterVar)]


def check_reuse(pattern: AccessPattern) -> None:
    """Refuses what reads the same elements again and again: contractions, windows.

    Args:
        pattern: of a reduction.

    Raises:
        Unfit: it does.
    """
    data = [a for a in pattern.axes if a.kind != REDUCE and a.dom and a.dom.extent > 1]
    reduced = [a for a in pattern.axes if a.kind == REDUCE and a.dom and a.dom.extent > 1]
    missing: list[set[IterVar]] = []
    for read in pattern.reads:
        mine = pattern.variables(read)
        if not mine & set(reduced):
            continue
        missing.append({a for a in data if a not in mine})
        for index in read.indices:
            form = pattern.linear(index)
            steps = [form.step(a)[0] for a in data]
            inside = [(form.step(a)[0], a) for a in reduced]
            reach = sum(abs(s) * (a.dom.extent - 1) for s, a in inside if s and a.dom)
            if reach and any(s and abs(s) <= reach for s in steps):
                raise Unfit("its windows overlap")
    for i, some in enumerate(missing):
        for others in missing[i + 1 :]:
            if some - others and others - some:
                raise Unfit("it is a contraction")


def factored(schedule: Schedule, stage: Stage, axis: IterVar, position: int = 0) -> Stage:
    """The stage that reduces one part for each value of an axis.

    Args:
        schedule: of the stage.
        stage: a reduction of one or several values together, which is left to reduce the parts.
        axis: a loop of it over reduced axes.
        position: of the axis in the parts.
    """
    made = schedule.rfactor(stage.op.output(0), axis, factor_axis=position)
    return schedule[made[0] if isinstance(made, list) else made]


def reduce_in_lanes(
    schedule: Schedule, stage: Stage, axis: IterVar, extent: int, lanes: int, vectors: int
) -> list[Stage]:
    """Has partial results of a reduction made in vectors, then in one, then in a few lanes.

    Args:
        schedule: of the stage.
        stage: a reduction.
        axis: a loop of it over reduced axes.
        extent: its iterations.
        lanes: of a vector register.
        vectors: registers of partial results.

    Returns:
        The new stages, producers first; where they are computed is the caller's to say.
    """
    made: list[Stage] = []
    rank = len(stage.op.axis)
    width = extent + 1
    for wanted in (lanes * vectors, lanes, LAST_LANES):
        if wanted >= width or wanted > extent:
            continue
        width = wanted
        _, lane = stage.split(axis, width)
        partial = factored(schedule, stage, lane, rank)
        steps = [leaf for leaf in partial.leaf_iter_vars if leaf.kind == REDUCE]
        # A register each, so that LLVM takes the buffer apart.
        register, across = partial.split(partial.op.axis[-1], lanes)
        partial.reorder(*steps, register, across)
        partial.unroll(register)
        partial.vectorize(across)
        if made:
            for step in steps:
                partial.unroll(step)
        made.append(partial)
        (axis,) = stage.op.reduce_axis
    if made:
        stage.unroll(axis)
    return made
