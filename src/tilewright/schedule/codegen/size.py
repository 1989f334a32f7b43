"""How much code a kernel becomes, known before any of it is emitted."""

from __future__ import annotations

from tilewright.schedule import nest
from tilewright.schedule.codegen.machine import Widths
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Call,
    Expr,
    Select,
    Var,
    variables,
)
from tilewright.schedule.types import INDEX
from tilewright.schedule.unrolling import kind_of, unroll_marked, widest_bytes
from tilewright.schedule.walk import children

#: Operations written out beyond which code no longer fits into a first-level instruction cache of
#: 32 KiB, at about eight bytes each with their addresses; LLVM takes seconds for it.
MOST_OPERATIONS = 4096


def check_size(program: nest.LoopProgram, widths: Widths) -> None:
    """Checks that no kernel becomes more code than is of use.

    Args:
        program: loop nests without threads.
        widths: of the processor's vectors.

    Raises:
        ScheduleError: one does; says how much.
    """
    for kernel in program.kernels:
        written = operations_written(kernel.body, widths)
        if written > MOST_OPERATIONS:
            raise ScheduleError(
                f"kernel '{kernel.name}': {written} operations are written out; allowed: "
                f"{MOST_OPERATIONS}; unroll less"
            )


def operations_written(
    stmt: nest.Stmt, widths: Widths, unrolled: frozenset[Var] = frozenset()
) -> int:
    """Operations on registers in the code of a statement: what is unrolled counts as often as it is
    written out, a vector as the registers that it takes, a loop's body once, and so is a loop that
    many vectors become.

    Args:
        stmt: a kernel's body, or a part of it.
        widths: of the processor's vectors.
        unrolled: variables of loops around it that are written out: what hangs on these alone is
            decided where the code is made.
    """
    match stmt:
        case nest.For():
            loop = unroll_marked(stmt)
            kind = kind_of(loop)
            known = unrolled | {loop.var} if kind == nest.UNROLLED else unrolled
            inside = operations_written(loop.body, widths, known)
            if kind == nest.VECTORIZED:
                return inside * widths.registers_written(loop.extent, widest_bytes(loop.body))
            return inside * (loop.extent if kind == nest.UNROLLED else 1)
        case nest.Store():
            return 1 + _operations(stmt.value, unrolled)
        case nest.StoreAll():
            return sum(1 + _operations(store.value, unrolled) for store in stmt.stores)
    return sum(operations_written(part, widths, unrolled) for part in nest.inner(stmt)) or 1


def _operations(expr: Expr, unrolled: frozenset[Var], counted: set[int] | None = None) -> int:
    """Arithmetic of an expression; a product that is added is one operation with the sum, what is
    read comes with the operation that reads it, and what occurs in several places is computed
    once (by `codegen.values`)."""
    counted = set() if counted is None else counted
    if expr.dtype == INDEX or id(expr) in counted:
        return 0
    counted.add(id(expr))
    if isinstance(expr, Select) and variables(expr.condition) <= unrolled:
        return max(_operations(one, unrolled, set(counted)) for one in (expr.a, expr.b))
    arithmetic = isinstance(expr, Binary) and expr.op not in (*COMPARISONS, *LOGICAL)
    own = int(arithmetic or isinstance(expr, Call))
    if isinstance(expr, Binary) and expr.op == "add":
        own -= any(isinstance(part, Binary) and part.op == "mul" for part in (expr.a, expr.b))
    return own + sum(_operations(part, unrolled, counted) for part in children(expr))
