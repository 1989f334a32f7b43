"""The parameters of attributes for which the bindings have no class."""

from __future__ import annotations

from iree.compiler import ir


def parameters(attribute: ir.Attribute, name: str, brackets: str) -> ir.Attribute | None:
    """The parameters of a `#name<…>` attribute, parsed by MLIR.

    Args:
        attribute: any attribute; one with a type has that behind its parameters.
        name: what the attribute is called, with its dialect: `#hal.executable.target`.
        brackets: `[]` for parameters one after another, which become an array; `{}` for named ones,
            which become a dictionary.

    Returns:
        None for an attribute of another name.
    """
    body, closing, _ = str(attribute).rpartition(">")
    if not closing or not body.startswith(f"{name}<"):
        return None
    inner = brackets[0] + body[len(name) + 1 :] + brackets[1]
    return ir.Attribute.parse(inner, attribute.context)
