"""Unrolled loops of a nest: which they are, how much code they make, how wide it is; and nests with
them written out."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilewright.schedule import nest
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Const, Expr, index
from tilewright.schedule.nest import Load, Stmt, expressions, inner
from tilewright.schedule.nest import statements as all_statements
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.schedule.walk import nodes, transform


def kind_of(loop: nest.For) -> str:
    """What a loop is, its own pragmas considered.

    Args:
        loop: whose pragmas `vectorize` and `unroll` count.

    Returns:
        One of :data:`tilewright.schedule.nest.KINDS`.
    """
    if loop.kind == nest.SERIAL and loop.pragmas:
        if "vectorize" in loop.pragmas:
            return nest.VECTORIZED
        if "unroll" in loop.pragmas and loop.pragmas.get("unroll_explicit", True):
            return nest.UNROLLED
    return loop.kind


def has_vectors(stmt: Stmt) -> bool:
    """Whether a vectorized loop, or what cannot be in one, is within.

    Args:
        stmt: looked at with all that is in it.
    """
    return any(
        isinstance(part, nest.Intrinsic | nest.Barrier)
        or (isinstance(part, nest.For) and kind_of(part) == nest.VECTORIZED and part.extent > 1)
        for part in all_statements(stmt)
    )


def statements(stmt: Stmt) -> int:
    """Statements that there are once all unrolled loops within are written out.

    Args:
        stmt: loops that are vectorized count as one iteration.
    """
    if isinstance(stmt, nest.For):
        written_out = kind_of(stmt) == nest.UNROLLED
        return statements(stmt.body) * (stmt.extent if written_out else 1)
    below = inner(stmt)
    return sum(statements(part) for part in below) if below else 1


@functools.lru_cache(maxsize=256)
def widest_bytes(stmt: Stmt) -> int:
    """Bytes of the widest element that is computed with in a statement.

    Args:
        stmt: whose stores and loads count.

    Returns:
        1 to 8.
    """
    stores = [s for s in all_statements(stmt) if isinstance(s, nest.Store)]
    types = {
        node.dtype
        for store in stores
        for expr in expressions(store)
        for node in nodes(expr)
        if isinstance(node, Load) or node.dtype not in (INDEX, BOOL)
    }
    return max((bits(dtype) // 8 for dtype in types), default=1)


def unroll_marked(loop: nest.For) -> nest.For:
    """The loop with what its pragmas say: `vectorize`, `unroll`, and the limits up to which loops
    within it are unrolled as well: `auto_unroll_max_step` (statements), `auto_unroll_max_extent`
    (iterations), `auto_unroll_max_depth` (loops within each other). With `unroll_explicit` false
    the loops are left to LLVM.

    Args:
        loop: any.

    Returns:
        The loop itself where its pragmas say nothing of these.
    """
    pragmas = loop.pragmas
    if not pragmas or loop.kind != nest.SERIAL:
        return loop
    if kind_of(loop) != nest.SERIAL:
        return replace(loop, kind=kind_of(loop))
    step, extent, depth = (pragmas.get(name) for name in _LIMITS)
    limits = _Limits(int(step or 0), int(extent or 0), 8 if depth is None else int(depth))
    if (limits.steps or limits.extent) and pragmas.get("unroll_explicit", True):
        marked = transform(loop, limits.unrolled)
        done = (*_LIMITS, "unroll_explicit")
        return replace(marked, pragmas={k: v for k, v in pragmas.items() if k not in done})
    return loop


_LIMITS = ("auto_unroll_max_step", "auto_unroll_max_extent", "auto_unroll_max_depth")
#: Pragmas of a loop by which loops within it are unrolled.
LIMITS = frozenset(_LIMITS)


@dataclass(frozen=True)
class _Limits:
    steps: int
    extent: int
    depth: int

    def unrolled(self, stmt: Stmt | Expr) -> Stmt | None:
        """A loop that is small enough to be unrolled, as such."""
        if not isinstance(stmt, nest.For) or kind_of(stmt) != nest.SERIAL:
            return None
        small = steps(stmt) <= self.steps or stmt.extent <= self.extent
        return replace(stmt, kind=nest.UNROLLED) if small and _depth(stmt) <= self.depth else None


@functools.lru_cache(maxsize=1024)
def steps(stmt: Stmt) -> int:
    """Statements run, vectorized loops counted as one step.

    Args:
        stmt: looked at with all that is in it.
    """
    if isinstance(stmt, nest.For):
        return steps(stmt.body) * (1 if kind_of(stmt) == nest.VECTORIZED else stmt.extent)
    below = inner(stmt)
    return sum(steps(part) for part in below) if below else 1


def _depth(stmt: Stmt) -> int:
    """Loops around the innermost statement."""
    deepest = max((_depth(part) for part in inner(stmt)), default=0)
    return deepest + (1 if isinstance(stmt, nest.For) and kind_of(stmt) != nest.VECTORIZED else 0)


# -- written out, for people -----------------------------------------------------------------------

# Statements that one loop is written out to at most.
_MOST_SHOWN = 8192


def expanded(program: nest.LoopProgram) -> nest.LoopProgram:
    """The program with its unrolled loops written out, those of pragmas as well.

    Args:
        program: any.

    Returns:
        A program that computes the same. Loops that would be more than some thousand statements
        stay loops.
    """
    kernels = []
    for kernel in program.kernels:
        loops = [s for s in all_statements(kernel.body) if isinstance(s, nest.For)]
        arithmetic = Arithmetic({loop.var: (0, loop.extent - 1) for loop in loops})
        kernels.append(replace(kernel, body=_expanded(kernel.body, arithmetic)))
    return replace(program, kernels=tuple(kernels))


def _expanded(stmt: Stmt, arithmetic: Arithmetic) -> Stmt:
    def simple(part: Stmt | Expr) -> Stmt | Expr | None:
        if isinstance(part, Expr):
            return arithmetic.simplify(part)
        if isinstance(part, nest.If) and isinstance(part.condition, Const):
            return part.then if part.condition.value else part.otherwise or nest.Seq(())
        return None

    def written_out(part: Stmt | Expr) -> Stmt | None:
        if not isinstance(part, nest.For):
            return None
        loop = unroll_marked(part)
        # Loops within that this one's pragmas say are unrolled are so only now.
        body = loop.body if loop.body is part.body else transform(loop.body, written_out)
        if loop.kind != nest.UNROLLED or loop.extent * statements(body) > _MOST_SHOWN:
            return replace(loop, body=body)
        bodies = (transform(body, {loop.var: index(number)}.get) for number in range(loop.extent))
        return nest.flat(*(transform(made, simple) for made in bodies))

    return transform(stmt, written_out)
