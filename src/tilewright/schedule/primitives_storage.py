"""Primitives of a stage's storage: set_scope, storage_align."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.nest import GLOBAL
from tilewright.schedule.stage_base import StageBase, memory_scope, positive
from tilewright.schedule.tensor import IterVar
from tilewright.schedule.trace import primitive

if TYPE_CHECKING:
    from typing import Self


class StoragePrimitives(StageBase):
    """Where a stage's result is kept."""

    @primitive
    def set_scope(self, scope: str) -> Self:
        """Says which memory a stage's result is in.

        scope: `global`, `shared` (one workgroup's) or `local` (one thread's), or a name with a dot
            for intrinsics, such as `wmma.accumulator`.

        >>> s = te.create_schedule(E)
        >>> s[D].compute_at(s[E], E.op.axis[0])
        Stage(D)
        >>> s[D].set_scope("local")
        Stage(D)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          for i in range(1024):
            D = allocate(f32[1, 1024], scope=local)
            for j in range(1024):
              D[0, j] = A[i, j] + B[i, j]
            for j in range(1024):
              E[i, j] = D[0, j]*2.0
        """
        self.compute  # noqa: B018
        wanted = memory_scope(scope, f"set_scope of stage '{self.name}'")
        if wanted != GLOBAL and any(t in self.schedule.output_tensors for t in self.op.outputs):
            raise ScheduleError(
                f"set_scope of stage '{self.name}': it is an output of the schedule, which is in "
                f"the caller's memory (global), not {wanted}; use cache_write"
            )
        self.scope = wanted
        return self

    @primitive
    def storage_align(self, axis: IterVar, factor: int, offset: int) -> Self:
        """Pads a stage's result so that the stride of an axis is `offset` more than a multiple of
        `factor` elements: rows that start in different banks or cache lines.

        axis: an axis of the result.
        factor, offset: `stride % factor == offset`.

        >>> s = te.create_schedule(S)
        >>> AA = s.cache_read(A, "shared", [S])
        >>> s[AA].storage_align(AA.op.axis[0], 100, 8)
        Stage(A.shared)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          A.shared = allocate(f32[1024, 1024], scope=shared, strides=[1108, 1])
          for ax0 in range(1024):
            for ax1 in range(1024):
              A.shared[ax0, ax1] = A[ax0, ax1]
          for i in range(1024):
            S[i] = 0.0
            for r in range(1024):
              S[i] = S[i] + A.shared[i, r]
        """
        where = f"storage_align of stage '{self.name}'"
        axes = self.compute.axis
        found = [i for i, a in enumerate(axes) if a is axis]
        if not found:
            shown = axis.name if isinstance(axis, IterVar) else axis
            raise ScheduleError(
                f"{where}: '{shown}' is not an axis of the stage's result, which the alignment is "
                f"of (allowed: {', '.join(a.name for a in axes)})"
            )
        factor = positive(factor, f"{where}, axis '{axis.name}': factor")
        if not isinstance(offset, int) or offset < 0:
            raise ScheduleError(f"{where}, axis '{axis.name}': offset {offset!r} is negative")
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(
                f"{where}: it is an output of the schedule, whose layout is the caller's; align "
                "what cache_write makes"
            )
        self.alignments[found[0]] = (factor, offset)
        return self
