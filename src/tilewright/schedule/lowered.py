"""The lowered schedule that `te.lower` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.schedule.lower import lower_program
from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.printer import show
from tilewright.schedule.schedule import Schedule
from tilewright.target import Target


class Lowered:
    """The loop nests of a schedule. `print` shows them as readable loops; `program` is the tree."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program

    @property
    def text(self) -> str:
        """The loops as text."""
        return show(self.program)

    def __str__(self) -> str:
        return self.text

    def mlir(self, target: str | Target | None = None) -> Any:
        """The MLIR module for a target (without one: this machine's processor)."""
        from tilewright.schedule.codegen import module_for

        return module_for(self.program, target)


def lower(
    schedule: Schedule,
    args: Sequence[Any],
    name: str = "main",
    simple_mode: bool = True,
) -> Lowered:
    """Turns a schedule into loops.

    args: the tensors that the caller hands over: every placeholder that is read, every output.
    name: of the function.
    simple_mode: accepted for TVM's sake; loops are always shown plainly.

    Raises ScheduleError for a schedule that cannot be carried out, naming stage and axis.
    """
    return Lowered(lower_program(schedule, args, name))
