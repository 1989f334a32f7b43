"""Barriers, on nests written by hand: which two accesses meet, in sequences, loops and branches."""

from __future__ import annotations

import pytest

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.barriers import with_barriers
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, Var, const, index
from tilewright.schedule.functions import all as every
from tilewright.schedule.functions import sum as total
from tilewright.schedule.intrinsics import gemv
from tilewright.schedule.nest import (
    SHARED,
    Allocate,
    Buffer,
    For,
    If,
    Intrinsic,
    Load,
    Prefetch,
    Region,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
    flat,
)
from tilewright.schedule.printer import show
from tilewright.schedule.tensor import Reduce, reduce_axis

X, Y, K, J = Var("x"), Var("y"), Var("k"), Var("j")
S = Buffer("S", (64,), "f32", SHARED)
T = Buffer("T", (64,), "f32", SHARED)
OUT = Buffer("out", (64,), "f32")
ONE = const(1.0)


def put(where: Expr | int, buffer: Buffer = S) -> Stmt:
    return Store(buffer, (_place(where),), ONE)


def get(where: Expr | int, buffer: Buffer = S) -> Stmt:
    return Store(OUT, (X,), Load(buffer, (_place(where),)))


def _place(where: Expr | int) -> Expr:
    return index(where) if isinstance(where, int) else where


def lines(*body: Stmt, extent: int = 4, rows: int = 1) -> list[str]:
    """The nest with its barriers, for 8 threads x (and rows of them), without allocations."""
    bounds = {X: (0, 7), Y: (0, rows - 1), K: (0, extent - 1), J: (0, extent - 1)}
    nest = Allocate(S, Allocate(T, flat(*body)))
    made = with_barriers(nest, Arithmetic(bounds), {X: 8, Y: rows})
    return [line.strip() for line in show(made).splitlines() if "allocate" not in line]


def waits(*body: Stmt, extent: int = 4, rows: int = 1) -> list[int]:
    """The lines of the nest that are barriers."""
    found = lines(*body, extent=extent, rows=rows)
    return [i for i, line in enumerate(found) if line == "barrier()"]


@pytest.mark.parametrize(
    ("written", "read", "meet"),
    [
        (X, X, False),
        (X, X + 1, True),
        (X, index(0), True),
        (X * 2, X, True),
        (X * 4 + 3, X * 4, False),
        (X * 4 + 4, X * 4, True),
        (X * 4, X * 4 - 1, True),
        (index(0), index(0), True),
    ],
)
def test_which_places_tell_their_thread(written: Expr, read: Expr, meet: bool) -> None:
    assert waits(put(written), get(read)) == ([1] if meet else [])
    assert waits(get(read), put(written)) == ([1] if meet else [])


@pytest.mark.parametrize(("extent", "meet"), [(4, False), (5, True)])
def test_parts_of_threads_that_touch_or_overlap(extent: int, meet: bool) -> None:
    write, read = For(K, extent, put(X * 4 + K)), For(J, extent, get(X * 4 + J))
    assert bool(waits(write, read, extent=extent)) is meet


def test_reads_meet_no_reads_and_writes_no_writes() -> None:
    assert waits(get(0), get(X)) == []
    assert waits(put(0), put(X)) == []
    assert waits(put(X), get(X + 1, T)) == []


def test_one_barrier_serves_what_stands_before_it() -> None:
    assert waits(put(X), put(X, T), get(X + 1), get(X + 1, T)) == [2]
    assert waits(put(X), get(X + 1), put(X, T), get(X + 1, T)) == [1, 4]


def test_every_dimension_of_threads_counts() -> None:
    assert waits(put(X), get(X), rows=2) == [1]
    assert waits(put(X * 2 + Y), get(X * 2 + Y), rows=2) == [1]
    wide = Buffer("S", (8, 2), "f32", SHARED)
    pair = Store(wide, (X, Y), ONE), Store(OUT, (X,), Load(wide, (X, Y)))
    assert waits(*pair, rows=2) == []


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        (X.equal(0), X.equal(0), False),
        (X.equal(0), X.equal(1), True),
        (X.equal(0), K.equal(0), True),
        (X < 1, X < 1, True),
        (every(K < 2, X.equal(3)), every(X.equal(3), K < 2), False),
    ],
)
def test_what_one_thread_does_alone(first: Expr, second: Expr, meet: bool) -> None:
    found = waits(If(first, put(0)), If(second, get(0)))
    assert found == ([2] if meet else [])


def test_what_one_thread_does_alone_meets_the_others() -> None:
    assert waits(If(X.equal(0), put(0)), get(0)) == [2]
    assert waits(If(X.equal(0), put(0), put(0)), If(X.equal(0), get(0))) == [4]


