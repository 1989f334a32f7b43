"""Primitives that place a stage: compute_at, compute_inline, compute_root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.stage_base import INLINE, StageBase
from tilewright.schedule.tensor import IterVar
from tilewright.schedule.trace import primitive

if TYPE_CHECKING:
    from typing import Self


class PlacementPrimitives(StageBase):
    """Where a stage is computed."""

    @primitive
    def compute_at(self, parent: Any, scope: IterVar) -> Self:
        """Computes a stage inside of a loop of another stage, just what that iteration needs.

        parent: the stage (or tensor) in whose loops.
        scope: the loop, an axis of `parent`.

        Every stage that reads this one has to run inside of that loop.

        >>> s = te.create_schedule(E)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          D = allocate(f32[1024, 1024], scope=global)
          for i in range(1024):
            for j in range(1024):
              D[i, j] = A[i, j] + B[i, j]
          for i in range(1024):
            for j in range(1024):
              E[i, j] = D[i, j]*2.0
        >>> s[D].compute_at(s[E], E.op.axis[0])
        Stage(D)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          for i in range(1024):
            D = allocate(f32[1, 1024], scope=global)
            for j in range(1024):
              D[0, j] = A[i, j] + B[i, j]
            for j in range(1024):
              E[i, j] = D[0, j]*2.0
        """
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(
                f"compute_at of '{self.name}': it is an output of the schedule, which is computed "
                "as a whole, at root level"
            )
        self._place_at(parent, scope)
        return self

    @primitive
    def compute_inline(self) -> Self:
        """Computes an element where it is read, without storing it.

        Not for reductions and outputs.

        >>> s = te.create_schedule(E)
        >>> s[D].compute_inline()
        Stage(D)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          for i in range(1024):
            for j in range(1024):
              E[i, j] = (A[i, j] + B[i, j])*2.0
        """
        where = f"compute_inline of '{self.name}'"
        if self.compute.reduction is not None:
            raise ScheduleError(
                f"{where}: it is a reduction (over "
                f"{', '.join(a.name for a in self.compute.reduce_axis)}), which has to be stored; "
                "use compute_at"
            )
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(f"{where}: it is an output of the schedule")
        self.attach, self.attach_stage, self.attach_axis = INLINE, None, None
        return self

    @primitive
    def compute_root(self) -> Self:
        """Computes a stage as a whole, at root level: undoes compute_at and compute_inline.

        >>> s = te.create_schedule(E)
        >>> s[D].compute_at(s[E], E.op.axis[0])
        Stage(D)
        >>> s[D].compute_root()
        Stage(D)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          D = allocate(f32[1024, 1024], scope=global)
          for i in range(1024):
            for j in range(1024):
              D[i, j] = A[i, j] + B[i, j]
          for i in range(1024):
            for j in range(1024):
              E[i, j] = D[i, j]*2.0
        """
        self.compute  # noqa: B018
        self._place_root()
        return self
