"""The space of a dispatch: the union over the codegen pipelines, and kernels, that fit it.

A pipeline is a class in a module of its own, and that module's line here. The compiler's own choice
is always in the space, unless it is held to kernels. A kernel of our own is one more member, by the
sketch that writes it. On GPUs the compiler's constraints make a space for each pipeline that it
states them for; the classes here are for the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.gpu import GpuTemplate
from tilewright.registration import registered
from tilewright.site import KernelChoice
from tilewright.space.cpu_tiles import CpuPipeline
from tilewright.space.gpu_pipeline import GpuPipeline, OwnChoiceAlone, sums_as_instructed
from tilewright.space.gpu_smt import StatedPipeline
from tilewright.space.interface import Restriction, Space
from tilewright.space.pipeline import Pipeline, Unfit
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.target import GpuTarget, Target
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

KERNEL_MEMBER = "kernel-"
"""What the name of a member that is a sketch begins with."""

# Of what is drawn from a space with kernels: of these, each sketch as much as another.
_KERNELS_SHARE = 0.5

# What stands for a pipeline where the compiler makes several dispatches.
_SEVERAL_DISPATCHES = "iree"


class DispatchSpace:
    """The union over the pipelines, and sketches of kernels, that fit a dispatch.

    `space` is what strategies search; `lower` gives the form in which candidates are compiled and
    specs carry a configuration, `kernel` the kernel that a configuration stands for. `own` names
    the pipeline of the compiler's own choice ('' where no pipeline models it), and `members` has
    the pipelines by name.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        own: str,
        template: DispatchTemplate | None,
        kernels: Mapping[str, SearchSpace] | None = None,
        kernels_alone: bool = False,
    ) -> None:
        """The union over members, of which there must be one.

        Args:
            pipelines: of different names.
            own: name of the pipeline whose default is the compiler's own choice; '' for none.
            template: the dispatch as the compiler configures it; None where it makes several
                dispatches of what a kernel computes.
            kernels: spaces by the name of their sketch.
            kernels_alone: pipelines are not searched, though the compiler's own choice is known.
        """
        self.members = {pipeline.name: pipeline for pipeline in pipelines}
        self.own = own
        self._template = template
        self._sketches = {f"{KERNEL_MEMBER}{name}": name for name in kernels or {}}
        searched: list[Space] = [] if kernels_alone else [p.space for p in pipelines]
        # A kernel is taken to be as fast as the compiler's own choice until it has been measured:
        # priors are comparable within a member, and those of sketches are in other units.
        level = 0.0
        if searched and own and self.members[own].space.has_prior:
            level = self.members[own].space.prior(self.members[own].space.default)
        if kernels:
            searched += [
                space.as_member(f"{KERNEL_MEMBER}{name}", level) for name, space in kernels.items()
            ]
        self.space = UnionSpace(
            "dispatch",
            searched,
            default=self._own_choice(searched),
            # The sizes of spaces tell nothing of which world is better: both get their share.
            shares={name: _KERNELS_SHARE / len(self._sketches) for name in self._sketches},
            anchors=self._best_of_sketches(searched),
        )

    def _own_choice(self, searched: Sequence[Space]) -> str | Configuration:
        """The compiler's own choice: the name of the member, or a configuration outside."""
        if any(space.name == self.own for space in searched):
            return self.own
        if self.own:
            values = dict(self.members[self.own].space.default.items)
            return Configuration.of({**values, MEMBER_KNOB: self.own})
        pipeline = self._template.translation.pipeline if self._template else _SEVERAL_DISPATCHES
        return Configuration.of({MEMBER_KNOB: pipeline})

    def _best_of_sketches(self, searched: Sequence[Space]) -> list[Configuration]:
        """What each sketch takes for best, then what else each has a trial for."""
        found = [
            (rank, Configuration.of({**dict(one.items), MEMBER_KNOB: space.name}))
            for space in searched
            if space.name in self._sketches
            for rank, one in enumerate(space.anchors)
        ]
        return [one for _, one in sorted(found, key=lambda ranked: min(ranked[0], 1))]

    @property
    def default(self) -> Configuration:
        """The compiler's own choice."""
        return self.space.default

    @property
    def restrictable(self) -> set[str]:
        """What a user may restrict."""
        return set(self.space.restrictable)

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to the given values; see `Space.restrict`.

        Args:
            values: what each knob may be, by its name.
        """
        return self.space.restrict(values)

    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may hold the knob to this value in any of the pipelines.

        Args:
            knob: its name.
            value: that it would be held to.
        """
        return self.space.admits(knob, value)

    def lower(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler reads for a configuration; its own choice, exactly, for the default.

        Args:
            configuration: a member of the space that is no kernel.
        """
        if configuration == self.default:
            assert self._template is not None
            return self._template.default
        values = dict(configuration.items)
        return self.members[str(values.pop(MEMBER_KNOB))].configure(Configuration.of(values))

    def kernel(self, configuration: Configuration) -> KernelChoice | None:
        """The kernel of our own that a configuration stands for; None for one of a pipeline.

        Args:
            configuration: a member of the space.
        """
        values = dict(configuration.items)
        sketch = self._sketches.get(str(values.pop(MEMBER_KNOB, "")))
        return None if sketch is None else KernelChoice(sketch, Configuration.of(values))


# Modules of this package, each of which has its pipelines in `PIPELINES`. Of several of one name
# that fit a dispatch the first is taken.
_CPU_MODULES = (
    "cpu_double_tiling",
    "cpu_conv",
    "cpu_mmt4d",
    "cpu_plain",
)
_GPU_MODULES = (
    "gpu_mma",
    "gpu_simt",
    "gpu_reduction",
    "gpu_attention",
    "gpu_spirv",
)

CPU_PIPELINES: tuple[type[CpuPipeline], ...] = tuple(
    registered("tilewright.space", _CPU_MODULES, "PIPELINES")
)
GPU_PIPELINES: tuple[type[GpuPipeline], ...] = tuple(
    registered("tilewright.space", _GPU_MODULES, "PIPELINES")
)


def dispatch_space(
    template: DispatchTemplate | None,
    workload: Workload,
    target: Target,
    kernels: Mapping[str, SearchSpace] | None = None,
    kernels_alone: bool = False,
) -> DispatchSpace | None:
    """The space of a dispatch.

    Args:
        template: the dispatch as the compiler configures it; None for several dispatches.
        workload: what it computes.
        target: what it is compiled for.
        kernels: spaces of the kernels of our own that compute the same, by the name of the sketch.
        kernels_alone: only these are searched.

    Returns:
        None when there are no kernels and no pipeline models the compiler's own choice for it (on a
        GPU: when nothing but that choice is known), or when some size is known at run time only.
    """
    if not workload.is_static:
        return None
    if template is None:
        found = []
    elif isinstance(template, GpuTemplate) and isinstance(target, GpuTarget):
        if not sums_as_instructed(template, workload):
            return None
        of = workload, target
        found = _fitting(partial(StatedPipeline, one, template, *of) for one in template.programs)
        # Constraints that leave no configuration are as good as none.
        ours = template if found else replace(template, programs=())
        more = _fitting(partial(pipeline, ours, *of) for pipeline in GPU_PIPELINES)
        names = {pipeline.name for pipeline in found}
        found += [pipeline for pipeline in more if pipeline.name not in names]
        if found and not any(pipeline.is_own for pipeline in found):
            found.append(OwnChoiceAlone(template))
    else:
        found = _fitting(partial(m, template, workload, target) for m in CPU_PIPELINES)
    own = next((pipeline.name for pipeline in found if pipeline.is_own), "")
    if not (kernels or (own and not kernels_alone)):
        return None
    return DispatchSpace(found if own else [], own, template, kernels, kernels_alone)


def _fitting(makers: Iterable[Callable[[], Pipeline]]) -> list[Pipeline]:
    """The pipelines that fit; of several of one name the first."""
    found: dict[str, Pipeline] = {}
    for make in makers:
        with contextlib.suppress(Unfit):
            pipeline = make()
            found.setdefault(pipeline.name, pipeline)
    return list(found.values())
