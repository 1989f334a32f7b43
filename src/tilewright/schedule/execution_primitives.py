"""Primitives that say how a loop of a stage runs: in lanes, on threads, by an intrinsic."""

from __future__ import annotations

from typing import Any, Self

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.intrinsic import TensorIntrinsic
from tilewright.schedule.nest import PARALLEL, UNROLLED, VECTORIZED
from tilewright.schedule.pragmas import checked
from tilewright.schedule.primitive import primitive
from tilewright.schedule.state import StageState
from tilewright.schedule.tensor import THREAD_AXIS, VTHREAD, IterVar, Tensor


class ExecutionPrimitives(StageState):
    """How a loop runs, and hints for it."""

    @primitive
    def unroll(self, var: IterVar) -> Self:
        """Writes a loop's body out once for every iteration.

        Args:
            var: an axis with few iterations.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is bound to threads or tensorized.

        >>> s = te.create_schedule(C)
        >>> io, ii = s[C].split(C.op.axis[0], factor=4)
        >>> s[C].unroll(ii)
        Stage(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i.outer in range(256):
            for i.inner in unrolled(4):
              for j in range(1024):
                C[i.outer*4 + i.inner, j] = 0.0
                for k in range(1024):
                  C[i.outer*4 + i.inner, j] = C[i.outer*4 + i.inner, j] + A[i.outer*4 + i.inner, k]*B[k, j]
        """  # noqa: E501
        return self._run(var, UNROLLED, "unroll")

    @primitive
    def vectorize(self, var: IterVar) -> Self:
        """Runs the iterations of a loop in the lanes of vectors.

        Args:
            var: an axis of the result, of any extent: what does not fill a vector is masked.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is a reduction's, bound to threads or tensorized.

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
        return self._run(var, VECTORIZED, "vectorize")

    @primitive
    def parallel(self, var: IterVar) -> Self:
        """Runs the iterations of a loop on several workers at once.

        Args:
            var: an axis; the outermost such loops of the result are distributed, others run in
                order. So do those of a reduction, whose iterations add to the same elements: they
                are shown as they were said, with a note (rfactor them instead).

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is bound to threads or tensorized.

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
        return self._run(var, PARALLEL, "parallel")

    def _run(self, var: IterVar, kind: str, doing: str) -> Self:
        where = f"{doing} of stage '{self.name}'"
        axis = self.leaf(var, where)
        if kind == VECTORIZED:
            self.data_only(axis, doing)
        marks = self.mark(axis)
        if marks.thread is not None or marks.intrinsic is not None:
            raise ScheduleError(f"{where}: axis '{axis.name}' is {marks.said}")
        marks.kind = kind
        return self

    @primitive
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> Self:
        """Lets the iterations of a loop be the blocks or the threads of a GPU.

        All loops of a kernel that are bound to one tag have the same number of iterations. A
        reduction axis bound to `threadIdx` is reduced across the threads; bound to `blockIdx` it is
        shown so, and runs in order, since blocks cannot add to one element (rfactor it instead).

        Args:
            ivar: the axis.
            thread_ivar: made by `te.thread_axis`: `blockIdx.x` to `blockIdx.z`, `threadIdx.x` to
                `threadIdx.z`, or `vthread`, whose iterations are one thread's and go inside of what
                the threads share.

        Returns:
            The stage.

        Raises:
            ScheduleError: something was said of the axis already, another one of the stage is bound
                to the tag, or it is a reduction's and the tag `vthread`.

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
        if tag == VTHREAD:
            self.data_only(axis, f"bind to {tag}")
        marks = self.mark(axis)
        if marks.said:
            raise ScheduleError(
                f"{where}: axis '{axis.name}' is {marks.said} already, it cannot be {tag} too"
            )
        for other in self.leaf_iter_vars:
            if tag != VTHREAD and self.marked(other).tag == tag:
                raise ScheduleError(
                    f"{where}: axis '{other.name}' is bound to {tag} already, so '{axis.name}' "
                    "cannot be; fuse the two and bind what that makes"
                )
        marks.thread = thread_ivar
        return self

    @primitive
    def pragma(self, var: IterVar, pragma_type: str, pragma_value: Any = None) -> Self:
        """Attaches a hint for code generation to a loop.

        Args:
            var: a loop of the stage.
            pragma_type: `unroll` or `vectorize` (this loop), `auto_unroll_max_step` (unroll the
                loops inside of this one that have at most so many steps together),
                `auto_unroll_max_depth`, `auto_unroll_max_extent`, `unroll_explicit`; `import_c`,
                `import_llvm`, `import_mlir`, `import_object` (functions that intrinsics call).
                Others are kept and shown, and have no effect.
            pragma_value: a number or a text, where there is one.

        Returns:
            The stage.

        Raises:
            ScheduleError: the value is none of those that the pragma takes.

        >>> s = te.create_schedule(C)
        >>> ko, ki = s[C].split(C.op.reduce_axis[0], factor=4)
        >>> s[C].pragma(ki, "unroll")
        Stage(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i in range(1024):
            for j in range(1024):
              C[i, j] = 0.0
              for k.outer in range(256):
                for k.inner in range(4):  # pragma unroll
                  C[i, j] = C[i, j] + A[i, k.outer*4 + k.inner]*B[k.outer*4 + k.inner, j]
        """
        axis = self.leaf(var, f"pragma of stage '{self.name}'")
        key, value = checked(pragma_type, pragma_value, axis, self.name)
        if key == "vectorize":
            self.data_only(axis, "pragma vectorize")
        self.mark(axis).pragmas[key] = value
        return self

    @primitive
    def prefetch(
        self, tensor: Tensor, var: IterVar, offset: int, during: IterVar | None = None
    ) -> Self:
        """Asks the processor to fetch what an iteration of a loop will read, or change.

        Args:
            tensor: a tensor that this stage reads, itself or through what is inlined in it, or its
                own result.
            var: the loop.
            offset: how many iterations later; with 0 the fetch goes on while the loops inside of
                this one compute what comes before the tensor is needed.
            during: a loop of this stage inside of `var`, which may then also be one of the loops
                that the stage is computed at. Each of its iterations fetches a share, into the
                second-level cache, so that what an iteration of `var` reads comes bit by bit while
                another is computed: all at once, it would keep waiting what is computed.

        Returns:
            The stage.

        Raises:
            ScheduleError: the stage neither reads nor computes the tensor.

        >>> s = te.create_schedule(S)
        >>> s[S].prefetch(A, S.op.axis[0], 1)
        Stage(S)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          for i in range(1024):
            prefetch(A[i + 1, 0:+1024])
            S[i] = 0.0
            for r in range(1024):
              S[i] = S[i] + A[i, r]
        """
        where = f"prefetch of stage '{self.name}'"
        axis = self.leaf(var if during is None else during, where)
        source = self.schedule.tensor(tensor, where)
        if not self.schedule.touches(self, source):
            raise ScheduleError(f"{where}: it does not read tensor '{source.name}'")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ScheduleError(f"{where}: offset {offset!r} is not an integer")
        if during is None:
            self.mark(axis).prefetches.append((source, offset))
        elif isinstance(var, IterVar):
            self.mark(axis).shares.append((source, var, offset))
        else:
            raise ScheduleError(f"{where}: {var!r} is not a loop")
        return self

    @primitive
    def tensorize(self, var: IterVar, tensor_intrin: TensorIntrinsic) -> Self:
        """Puts an intrinsic in place of a loop and all loops inside of it. Of an axis that it takes
        all of, all is computed, even if less is read.

        Args:
            var: the outermost of the loops that the intrinsic replaces.
            tensor_intrin: made by `te.decl_tensor_intrin`. Its pattern has to compute what the
                loops do; ScheduleError says how they differ.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is run in another way already. That the pattern fits is found
                out by `te.lower`.

        >>> a = te.placeholder((1024,), name="a")
        >>> b = te.placeholder((1024, 16), name="b")
        >>> q = te.reduce_axis(1024, "q")
        >>> c = te.compute((16,), lambda x: te.sum(a[q] * b[q, x], axis=q), name="c")
        >>> gemv = te.decl_tensor_intrin(c.op, lambda builder, phase, ins, outs: None, name="gemv")
        >>> s = te.create_schedule(C)
        >>> jo, ji = s[C].split(C.op.axis[1], factor=16)
        >>> s[C].tensorize(ji, gemv)
        Stage(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i in range(1024):
            for j.outer in range(64):
              gemv(C[i, j.outer*16:+16], A[i, 0:+1024], B[0:+1024, j.outer*16:+16])
        """
        axis = self.leaf(var, f"tensorize of stage '{self.name}'")
        if not isinstance(tensor_intrin, TensorIntrinsic):
            raise ScheduleError(
                f"tensorize of stage '{self.name}': {tensor_intrin!r} is not made by "
                "te.decl_tensor_intrin"
            )
        marks = self.mark(axis)
        if marks.kind or marks.thread is not None:
            raise ScheduleError(
                f"tensorize of stage '{self.name}': axis '{axis.name}' is {marks.said} already"
            )
        marks.intrinsic = tensor_intrin
        return self
