"""Primitives that change a stage's loops: split, fuse, reorder, tile, unroll."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.nest import UNROLLED
from tilewright.schedule.relations import Fuse, Split
from tilewright.schedule.stage_base import StageBase, positive
from tilewright.schedule.tensor import DATA, REDUCE, IterVar
from tilewright.schedule.trace import primitive

if TYPE_CHECKING:
    from typing import Self


class LoopPrimitives(StageBase):
    """Loops of a stage."""

    @primitive
    def split(
        self, parent: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """Splits a loop in two: `parent` becomes `outer * (iterations of inner) + inner`.

        factor: iterations of the inner loop.
        nparts: iterations of the outer loop; one of the two is given.

        Gives the outer and the inner axis. Where the given number does not divide the extent, a
        bound check is put where it is needed; a number above the extent is cut to it.

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
        self._unmarked(axis, "split")
        outer = IterVar(f"{axis.name}.outer", None, axis.kind)
        inner = IterVar(f"{axis.name}.inner", None, axis.kind)
        made = (value, None) if factor is not None else (None, value)
        self.relations.append(Split(axis, outer, inner, *made))
        at = self.position(axis)
        self.leaf_iter_vars[at : at + 1] = [outer, inner]
        return outer, inner

    @primitive
    def fuse(self, *args: Any) -> IterVar:
        """Makes one loop of neighbouring loops, the outermost first.

        args: axes of which each is directly inside of the one before, or a list of them.

        Gives the fused axis.

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
                    f"other (loops: {self._loops()}); reorder them first"
                )
            self._unmarked(outer, "fuse")
            self._unmarked(axis, "fuse")
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

        args: the axes, the outermost first. Loops that are not named stay where they are.

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

        x_parent, y_parent: the axes.
        x_factor, y_factor: iterations of their inner loops.

        Gives the axes `x_outer, y_outer, x_inner, y_inner`, which is also their order.

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
            self._unmarked(self.leaf(axis, f"tile of stage '{self.name}'"), "tile")
            positive(factor, f"tile of stage '{self.name}', axis '{axis.name}': {name}_factor")
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    @primitive
    def unroll(self, var: IterVar) -> Self:
        """Writes a loop's body out once for every iteration.

        var: an axis with few iterations.

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
        self._set_kind(var, UNROLLED, "unroll")
        return self
