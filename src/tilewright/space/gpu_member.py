"""One pipeline's space of a dispatch on a GPU, and the way from a configuration to the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.errors import UserError
from tilewright.gpu import GpuCompilationInfo
from tilewright.space.constraints import Constraint
from tilewright.space.descriptors import Descriptors
from tilewright.space.interface import Restriction
from tilewright.space.knobs import Knob
from tilewright.space.search_space import PriorMany, SearchSpace
from tilewright.trial import Configuration, Value

Compute = Callable[..., Any]

# The workgroup's sizes, which follow from other knobs in every pipeline: a user may hold them too.
WORKGROUP_SIZES = ("workgroup_size_x", "workgroup_size_y", "workgroup_size_z")


class GpuMember(Protocol):
    """What a dispatch's space on a GPU is the union of."""

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> SearchSpace: ...

    @property
    def computed(self) -> Mapping[str, Computed]:
        """What a user may restrict beside the knobs."""

    def configure(self, configuration: Configuration) -> GpuCompilationInfo: ...


class Computed:
    """A number that follows from knobs, such as the threads of a workgroup."""

    def __init__(self, knobs: tuple[str, ...], compute: Compute) -> None:
        self.knobs = knobs
        self.compute = compute


class GpuSpace(SearchSpace):
    """A search space in which the numbers that follow from the knobs can be restricted as well."""

    def __init__(
        self,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint],
        default: Configuration,
        *,
        computed: Mapping[str, Computed] | None = None,
        prior_many: PriorMany | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self._computed = dict(computed or {})
        super().__init__(
            name, knobs, constraints, default, prior_many=prior_many, descriptors=descriptors
        )

    @classmethod
    def of(
        cls,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint],
        default: Configuration,
    ) -> GpuSpace:
        """A space whose default need not be a member: to look for one that is."""
        space = cls.__new__(cls)
        space._computed = {}
        space._setup(name, tuple(knobs), tuple(constraints), default, None, None)
        return space

    @property
    def computed_names(self) -> tuple[str, ...]:
        return tuple(self._computed)

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        own = {name: allowed for name, allowed in values.items() if name not in self._computed}
        extra = tuple(
            _one_of(name, self._computed[name], allowed)
            for name, allowed in values.items()
            if name in self._computed
        )
        for constraint in extra:
            if not constraint.knobs and not constraint.check():
                raise UserError(f"search space '{self.name}': {constraint.reason()}")
        scoped = tuple(c for c in extra if c.knobs)
        if scoped:
            narrowed = self._with(self.knobs, (*self.constraints, *scoped))
            if not narrowed.sample(np.random.default_rng(0), 1):
                raise UserError(
                    f"search space '{self.name}': no configuration has "
                    + ", ".join(f"{c.name} {values[c.name]}" for c in scoped)
                )
            return narrowed.restrict(own)
        return super().restrict(own)


def _one_of(name: str, computed: Computed, allowed: Sequence[Value]) -> Any:
    wanted = np.array([int(v) for v in allowed if isinstance(v, int)], dtype=np.int64)

    def check(*values: Any) -> Any:
        return np.isin(np.asarray(computed.compute(*values)), wanted)

    def reason(*values: Any) -> str:
        shown = ", ".join(str(v) for v in wanted)
        return f"{name} is {int(computed.compute(*values))}, not one of {shown}"

    if not computed.knobs:
        return _FixedNumber(name, check, reason)
    return Constraint(name, computed.knobs, check, reason, vectorised=True)


class _FixedNumber:
    """The restriction of a number that no knob changes: it holds or it does not."""

    knobs: tuple[str, ...] = ()

    def __init__(self, name: str, check: Compute, reason: Callable[..., str]) -> None:
        self.name, self.check, self.reason = name, check, reason


class OwnMember:
    """The compiler's own choice, where no space has it: a space of one point."""

    def __init__(self, configuration: GpuCompilationInfo, name: str) -> None:
        self.name = name
        self.computed: dict[str, Computed] = {}
        self._configuration = configuration
        self.space = SearchSpace(name, (), (), Configuration(()))

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        return self._configuration
