"""The space of a dispatch: the union over the codegen pipelines that fit it.

A pipeline is a class in a module of its own, and that module's line here. The compiler's own choice
is always in the space. On GPUs the compiler's constraints make a space for each pipeline that it
states them for; the classes here are for the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tilewright.gpu import GpuTemplate
from tilewright.registration import registered
from tilewright.space.cpu_tiles import CpuPipeline
from tilewright.space.gpu_pipeline import GpuPipeline, OwnChoiceAlone
from tilewright.space.gpu_smt import StatedPipeline
from tilewright.space.interface import Restriction
from tilewright.space.pipeline import Pipeline, Unfit
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.target import GpuTarget, Target
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload


class DispatchSpace:
    """The union over the pipelines that fit a dispatch.

    `space` is what strategies search; `lower` gives the form in which candidates are compiled and
    specs carry a configuration. `own` names the pipeline of the compiler's own choice, and
    `members` has the pipelines by name.
    """

    def __init__(self, pipelines: Sequence[Pipeline], own: str, template: DispatchTemplate) -> None:
        self.members = {pipeline.name: pipeline for pipeline in pipelines}
        self.own = own
        self.space = UnionSpace("dispatch", [p.space for p in pipelines], default=own)
        self._template = template

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
            configuration: a member of the space.
        """
        if configuration == self.default:
            return self._template.default
        values = dict(configuration.items)
        return self.members[str(values.pop(MEMBER_KNOB))].configure(Configuration.of(values))


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
    template: DispatchTemplate, workload: Workload, target: Target
) -> DispatchSpace | None:
    """The space of a dispatch.

    Args:
        template: the dispatch as the compiler configures it.
        workload: what it computes.
        target: what it is compiled for.

    Returns:
        None when no pipeline models the compiler's own choice for it (on a GPU: when nothing but
        that choice is known), or when some size is known at run time only.
    """
    if not workload.is_static:
        return None
    if isinstance(template, GpuTemplate) and isinstance(target, GpuTarget):
        of = template, workload, target
        stated = [partial(StatedPipeline, program, *of) for program in template.programs]
        found = _fitting([*stated, *(partial(pipeline, *of) for pipeline in GPU_PIPELINES)])
        if found and not any(pipeline.is_own for pipeline in found):
            found.append(OwnChoiceAlone(template))
    else:
        found = _fitting(partial(m, template, workload, target) for m in CPU_PIPELINES)
    own = next((pipeline.name for pipeline in found if pipeline.is_own), None)
    return None if own is None else DispatchSpace(found, own, template)


def _fitting(makers: Iterable[Callable[[], Pipeline]]) -> list[Pipeline]:
    """The pipelines that fit; of several of one name the first."""
    found: dict[str, Pipeline] = {}
    for make in makers:
        with contextlib.suppress(Unfit):
            pipeline = make()
            found.setdefault(pipeline.name, pipeline)
    return list(found.values())
