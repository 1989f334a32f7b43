"""The compiler's own constraints on a dispatch's configuration, as plain data.

IREE describes the legal configurations of its GPU pipelines with `iree_codegen.smt.constraints`
ops. What such an op says is kept here as a list of nodes, each of which names its operands by their
positions before it, and a list of assertions. No MLIR is needed to evaluate or to store it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from tilewright.plain_data import fields_of, tupled


@dataclass(frozen=True)
class SmtNode:
    """One value. `operands` are positions of earlier nodes.

    `operation`: of integers constant (a number), dim (the size of a loop), variable (a knob or an
    unknown of the constraints' own), add, sub, mul, div, mod, neg, abs, lookup, ite; of truth
    values the comparisons (lt, le, gt, ge), eq, distinct, and, or, not, xor, implies. `value`: the
    number of a constant, the position of a dim; `name`: of a variable; `table`: the (key, value)
    pairs of a lookup.
    """

    operation: str
    operands: tuple[int, ...] = ()
    value: int = 0
    name: str = ""
    table: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Assertion:
    """A truth value that must hold; `message` has a `{}` for each of `shown`, as in Python."""

    node: int
    message: str
    shown: tuple[int, ...] = ()


@dataclass(frozen=True)
class SmtKnob:
    """A knob of the constraints: an integer, or (with `options`) the position of an option.

    `shapes`: of options that are matrix intrinsics, their m, n and k.
    """

    name: str
    options: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class ConstraintProgram:
    """One constraints op: which configurations a pipeline of the compiler takes for a dispatch.

    `ordinal` counts the constraints ops of the dispatch; `dims` are the sizes of the root op's
    loops. `fixed` is what the op says of the configuration beside the knobs, as text by name.
    """

    pipeline: str
    ordinal: int
    dims: tuple[int, ...]
    knobs: tuple[SmtKnob, ...]
    nodes: tuple[SmtNode, ...]
    assertions: tuple[Assertion, ...]
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in the order of their first node, knobs and unknowns alike."""
        return tuple(dict.fromkeys(n.name for n in self.nodes if n.operation == "variable"))

    def to_json(self) -> dict[str, Any]:
        """Plain data: knobs, nodes and assertions as lists of their fields."""
        data = fields_of(self)
        return data | {name: [astuple(one) for one in data[name]] for name in _PARTS}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ConstraintProgram:
        """The program of `to_json`.

        Args:
            data: what JSON was.
        """
        parts = {
            name: tuple(part(*tupled(one)) for one in data[name]) for name, part in _PARTS.items()
        }
        return ConstraintProgram(**({name: tupled(v) for name, v in data.items()} | parts))


_PARTS: dict[str, type] = {"knobs": SmtKnob, "nodes": SmtNode, "assertions": Assertion}
