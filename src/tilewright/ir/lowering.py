"""Reads IREE's CPU configurations from the attributes that carry them."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen

from tilewright.ir.walk import parameters
from tilewright.tiling import LEVELS, Tiling, Translation

LOWERING_CONFIG = "lowering_config"
TRANSLATION_INFO = "translation_info"
COMPILATION_INFO = "compilation_info"
ROOT_OP = "root_op"


class UnreadableConfiguration(Exception):
    """A configuration of a form that is not modelled (scalable sizes, another backend's).

    Such a dispatch keeps the compiler's own configuration.
    """


def _body(attribute: ir.Attribute, name: str) -> ir.DictAttr:
    """The parameters of a `name<name = value, …>` attribute of the CPU dialect."""
    found = parameters(attribute, name, "{}")
    if found is None:
        raise UnreadableConfiguration(f"expected {name}<…>, got {attribute}")
    return ir.DictAttr(found)


def read_tiling(attribute: ir.Attribute) -> Tiling:
    """The tile sizes of a `#iree_cpu.lowering_config` attribute.

    Args:
        attribute: the attribute.

    Returns:
        Tile sizes by level.

    Raises:
        UnreadableConfiguration: it is of another kind, or has a level or size that is not modelled.
    """
    levels: dict[str, tuple[int, ...]] = {}
    for named in _body(attribute, "#iree_cpu.lowering_config"):
        if named.name not in LEVELS or not isinstance(named.attr, ir.ArrayAttr):
            raise UnreadableConfiguration(f"{named.name} = {named.attr}")
        sizes = []
        for size in named.attr:
            if not isinstance(size, ir.IntegerAttr):
                raise UnreadableConfiguration(f"{named.name} has the size {size}")
            sizes.append(size.value)
        levels[named.name] = tuple(sizes)
    return Tiling.of(levels)


def read_translation(attribute: ir.Attribute) -> Translation:
    """Pipeline and options of a `#iree_codegen.translation_info` attribute.

    Args:
        attribute: the attribute.

    Returns:
        The pipeline's name and those of its options.

    Raises:
        UnreadableConfiguration: it is not of the CPU backend, or has an option with a value.
    """
    info = iree_codegen.TranslationInfoAttr(attribute)
    prefix = "#iree_cpu.pipeline"
    text = str(info.pass_pipeline)
    if not (text.startswith(prefix + "<") and text.endswith(">")):
        raise UnreadableConfiguration(f"not a pipeline of the CPU backend: {text}")
    names = []
    for named in info.configuration or ():
        if not isinstance(named.attr, ir.UnitAttr):
            raise UnreadableConfiguration(f"the pipeline option {named.name} = {named.attr}")
        names.append(named.name)
    return Translation(text[len(prefix) + 1 : -1], tuple(names))
