"""The space of a dispatch on a GPU: the compiler's constraints where it states any, else our own
generators, one for each kind of configuration; the compiler's own choice is always in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from tilewright.gpu import GpuCompilationInfo, GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.dispatch_space import DispatchSpace
from tilewright.space.gpu_attention import attention_recipe
from tilewright.space.gpu_explicit import ExplicitMember, Recipe
from tilewright.space.gpu_member import GpuMember, OwnMember
from tilewright.space.gpu_mma import mma_recipe
from tilewright.space.gpu_reduction import reduction_recipe
from tilewright.space.gpu_simt import simt_recipe
from tilewright.space.gpu_smt import SmtMember
from tilewright.space.gpu_spirv import SPIRV_RECIPES
from tilewright.space.interface import Space
from tilewright.space.smt import Unbounded
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

OWN = "compiler"

RecipeMaker = Callable[[GpuTemplate, Workload, GpuTarget], Recipe | None]
# Our own, in the order in which they are asked.
RECIPES: tuple[RecipeMaker, ...] = (
    mma_recipe,
    simt_recipe,
    reduction_recipe,
    attention_recipe,
    *SPIRV_RECIPES,
)


class GpuDispatchSpace(DispatchSpace):
    """The search space of a dispatch on a GPU; see `DispatchSpace`."""

    def __init__(self, members: Sequence[GpuMember], template: GpuTemplate, own: str) -> None:
        self.members: dict[str, GpuMember] = {m.name: m for m in members}
        self.own = own
        self._template = template
        self.space: Space = UnionSpace("dispatch", [m.space for m in members], default=own)

    @property
    def restrictable(self) -> set[str]:
        names = {knob.name for knob in self.space.knobs}
        return names | {name for m in self.members.values() for name in m.computed}

    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may hold the knob to this value in any of the pipelines."""
        for member in self.members.values():
            if any(k.name == knob and k.admits(value) for k in member.space.knobs):
                return True
        return any(knob in member.computed for member in self.members.values())

    def lower(self, configuration: Configuration) -> GpuCompilationInfo:
        """What the compiler reads for a configuration; its own choice, exactly, for the default."""
        if configuration == self.default:
            return self._template.configuration
        values = dict(configuration.items)
        member = self.members[str(values.pop(MEMBER_KNOB))]
        return member.configure(Configuration.of(values))


def gpu_dispatch_space(
    template: GpuTemplate, workload: Workload, target: GpuTarget
) -> GpuDispatchSpace | None:
    """The space of a dispatch; None when nothing but the compiler's own choice is known for it."""
    members: list[GpuMember] = list(_from_constraints(template, workload, target))
    for make in RECIPES:
        recipe = make(template, workload, target)
        if recipe is not None:
            with contextlib.suppress(ValueError):
                members.append(ExplicitMember(recipe, template))
    if not members:
        return None
    own = next((m.name for m in members if getattr(m, "matches_own", False)), "")
    if not own:
        own = OWN
        members.append(OwnMember(template.configuration, OWN))
    return GpuDispatchSpace(members, template, own)


def _from_constraints(
    template: GpuTemplate, workload: Workload, target: GpuTarget
) -> list[SmtMember]:
    members: list[SmtMember] = []
    for program in template.programs:
        try:
            member = SmtMember(program, template, workload, target)
        except (ValueError, Unbounded):
            continue
        if all(member.name != other.name for other in members):
            members.append(member)
    return members
