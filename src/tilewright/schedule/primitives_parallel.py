"""Primitives that run a stage's loops at once: vectorize, parallel, bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.nest import PARALLEL, VECTORIZED
from tilewright.schedule.stage_base import StageBase
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_AXIS, VTHREAD, IterVar
from tilewright.schedule.trace import primitive

if TYPE_CHECKING:
    from typing import Self


class ParallelPrimitives(StageBase):
    """Loops whose iterations run at once."""

    @primitive
    def vectorize(self, var: IterVar) -> Self:
        """Runs the iterations of a loop in the lanes of vectors.

        var: an axis of the result, of any extent: what does not fill a vector is masked.

        >>> s = te.create_schedule(D)
        >>> jo, ji = s[D].split(D.op.axis[1], factor=16)
        >>> s[D].vectorize(ji)
        Stage(D)
        >>> print(te.lower(s, [A, B, D]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], D: f32[1024, 1024]):
          for i in range(1024):
            for j.outer in range(64):
              for j.inner in vectorized(16):
                D[i, j.outer*16 + j.inner] = A[i, j.outer*16 + j.inner] + B[i, j.outer*16 + j.inner]
        """
        axis = self.leaf(var, f"vectorize of stage '{self.name}'")
        self._data_only(axis, "vectorize")
        self._set_kind(axis, VECTORIZED, "vectorize")
        return self

    @primitive
    def parallel(self, var: IterVar) -> Self:
        """Runs the iterations of a loop on several workers at once.

        var: an axis of the result; the outermost such loops are distributed, others run in order.

        >>> s = te.create_schedule(C)
        >>> s[C].parallel(C.op.axis[0])
        Stage(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i in parallel(1024):
            for j in range(1024):
              C[i, j] = 0.0
              for k in range(1024):
                C[i, j] = C[i, j] + A[i, k]*B[k, j]
        """
        axis = self.leaf(var, f"parallel of stage '{self.name}'")
        self._data_only(axis, "parallel")
        self._set_kind(axis, PARALLEL, "parallel")
        return self

    @primitive
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> Self:
        """Lets the iterations of a loop be the blocks or the threads of a GPU.

        ivar: the axis.
        thread_ivar: made by `te.thread_axis`: `blockIdx.x` to `blockIdx.z`, `threadIdx.x` to
            `threadIdx.z`, or `vthread`, whose iterations are one thread's and go inside of what
            the threads share.

        All loops of a kernel that are bound to one tag have the same number of iterations. A
        reduction axis bound to `threadIdx` is reduced across the threads.

        >>> s = te.create_schedule(D)
        >>> bx, tx = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
        >>> jo, ji = s[D].split(D.op.axis[1], factor=64)
        >>> s[D].bind(D.op.axis[0], bx)
        Stage(D)
        >>> s[D].bind(ji, tx)
        Stage(D)
        >>> print(te.lower(s, [A, B, D]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], D: f32[1024, 1024]):
          for blockIdx.x in thread(1024):
            for threadIdx.x in thread(64):
              for j.outer in range(16):
                D[blockIdx.x, j.outer*64 + threadIdx.x] = A[blockIdx.x, j.outer*64 + threadIdx.x] + B[blockIdx.x, j.outer*64 + threadIdx.x]
        """  # noqa: E501
        where = f"bind of stage '{self.name}'"
        axis = self.leaf(ivar, where)
        if not isinstance(thread_ivar, IterVar) or thread_ivar.kind != THREAD_AXIS:
            raise ScheduleError(
                f"{where}: axis '{axis.name}' can be bound to a te.thread_axis only"
            )
        tag = thread_ivar.tag
        if tag in BLOCK_TAGS or tag == VTHREAD:
            self._data_only(axis, f"bind to {tag}")
        self._no_intrinsic(axis, "bind")
        marks = self.mark(axis)
        if marks.thread is not None or marks.kind:
            said = marks.thread.tag if marks.thread is not None else marks.kind
            raise ScheduleError(
                f"{where}: axis '{axis.name}' is {said} already, it cannot be {tag} too"
            )
        for other in self.leaf_iter_vars:
            bound = self.marks.get(other)
            if bound is None or bound.thread is None or tag == VTHREAD:
                continue
            if bound.thread.tag == tag:
                raise ScheduleError(
                    f"{where}: axis '{other.name}' is bound to {tag} already, so '{axis.name}' "
                    "cannot be; fuse the two and bind what that makes"
                )
        marks.thread = thread_ivar
        return self