def test_of_two_dimensions_both_are_to_be_limited() -> None:
    alone = every(X.equal(0), Y.equal(0))
    assert waits(If(alone, put(0)), If(alone, get(0)), rows=2) == []
    assert waits(If(X.equal(0), put(0)), If(X.equal(0), get(0)), rows=2) == [2]


def test_the_end_of_an_iteration_meets_the_start_of_the_next() -> None:
    body = flat(put(X), get(X + 1))
    assert lines(For(K, 4, body)) == [
        "for k in range(4):",
        "barrier()",
        "S[x] = 1.0",
        "barrier()",
        "out[x] = S[x + 1]",
    ]
    assert waits(For(K, 1, body)) == [2]
    assert waits(For(K, 4, flat(put(X), get(X)))) == []
    assert waits(For(K, 4, get(X + 1)), put(X)) == [2]


def test_what_stands_before_a_loop_that_waits_at_its_start() -> None:
    """The barrier in the loop serves what came before, and what is after the loop still waits."""
    loop = For(K, 4, flat(put(X), get(X + 1)))
    assert waits(put(X, T), loop, get(X + 1, T)) == [2, 4]
    assert waits(loop, put(X)) == [1, 3, 5]


def test_a_condition_reads() -> None:
    condition = Load(S, (index(0),)) > 0.0
    assert waits(put(X), If(condition, put(X, T))) == [1]
    assert waits(If(condition, put(X, T)), put(X)) == [2]


def test_a_barrier_in_a_branch_that_may_not_be_taken_serves_nobody_else() -> None:
    branch = If(K < 2, flat(put(X, T), get(X + 1, T)))
    assert waits(put(X), branch, get(X + 1)) == [3, 5]
    assert waits(branch, put(X, T)) == [2, 4]


def test_both_branches_count() -> None:
    assert waits(If(K < 2, get(X), put(X)), get(X + 1)) == [4]
    assert waits(put(X), If(K < 2, put(X, T), get(X + 1))) == [1]


def test_no_barrier_where_not_every_thread_comes() -> None:
    with pytest.raises(ScheduleError, match="under 'x < 4', which does not hold for all"):
        waits(If(X < 4, flat(put(X), get(X + 1))))
    with pytest.raises(ScheduleError, match="does not hold for all"):
        waits(If(X < 4, put(0, T), flat(put(X), get(X + 1))))
    loop = For(K, 4, flat(put(X), get(X + 1)))
    with pytest.raises(ScheduleError, match="does not hold for all"):
        waits(If(X < 4, flat(loop, put(X, T))))


def test_stores_at_once_read_their_own() -> None:
    """What a stage reads of its own result is the thread's own."""
    both = StoreAll(
        (
            Store(S, (X,), Load(T, (X + 1,)) + 1.0),
            Store(T, (X,), Load(S, (X + 1,)) + 1.0),
        )
    )
    assert waits(For(K, 4, both)) == []
    assert waits(both, get(X + 1)) == [1]
    assert waits(get(X + 1, T), both) == [1]


def test_a_reduction_over_threads_writes_for_all_of_them() -> None:
    reduce = total(ONE, axis=reduce_axis(2, "k"))
    assert isinstance(reduce, Reduce)
    target = Store(S, (X,), ONE)
    together = ThreadReduce(reduce.combiner, (target,), ("threadIdx.x",), const(True))
    assert waits(together, get(X)) == [1]
    assert waits(get(X), together) == [1]


def test_an_intrinsic_reads_and_writes_regions() -> None:
    def use(inputs: Buffer, outputs: Buffer) -> Stmt:
        read, written = (Region(b, (index(0),), (4,)) for b in (inputs, outputs))
        return Intrinsic(gemv(4, 4), "body", (read, read), (written,))

    reads, writes = use(S, OUT), use(OUT, S)
    assert waits(put(X), reads) == [1]
    assert waits(reads, put(X)) == [1]
    assert waits(reads, get(X)) == []
    assert waits(writes, get(X)) == [1]
    assert waits(get(X), writes) == [1]
    assert waits(writes, put(X)) == []


def test_a_prefetch_waits_for_nobody() -> None:
    assert waits(put(X), Prefetch(Region(S, (X + 1,), (1,)))) == []


def test_nothing_to_wait_for() -> None:
    private = Buffer("L", (64,), "f32", "local")
    body = Allocate(private, flat(put(X, private), get(X + 1, private)))
    known = Arithmetic({X: (0, 7)})
    assert with_barriers(body, known, {X: 8}) is body
    shared = Allocate(S, flat(put(X), get(X + 1)))
    assert with_barriers(shared, known, {X: 1}) is shared
