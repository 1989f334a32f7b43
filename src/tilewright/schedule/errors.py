"""The one error of the schedule language."""

from __future__ import annotations

from tilewright.errors import UserError


class ScheduleError(UserError):
    """An expression or a schedule that has no meaning: says what, at which stage and axis, what
    is allowed and what to do."""
