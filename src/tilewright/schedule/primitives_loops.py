"""Primitives of a stage's loops: other loops, loops run in another way, hints, intrinsics."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Self

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.intrinsic import TensorIntrinsic
from tilewright.schedule.nest import PARALLEL, UNROLLED, VECTORIZED
from tilewright.schedule.pragmas import checked
from tilewright.schedule.recorder import primitive
from tilewright.schedule.relations import Fuse, Split
from tilewright.schedule.state import LoopMarks, StageState, positive
from tilewright.schedule.tensor import (
    BLOCK_TAGS,
    DATA,
    REDUCE,
    THREAD_AXIS,
    VTHREAD,
    IterVar,
    Tensor,
)


class LoopPrimitives(StageState):
    """The loops of a stage."""

    @primitive
    def split(
        self, parent: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """Splits a loop in two: `parent` becomes `outer * (iterations of inner) + inner`.

        Where the given number does not divide the extent, a bound check is put where it is needed;
        a number above the extent is cut to it. Pragmas and prefetches of the loop go along.

        Args:
            parent: a loop of the stage.
            factor: iterations of the inner loop.
            nparts: iterations of the outer loop; one of the two is given.

        Returns:
            The outer and the inner axis.

        Raises:
            ScheduleError: `parent` is no loop of the stage (any more), something but a hint was
                said of it already, or not exactly one positive number is given.

        >>> s = te.create_schedule(S)
        >>> ro, ri = s[S].split(S.op.reduce_axis[0], factor=32)
        >>> io, ii = s[S].split(S.op.axis[0], nparts=3)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          for i.outer in range(3):
            for i.inner in range(342):
              if likely(i.outer*342 + i.inner < 1024):
                S[i.outer*342 + i.inner] = 0.0
                for r.outer in range(32):
                  for r.inner in range(32):
                    S[i.outer*342 + i.inner] = S[i.outer*342 + i.inner] + A[i.outer*342 + i.inner, r.outer*32 + r.inner]
        """  # noqa: E501
        where = f"split of stage '{self.name}'"
        axis = self.leaf(parent, where)
        if (factor is None) == (nparts is None):
            raise ScheduleError(
                f"{where}, axis '{axis.name}': give either factor (iterations of the inner loop) "
                "or nparts (of the outer loop)"
            )
        name, value = ("factor", factor) if factor is not None else ("nparts", nparts)
        value = positive(value, f"{where}, axis '{axis.name}': {name}")
        self.unmarked([axis], "split", hints=True)
        outer = IterVar(f"{axis.name}.outer", None, axis.kind)
        inner = IterVar(f"{axis.name}.inner", None, axis.kind)
        made = (value, None) if factor is not None else (None, value)
        self.relations.append(Split(axis, outer, inner, *made))
        at = self.position(axis)
        self.leaf_iter_vars[at : at + 1] = [outer, inner]
        self._split_hints(axis, outer, inner)
        return outer, inner

    def _split_hints(self, axis: IterVar, outer: IterVar, inner: IterVar) -> None:
        """What was said of a loop, said of the loops that it became."""
        said = self.marks.pop(axis, LoopMarks())
        for name, value in said.pragmas.items():
            # Of the loops inside of this one; to be written out, which both are; or of its lanes.
            if name != "vectorize":
                self.mark(outer).pragmas[name] = value
            if name in ("unroll", "vectorize"):
                self.mark(inner).pragmas[name] = value
        # One iteration of the inner loop is one of the loop's: as many later is the same element.
        if said.prefetches:
            self.mark(inner).prefetches.extend(said.prefetches)

    @primitive
    def fuse(self, *args: Any) -> IterVar:
        """Makes one loop of neighbouring loops, the outermost first.

        Args:
            args: axes of which each is directly inside of the one before, or a list of them.

        Returns:
            The fused axis.

        Raises:
            ScheduleError: the loops are not one directly inside of the other, or something was said
                of one already.

        >>> s = te.create_schedule(D)
        >>> print(te.lower(s, [A, B, D]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], D: f32[1024, 1024]):
          for i in range(1024):
            for j in range(1024):
              D[i, j] = A[i, j] + B[i, j]
        >>> ij = s[D].fuse(*D.op.axis)
        >>> print(te.lower(s, [A, B, D]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], D: f32[1024, 1024]):
          for i.j.fused in range(1048576):
            D[i.j.fused//1024, i.j.fused%1024] = A[i.j.fused//1024, i.j.fused%1024] + B[i.j.fused//1024, i.j.fused%1024]
        """  # noqa: E501
        where = f"fuse of stage '{self.name}'"
        given = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args
        axes = [self.leaf(a, where) for a in given]
        if not axes:
            raise ScheduleError(f"{where}: no axis given")
        for outer, axis in pairwise(axes):
            if self.position(axis) != self.position(outer) + 1:
                raise ScheduleError(
                    f"{where}: '{outer.name}' and '{axis.name}' are not one directly inside of the "
                    f"other (loops: {self.loops()}); reorder them first"
                )
        self.unmarked(axes, "fuse")
        fused = axes[0]
        for axis in axes[1:]:
            at = self.position(fused)
            kind = REDUCE if REDUCE in (fused.kind, axis.kind) else DATA
            new = IterVar(f"{fused.name}.{axis.name}.fused", None, kind)
            self.relations.append(Fuse(fused, axis, new))
            self.leaf_iter_vars[at : at + 2] = [new]
            fused = new
        return fused

    @primitive
    def reorder(self, *args: IterVar) -> Self:
        """Puts loops in the given order, in the places that these loops have now.

        Args:
            args: the axes, the outermost first. Loops that are not named stay where they are.

        Returns:
            The stage.

        Raises:
            ScheduleError: an axis is no loop of the stage, or given twice.

        >>> s = te.create_schedule(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i in range(1024):
            for j in range(1024):
              C[i, j] = 0.0
              for k in range(1024):
                C[i, j] = C[i, j] + A[i, k]*B[k, j]
        >>> i, j = C.op.axis
        >>> s[C].reorder(i, C.op.reduce_axis[0], j)
        Stage(C)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i in range(1024):
            for j.init in range(1024):
              C[i, j.init] = 0.0
            for k in range(1024):
              for j in range(1024):
                C[i, j] = C[i, j] + A[i, k]*B[k, j]
        """
        where = f"reorder of stage '{self.name}'"
        axes = [self.leaf(a, where) for a in args]
        if len(set(axes)) < len(axes):
            twice = next(a for i, a in enumerate(axes) if a in set(axes[:i]))
            raise ScheduleError(f"{where}: axis '{twice.name}' is given twice")
        places = sorted(self.position(a) for a in axes)
        for place, axis in zip(places, axes, strict=True):
            self.leaf_iter_vars[place] = axis
        return self

    @primitive
    def tile(
        self,
        x_parent: IterVar,
        y_parent: IterVar,
        x_factor: int,
        y_factor: int,
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Splits two axes and puts the tile's loops innermost.

        Args:
            x_parent, y_parent: the axes.
            x_factor, y_factor: iterations of their inner loops.

        Returns:
            The axes `x_outer, y_outer, x_inner, y_inner`, which is also their order.

        Raises:
            ScheduleError: as for :meth:`split`; nothing is changed then.

        >>> s = te.create_schedule(C)
        >>> xo, yo, xi, yi = s[C].tile(*C.op.axis, 32, 32)
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          for i.outer in range(32):
            for j.outer in range(32):
              for i.inner in range(32):
                for j.inner in range(32):
                  C[i.outer*32 + i.inner, j.outer*32 + j.inner] = 0.0
                  for k in range(1024):
                    C[i.outer*32 + i.inner, j.outer*32 + j.inner] = C[i.outer*32 + i.inner, j.outer*32 + j.inner] + A[i.outer*32 + i.inner, k]*B[k, j.outer*32 + j.inner]
        """  # noqa: E501
        if x_parent is y_parent:
            raise ScheduleError(f"tile of stage '{self.name}': the two axes are one and the same")
        # All is checked before anything is changed.
        for axis, name, factor in ((x_parent, "x", x_factor), (y_parent, "y", y_factor)):
            self.unmarked([self.leaf(axis, f"tile of stage '{self.name}'")], "tile", hints=True)
            positive(factor, f"tile of stage '{self.name}', axis '{axis.name}': {name}_factor")
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

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

    def _run(self, var: IterVar, kind: str, doing: str) -> Self:
        where = f"{doing} of stage '{self.name}'"
        axis = self.leaf(var, where)
        if kind != UNROLLED:
            self.data_only(axis, doing)
        marks = self.mark(axis)
        if marks.thread is not None or marks.intrinsic is not None:
            raise ScheduleError(f"{where}: axis '{axis.name}' is {marks.said}")
        marks.kind = kind
        return self

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
            var: an axis of the result; the outermost such loops are distributed, others run in
                order.

        Returns:
            The stage.

        Raises:
            ScheduleError: the axis is a reduction's, bound to threads or tensorized.

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

    @primitive
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> Self:
        """Lets the iterations of a loop be the blocks or the threads of a GPU.

        All loops of a kernel that are bound to one tag have the same number of iterations. A
        reduction axis bound to `threadIdx` is reduced across the threads.

        Args:
            ivar: the axis.
            thread_ivar: made by `te.thread_axis`: `blockIdx.x` to `blockIdx.z`, `threadIdx.x` to
                `threadIdx.z`, or `vthread`, whose iterations are one thread's and go inside of what
                the threads share.

        Returns:
            The stage.

        Raises:
            ScheduleError: something was said of the axis already, another one of the stage is bound
                to the tag, or it is a reduction's and the tag not one of `threadIdx`.

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
                `auto_unroll_max_depth`, `auto_unroll_max_extent`, `unroll_explicit`.
            pragma_value: the number, where there is one.

        Returns:
            The stage.

        Raises:
            ScheduleError: the pragma is unknown, or its value is none of those that it takes.

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
    def prefetch(self, tensor: Tensor, var: IterVar, offset: int) -> Self:
        """Asks the processor to fetch what a later iteration of a loop will read.

        Args:
            tensor: a tensor that this stage reads.
            var: the loop.
            offset: how many iterations later.

        Returns:
            The stage.

        Raises:
            ScheduleError: the stage does not read the tensor.

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
        axis = self.leaf(var, where)
        source = self.schedule.tensor(tensor, where)
        if not any(r.tensor is source for r in self.schedule.reads_of(self)):
            raise ScheduleError(f"{where}: it does not read tensor '{source.name}'")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ScheduleError(f"{where}: offset {offset!r} is not an integer")
        self.mark(axis).prefetches.append((source, offset))
        return self

    @primitive
    def tensorize(self, var: IterVar, tensor_intrin: TensorIntrinsic) -> Self:
        """Puts an intrinsic in place of a loop and all loops inside of it.

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
