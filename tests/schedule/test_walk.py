"""The walk over trees: every class of nodes says which of its fields are nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tilewright import te
from tilewright.schedule import expr, nest, tensor
from tilewright.schedule.expr import Select, Var, alike, index, same, substitute
from tilewright.schedule.intrinsics import gemv
from tilewright.schedule.walk import Node, children, nodes, own, rebuilt, transform

X, Y = Var("x"), Var("y")
BUFFER = nest.Buffer("B", (4,), "f32")
A = te.placeholder((4,), name="A")
SUM = te.sum(A[te.reduce_axis(4, "k")], axis=te.reduce_axis(4, "k"), init=1.0)
STORE = nest.Store(BUFFER, (X,), te.const(1.0))
REGION = nest.Region(BUFFER, (X,), (4,))
MADE: list[Node[Any]] = [
    X,
    te.const(1.0),
    X + Y,
    expr.Not(X < Y),
    te.if_then_else(X < Y, 1.0, 2.0),
    expr.Cast("f32", X),
    te.exp(te.const(1.0)),
    A[X],
    SUM,
    nest.Load(BUFFER, (X,)),
    REGION,
    nest.Seq((STORE, nest.Barrier())),
    nest.For(X, 4, STORE),
    nest.If(X < Y, STORE, nest.Barrier()),
    STORE,
    nest.StoreAll((STORE, STORE)),
    nest.Allocate(BUFFER, STORE),
    nest.Prefetch(REGION),
    nest.Barrier(),
    nest.ThreadReduce(SUM.combiner, (STORE,), ("threadIdx.x",), X < Y),
    nest.Intrinsic(gemv(4, 4), "body", (REGION, REGION), (REGION,)),
]


def classes(of: type[Node[Any]] = Node) -> Iterator[type[Node[Any]]]:
    for one in of.__subclasses__():
        yield one
        yield from classes(one)


def _has(node: Node[Any], part: Node[Any]) -> bool:
    return any(n is part for n in nodes(node))


def test_every_class_of_nodes_is_here() -> None:
    homes = [m.__name__ for m in (expr, nest, tensor)]
    declared = {c.__name__ for c in classes() if c.__module__ in homes}
    assert declared - {"Expr", "Stmt", "IterVar"} == {type(n).__name__ for n in MADE}


@pytest.mark.parametrize("node", MADE, ids=[type(n).__name__ for n in MADE])
def test_children_are_all_the_nodes_of_the_fields(node: Node[Any]) -> None:
    """Variables that a loop or a reduction binds are names, not children."""
    names = getattr(node, "__match_args__", ())
    wanted: list[int] = []
    for name in names:
        value = getattr(node, name)
        bound = (isinstance(node, nest.For) and name == "var") or name == "axes"
        parts = value if isinstance(value, tuple) else (value,)
        wanted += [id(v) for v in parts if isinstance(v, Node) and not bound]
    assert [id(c) for c in children(node)] == wanted
    assert len(own(node)) + len(node.parts) == len(names)
    assert rebuilt(node, children(node)) is node


@pytest.mark.parametrize("node", MADE, ids=[type(n).__name__ for n in MADE])
def test_other_children_make_another_node_that_says_the_same(node: Node[Any]) -> None:
    renamed = Var("z")
    other = transform(node, lambda n: renamed if n is X else None)
    uses = _has(node, X)
    assert (other is not node) is uses
    if uses and node is not X:
        assert type(other) is type(node)
        assert own(other) == own(node)
        assert _has(other, renamed)
        assert not _has(other, X)


@pytest.mark.parametrize("node", [n for n in MADE if n is not X], ids=lambda n: type(n).__name__)
def test_nodes_stay_as_they_are(node: Node[Any]) -> None:
    for name in getattr(node, "__match_args__", ()):
        with pytest.raises(FrozenInstanceError):
            setattr(node, name, None)


def test_a_node_that_occurs_twice_is_visited_once() -> None:
    shared = X + 1
    seen: list[Node[Any]] = []
    made = transform(shared * shared, lambda n: seen.append(n))
    assert [n is shared for n in seen].count(True) == 1
    assert nodes(made)[-1] is made
    assert len(nodes(made)) == 4


def test_substitution_folds_and_sequences_stay_flat() -> None:
    assert str(substitute(X * 4 + Y, {X: index(0), Y: index(3)})) == "3"
    twice = nest.Seq((STORE, nest.Barrier()))
    made = transform(nest.Seq((STORE, nest.Barrier())), lambda n: twice if n is STORE else None)
    assert isinstance(made, nest.Seq)
    assert [type(s).__name__ for s in made.body] == ["Store", "Barrier", "Barrier"]


def test_alike_and_same() -> None:
    one, other = te.if_then_else(X < 1, X, Y), te.if_then_else(Y < 1, X, Y)
    assert alike(one, other)
    assert not same(one, other)
    assert same(te.if_then_else(X < 1, X, X), te.if_then_else(Y < 1, Y, Y), {X: Y})
    assert isinstance(one, Select)
    assert not alike(one, Select(one.condition, one.a, one.b, guarded=False))
    assert not same(X + 1, X - 1)
    assert not same(te.const(1.0), te.const(1.0, "f16"))
    assert not same(te.const(1.0), te.const(2.0))
    assert same(X + 1, X + 1)
