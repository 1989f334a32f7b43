"""Stages and groups: their state, with the primitives of each kind."""

from __future__ import annotations

from tilewright.schedule.execution_primitives import ExecutionPrimitives
from tilewright.schedule.loop_primitives import LoopPrimitives
from tilewright.schedule.placement_primitives import PlacementPrimitives, StoragePrimitives
from tilewright.schedule.state import GroupState


class Stage(LoopPrimitives, ExecutionPrimitives, PlacementPrimitives, StoragePrimitives):
    """The schedule of one operation; its methods are the primitives."""


class Group(PlacementPrimitives, GroupState):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""
