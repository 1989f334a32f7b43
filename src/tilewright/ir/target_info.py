"""What the compiler knows of the processor that it compiles for."""

from __future__ import annotations

from iree.compiler import ir

from tilewright.ir.walk import walk

_PREFIX = "#hal.executable.target"


def target_info(module: ir.Module) -> tuple[str, str, int]:
    """Processor name, feature list and native vector width in bytes of the first executable.

    Empty names and 16 bytes when the module has no executable or the target does not say.
    """
    for op in walk(module.operation, lambda o: o.name == "hal.executable"):
        if op.name != "hal.executable.variant":
            continue
        text = str(op.attributes["target"])
        if not (text.startswith(_PREFIX + "<") and text.endswith(">")):
            continue
        # The bindings have no class for this attribute; its parameters are a list to MLIR's parser.
        inner = ir.Attribute.parse(f"[{text[len(_PREFIX) + 1 : -1]}]", module.context)
        for part in ir.ArrayAttr(inner):
            if isinstance(part, ir.DictAttr):
                return (
                    _string(part, "cpu"),
                    _string(part, "cpu_features"),
                    _integer(part, "native_vector_size", 16),
                )
    return "", "", 16


def _string(attributes: ir.DictAttr, name: str) -> str:
    return str(ir.StringAttr(attributes[name]).value) if name in attributes else ""


def _integer(attributes: ir.DictAttr, name: str, otherwise: int) -> int:
    return int(ir.IntegerAttr(attributes[name]).value) if name in attributes else otherwise
