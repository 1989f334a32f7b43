"""Primitives that say where a stage, or a group of them, is computed, and in which memory."""

from __future__ import annotations

from typing import Any, Self

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import as_expr
from tilewright.schedule.nest import GLOBAL
from tilewright.schedule.primitive import primitive
from tilewright.schedule.state import AT, INLINE, ROOT, Placed, StageState, memory_scope, positive
from tilewright.schedule.tensor import IterVar
from tilewright.schedule.types import BOOL


class PlacementPrimitives(Placed):
    """Where a stage, or a group of stages, is computed."""

    @primitive
    def compute_at(self, parent: Any, scope: IterVar) -> Self:
        """Computes a stage inside of a loop of another stage, just what that iteration needs.

        Every stage that reads this one has to run inside of that loop.

        Args:
            parent: the stage (or tensor) in whose loops.
            scope: the loop, an axis of `parent`.

        Returns:
            The stage, or the group.

        Raises:
            ScheduleError: the stage is an output, `parent` does not read it, or is not of its
                group.

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
        where = f"compute_at of '{self.name}'"
        if isinstance(self, StageState) and self.is_output:
            raise ScheduleError(
                f"{where}: it is an output of the schedule, which is computed as a whole, at root "
                "level"
            )
        stage = self.schedule[parent]
        mine = self.stages()
        if any(stage is member for member in mine):
            raise ScheduleError(f"{where}: a stage cannot be computed inside of itself")
        axis = stage.leaf(scope, where)
        group = stage.group
        while self.group is not None and group is not self.group:
            if group is None:
                raise ScheduleError(
                    f"{where}: '{self.name}' belongs to group '{self.group.name}' and can only be "
                    f"computed at stages of that group, not at '{stage.name}'"
                )
            group = group.group
        for member in mine:
            member.compute  # noqa: B018  (a placeholder is not computed)
        if not any(self.schedule.feeds(member, stage) for member in mine):
            raise ScheduleError(
                f"{where}: '{stage.name}' does not read it, so it cannot be computed at axis "
                f"'{axis.name}' of '{stage.name}'"
            )
        self.place(AT, stage, axis)
        return self

    @primitive
    def compute_root(self) -> Self:
        """Computes a stage as a whole, at root level: undoes compute_at and compute_inline.

        Returns:
            The stage, or the group.

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
        for member in self.stages():
            member.compute  # noqa: B018  (a placeholder is not computed)
        self.place(ROOT)
        return self


class StoragePrimitives(StageState):
    """Where and when a stage's result is kept."""

    @primitive
    def compute_inline(self) -> Self:
        """Computes an element where it is read, without storing it.

        Not for reductions and outputs.

        Returns:
            The stage.

        Raises:
            ScheduleError: it is a reduction or an output.

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
        if self.is_output:
            raise ScheduleError(f"{where}: it is an output of the schedule")
        self.place(INLINE)
        return self

    @primitive
    def set_scope(self, scope: str) -> Self:
        """Says which memory a stage's result is in.

        Args:
            scope: `global`, `shared` (one workgroup's) or `local` (one thread's), or a name with a
                dot for intrinsics, such as `wmma.accumulator`.

        Returns:
            The stage.

        Raises:
            ScheduleError: the scope is unknown, or not `global` for an output.

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
        if wanted != GLOBAL and self.is_output:
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

        Args:
            axis: an axis of the result.
            factor, offset: `stride % factor == offset`.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is not one of the result, or the stage is an output.

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
        place, where = self._aligned(axis, "storage_align")
        factor = positive(factor, f"{where}: factor")
        if not isinstance(offset, int) or offset < 0:
            raise ScheduleError(f"{where}: offset {offset!r} is negative")
        self.alignments[place] = (factor, offset)
        return self

    @primitive
    def align_extent(self, axis: IterVar, factor: int) -> Self:
        """Computes a multiple of `factor` elements along an axis where others need fewer at a
        time: whole vectors, for example. What the result does not have is not computed.

        After `Func::align_extent` of Halide.

        Args:
            axis: an axis of the result.
            factor: what the number of elements is a multiple of.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is not one of the result, or the stage is an output.

        >>> s = te.create_schedule(E)
        >>> io, jo, ii, ji = s[E].tile(*E.op.axis, 4, 6)
        >>> s[D].compute_at(s[E], jo)
        Stage(D)
        >>> s[D].align_extent(D.op.axis[1], 8)
        Stage(D)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          for i.outer in range(256):
            for j.outer in range(171):
              D = allocate(f32[4, 8], scope=global)
              for i in range(4):
                for j in range(8):
                  if likely(j.outer*6 + j < 1024):
                    D[i, j] = A[i.outer*4 + i, j.outer*6 + j] + B[i.outer*4 + i, j.outer*6 + j]
              for i.inner in range(4):
                for j.inner in range(6):
                  if likely(j.outer*6 + j.inner < 1024):
                    E[i.outer*4 + i.inner, j.outer*6 + j.inner] = D[i.inner, j.inner]*2.0
        """
        place, where = self._aligned(axis, "align_extent")
        self.extent_factors[place] = positive(factor, f"{where}: factor")
        return self

    def _aligned(self, axis: IterVar, what: str) -> tuple[int, str]:
        """The place of an axis among the result's, and how messages call it."""
        where = f"{what} of stage '{self.name}'"
        axes = self.compute.axis
        found = [i for i, a in enumerate(axes) if a is axis]
        if not found:
            shown = axis.name if isinstance(axis, IterVar) else axis
            raise ScheduleError(
                f"{where}: '{shown}' is not an axis of the stage's result, which the alignment is "
                f"of (allowed: {', '.join(a.name for a in axes)})"
            )
        where += f", axis '{axis.name}'"
        if self.is_output:
            raise ScheduleError(
                f"{where}: it is an output of the schedule, whose layout and extents are the "
                "caller's; align what cache_write makes"
            )
        return found[0], where

    @primitive
    def set_store_predicate(self, predicate: Any) -> Self:
        """Stores a stage's elements only where a condition holds.

        Args:
            predicate: a condition on axes of the stage and on thread axes. What is not stored keeps
                its value: the condition has to leave one store of every element that is read. Of a
                reduction it is the condition of adding; its start is stored all the same. A thread
                axis that no loop of the kernel is bound to has one thread, with the number 0.

        Returns:
            The stage.

        Raises:
            ScheduleError: it is no condition.

        >>> s = te.create_schedule(S)
        >>> tx = te.thread_axis("threadIdx.x")
        >>> ro, ri = s[S].split(S.op.reduce_axis[0], factor=32)
        >>> s[S].bind(ri, tx)
        Stage(S)
        >>> s[S].set_store_predicate(tx.var.equal(0))
        Stage(S)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          for threadIdx.x in thread(32):
            for i in range(1024):
              S.part = allocate(f32[1], scope=local)
              S.total = allocate(f32[1], scope=local)
              S.part[0] = 0.0
              for r.outer in range(32):
                S.part[0] = S.part[0] + A[i, r.outer*32 + threadIdx.x]
              S.total[0] = thread_sum(S.part[0], threads=[threadIdx.x])
              if threadIdx.x == 0:
                S[i] = S.total[0]
        """
        self.compute  # noqa: B018
        condition = as_expr(predicate)
        if condition.dtype != BOOL:
            raise ScheduleError(
                f"set_store_predicate of stage '{self.name}': '{condition}' is {condition.dtype}, "
                "not a condition"
            )
        self.store_predicate = condition
        return self
