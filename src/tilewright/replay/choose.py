"""Which values of which knobs are recorded: the user's lists, or lists that make a good space.

A recording is the full product of its lists, so that every configuration has its neighbours in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.space.generators import DispatchSpace
from tilewright.space.interface import Space
from tilewright.space.knobs import Knob
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.trial import Configuration, Value

# Members looked at to find out which values are promising, and the share of them that is.
_SAMPLE = 4096
_PROMISING = 0.05
_MAX_VALUES = 12
MAX_POINTS = 100_000

ValueLists = dict[str, tuple[Value, ...]]


@dataclass(frozen=True)
class RecordingSelection:
    """What is to be recorded.

    `lists` holds the values of every knob that has an effect, `space` is the search space held to
    them, `members` its configurations. `combinations` counts the full product; those that are no
    members a constraint rejects. `notes`: remarks for the user.
    """

    lists: ValueLists
    space: Space
    members: tuple[Configuration, ...]
    combinations: int
    notes: tuple[str, ...] = ()

    @property
    def rejected(self) -> int:
        """Combinations that a constraint rejects."""
        return self.combinations - len(self.members)


def select(
    dispatch: DispatchSpace, given: Mapping[str, str], points: int, seed: int
) -> RecordingSelection:
    """The configurations to record.

    Without lists (but of `pipeline`) some are chosen whose product has about `points` valid
    configurations. The compiler's own pipeline is taken, and those that `given` names; its own
    value is in every list.

    Args:
        dispatch: the space of the dispatch.
        given: the user's lists as text (`"8,16,32"`) by knob; the other knobs then keep the
            compiler's value.
        points: about how many, where no lists are given.
        seed: decides the sample that the choice is made by.

    Raises:
        UserError: for an unknown knob, a value that is not allowed, or too many configurations.
    """
    notes: list[str] = []
    pipelines = [dispatch.own]
    if MEMBER_KNOB in given:
        pipelines = list(dict.fromkeys([*pipelines, *_texts(MEMBER_KNOB, given[MEMBER_KNOB])]))
    space = dispatch.space.restrict({MEMBER_KNOB: pipelines}).space
    texts = {name: text for name, text in given.items() if name != MEMBER_KNOB}
    lists = _given(space, texts, notes) if texts else _chosen(space, points, seed)
    restriction = space.restrict(lists)
    size = restriction.space.size_estimate(np.random.default_rng(0))
    if size.high > MAX_POINTS:
        raise UserError(
            f"--knob: the lists make {size.total:,} combinations; at most {MAX_POINTS:,} "
            "configurations can be recorded: give fewer values"
        )
    found = restriction.space.ordered(range(restriction.space.order_size))
    members = tuple(c for c in found if c is not None)
    knobs = {knob.name: knob for knob in restriction.space.knobs}
    lists = {name: _in_order(knobs[name], values) for name, values in lists.items()}
    lists[MEMBER_KNOB] = tuple(pipelines)
    return RecordingSelection(
        lists, restriction.space, members, size.total, (*notes, *restriction.notes)
    )


def _in_order(knob: Knob, values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(sorted(values, key=lambda value: knob.index(value) or 0))


# -- the user's lists ------------------------------------------------------------------------------


def _given(space: Space, texts: Mapping[str, str], notes: list[str]) -> ValueLists:
    knobs = {knob.name: knob for knob in space.knobs if knob.name != MEMBER_KNOB}
    lists = _own_values(space)
    for name, text in texts.items():
        knob = knobs.get(name)
        if knob is None:
            raise UnknownNameError("knob", name, [*knobs, MEMBER_KNOB], "--knob")
        if not knob.effect:
            raise UserError(f"--knob {name}: has no effect here ({knob.note}); leave it out")
        values = tuple(_parse(knob, part) for part in _texts(name, text))
        lacking = tuple(v for v in lists[name] if v not in values)
        if lacking:
            shown = ", ".join(map(str, lacking))
            notes.append(f"{name}: the compiler's own value {shown} is recorded as well")
        held = knob.restrict((*values, *lacking))
        lists[name] = tuple(held.value(i) for i in range(held.cardinality))
    return lists


def _own_values(space: Space) -> ValueLists:
    """The compiler's value of each knob that has an effect: one for each pipeline that has it."""
    members: Sequence[Space] = space.members if isinstance(space, UnionSpace) else (space,)
    found: dict[str, dict[Value, None]] = {}
    for member in members:
        own = dict(member.default.items)
        for knob in member.knobs:
            if knob.effect:
                found.setdefault(knob.name, {})[own[knob.name]] = None
    return {name: tuple(values) for name, values in found.items()}


