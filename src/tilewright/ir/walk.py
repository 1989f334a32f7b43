"""Small helpers over the MLIR Python bindings that several modules need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from iree.compiler import ir

from tilewright.attributes import (
    ATTRIBUTE,
    BODY,
    Tree,
    attribute,
    parse_attribute,
    print_attribute,
)

_VHLO_STRING = "#vhlo.string_v1"


def walk(
    root: ir.Operation, enter: Callable[[ir.Operation], bool] | None = None
) -> Iterator[ir.Operation]:
    """Every operation below another one, in program order, each before its regions.

    Args:
        root: the operation to begin below.
        enter: whether to go into an operation's regions (default: always).

    Yields:
        The operations.
    """
    for region in root.regions:
        for block in region.blocks:
            for op in block.operations:
                operation = op.operation
                yield operation
                if enter is None or enter(operation):
                    yield from walk(operation, enter)


def symbols(module: ir.Module | ir.Operation) -> dict[str, ir.Operation]:
    """The operations with a name in a module, or in another operation's only block.

    Args:
        module: the module; it must outlive them.

    Returns:
        The operations by name.
    """
    tops = [view.operation for view in module.operation.regions[0].blocks[0].operations]
    return {string_attribute(op, "sym_name"): op for op in tops if "sym_name" in op.attributes}


def string_attribute(operation: ir.Operation, name: str) -> str:
    """The value of a string attribute.

    Args:
        operation: any operation.
        name: the attribute's name.

    Returns:
        Its value; '' when the operation has none of this name.
    """
    if name not in operation.attributes:
        return ""
    found = operation.attributes[name]
    if not isinstance(found, ir.StringAttr):
        tree = attribute_tree(found)
        if isinstance(tree, dict) and tree.get(ATTRIBUTE) == _VHLO_STRING:
            # Portable artifacts of StableHLO have strings of their own: `<"main">`.
            return str(json.loads(tree[BODY][0][0]))
    return str(ir.StringAttr(found).value)


def attribute_tree(attribute: ir.Attribute) -> Tree:
    """An attribute as plain data.

    Args:
        attribute: of any kind.

    Returns:
        See `tilewright.attributes`.
    """
    return parse_attribute(str(attribute))


def iterator_types(kinds: Iterable[str]) -> ir.ArrayAttr:
    """What a structured op says of its loops, in the current context.

    Args:
        kinds: `parallel` or `reduction`, outermost loop first.
    """
    return ir.ArrayAttr.get(
        [attribute_of(attribute("#linalg.iterator_type", kind)) for kind in kinds]
    )


def attribute_of(tree: Tree, context: ir.Context | None = None) -> ir.Attribute:
    """The attribute that plain data stands for.

    Args:
        tree: see `tilewright.attributes`.
        context: where it lives; by default the current one.

    Raises:
        ValueError: the compiler has no such attribute.
    """
    text = print_attribute(tree)
    try:
        return ir.Attribute.parse(text, context)
    except ir.MLIRError as error:
        raise ValueError(f"'{text}' is no attribute: {error}") from None
