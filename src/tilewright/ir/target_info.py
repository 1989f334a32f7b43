"""What the compiler knows of the processor that it compiles for."""

from __future__ import annotations

from pathlib import Path

from iree.compiler import ir

from tilewright.attributes import (
    Tree,
    attribute,
    is_attribute,
    items_of,
    quoted,
    unquoted,
    value_of,
)
from tilewright.ir.walk import attribute_of, attribute_tree, walk

_TARGET = "#hal.executable.target"
_ELF = "embedded-elf-"


def target_info(module: ir.Module) -> tuple[str, str, int]:
    """Processor name, feature list and native vector width in bytes of the module's target.

    Works on modules that have executables and on those that only name their devices (at the flow
    phase). Empty names and 16 bytes where the target does not say.
    """
    for op in walk(module.operation, lambda o: o.name == "hal.executable"):
        if op.name == "hal.executable.variant":
            return _read_target(attribute_tree(op.attributes["target"]))
        targets = _targets(op)
        if targets:
            return _read_target(targets[0])
    return "", "", 16


def executable_target(module: ir.Module) -> ir.Attribute:
    """The `#hal.executable.target` of the first device of a module.

    Args:
        module: at the flow phase.

    Raises:
        ValueError: it names no device.
    """
    for op in walk(module.operation):
        targets = _targets(op)
        if targets:
            return attribute_of(targets[0], module.context)
    raise ValueError("the module names no device")


def family_target(target: ir.Attribute) -> ir.Attribute:
    """A target that stands for every processor of one family.

    Args:
        target: the `#hal.executable.target` of one of them.

    Returns:
        Another one, of which the triple alone is told.
    """
    with target.context:
        backend, form, config = _parts(attribute_tree(target), _TARGET)
        triple = {"target_triple": config["target_triple"]}
        return attribute_of(attribute(_TARGET, backend, form, triple))


def object_target(target: ir.Attribute, path: Path) -> ir.Attribute:
    """A target of IREE's for an object file with nothing but the code that is generated.

    Args:
        target: the `#hal.executable.target` that an ELF file would be made for.
        path: where the object file is written; a header is written beside it.

    Returns:
        Another one of the same format, the code for which is the same. Microkernels that it calls
        are left undefined: reading their library takes longer than compiling a small kernel.
    """
    with target.context:
        backend, form, config = _parts(attribute_tree(target), _TARGET)
        entries = {
            **config,
            "link_embedded": False,
            "link_static": True,
            "static_library_output": quoted(str(path)),
            "link_ukernel_bitcode": False,
        }
        return attribute_of(attribute(_TARGET, backend, form, entries))


def bytecode_target(target: ir.Attribute) -> ir.Attribute:
    """A target of IREE's for bytecode of its virtual machine, in place of a processor's code.

    Args:
        target: a `#hal.executable.target`.

    Returns:
        Another one of the same format: what loads an executable is decided by that alone.
    """
    with target.context:
        _, form, *_ = _parts(attribute_tree(target), _TARGET)
        return attribute_of(attribute(_TARGET, quoted("vmvx"), form, {}))


def elf_format(target: ir.Attribute) -> str:
    """The format of the ELF files that IREE embeds for a target; '' where it makes others.

    Args:
        target: a `#hal.executable.target`.
    """
    with target.context:
        _, form, *_ = _parts(attribute_tree(target), _TARGET)
    return unquoted(form) if isinstance(form, str) and unquoted(form).startswith(_ELF) else ""


def _targets(op: ir.Operation) -> list[Tree]:
    """The executable targets of the device that an op makes a global of; none for another op."""
    if op.name != "util.global" or "initial_value" not in op.attributes:
        return []
    # Other globals are constants, whose text can be a whole weight.
    if str(ir.TypeAttr(op.attributes["type"]).value) != "!hal.device":
        return []
    device = attribute_tree(op.attributes["initial_value"])
    lists = (part for part in _parts(device, "#hal.device.target") if isinstance(part, list))
    return next((part for part in lists if part), [])


def _read_target(target: Tree) -> tuple[str, str, int]:
    for part in _parts(target, _TARGET):
        if isinstance(part, dict):
            width = part.get("native_vector_size", 16)
            return (
                unquoted(part.get("cpu", "")),
                unquoted(part.get("cpu_features", "")),
                width if isinstance(width, int) else 16,
            )
    return "", "", 16


def _parts(tree: Tree, name: str) -> list[Tree]:
    """What an attribute has in it, if it has this name."""
    plain = value_of(tree)
    return items_of(plain) if is_attribute(plain, name) else []
