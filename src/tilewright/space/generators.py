"""Search spaces by codegen pipeline: one generator module each, registered by name.

A generator says whether its pipeline fits a dispatch and which rules the pipeline has. The space of
a dispatch is the union over the pipelines that fit; the compiler's own choice is always in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.gpu import GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space import (
    cpu_buffer_ops,
    cpu_conv,
    cpu_data_tiling,
    cpu_double_tiling,
    cpu_linalg_ext,
    cpu_mmt4d,
)
from tilewright.space.cpu_tiles import PipelineRules, PipelineSpace
from tilewright.space.dispatch_space import DispatchSpace
from tilewright.space.gpu_generators import gpu_dispatch_space
from tilewright.space.interface import Space
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.target import Target
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

__all__ = ["GENERATORS", "CpuDispatchSpace", "DispatchSpace", "Generator", "dispatch_space"]


@dataclass(frozen=True)
class Generator:
    """`fits` tells whether the pipeline can compile the dispatch; `rules` what it reads."""

    name: str
    rules: PipelineRules
    fits: Callable[[DispatchTemplate, Workload], bool]


GENERATORS = (
    Generator("cpu_double_tiling", cpu_double_tiling.RULES, cpu_double_tiling.fits),
    Generator("cpu_conv", cpu_conv.RULES, cpu_conv.fits),
    Generator("cpu_mmt4d", cpu_mmt4d.RULES, cpu_mmt4d.fits),
    Generator("cpu_data_tiling", cpu_data_tiling.RULES, cpu_data_tiling.fits),
    Generator("cpu_linalg_ext", cpu_linalg_ext.RULES, cpu_linalg_ext.fits),
    Generator("cpu_buffer_ops", cpu_buffer_ops.RULES, cpu_buffer_ops.fits),
    Generator("cpu_default", cpu_buffer_ops.DEFAULT_RULES, cpu_buffer_ops.fits_default),
)


class CpuDispatchSpace(DispatchSpace):
    """The union over the CPU pipelines that fit a dispatch."""

    def __init__(self, members: list[PipelineSpace], own: str) -> None:
        self.members: dict[str, PipelineSpace] = {m.rules.pipeline: m for m in members}
        self.own = own
        self.space: Space = UnionSpace("dispatch", [m.space for m in members], default=own)

    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may hold the knob to this value in any of the pipelines."""
        return any(
            own.name == knob and own.admits(value)
            for member in self.members.values()
            for own in member.knobs
        )

    def lower(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler reads for a configuration; its own choice, exactly, for the default."""
        values = dict(configuration.items)
        member = self.members[str(values.pop(MEMBER_KNOB))]
        return member.configure(Configuration.of(values))


def dispatch_space(
    template: DispatchTemplate, workload: Workload, target: Target
) -> DispatchSpace | None:
    """The space of a dispatch; None when no generator models the compiler's own pipeline for it,
    or when some size is known at run time only."""
    if isinstance(template, GpuTemplate) and isinstance(target, GpuTarget):
        return gpu_dispatch_space(template, workload, target) if workload.is_static else None
    own = template.translation.pipeline
    if not workload.is_static or template.root_op.tiling is None:
        return None
    members = [
        PipelineSpace(g.rules, template, workload, target)
        for g in GENERATORS
        if g.rules.pipeline == own or g.fits(template, workload)
    ]
    if own not in {m.rules.pipeline for m in members}:
        return None
    return CpuDispatchSpace(members, own)
