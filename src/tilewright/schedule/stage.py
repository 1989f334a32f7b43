"""Stages and groups, with the primitives that they have."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import as_expr
from tilewright.schedule.intrinsic import TensorIntrinsic
from tilewright.schedule.nest import GLOBAL, PARALLEL, UNROLLED, VECTORIZED
from tilewright.schedule.pragmas import checked
from tilewright.schedule.relations import Fuse, Split
from tilewright.schedule.state import (
    AT,
    INLINE,
    ROOT,
    GroupState,
    LoopMarks,
    Placed,
    StageState,
    memory_scope,
    positive,
)
from tilewright.schedule.tensor import (
    DATA,
    REDUCE,
    THREAD_AXIS,
    VTHREAD,
    IterVar,
    Tensor,
)
from tilewright.schedule.trace import primitive
from tilewright.schedule.types import BOOL

if TYPE_CHECKING:
    from tilewright.schedule.tensor import IterVar


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


class Stage(PlacementPrimitives, StageState):
    """The schedule of one operation; its methods are the primitives."""

    # -- loops: other ones, run in another way, hints, intrinsics ----------------------------------

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
        if kind == VECTORIZED:
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
    def prefetch(self, tensor: Tensor, var: IterVar, offset: int) -> Self:
        """Asks the processor to fetch what an iteration of a loop will read, or change.

        Args:
            tensor: a tensor that this stage reads, itself or through what is inlined in it, or its
                own result.
            var: the loop.
            offset: how many iterations later; with 0 the fetch goes on while the loops inside of
                this one compute what comes before the tensor is needed.

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
        axis = self.leaf(var, where)
        source = self.schedule.tensor(tensor, where)
        if not self.schedule.touches(self, source):
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

    # -- the result: where and when it is kept -----------------------------------------------------

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
        if self.is_output:
            raise ScheduleError(
                f"{where}: it is an output of the schedule, whose layout is the caller's; align "
                "what cache_write makes"
            )
        self.alignments[found[0]] = (factor, offset)
        return self

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


class Group(PlacementPrimitives, GroupState):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""
