"""Stages, and groups of stages that are placed together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.primitives_loops import LoopPrimitives
from tilewright.schedule.primitives_other import OtherPrimitives
from tilewright.schedule.primitives_parallel import ParallelPrimitives
from tilewright.schedule.primitives_placement import PlacementPrimitives
from tilewright.schedule.primitives_storage import StoragePrimitives
from tilewright.schedule.stage_base import Placed
from tilewright.schedule.tensor import IterVar
from tilewright.schedule.trace import primitive

if TYPE_CHECKING:
    from tilewright.schedule.schedule import Schedule


class Stage(
    LoopPrimitives, ParallelPrimitives, PlacementPrimitives, StoragePrimitives, OtherPrimitives
):
    """The schedule of one operation.

    `op` is the operation as it is now (cache_write and rfactor change it), `leaf_iter_vars` its
    loops from the outermost in.
    """


class Group(Placed):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""

    def __init__(self, schedule: Schedule, name: str, members: list[Placed]) -> None:
        self.schedule = schedule
        self.name = name
        self.members = members
        self.group: Group | None = None
        self._place_root()

    def __repr__(self) -> str:
        return f"Group({self.name})"

    def stages(self) -> list[Stage]:
        """The stages of the group and of the groups in it."""
        found: list[Stage] = []
        for member in self.members:
            found.extend(member.stages() if isinstance(member, Group) else [member])  # type: ignore[list-item]
        return found

    def _check_read(self, stage: Stage, axis: IterVar) -> None:
        if not any(self.schedule.feeds(member, stage) for member in self.stages()):
            raise ScheduleError(
                f"compute_at of group '{self.name}': '{stage.name}' reads nothing of it"
            )

    @primitive
    def compute_at(self, parent: Any, scope: Any) -> Group:
        """Compute the whole group inside of a loop of another stage (:meth:`Stage.compute_at`)."""
        self._place_at(parent, scope)
        return self

    @primitive
    def compute_root(self) -> Group:
        """Compute the group at root level."""
        self._place_root()
        return self
