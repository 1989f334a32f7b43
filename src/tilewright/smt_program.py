"""The compiler's own constraints on a dispatch's configuration, as plain data.

IREE describes the legal configurations of its GPU pipelines with `iree_codegen.smt.constraints`
ops. What such an op says is kept here as a list of nodes, each of which names its operands by their
positions before it, and a list of assertions. No MLIR is needed to evaluate or to store it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a node computes. Integers: constant (a number), dim (the size of a loop), variable (a knob or
# an unknown of the constraints' own), add, sub, mul, div, mod, neg, abs, lookup, ite. Truth values:
# the comparisons, eq, distinct, and, or, not, xor, implies.
OPERATIONS = (
    "constant",
    "dim",
    "variable",
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "neg",
    "abs",
    "lookup",
    "ite",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "distinct",
    "and",
    "or",
    "not",
    "xor",
    "implies",
)


@dataclass(frozen=True)
class Node:
    """One value. `operands` are positions of earlier nodes.

    `value`: the number of a constant, the position of a dim; `name`: of a variable; `table`: the
    (key, value) pairs of a lookup.
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
    nodes: tuple[Node, ...]
    assertions: tuple[Assertion, ...]
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in the order of their first node, knobs and unknowns alike."""
        return tuple(dict.fromkeys(n.name for n in self.nodes if n.operation == "variable"))

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "ordinal": self.ordinal,
            "dims": list(self.dims),
            "knobs": [
                [k.name, list(k.options), [list(shape) for shape in k.shapes]] for k in self.knobs
            ],
            "nodes": [
                [n.operation, list(n.operands), n.value, n.name, [list(p) for p in n.table]]
                for n in self.nodes
            ],
            "assertions": [[a.node, a.message, list(a.shown)] for a in self.assertions],
            "fixed": [list(pair) for pair in self.fixed],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ConstraintProgram:
        return ConstraintProgram(
            data["pipeline"],
            data["ordinal"],
            tuple(data["dims"]),
            tuple(
                SmtKnob(name, tuple(options), tuple((m, n, k) for m, n, k in shapes))
                for name, options, shapes in data["knobs"]
            ),
            tuple(
                Node(operation, tuple(operands), value, name, tuple((k, v) for k, v in table))
                for operation, operands, value, name, table in data["nodes"]
            ),
            tuple(Assertion(node, text, tuple(shown)) for node, text, shown in data["assertions"]),
            tuple((name, text) for name, text in data["fixed"]),
        )
