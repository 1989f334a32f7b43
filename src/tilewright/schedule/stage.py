"""Stages and groups, with the primitives that they have."""

from __future__ import annotations

from tilewright.schedule.primitives_loops import LoopPrimitives
from tilewright.schedule.primitives_stage import PlacementPrimitives, ResultPrimitives
from tilewright.schedule.state import GroupState


class Stage(LoopPrimitives, PlacementPrimitives, ResultPrimitives):
    """The schedule of one operation; its methods are the primitives."""


class Group(PlacementPrimitives, GroupState):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""
