"""One codegen pipeline's configurations of a dispatch, and the way from them to the compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.space.constraints import Computed, Constraint
from tilewright.space.knobs import Knob
from tilewright.space.search_space import PriorMany, SearchSpace
from tilewright.tiling import CompilationInfo
from tilewright.trial import Configuration


class Unfit(Exception):
    """The pipeline is not one for the dispatch, or its rules leave no configuration."""


class Pipeline(ABC):
    """What a dispatch's space is the union of; made from a template, a workload and a target.

    The constructor raises Unfit for a dispatch that the pipeline cannot compile. `is_own`: whether
    the default of `space` is the compiler's own choice. `threads`: of a workgroup, for each of its
    dimensions, x first; none where there are no workgroups of threads.
    """

    name: str
    space: SearchSpace
    is_own: bool
    threads: tuple[Computed, ...] = ()

    @property
    def tile_names(self) -> Mapping[str, str]:
        """What may be restricted as the tile of rows (`m`), of columns (`n`) and of the depth (`k`)
        of a matrix product, in elements, by these names of its loops."""
        return {}

    @abstractmethod
    def configure(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler reads for a configuration of `space`."""


def space_near(
    name: str,
    knobs: Sequence[Knob],
    constraints: Sequence[Constraint],
    start: Configuration | None,
    *,
    prior_many: PriorMany | None = None,
    computed: Mapping[str, Computed] | None = None,
) -> SearchSpace:
    """A space whose default is `start` where that is a member, else the member nearest to it.

    Args:
        name: as of `SearchSpace`, like the others.
        knobs: of different names.
        constraints: of different names.
        start: a value for every knob; any member is taken without it.
        prior_many: how promising configurations look.
        computed: what a user may restrict beside the knobs.

    Raises:
        Unfit: where the rules leave no configuration.
    """
    values = {} if start is None else dict(start.items)
    inside = start is not None and all(k.index(values[k.name]) is not None for k in knobs)
    if start is None or not inside or not all(c.holds(values) for c in constraints):
        anywhere = Configuration.of(values)
        free = SearchSpace(name, knobs, constraints, anywhere, default_outside=True)
        found = free.sample(np.random.default_rng(0), 1)
        if not found:
            raise Unfit(f"{name}: the rules leave no configuration")
        start = found[0] if start is None else free.nearest_valid(start)
    return SearchSpace(name, knobs, constraints, start, prior_many=prior_many, computed=computed)
