"""The other primitives of a stage: pragma, prefetch, tensorize, set_store_predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import as_expr
from tilewright.schedule.stage_base import StageBase
from tilewright.schedule.tensor import IterVar, Tensor
from tilewright.schedule.trace import primitive
from tilewright.schedule.types import BOOL

if TYPE_CHECKING:
    from typing import Self

    from tilewright.schedule.intrinsic import TensorIntrinsic


class OtherPrimitives(StageBase):
    """Hints, intrinsics, conditions."""

    @primitive
    def pragma(self, var: IterVar, pragma_type: str, pragma_value: Any = None) -> Self:
        """Attaches a hint for code generation to a loop.

        pragma_type: `unroll` or `vectorize` (this loop), `auto_unroll_max_step` (unroll the loops
            inside of this one that have at most so many steps together), `auto_unroll_max_depth`,
            `auto_unroll_max_extent`, `unroll_explicit`.
        pragma_value: the number, where there is one.

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
        from tilewright.schedule.pragmas import checked

        axis = self.leaf(var, f"pragma of stage '{self.name}'")
        key, value = checked(pragma_type, pragma_value, axis, self.name)
        if key == "vectorize":
            self._data_only(axis, "pragma vectorize")
        self.mark(axis).pragmas[key] = value
        return self

    @primitive
    def prefetch(self, tensor: Tensor, var: IterVar, offset: int) -> Self:
        """Asks the processor to fetch what a later iteration of a loop will read.

        tensor: a tensor that this stage reads.
        var: the loop.
        offset: how many iterations later.

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

        var: the outermost of the loops that the intrinsic replaces.
        tensor_intrin: made by `te.decl_tensor_intrin`. Its pattern has to compute what the loops
            do; ScheduleError says how they differ.

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
        from tilewright.schedule.intrinsic import TensorIntrinsic

        axis = self.leaf(var, f"tensorize of stage '{self.name}'")
        if not isinstance(tensor_intrin, TensorIntrinsic):
            raise ScheduleError(
                f"tensorize of stage '{self.name}': {tensor_intrin!r} is not made by "
                "te.decl_tensor_intrin"
            )
        marks = self.mark(axis)
        if marks.kind or marks.thread is not None:
            said = marks.thread.tag if marks.thread is not None else marks.kind
            raise ScheduleError(
                f"tensorize of stage '{self.name}': axis '{axis.name}' is {said} already"
            )
        marks.intrinsic = tensor_intrin
        return self

    @primitive
    def set_store_predicate(self, predicate: Any) -> Self:
        """Stores a stage's elements only where a condition holds.

        predicate: a condition on axes of the stage and on thread axes. What is not stored keeps its
            value: the condition has to leave one store of every element that is read.

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
