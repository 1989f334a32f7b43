"""How long a compiled schedule takes, and how much it computes in that time."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.measure.statistics import Measurement
from tilewright.schedule import nest
from tilewright.schedule.expr import COMPARISONS, LOGICAL, Binary, Call, Expr
from tilewright.schedule.nest import Load, LoopProgram, Stmt, inner
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import children


@dataclass(frozen=True)
class Timing(Measurement):
    """A measurement of a schedule; `print` gives the median with its interval, and the rate.

    operations: of arithmetic in one call, as :func:`operations` counts them.
    """

    operations: int = 0

    @property
    def gflops(self) -> float:
        """10^9 operations a second, by the median."""
        return self.operations / self.median_s / 1e9

    def __str__(self) -> str:
        interval = self.interval()
        unit, scale = next(
            (u, s)
            for u, s in (("s", 1.0), ("ms", 1e3), ("us", 1e6))
            if interval.value * s >= 1 or u == "us"
        )
        low, median, high = (t * scale for t in (interval.low, interval.value, interval.high))
        rate = f", {self.gflops:.3g} GFLOP/s" if self.operations else ""
        return (
            f"{median:.4g} {unit} (95%: {low:.4g} to {high:.4g}, {len(self.samples)} samples){rate}"
        )


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
