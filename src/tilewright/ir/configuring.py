"""What configures dispatches: attributes made of a configuration, put on ops, taken off programs.

Candidates and specs are configured by the same attributes: :meth:`DispatchAttributes.of` is the
only maker. A candidate has them put on its ops, a spec annotates the ops that it matches with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.gpu import DECOMPOSITION_CONFIG, GpuCompilationInfo
from tilewright.ir.gpu_constraints import CONSTRAINTS, constraint_ops, erase_constraints
from tilewright.ir.gpu_lowering import resolve
from tilewright.ir.lowering import (
    COMPILATION_INFO,
    LOWERING_CONFIG,
    ROOT_OP,
    TRANSLATION_INFO,
    UnreadableConfiguration,
    leaves_code_alone,
)
from tilewright.ir.walk import walk
from tilewright.tiling import CompilationInfo

# Attributes by which a function or an op is configured; of how attention is taken apart, what it
# says of the two products.
_CONFIGURATIONS = (TRANSLATION_INFO, LOWERING_CONFIG, COMPILATION_INFO, DECOMPOSITION_CONFIG)
_PRODUCTS = ("qk_attrs", "pv_attrs")


@dataclass(frozen=True)
class DispatchAttributes:
    """The attributes that configure one dispatch.

    `ops` are (position among the compute ops, name, attribute). They belong to a context, which
    must outlive them.
    """

    translation_info: ir.Attribute
    ops: tuple[tuple[int, str, ir.Attribute], ...]

    @staticmethod
    def of(function: ir.Operation, configuration: CompilationInfo) -> DispatchAttributes:
        """The attributes that a configuration says, for candidates and for specs alike.

        Args:
            function: the dispatch's, with what the compiler states about configurations where that
                is what they are made from; not changed.
            configuration: what is to be set.

        Raises:
            ValueError: the compiler refuses to make an attribute, or does not parse one.
        """
        if isinstance(configuration, GpuCompilationInfo):
            info, attributes = resolve(function, configuration)
            return DispatchAttributes(info, tuple(attributes))
        context = function.context
        info = ir.Attribute.parse(configuration.translation.to_attribute(), context)
        return DispatchAttributes(
            info,
            tuple(
                (index, LOWERING_CONFIG, ir.Attribute.parse(tiling.to_attribute(), context))
                for index, tiling in configuration.tilings
            ),
        )

    @staticmethod
    def read(function: ir.Operation, ops: Sequence[ir.Operation]) -> DispatchAttributes:
        """The attributes that a dispatch has.

        Args:
            function: a configured function.
            ops: its compute ops, in order.
        """
        return DispatchAttributes(
            function.attributes[TRANSLATION_INFO],
            tuple(
                (index, name, op.attributes[name])
                for index, op in enumerate(ops)
                for name in (LOWERING_CONFIG, DECOMPOSITION_CONFIG)
                if name in op.attributes
            ),
        )

    def put_on(self, function: ir.Operation, ops: Sequence[ir.Operation]) -> None:
        """Configure a dispatch, replacing the configuration that it has.

        Args:
            function: changed in place.
            ops: its compute ops, in order.

        Raises:
            UnreadableConfiguration: an attribute is for an op that there is not; nothing is changed
                then.
        """
        for index, _, _ in self.ops:
            if not 0 <= index < len(ops):
                raise UnreadableConfiguration(
                    f"a configuration for op {index} of a dispatch that has {len(ops)} compute ops"
                )
        strip(function)
        function.attributes[TRANSLATION_INFO] = self.translation_info
        for index, name, attribute in self.ops:
            ops[index].attributes[name] = attribute


def strip(root: ir.Operation, executables: bool = True, marks: bool = False) -> Counter[str]:
    """Take the configurations off everything in an op, so that others can be put there.

    A function whose code the compiler is told to leave as it is (`no_pipeline`) keeps its
    translation info: it says how the code was written, and there is nothing to choose.

    Args:
        root: a program or a function, changed in place.
        executables: also inside of executables that the program has; without, code that the user
            wrote for one keeps the configuration that it is made for.
        marks: also the compiler's marks of root ops, and what it states about configurations.

    Returns:
        How many were removed, by the name of the attribute or op.
    """
    removed: Counter[str] = Counter()
    names = (*_CONFIGURATIONS, ROOT_OP) if marks else _CONFIGURATIONS
    if marks:
        removed[CONSTRAINTS] += len(constraint_ops(root))
        erase_constraints(root)
    inside = walk(root, lambda op: executables or not op.name.startswith("hal.executable"))
    for op in (root, *inside):
        if not executables and op.name.startswith("hal.executable"):
            continue
        removed.update(name for name in names if name in op.attributes and _take_off(op, name))
    return +removed


def _take_off(op: ir.Operation, name: str) -> bool:
    """Remove an attribute as far as it configures; whether it did."""
    attribute = op.attributes[name]
    if leaves_code_alone(attribute):
        return False
    if name == DECOMPOSITION_CONFIG and isinstance(attribute, ir.DictAttr):
        kept = {n.name: n.attr for n in attribute if n.name not in _PRODUCTS}
        if kept:
            op.attributes[name] = ir.DictAttr.get(kept, op.context)
            return len(kept) < len(attribute)
    del op.attributes[name]
    return True
