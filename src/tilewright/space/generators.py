"""The space of a dispatch: the union over the codegen pipelines that fit it.

A pipeline is a class in a module of its own, and that module's line here. The compiler's own choice
is always in the space. On GPUs the compiler's constraints make a space for each pipeline that it
states them for; the classes here are for the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from tilewright.gpu import GpuTemplate
from tilewright.registration import registered
from tilewright.space.cpu_tiles import CpuPipeline
from tilewright.space.dispatch_space import DispatchSpace
from tilewright.space.gpu_pipeline import GpuPipeline, OwnChoiceAlone
from tilewright.space.gpu_smt import StatedPipeline
from tilewright.space.pipeline import Pipeline, Unfit
from tilewright.target import GpuTarget, Target
from tilewright.tiling import DispatchTemplate
from tilewright.workload import Workload

__all__ = ["CPU_PIPELINES", "GPU_PIPELINES", "DispatchSpace", "dispatch_space"]

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
