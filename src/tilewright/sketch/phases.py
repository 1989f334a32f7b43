"""Transposed convolutions by phases: sums over what has zeros between its elements, without them.

A transposed convolution of stride s reaches a program as a convolution of an image with s - 1 zeros
between neighbours. Of its taps only each s-th meets an element, and which ones depends on the place
in the result modulo s alone, its phase. So the result is s convolutions of the image as it is, for
each phase with the taps that are its own, whose elements take turns: a polyphase filter (Bellanger,
Bonnerot and Coudreuse, "Digital filtering by polyphase network", IEEE TASSP 1976); for networks Shi
et al., "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Binary, Const, Expr, Select, const, is_true, substitute
from tilewright.schedule.functions import conjunction, conjuncts, if_then_else
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Tensor,
    TensorRead,
    compute,
    reads,
    reduce_axis,
)
from tilewright.schedule.walk import nodes, transform
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.structure import (
    axes_of,
    extent,
    factors,
    rewritten,
    source_read,
    values_along,
)


@dataclass(frozen=True)
class Phase:
    """How a dimension of a reduction is computed by phases.

    data: the axis along the elements of one phase. axis: the one that says which phase. window: the
    taps of a phase, a reduced axis. tap: which one of the whole filter it is, from `first` on each
    `period`-th. place: where the image is read for it; `dilation` elements further for the next
    tap, and up to `shift` further in one phase than in another. old: the axis that it was.
    """

    data: IterVar
    axis: IterVar
    window: IterVar
    tap: Expr
    first: Expr
    period: int
    place: Expr
    dilation: int
    shift: int
    old: IterVar

    @property
    def count(self) -> int:
        """How many phases there are."""
        return extent(self.axis)


@dataclass(frozen=True)
class PhasedReduction:
    """A site with its reduction by phases.

    site: the expression. op: the reduction, whose first axes are the phases. image: the read of the
    image. phases: one for each dimension that had zeros between its elements.
    """

    site: SiteExpression
    op: ComputeOp
    image: TensorRead
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class _Spread:
    """A dimension of an image with zeros between its elements: `step` apart, beginning at `first`;
    there are `count` of them, from `low` on in the tensor that they are read from."""

    first: int
    step: int
    low: int
    count: int


def by_phases(site: SiteExpression, op: ComputeOp) -> PhasedReduction | None:
    """A site with its reduction by phases.

    Args:
        site: the expression.
        op: its only reduction.

    Returns:
        None where nothing that it reads has zeros between its elements, or something else depends
        on these.
    """
    reduction = op.reduction
    if reduction is None or op.num_outputs > 1 or not is_true(reduction.condition):
        return None
    found = [read for read in map(source_read, factors(reduction)) if read is not None]
    spreads = {read: spread for read in found if (spread := _spread_of(read.tensor))}
    if len(spreads) != 1:
        return None
    ((image, spread),) = spreads.items()
    if sum(read.tensor is image.tensor for read in reads(reduction)) != 1:
        return None
    axes = (*op.axis, *op.reduce_axis)
    arithmetic = Arithmetic({a: (a.dom.min, a.dom.min + a.dom.extent - 1) for a in axes if a.dom})
    conditions: list[Expr] = []
    phases: dict[int, Phase] = {}
    lows: dict[int, int] = {}
    for at, dim in spread.items():
        form = arithmetic.linear(image.indices[at])
        data = [a for a in op.axis if form.step(a)[0] == 1]
        taps = [a for a in op.reduce_axis if form.step(a)[0]]
        dilation = (form.step(taps[0])[0] or 0) if len(taps) == 1 else 0
        if len(data) != 1 or len(form.terms) != 2 or dilation < 1:
            return None
        ((old,), (window,)) = data, taps
        others = [r for r in reads(reduction) if r is not image and axes_of_any(r, old)]
        if extent(old) % dim.step and others:
            return None
        phases[at], lows[at], where = _phase(old, window, dim, dilation, form.constant)
        conditions += where
    return _made(site, op, image, spread, phases, lows, conditions)


def axes_of_any(read: TensorRead, axis: IterVar) -> bool:
    """Whether the place of a read depends on an axis.

    Args:
        read: of a tensor.
        axis: of a computation.
    """
    return any(axes_of(index_, [axis]) for index_ in read.indices)


def _phase(
    old: IterVar, window: IterVar, dim: _Spread, dilation: int, constant: int
) -> tuple[Phase, int, list[Expr]]:
    """A dimension by phases; which element of the image the first one is that is read, in the first
    window, and when a tap meets an element.

    With `first` zeros in front, the tap `k` of the result's element `y` meets one where
    `y + dilation * k - first` is a multiple of the step, and that one is the quotient.
    """
    step, first, size = dim.step, dim.first - constant, extent(window)
    common = gcd(dilation, step)
    period = step // common
    axis = IterVar(f"{old.name}.phase", (0, step))
    data = IterVar(old.name, (0, -(-extent(old) // step)))
    fresh = reduce_axis(-(-size // period), window.name)
    # Of a phase the first tap, and the element that it meets.
    if dilation == 1:
        begin: Expr = (axis * -1 + (first % step + step)) % step
        place: Expr = (axis + (step - 1 - first)) // step
    else:
        inverse = pow(dilation // common, -1, period) if period > 1 else 0
        begin = ((axis * -1 + first) // common * inverse) % period
        place = (axis + begin * dilation - first) // step
    places = values_along(place, axis).tolist()
    low = min(places)
    where = [((axis * -1 + first) % common).equal(0)] if common > 1 else []
    tap = fresh * period + begin
    if size % period:
        where.append(tap < size)
    ahead = dilation // common
    place = data + place + fresh * ahead - low
    shift = max(places) - low
    return Phase(data, axis, fresh, tap, begin, period, place, ahead, shift, old), low, where


def _made(
    site: SiteExpression,
    op: ComputeOp,
    image: TensorRead,
    spread: Mapping[int, _Spread],
    phases: Mapping[int, Phase],
    lows: Mapping[int, int],
    conditions: Sequence[Expr],
) -> PhasedReduction:
    """The site with other axes."""
    reduction = op.reduction
    assert reduction is not None
    source = _together(image.tensor, spread, phases, lows)
    new = {phase.old: phase for phase in phases.values()}
    windows = {axes_of(image.indices[at], op.reduce_axis)[0]: phases[at] for at in phases}
    values: dict[Expr, Expr] = {
        old: phase.data * phase.count + phase.axis for old, phase in new.items()
    }
    values |= {old: phase.tap for old, phase in windows.items()}
    places = [
        phases[at].place if at in phases else substitute(one, values)
        for at, one in enumerate(image.indices)
    ]
    made = TensorRead(source, tuple(places))

    def moved(expr: Expr) -> Expr:
        return substitute(transform(expr, lambda node: made if node is image else None), values)

    body = replace(
        reduction,
        sources=tuple(map(moved, reduction.sources)),
        axes=tuple(windows[a].window if a in windows else a for a in op.reduce_axis),
        condition=conjunction(list(conditions)),
        init=None if reduction.init is None else tuple(map(moved, reduction.init)),
    )
    kept = [new[a].data if a in new else a for a in op.axis]
    axes = (*(phase.axis for phase in phases.values()), *kept)
    (old_sums,) = op.outputs
    sums = Tensor(old_sums.name, tuple(map(extent, axes)), old_sums.dtype)
    sums.op = fresh = ComputeOp(op.name, (sums,), axes, (body,), op.tag, op.attrs)
    ranks = {op.axis.index(phase.old): phase.count for phase in phases.values()}

    def sum_at(indices: Sequence[Expr]) -> Expr:
        turns = [indices[rank] % count for rank, count in ranks.items()]
        within = [i // ranks[n] if n in ranks else i for n, i in enumerate(indices)]
        return TensorRead(sums, (*turns, *within))

    if site.output is old_sums:
        output = compute(old_sums.shape, lambda *at: sum_at(at), name=f"{old_sums.name}.out")
    else:
        output = rewritten(site.output, {old_sums: sum_at})
    site = SiteExpression(site.inputs, site.constant, output)
    return PhasedReduction(site, fresh, made, tuple(phases.values()))


def _together(
    image: Tensor,
    spread: Mapping[int, _Spread],
    phases: Mapping[int, Phase],
    lows: Mapping[int, int],
) -> Tensor:
    """The image without zeros between its elements, and with those around it that windows read."""
    op = image.op
    assert isinstance(op, ComputeOp)
    tests, read = _guarded(op)
    assert read is not None
    shape = list(image.shape)
    for at, phase in phases.items():
        reach = (extent(phase.window) - 1) * phase.dilation + phase.shift
        shape[at] = extent(phase.data) + reach
    whole = all(
        lows[at] == 0 and spread[at].low == 0 and shape[at] <= spread[at].count for at in phases
    )
    apart = {op.axis[at] for at in phases}
    others = [test for test in tests if not axes_of(test, list(apart))]
    plain = len(read.indices) == len(op.axis) and all(
        index_ is axis or axis in apart or (isinstance(index_, Const) and extent(axis) == 1)
        for index_, axis in zip(read.indices, op.axis, strict=True)
    )
    if whole and plain and not others:
        return read.tensor

    def element(*at: IterVar) -> Expr:
        values: dict[Expr, Expr] = dict(zip(op.axis, at, strict=True))
        held = [substitute(test, values) for test in others]
        for dim in phases:
            place = at[dim] + lows[dim]
            if lows[dim] < 0:
                held.append(place >= 0)
            if shape[dim] + lows[dim] > spread[dim].count:
                held.append(place < spread[dim].count)
        found = []
        for one in read.indices:
            dims = [dim for dim in phases if axes_of(one, [op.axis[dim]])]
            moved = substitute(one, values)
            found.append(at[dims[0]] + (lows[dims[0]] + spread[dims[0]].low) if dims else moved)
        value = TensorRead(read.tensor, tuple(found))
        return if_then_else(conjunction(held), value, const(0, image.dtype)) if held else value

    made: Tensor = compute(tuple(shape), element, name=f"{image.name}.together")
    return made


def _spread_of(image: Tensor) -> dict[int, _Spread]:
    """The dimensions of a tensor that have zeros between their elements; none where it is no such
    tensor."""
    op = image.op
    if not isinstance(op, ComputeOp) or op.num_outputs > 1:
        return {}
    tests, read = _guarded(op)
    if read is None or any(len(axes_of(test, op.axis)) != 1 for test in tests):
        return {}
    found = {}
    for at, axis in enumerate(op.axis):
        mine = [test for test in tests if axes_of(test, [axis])]
        places = [one for one in read.indices if axes_of(one, [axis])]
        if not any(axes_of(one, op.axis) != (axis,) for one in places) and len(places) == 1:
            spread = _spread(axis, mine, places[0])
            if spread is not None:
                found[at] = spread
    return found


def _spread(axis: IterVar, tests: Sequence[Expr], place: Expr) -> _Spread | None:
    """What a dimension is where some conditions say which places have an element, and an index
    says which element that is."""
    if not any(isinstance(n, Binary) and n.op == "floormod" for t in tests for n in nodes(t)):
        return None
    found, elements = [values_along(test, axis) for test in tests], values_along(place, axis)
    if elements is None or any(one is None for one in found):
        return None
    there = np.flatnonzero(np.all(found, axis=0))
    if len(there) < 2 or there[1] - there[0] < 2:
        return None
    step, low = int(there[1] - there[0]), int(elements[there[0]])
    count = np.arange(len(there))
    if (there != there[0] + count * step).any() or (elements[there] != low + count).any():
        return None
    return _Spread(int(there[0]), step, low, len(there))


def _guarded(op: ComputeOp) -> tuple[list[Expr], TensorRead | None]:
    """The conditions under which a computation is a read of another tensor, and zero where they do
    not hold; no read where it is something else."""
    tests: list[Expr] = []
    value = op.body[0]
    while isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        tests += conjuncts(value.condition)
        value = value.a
    return tests, value if isinstance(value, TensorRead) else None
