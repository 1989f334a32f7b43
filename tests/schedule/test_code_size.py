"""How much code a nest becomes: what is written out counts, loops count once."""

from __future__ import annotations

import pytest

from tilewright import te
from tilewright.schedule.codegen.machine import Widths
from tilewright.schedule.codegen.size import check_size, operations_written

WIDTHS = Widths(register=32, vector=128)


def product(rows: int, unrolled: bool) -> te.Lowered:
    """A product, 16 columns of each row in a vector: two registers."""
    a, b = te.placeholder((rows, 64), "f32", name="a"), te.placeholder((64, 16), "f32", name="b")
    k = te.reduce_axis(64, "k")
    c = te.compute((rows, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = te.create_schedule(c)
    i, j = schedule[c].op.axis
    schedule[c].reorder(k, i, j)
    schedule[c].vectorize(j)
    if unrolled:
        schedule[c].unroll(i)
    return te.lower(schedule, [a, b, c])


@pytest.mark.parametrize(("unrolled", "written"), [(False, 2 * (1 + 2)), (True, 6 * 2 * (1 + 2))])
def test_operations_are_those_on_registers(unrolled: bool, written: int) -> None:
    # Set to zero, then added to: a product with its sum is one operation, and its store another.
    (kernel,) = product(6, unrolled).program.kernels
    assert operations_written(kernel.body, WIDTHS) == written


def test_too_much_code_is_refused() -> None:
    check_size(product(600, False).program, WIDTHS)
    message = r"kernel 'c': 4200 operations are written out; allowed: 4096"
    with pytest.raises(te.ScheduleError, match=message):
        check_size(product(700, True).program, WIDTHS)


def test_what_occurs_twice_counts_once() -> None:
    # Each step uses the one before it twice: a million operations as a tree, twenty as computed.
    a = te.placeholder((16,), "f32", name="a")

    def squares(i: te.Expr) -> te.Expr:
        value = a[i]
        for _ in range(20):
            value = value * value
        return value

    c = te.compute((16,), squares, name="c")
    (kernel,) = te.lower(te.create_schedule(c), [a, c]).program.kernels
    assert operations_written(kernel.body, WIDTHS) == 1 + 20


@pytest.mark.parametrize(
    ("extent", "registers"),
    # Eight vectors of four registers are written out, more become a loop; then what is left over.
    [(8, 1), (32 * 8, 4 * 8), (32 * 9, 4), (32 * 1000 + 24, 4 + 2 + 1), (1 << 20, 4)],
)
def test_many_vectors_are_a_loop_and_count_once(extent: int, registers: int) -> None:
    a = te.placeholder((extent,), "f32", name="a")
    c = te.compute((extent,), lambda i: a[i] * 2.0, name="c")
    schedule = te.create_schedule(c)
    schedule[c].vectorize(c.op.axis[0])
    (kernel,) = te.lower(schedule, [a, c]).program.kernels
    assert operations_written(kernel.body, WIDTHS) == registers * 2
    check_size(te.lower(schedule, [a, c]).program, WIDTHS)
