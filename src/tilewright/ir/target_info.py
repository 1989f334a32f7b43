"""What the compiler knows of the processor that it compiles for."""

from __future__ import annotations

from pathlib import Path

from iree.compiler import ir

from tilewright.ir.walk import parameters, walk

_TARGET = "#hal.executable.target"


def target_info(module: ir.Module) -> tuple[str, str, int]:
    """Processor name, feature list and native vector width in bytes of the module's target.

    Works on modules that have executables and on those that only name their devices (at the flow
    phase). Empty names and 16 bytes where the target does not say.
    """
    for op in walk(module.operation, lambda o: o.name == "hal.executable"):
        if op.name == "hal.executable.variant":
            return _read_target(op.attributes["target"])
        if op.name == "util.global" and "initial_value" in op.attributes:
            for part in _parts(op.attributes["initial_value"], "#hal.device.target"):
                if isinstance(part, ir.ArrayAttr) and len(part):
                    return _read_target(part[0])
    return "", "", 16


def executable_target(module: ir.Module) -> ir.Attribute:
    """The `#hal.executable.target` of the first device of a module.

    Args:
        module: at the flow phase.

    Raises:
        ValueError: it names no device.
    """
    for op in walk(module.operation):
        if op.name == "util.global" and "initial_value" in op.attributes:
            for part in _parts(op.attributes["initial_value"], "#hal.device.target"):
                if isinstance(part, ir.ArrayAttr) and len(part):
                    return part[0]
    raise ValueError("the module names no device")


def object_target(target: ir.Attribute, path: Path) -> ir.Attribute:
    """A target of IREE's for an object file with nothing but the code that is generated.

    Args:
        target: the `#hal.executable.target` that an ELF file would be made for.
        path: where the object file is written; a header is written beside it.

    Returns:
        Another one, the code for which is the same.
    """
    with target.context:
        backend, _, config = ir.ArrayAttr(parameters(target, _TARGET, "[]"))
        entries = {entry.name: entry.attr for entry in ir.DictAttr(config)}
        entries["link_embedded"] = ir.BoolAttr.get(False)
        entries["link_static"] = ir.BoolAttr.get(True)
        entries["static_library_output"] = ir.StringAttr.get(str(path))
        return ir.Attribute.parse(f'{_TARGET}<{backend}, "static", {ir.DictAttr.get(entries)}>')


def _read_target(target: ir.Attribute) -> tuple[str, str, int]:
    for part in _parts(target, _TARGET):
        if isinstance(part, ir.DictAttr):
            return (
                _string(part, "cpu"),
                _string(part, "cpu_features"),
                _integer(part, "native_vector_size", 16),
            )
    return "", "", 16


def _parts(attribute: ir.Attribute, name: str) -> list[ir.Attribute]:
    found = parameters(attribute, name, "[]")
    return [] if found is None else list(ir.ArrayAttr(found))


def _string(attributes: ir.DictAttr, name: str) -> str:
    return str(ir.StringAttr(attributes[name]).value) if name in attributes else ""


def _integer(attributes: ir.DictAttr, name: str, otherwise: int) -> int:
    return int(ir.IntegerAttr(attributes[name]).value) if name in attributes else otherwise
