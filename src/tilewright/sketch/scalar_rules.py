"""Rules for scalar operations, by the names of the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from iree.compiler import ir

from tilewright.schedule.expr import Expr

Scalars: TypeAlias = list[Expr]
ScalarRule: TypeAlias = "Callable[[ir.Operation, Scalars], Expr | Scalars]"


class ScalarRules(dict[str, ScalarRule]):
    """For each operation what gives its results for expressions of its operands."""

    def rule(self, *names: str) -> Callable[[ScalarRule], ScalarRule]:
        """Declares a function as the rule for operations.

        Args:
            names: of the operations.
        """

        def add(rule: ScalarRule) -> ScalarRule:
            self.update(dict.fromkeys(names, rule))
            return rule

        return add