def _texts(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(f"--knob {name}={text}: write the values separated by commas")
    return parts


def _parse(knob: Knob, text: str) -> Value:
    """A value of a knob from text; UserError, with what is allowed, when it is none."""
    value = knob.parse(text)
    if not knob.admits(value):
        raise UserError(f"--knob {knob.name}: '{text}' is not allowed (allowed: {knob.allowed()})")
    return value


# -- lists of our own ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Offer:
    """A value that a list may grow by.

    `lift`: how much more often it stands in the configurations that the prior likes best than in
    all of them (1 without a prior); `steps`: how far it is from the compiler's own value.
    """

    knob: str
    value: Value
    lift: float
    steps: int


def _chosen(space: Space, points: int, seed: int) -> ValueLists:
    """Lists around the compiler's own values with about `points` valid configurations.

    Grown a value at a time: the one of the largest lift over the length of its list, as long as
    every combination stays valid. Only where that ends far below `points` are values taken that
    make some combinations invalid.
    """
    lists = _own_values(space)
    offers = _offers(space, lists, seed)
    for every_valid in (True, False):
        if every_valid or _size(space, lists)[0] < points // 2:
            lists = _grown(space, lists, offers, points, every_valid)
    return lists


def _grown(
    space: Space, lists: ValueLists, offers: Sequence[_Offer], points: int, every_valid: bool
) -> ValueLists:
    lists = dict(lists)
    left = [o for o in offers if o.value not in lists[o.knob]]
    while left:
        best = max(left, key=lambda o: (o.lift / len(lists[o.knob]), -o.steps))
        left.remove(best)
        tried = lists | {best.knob: (*lists[best.knob], best.value)}
        valid, total = _size(space, tried)
        if valid > points or len(tried[best.knob]) > _MAX_VALUES:
            left = [o for o in left if o.knob != best.knob]
        elif valid == total or not every_valid:
            lists = tried
    return lists


def _size(space: Space, lists: ValueLists) -> tuple[int, int]:
    """Valid configurations, and all combinations."""
    size = space.restrict(lists).space.size_estimate(np.random.default_rng(0))
    return size.points, size.total


def _offers(space: Space, own: ValueLists, seed: int) -> list[_Offer]:
    sample = space.sample(np.random.default_rng(seed), _SAMPLE)
    order = np.argsort(-space.prior_many(sample), kind="stable")
    promising = [sample[i] for i in order[: max(1, int(_PROMISING * len(sample)))]]
    if not space.has_prior:
        promising = sample
    offers = []
    for knob in space.knobs:
        if knob.name not in own:
            continue
        at = knob.index(own[knob.name][0]) or 0
        liked, all_ = _shares(promising, knob.name), _shares(sample, knob.name)
        for index in range(knob.cardinality):
            value = knob.value(index)
            if value in all_:
                lift = liked.get(value, 0.0) / all_[value]
                offers.append(_Offer(knob.name, value, lift, abs(index - at)))
    return offers


def _shares(configurations: Sequence[Configuration], knob: str) -> dict[Value, float]:
    """How often each value of a knob occurs."""
    values = [dict(c.items).get(knob) for c in configurations]
    counts = Counter(v for v in values if v is not None)
    return {value: count / len(configurations) for value, count in counts.items()}
