"""Reads IREE's CPU configurations from the attributes that carry them."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen

from tilewright.attributes import is_attribute, items_of, parameters_of, print_attribute
from tilewright.ir.walk import attribute_tree
from tilewright.tiling import (
    CPU_LOWERING_CONFIG,
    CPU_PIPELINE,
    LEVELS,
    Tiling,
    Translation,
)

LOWERING_CONFIG = "lowering_config"
TRANSLATION_INFO = "translation_info"
COMPILATION_INFO = "compilation_info"
ROOT_OP = "root_op"


class UnreadableConfiguration(Exception):
    """A configuration of a form that is not modelled (scalable sizes, another backend's).

    Such a dispatch keeps the compiler's own configuration.
    """


def leaves_code_alone(attribute: ir.Attribute) -> bool:
    """Whether a function's translation info tells the compiler to leave its code as it is.

    Args:
        attribute: of any kind.
    """
    return isinstance(attribute, iree_codegen.TranslationInfoAttr) and isinstance(
        attribute.pass_pipeline, iree_codegen.NoPipelineAttr
    )


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
    tree = attribute_tree(attribute)
    if not is_attribute(tree, CPU_LOWERING_CONFIG):
        raise UnreadableConfiguration(f"expected {CPU_LOWERING_CONFIG}<…>, got {attribute}")
    for name, sizes in parameters_of(tree).items():
        if name not in LEVELS or not isinstance(sizes, list):
            raise UnreadableConfiguration(f"{name} = {print_attribute(sizes)}")
        for size in sizes:
            if type(size) is not int:
                raise UnreadableConfiguration(f"{name} has the size {print_attribute(size)}")
        levels[name] = tuple(sizes)
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
    pipeline = attribute_tree(info.pass_pipeline)
    if not is_attribute(pipeline, CPU_PIPELINE):
        raise UnreadableConfiguration(f"not a pipeline of the CPU backend: {info.pass_pipeline}")
    names = []
    for named in info.configuration or ():
        if not isinstance(named.attr, ir.UnitAttr):
            raise UnreadableConfiguration(f"the pipeline option {named.name} = {named.attr}")
        names.append(named.name)
    return Translation(str(items_of(pipeline)[0]), tuple(names))
