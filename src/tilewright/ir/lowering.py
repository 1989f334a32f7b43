"""Reads IREE's CPU configurations from the attributes that carry them, and writes them back."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen

from tilewright.gpu import GpuCompilationInfo
from tilewright.ir.gpu_lowering import resolve, write_gpu_configuration
from tilewright.ir.walk import parameters
from tilewright.tiling import LEVELS, CompilationInfo, Tiling, Translation

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


def write_configuration(
    function: ir.Operation, ops: list[ir.Operation], configuration: CompilationInfo
) -> None:
    """Puts a configuration on a dispatch function and its compute ops, replacing what they have.

    Args:
        function: the function, changed in place.
        ops: its compute ops, in order.
        configuration: what to set.

    Raises:
        UnreadableConfiguration: it is for ops that there are not; nothing is changed then.
    """
    if isinstance(configuration, GpuCompilationInfo):
        write_gpu_configuration(function, ops, configuration)
        return
    for index, _ in configuration.tilings:
        if not 0 <= index < len(ops):
            raise UnreadableConfiguration(
                f"a configuration for op {index} of a dispatch that has {len(ops)} compute ops"
            )
    context = function.context
    function.attributes[TRANSLATION_INFO] = ir.Attribute.parse(
        configuration.translation.to_attribute(), context
    )
    for op in ops:
        if LOWERING_CONFIG in op.attributes:
            del op.attributes[LOWERING_CONFIG]
    for index, tiling in configuration.tilings:
        ops[index].attributes[LOWERING_CONFIG] = ir.Attribute.parse(tiling.to_attribute(), context)


def attribute_texts(
    function: ir.Operation, configuration: CompilationInfo
) -> tuple[str, list[tuple[int, str, tuple[tuple[str, str], ...]]]]:
    """A configuration as texts.

    Args:
        function: the function that it is for.
        configuration: what it sets.

    Returns:
        Translation info, and for each configured op its position, its lowering configuration, and
        names and texts of further attributes.
    """
    if not isinstance(configuration, GpuCompilationInfo):
        return configuration.translation.to_attribute(), [
            (index, tiling.to_attribute(), ()) for index, tiling in configuration.tilings
        ]
    info, attributes = resolve(function, configuration)
    by_op: dict[int, dict[str, str]] = {}
    for index, name, attribute in attributes:
        by_op.setdefault(index, {})[name] = str(attribute)
    return str(info), [
        (index, own.pop(LOWERING_CONFIG), tuple(own.items())) for index, own in by_op.items()
    ]
