"""What a chain of reductions over the same rows is, and how a reduction is done in lanes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.schedule.expr import Binary, Call, Cast, Expr, const, substitute
from tilewright.schedule.linear import Atom
from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import REDUCE, ComputeOp, IterVar, Tensor, TensorRead, compute
from tilewright.schedule.types import is_float
from tilewright.schedule.walk import nodes
from tilewright.sketch.access import (
    AccessPattern,
    computed,
    inline_all,
    row_scalars,
    shared_stages,
    worth_keeping,
)
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.structure import changed_throughout, computed_stages, extent
from tilewright.space.pipeline import Unfit

# Elements of the longest computation for each of what they are divided by.
_SHARED_BY = 8
_ROUNDING = frozenset(("ceil", "floor", "round", "roundeven", "trunc"))
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

    result: what the schedule is of. patterns: of the stages that are not inlined, the output's
    last. rows: the axes of the output that rows are counted by. columns: its other axes.
    """

    def __init__(self, site: SiteExpression, keep: bool) -> None:
        """keep: whether costly elementwise stages that several read stay in memory.

        Raises:
            Unfit: it is no chain of reductions over rows.
        """
        self.result = with_reciprocals(site.output)
        self.schedule = create_schedule(self.result.op)
        self.output = self.schedule[self.result]
        if self.output.compute.reduction is not None:
            self.schedule.cache_write(self.result, "global")
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


def with_reciprocals(output: Tensor) -> Tensor:
    """The expression with products in the place of divisions by what all elements of a row share.

    Vectors are multiplied in less time than they are divided: a softmax of 1536x128 takes 0.093 ms
    in one thread, with divisions 0.111 (AVX2). Where a quotient is rounded to an integer it stays
    one: a unit in its last place may be another integer then.

    Args:
        output: of the expression.
    """
    stages = computed_stages(output)
    if any(_rounds(node) for op in stages for body in op.body for node in nodes(body)):
        return output
    most = max(prod(map(extent, (*op.axis, *op.reduce_axis))) for op in stages) // _SHARED_BY
    made: dict[Tensor, Tensor] = {}

    def reciprocal(of: Tensor) -> Tensor:
        if of not in made:
            one = const(1.0, of.dtype)
            made[of] = compute(of.shape, lambda *at: one / of(*at), name=f"{of.name}.reciprocal")
        return made[of]

    def changed(node: Expr) -> Expr | None:
        if not (isinstance(node, Binary) and node.op == "div" and node.dtype in ("f32", "f64")):
            return None
        below = _read_through(node.b)
        if below is None or prod(below.tensor.shape) > most or not _is_reduced(below.tensor):
            return None
        return node.a * TensorRead(reciprocal(below.tensor), below.indices)

    return changed_throughout(output, changed)


def _rounds(node: Expr) -> bool:
    """Whether a node makes an integer of a float."""
    if isinstance(node, Call):
        return node.name in _ROUNDING
    return isinstance(node, Cast) and is_float(node.value.dtype) and not is_float(node.dtype)


def _read_through(value: Expr) -> TensorRead | None:
    """The read that a value is, of what computes it: not of what only repeats that."""
    while isinstance(value, TensorRead):
        op = value.tensor.op
        if not isinstance(op, ComputeOp) or not isinstance(op.body[0], TensorRead):
            return value
        value = substitute(op.body[0], dict(zip(op.axis, value.indices, strict=True)))
    return None


def _is_reduced(tensor: Tensor) -> bool:
    """Whether a tensor is, or is computed of, what is reduced."""
    if not isinstance(tensor.op, ComputeOp):
        return False
    return any(op.reduction is not None for op in computed_stages(tensor))


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
