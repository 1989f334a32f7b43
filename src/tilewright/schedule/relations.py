"""How the loops of a stage come from its axes: splits and fusions, and what follows from them.

Domains go down from the axes to the loops; values go up from the loops to the axes. (The scheme of
"TVM: An Automated End-to-End Optimizing Compiler", OSDI 2018, for constant sizes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.schedule.expr import Expr, index
from tilewright.schedule.tensor import IterVar


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """`parent` is `outer * extent of inner + inner`; one of `factor` and `nparts` is given."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None

    def extents(self, parent: int, exact: bool) -> tuple[int, int]:
        """Iterations of the outer and the inner loop for those of the parent.

        The given number is cut to the parent's, but where it is bound to threads.

        Args:
            parent: iterations of the parent.
            exact: whether the given number is bound to threads.

        Returns:
            Iterations of the outer and of the inner loop.
        """
        given = self.factor if self.factor is not None else self.nparts
        assert given is not None
        if not exact:
            given = min(given, parent)
        other = -(-parent // given)
        return (other, given) if self.factor is not None else (given, other)


@dataclass(frozen=True, eq=False, slots=True)
class Fuse:
    """`fused` is `outer * extent of inner + inner`."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


Relation: TypeAlias = Split | Fuse


def extents_of(
    relations: Iterable[Relation], roots: Mapping[IterVar, int], bound: Iterable[IterVar]
) -> dict[IterVar, int]:
    """Iterations of every axis and loop.

    Args:
        relations: in the order in which they were made.
        roots: iterations of the axes.
        bound: loops bound to threads.
    """
    relations = list(relations)
    exact = set(bound)
    # A thread's extent is a promise about every loop that it is made into.
    for relation in reversed(relations):
        if isinstance(relation, Fuse) and relation.fused in exact:
            exact.update((relation.outer, relation.inner))
        elif isinstance(relation, Split) and {relation.outer, relation.inner} & exact:
            exact.add(relation.parent)
    extents = dict(roots)
    for relation in relations:
        if isinstance(relation, Split):
            given = relation.inner if relation.factor is not None else relation.outer
            extents[relation.outer], extents[relation.inner] = relation.extents(
                extents[relation.parent], given in exact
            )
        else:
            extents[relation.fused] = extents[relation.outer] * extents[relation.inner]
    return extents


def values_up(
    relations: Iterable[Relation], extents: Mapping[IterVar, int], leaves: Mapping[IterVar, Expr]
) -> dict[IterVar, Expr]:
    """The value (from 0) of every axis, from those of the loops.

    Args:
        relations: in the order in which they were made.
        extents: iterations of every axis and loop.
        leaves: the values of the loops.

    Returns:
        The values of axes and loops; an axis that is split unevenly can exceed its extent.
    """
    values = dict(leaves)
    for relation in reversed(list(relations)):
        if isinstance(relation, Split):
            outer, inner = values[relation.outer], values[relation.inner]
            values[relation.parent] = outer * index(extents[relation.inner]) + inner
        else:
            fused = values[relation.fused]
            extent = index(extents[relation.inner])
            values[relation.outer] = fused // extent
            values[relation.inner] = fused % extent
    return values


def values_down(
    relations: Iterable[Relation], extents: Mapping[IterVar, int], roots: Mapping[IterVar, Expr]
) -> dict[IterVar, Expr]:
    """The value of every loop, from those of the axes.

    Args:
        relations: in the order in which they were made.
        extents: iterations of every axis and loop.
        roots: the values of the axes, from 0.
    """
    values = dict(roots)
    for relation in relations:
        if isinstance(relation, Split):
            parent = values[relation.parent]
            extent = index(extents[relation.inner])
            values[relation.outer] = parent // extent
            values[relation.inner] = parent % extent
        else:
            outer, inner = values[relation.outer], values[relation.inner]
            values[relation.fused] = outer * index(extents[relation.inner]) + inner
    return values


def inexact(relations: Iterable[Relation], extents: Mapping[IterVar, int]) -> list[IterVar]:
    """The split axes whose loops together run past their extent: the splits that do not divide.

    Args:
        relations: in the order in which they were made.
        extents: iterations of every axis and loop.
    """
    return [
        r.parent
        for r in relations
        if isinstance(r, Split) and extents[r.outer] * extents[r.inner] != extents[r.parent]
    ]


def made_from(relations: Iterable[Relation], roots: Mapping[IterVar, int]) -> dict[IterVar, int]:
    """For every axis and loop the union of the marks (bits) of the roots it is made from.

    Args:
        relations: in the order in which they were made.
        roots: the marks of the axes; 0 of those left out.
    """
    marks = dict(roots)
    for relation in relations:
        if isinstance(relation, Split):
            mark = marks.get(relation.parent, 0)
            marks[relation.outer] = marks[relation.inner] = mark
        else:
            marks[relation.fused] = marks.get(relation.outer, 0) | marks.get(relation.inner, 0)
    return marks
