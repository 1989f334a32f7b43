"""The nodes of a tree, each declared once, and the one walk over them.

A class of nodes is a frozen dataclass of its fields; :func:`node` names those that hold other
nodes. What goes through a tree (substitution, collection, lowering, code generation, evaluation)
goes through it with the functions here, and knows only the classes that it does something for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

C = TypeVar("C")
N = TypeVar("N", bound="Node[Any]")
T = TypeVar("T")


class Node(Generic[C]):
    """A node of a tree whose children are of class C. Known by identity, never changed.

    parts: the fields that hold children: each a node, a tuple of nodes, or None.
    """

    __slots__ = ()
    parts: ClassVar[tuple[str, ...]] = ()

    def remade(self, values: Sequence[Any]) -> Any:
        """The node with other values of its fields, in their order.

        A class whose nodes have a plainer form for some values gives that.

        Args:
            values: one for each field.

        Returns:
            A node, not always of the same class.
        """
        return type(self)(*values)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def node(*parts: str) -> Callable[[type[T]], type[T]]:
    """Declares a class of nodes.

    Args:
        parts: the names of the fields that hold other nodes, in the order of the fields.
    """

    def declared(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, eq=False, slots=True, repr=False)(cls)
        made.parts = parts
        return made  # type: ignore[no-any-return]

    return declared


def children(node: Node[C]) -> tuple[C, ...]:
    """The nodes directly inside of a node, in order."""
    if not node.parts:
        return ()
    found: list[C] = []
    for name in node.parts:
        value = getattr(node, name)
        if isinstance(value, tuple):
            found.extend(value)
        elif value is not None:
            found.append(value)
    return tuple(found)


def own(node: Node[Any]) -> tuple[Any, ...]:
    """What a node says besides its children: the values of its other fields."""
    names: tuple[str, ...] = getattr(node, "__match_args__", ())
    return tuple(getattr(node, name) for name in names if name not in node.parts)


def rebuilt(node: N, parts: Sequence[Any]) -> N:
    """The node with other children; itself where they are the ones it has.

    Args:
        parts: as many as :func:`children` gives.
    """
    if all(new is old for new, old in zip(parts, children(node), strict=True)):
        return node
    left = iter(parts)
    values: list[Any] = []
    for name in node.__match_args__:  # type: ignore[attr-defined]
        value = getattr(node, name)
        if name in node.parts and value is not None:
            several = isinstance(value, tuple)
            value = tuple(next(left) for _ in value) if several else next(left)
        values.append(value)
    made: N = node.remade(values)
    return made


def transform(root: N, change: Callable[[Any], Node[Any] | None]) -> N:
    """The tree with every node for which `change` gives another replaced by it.

    Args:
        change: sees a node after its children were transformed; None keeps the node. A node that
            occurs several times is transformed once.
    """
    done: dict[Node[Any], Any] = {}

    def visit(node: Node[Any]) -> Any:
        known = done.get(node)
        if known is None:
            parts = children(node)
            new = rebuilt(node, [visit(p) for p in parts]) if parts else node
            changed = change(new)
            known = done[node] = new if changed is None else changed
        return known

    result: N = visit(root)
    return result


def nodes(root: Node[C]) -> list[C]:
    """The root and every node below it, each once, children before what they are part of."""
    found: dict[Any, None] = {}

    def visit(node: Node[Any]) -> None:
        if node not in found:
            for part in children(node):
                visit(part)
            found[node] = None

    visit(root)
    return list(found)
