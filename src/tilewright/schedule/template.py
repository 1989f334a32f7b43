"""Templates: schedules with choices left open, which a search fills in.

    @te.template
    def matmul(cfg, n):
        ...
        cfg.define_split("i", C.op.axis[0], num_outputs=2)
        cfg.define_knob("unroll", [0, 16])
        io, ii = cfg["i"].apply(s, C, C.op.axis[0])
        ...
        return s, [A, B, C]

    space = matmul.space(512)
    s, args = matmul.schedule(512, config=some_configuration)

The choices have AutoTVM's names and meaning; a knob of the search space stands behind each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilewright.errors import did_you_mean
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tensor import IterVar
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.trial import Configuration, Value

# Axes that policy "all" may have: their permutations are the choices.
_PERMUTED = 5


class Choice:
    """A choice that a template defined, with what was chosen; `cfg[name]` gives it."""

    def __init__(self, name: str, knobs: list[Knob], constraints: list[Constraint]) -> None:
        self.name = name
        self.knobs = knobs
        self.constraints = constraints
        self.values: tuple[Value, ...] = ()

    @property
    def val(self) -> Value:
        """The chosen value (of a knob)."""
        return self.values[0]

    def __repr__(self) -> str:
        return f"{self.name}={self.values[0] if len(self.values) == 1 else self.values}"


class SplitChoice(Choice):
    """Sizes for the parts of an axis. `size` has one for each part, -1 for the outermost."""

    @property
    def size(self) -> list[int]:
        first = self.values[0]
        inner = first[1:] if isinstance(first, tuple) else self.values
        return [-1, *(int(v) for v in inner if not isinstance(v, tuple))]

    def apply(self, schedule: Schedule, op: Any, axis: IterVar) -> list[IterVar]:
        """Splits the axis; gives its parts, the outermost first.

        Args:
            schedule: the schedule.
            op: the tensor, operation or stage.
            axis: of it.
        """
        parts: list[IterVar] = []
        for factor in reversed(self.size[1:]):
            axis, inner = schedule[op].split(axis, factor=factor)
            parts.insert(0, inner)
        return [axis, *parts]


class ReorderChoice(Choice):
    """An order of axes. `perm` says which of the given axes comes at each place."""

    @property
    def perm(self) -> tuple[int, ...]:
        value = self.values[0]
        assert isinstance(value, tuple)
        return value

    def apply(self, schedule: Schedule, op: Any, axes: Sequence[IterVar]) -> list[IterVar]:
        """Reorders the axes; gives them in their new order.

        Args:
            schedule: the schedule.
            op: the tensor, operation or stage.
            axes: as many as the choice is of.

        Raises:
            ScheduleError: there are more or fewer.
        """
        if len(axes) != len(self.perm):
            raise ScheduleError(
                f"reorder '{self.name}' is of {len(self.perm)} axes, applied to {len(axes)}"
            )
        ordered = [axes[i] for i in self.perm]
        schedule[op].reorder(*ordered)
        return ordered


class AnnotateChoice(Choice):
    """For each of some axes whether it is unrolled, vectorised, or neither."""

    @property
    def anns(self) -> tuple[str, ...]:
        return tuple(str(v) for v in self.values)

    def apply(self, schedule: Schedule, op: Any, axes: Sequence[IterVar]) -> list[IterVar]:
        """Annotates the axes.

        Args:
            schedule: the schedule.
            op: the tensor, operation or stage.
            axes: as many as the choice is of.

        Returns:
            The axes.

        Raises:
            ScheduleError: there are more or fewer.
        """
        if len(axes) != len(self.values):
            raise ScheduleError(
                f"annotate '{self.name}' is of {len(self.values)} axes, applied to {len(axes)}"
            )
        for axis, kind in zip(axes, self.anns, strict=True):
            if kind == "unroll":
                schedule[op].unroll(axis)
            elif kind == "vec":
                schedule[op].vectorize(axis)
        return list(axes)


class Config:
    """The choices of a template, as its function is given them (`cfg`)."""

    def __init__(self, template: str, chosen: Configuration | None) -> None:
        self.template = template
        self.choices: dict[str, Choice] = {}
        self._chosen = dict(chosen.items) if chosen is not None else None

    def __getitem__(self, name: str) -> Any:
        if name not in self.choices:
            raise ScheduleError(
                f"template '{self.template}' defines no choice '{name}'"
                f"{did_you_mean(name, list(self.choices))} (defined: {', '.join(self.choices)})"
            )
        return self.choices[name]

    def _define(self, choice: Choice) -> None:
        if choice.name in self.choices:
            raise ScheduleError(
                f"template '{self.template}' defines the choice '{choice.name}' twice"
            )
        values: list[Value] = []
        for knob in choice.knobs:
            if self._chosen is None:
                values.append(knob.value(0))
                continue
            if knob.name not in self._chosen:
                raise ScheduleError(
                    f"template '{self.template}': the configuration has no value for '{knob.name}'"
                )
            value = self._chosen[knob.name]
            if knob.index(value) is None:
                raise ScheduleError(
                    f"template '{self.template}': {knob.name} = {value} (allowed: {knob.allowed()})"
                )
            values.append(value)
        choice.values = tuple(values)
        self.choices[choice.name] = choice

    # -- definitions -------------------------------------------------------------------------------

    def define_split(
        self,
        name: str,
        axis: IterVar | int,
        policy: str = "factors",
        num_outputs: int = 2,
        max_factor: int | None = None,
        filter: Callable[[SplitChoice], bool] | None = None,
        candidate: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """How an axis is split into `num_outputs` parts, the outermost taking what is left.

        Args:
            name: of the choice; `cfg[name].apply` splits.
            axis: the axis, or its extent.
            policy: `factors` (sizes that divide the extent), `power2` (powers of two, which may
                leave a rest), `verbose` (both), `candidate` (the sizes listed in `candidate`, with
                the outermost, -1, first).
            num_outputs: how many parts.
            max_factor: the largest size of a part.
            filter: says whether a combination of sizes is allowed.
            candidate: lists of sizes, for policy `candidate`.

        Raises:
            ScheduleError: the policy is unknown, or has no candidates.
        """
        extent = axis if isinstance(axis, int) else _extent(axis, name)
        if num_outputs < 1:
            raise ScheduleError(f"define_split '{name}': num_outputs is {num_outputs}")
        knobs: list[Knob]
        constraints: list[Constraint] = []
        if policy == "candidate":
            sizes = [tuple(int(v) for v in c) for c in candidate or ()]
            if not sizes or any(len(s) != num_outputs for s in sizes):
                raise ScheduleError(
                    f"define_split '{name}': candidate needs lists of {num_outputs} sizes"
                )
            knobs = [ChoiceKnob(name, tuple(sizes))]
        else:
            factors = _factors(extent, policy, name, max_factor)
            knobs = [
                TileKnob(f"{name}.{i}", tuple(factors), limit=extent) for i in range(1, num_outputs)
            ]
            if len(knobs) > 1:
                constraints.append(_fits(name, knobs, extent, policy == "factors"))
        if filter is not None and knobs:
            constraints.append(_filtered(name, knobs, filter))
        self._define(SplitChoice(name, knobs, constraints))

    def define_reorder(
        self,
        name: str,
        axes: Sequence[IterVar],
        policy: str = "all",
        candidate: Sequence[Sequence[IterVar]] | None = None,
        interval: tuple[int, int] | None = None,
    ) -> None:
        """The order of some axes.

        Args:
            name: of the choice; `cfg[name].apply` reorders.
            axes: in the order of the default.
            policy: `identity` (as given), `all` (every permutation, of five axes at most),
                `interval_all` (every permutation of those in `interval`), `candidate` (the orders
                listed in `candidate`).
            candidate: orders of the axes, for policy `candidate`.
            interval: the first place and the one behind the last, for policy `interval_all`.

        Raises:
            ScheduleError: the policy is unknown, there are too many orders, or none.
        """
        count = len(axes)
        orders: list[tuple[int, ...]]
        if policy == "identity":
            orders = [tuple(range(count))]
        elif policy in ("all", "interval_all"):
            begin, end = interval if policy == "interval_all" and interval else (0, count)
            if end - begin > _PERMUTED:
                raise ScheduleError(
                    f"define_reorder '{name}': {end - begin} axes have too many permutations "
                    f"(allowed: {_PERMUTED}); list some with policy 'candidate'"
                )
            orders = [
                (*range(begin), *middle, *range(end, count))
                for middle in itertools.permutations(range(begin, end))
            ]
        elif policy == "candidate":
            orders = [_positions(axes, order, name) for order in candidate or ()]
        else:
            raise _unknown("define_reorder", name, policy, "identity, all, interval_all, candidate")
        if not orders:
            raise ScheduleError(f"define_reorder '{name}': no candidate given")
        self._define(ReorderChoice(name, [ChoiceKnob(name, tuple(orders))], []))

    def define_annotate(self, name: str, axes: Sequence[IterVar], policy: str) -> None:
        """Whether axes are unrolled or vectorised.

        Args:
            name: of the choice; `cfg[name].apply` annotates.
            axes: the axes, the innermost last.
            policy: `unroll` (each is unrolled), `try_unroll` (each may be), `try_vec` (the last may
                be vectorised), `try_unroll_vec` (each may be unrolled, the last vectorised
                instead).

        Raises:
            ScheduleError: the policy is unknown.
        """
        allowed = {
            "unroll": (("unroll",), ("unroll",)),
            "try_unroll": (("none", "unroll"), ("none", "unroll")),
            "try_vec": (("none",), ("none", "vec")),
            "try_unroll_vec": (("none", "unroll"), ("none", "unroll", "vec")),
        }
        if policy not in allowed:
            raise _unknown("define_annotate", name, policy, ", ".join(allowed))
        others, last = allowed[policy]
        knobs: list[Knob] = [
            ChoiceKnob(f"{name}.{i}", last if i == len(axes) - 1 else others)
            for i in range(len(axes))
        ]
        self._define(AnnotateChoice(name, knobs, []))

    def define_knob(self, name: str, candidate: Sequence[Value]) -> None:
        """A value out of a list; `cfg[name].val` gives it.

        Args:
            name: of the choice.
            candidate: the values, the default first.

        Raises:
            ScheduleError: there is none.
        """
        values = tuple(candidate)
        if not values:
            raise ScheduleError(f"define_knob '{name}': no candidate given")
        if values == (False, True):
            knob: Knob = BoolKnob(name)
        else:
            try:
                knob = ChoiceKnob(name, values)
            except ValueError as error:
                raise ScheduleError(f"define_knob '{name}': {error}") from None
        self._define(Choice(name, [knob], []))


def _extent(axis: IterVar, name: str) -> int:
    if axis.dom is None:
        raise ScheduleError(
            f"define_split '{name}': the extent of axis '{axis.name}' follows from other splits; "
            "split the axis it comes from, or give the extent as a number"
        )
    return axis.dom[1]


def _factors(extent: int, policy: str, name: str, largest: int | None) -> list[int]:
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    powers = [1 << i for i in range(extent.bit_length())]
    found = {
        "factors": divisors,
        "power2": powers,
        "verbose": sorted({*divisors, *powers}),
    }.get(policy)
    if found is None:
        raise _unknown("define_split", name, policy, "factors, power2, verbose, candidate")
    return [f for f in found if largest is None or f <= largest]


def _fits(name: str, knobs: Sequence[Knob], extent: int, divides: bool) -> Constraint:
    def holds(*sizes: Any) -> Any:
        product = prod(sizes)
        return extent % product == 0 if divides else product <= extent

    def reason(*sizes: Any) -> str:
        what = "does not divide" if divides else "is more than"
        return f"{' * '.join(map(str, sizes))} {what} {extent}"

    return Constraint(f"{name}.fits", tuple(k.name for k in knobs), holds, reason)


def _filtered(name: str, knobs: list[Knob], allowed: Callable[[SplitChoice], bool]) -> Constraint:
    def holds(*values: Any) -> bool:
        choice = SplitChoice(name, knobs, [])
        choice.values = values
        return bool(allowed(choice))

    return Constraint(
        f"{name}.filter",
        tuple(k.name for k in knobs),
        holds,
        lambda *values: f"the template's filter rejects {list(values)}",
    )


def _positions(axes: Sequence[IterVar], order: Sequence[IterVar], name: str) -> tuple[int, ...]:
    found = []
    for axis in order:
        places = [i for i, known in enumerate(axes) if known is axis]
        if not places or places[0] in found:
            raise ScheduleError(
                f"define_reorder '{name}': a candidate is not an order of the given axes"
            )
        found.append(places[0])
    if len(found) != len(axes):
        raise ScheduleError(
            f"define_reorder '{name}': a candidate has {len(found)} of {len(axes)} axes"
        )
    return tuple(found)


def _unknown(where: str, name: str, policy: str, allowed: str) -> ScheduleError:
    return ScheduleError(f"{where} '{name}': unknown policy '{policy}' (allowed: {allowed})")


class Template:
    """A function that schedules an expression with choices; made by :func:`template`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", "template")
        self.__doc__ = function.__doc__

    def _run(self, args: tuple[Any, ...], chosen: Configuration | None) -> tuple[Config, Any, Any]:
        config = Config(self.name, chosen)
        made = self.function(config, *args)
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Schedule):
            raise ScheduleError(
                f"template '{self.name}' has to return a schedule and its tensors: "
                "return s, [A, B, C]"
            )
        return config, made[0], list(made[1])

    def schedule(
        self, *args: Any, config: Configuration | None = None
    ) -> tuple[Schedule, list[Any]]:
        """The schedule and its tensors for a configuration (by default the first of each choice).

        Args:
            config: a member of the space.
            args: what the template's function takes after `cfg`.

        Returns:
            The schedule, and the tensors in the order in which they are handed over.

        Raises:
            ScheduleError: the configuration is not one of this template.
        """
        _, schedule, tensors = self._run(args, config)
        return schedule, tensors

    def space(self, *args: Any) -> SearchSpace:
        """The search space of the template's choices; its default is the first of each.

        Args:
            args: what the template's function takes after `cfg`.

        Returns:
            The space.

        Raises:
            ScheduleError: the template leaves nothing to choose.
        """
        config, _, _ = self._run(args, None)
        choices = config.choices.values()
        knobs = [k for c in choices for k in c.knobs]
        if not knobs:
            raise ScheduleError(f"template '{self.name}' leaves nothing to choose")
        constraints = [c for choice in choices for c in choice.constraints]
        default = Configuration.of({k.name: k.value(0) for k in knobs})
        try:
            return SearchSpace(self.name, knobs, constraints, default)
        except ValueError as error:
            raise ScheduleError(f"template '{self.name}': {error}") from None


def template(function: Callable[..., Any]) -> Template:
    """Makes a template of a function `f(cfg, *sizes)` that returns a schedule and its tensors.

    Args:
        function: the function.

    Returns:
        The template.
    """
    return Template(function)
