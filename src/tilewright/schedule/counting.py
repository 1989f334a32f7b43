"""What a schedule computes in one run: its operations, and the terms of its sums."""

from __future__ import annotations

from tilewright.schedule import nest
from tilewright.schedule.expr import COMPARISONS, LOGICAL, Binary, Call, Expr
from tilewright.schedule.lower import Lowered
from tilewright.schedule.nest import Load, LoopProgram, Stmt, inner
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import children


def operations(program: LoopProgram) -> int:
    """Arithmetic operations and function calls on elements in one run of a program, as its loops
    are: what a schedule computes twice is counted twice, and what bounds leave out is counted.

    Args:
        program: the loops.
    """
    return sum(_operations(kernel.body) for kernel in program.kernels)


def _operations(stmt: Stmt) -> int:
    match stmt:
        case nest.For():
            return stmt.extent * _operations(stmt.body)
        case nest.Store():
            return _in(stmt.value)
        case nest.StoreAll():
            return sum(_in(store.value) for store in stmt.stores)
        case nest.ThreadReduce():
            return sum(_in(store.value) for store in stmt.targets)
        case nest.Intrinsic():
            return _operations(stmt.as_loops())
    return sum(_operations(part) for part in inner(stmt))


def _in(expr: Expr) -> int:
    """Operations of an expression, without index arithmetic, comparisons and choices."""
    if isinstance(expr, Load) or expr.dtype == INDEX:
        return 0
    counted = (isinstance(expr, Binary) and expr.op not in (*COMPARISONS, *LOGICAL)) or isinstance(
        expr, Call
    )
    return counted + sum(_in(child) for child in children(expr))


def reduction_terms(lowered: Lowered) -> int:
    """Terms of the longest sum: the largest product of reduction loops within each other.

    Args:
        lowered: the loops; kernels are taken to follow each other.

    Returns:
        1 where nothing is summed.
    """

    def longest(stmt: nest.Stmt) -> int:
        below = max((longest(part) for part in inner(stmt)), default=1)
        is_sum = isinstance(stmt, nest.For) and stmt.reduction
        return below * (stmt.extent if is_sum and isinstance(stmt, nest.For) else 1)

    total = 1
    for kernel in lowered.program.kernels:
        total *= longest(kernel.body)
    return total
