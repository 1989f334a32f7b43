"""Reads IREE's GPU and SPIR-V configurations from their attributes, and makes these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen, iree_gpu

from tilewright.attributes import Tree, parameters_of, parse_attribute, print_attribute
from tilewright.gpu import (
    DECOMPOSITION_CONFIG,
    LOWERING_CONFIG,
    GpuCompilationInfo,
    GpuTemplate,
    MatrixInstruction,
    OwnChoice,
)
from tilewright.ir.gpu_constraints import (
    constraint_ops,
    knob_name,
    materialize,
    option_name,
    pipeline_name,
    read_constraints,
)
from tilewright.ir.walk import attribute_of, attribute_tree
from tilewright.tiling import DispatchTemplate, Translation

TRANSLATION_INFO = "translation_info"
_PIPELINE_OPTIONS = "gpu_pipeline_options"

_OPTION_NAMES = (
    "prefetch_num_stages",
    "no_reduce_shared_memory_bank_conflicts",
    "use_igemm_convolution",
    "reorder_workgroups_strategy",
)


def gpu_pipeline(attribute: ir.Attribute) -> str:
    """The pipeline's name in a translation_info, '' for one that is not of a GPU backend."""
    return pipeline_name(iree_codegen.TranslationInfoAttr(attribute).pass_pipeline)


def gpu_template(
    function: ir.Operation, ops: Sequence[ir.Operation], plain: DispatchTemplate
) -> GpuTemplate:
    """The template of a dispatch that is configured for a GPU, with its constraints.

    Args:
        function: the dispatch function.
        ops: its compute ops, in program order.
        plain: the template so far, with the ops and the root.
    """
    info = iree_codegen.TranslationInfoAttr(function.attributes[TRANSLATION_INFO])
    attributes = [
        (i, name, op.attributes[name])
        for i, op in enumerate(ops)
        for name in (LOWERING_CONFIG, DECOMPOSITION_CONFIG)
        if name in op.attributes
    ]
    root = ops[plain.root]
    own = _own_choice(function, info, root)
    trees = tuple((i, name, attribute_tree(attribute)) for i, name, attribute in attributes)
    configuration = GpuCompilationInfo(
        Translation(plain.translation.pipeline),
        (),
        root=plain.root,
        info=str(info),
        attributes=tuple((i, name, str(attribute)) for i, name, attribute in attributes),
        summary=_summary(
            own, {(i, name): tree for i, name, tree in trees}.get((plain.root, LOWERING_CONFIG))
        ),
        workgroup_size=own.workgroup_size,
    )
    return GpuTemplate(
        plain.translation,
        plain.ops,
        plain.root,
        configuration,
        own,
        read_constraints(function),
        trees,
    )


def _summary(own: OwnChoice, lowering: Tree) -> str:
    if own.sizes or not isinstance(lowering, dict):
        return "; ".join(f"{name} {','.join(map(str, sizes))}" for name, sizes in own.sizes)
    return ", ".join(f"{k} = {print_attribute(v)}" for k, v in parameters_of(lowering).items())


def _own_choice(
    function: ir.Operation, info: iree_codegen.TranslationInfoAttr, root: ir.Operation
) -> OwnChoice:
    sizes: list[tuple[str, tuple[int, ...]]] = []
    entries: list[tuple[str, str]] = []
    for named in _lowering_entries(root.attributes):
        values = attribute_tree(named.attr)
        if isinstance(values, list) and all(type(one) is int for one in values):
            sizes.append((named.name, tuple(values)))
        else:
            entries.append((named.name, str(named.attr)))
    settings = [(n.name, str(n.attr)) for n in info.configuration or ()]
    return OwnChoice(
        tuple(info.workgroup_size or ()),
        int(info.subgroup_size or 0),
        str(info.pass_pipeline),
        tuple(sizes),
        tuple(entries),
        _option_texts(info),
        tuple(pair for pair in settings if pair[0] != _PIPELINE_OPTIONS),
        tuple(_match(op, info, root) for op in constraint_ops(function)),
        _intrinsics(function, root, int(info.subgroup_size or 0)),
    )


def _computes_one(intrinsic: Any, subgroup_size: int) -> bool:
    """Whether what the threads of a subgroup hold of its result is a single product: pipelines take
    none of those that compute several (`16x16x4x4B`), nor those that do not say what a thread holds
    (`NV_WMMA_...`)."""
    rows, columns, _ = intrinsic.mnk_shape
    held = math.prod(ir.VectorType(intrinsic.abc_vector_types[2]).shape)
    return bool(held * subgroup_size == rows * columns)


def _intrinsics(
    function: ir.Operation, root: ir.Operation, subgroup_size: int
) -> tuple[MatrixInstruction, ...]:
    """The matrix intrinsic that the root op (of attention its second product) uses, then the
    device's others for the same types."""
    holders: list[Any] = [root.attributes]
    if DECOMPOSITION_CONFIG in root.attributes:
        products = ir.DictAttr(root.attributes[DECOMPOSITION_CONFIG])
        holders += [named.attr for named in products if named.name == "pv_attrs"]
    entries = itertools.chain.from_iterable(map(_lowering_entries, holders))
    own = next((named.attr for named in entries if named.name == "mma_kind"), None)
    if not isinstance(own, iree_gpu.MMAAttr):
        return ()
    found = [own]
    variant = function.parent
    while variant is not None and variant.operation.name != "hal.executable.variant":
        variant = variant.operation.parent
    if variant is not None:
        device = iree_gpu.TargetInfo.get_gpu_target_info(variant.operation.attributes["target"])
        for one in device.mma_intrinsics:
            if isinstance(one, iree_gpu.MMAIntrinsic):
                other = iree_gpu.MMAAttr.get(one.value, ctx=function.context)
                same = other.abc_element_types == own.abc_element_types
                if other != own and same and _computes_one(other, subgroup_size):
                    found.append(other)
    return tuple(map(_instruction, found))


def _instruction(intrinsic: Any) -> MatrixInstruction:
    rows, columns, depth = map(int, intrinsic.mnk_shape)
    sums = str(intrinsic.abc_element_types[2])
    return MatrixInstruction(option_name(intrinsic), str(intrinsic), rows, columns, depth, sums)


def _lowering_entries(attributes: Any) -> Sequence[ir.NamedAttribute]:
    """The entries of the lowering configuration among attributes (of an op, or a dictionary)."""
    if LOWERING_CONFIG not in attributes:
        return []
    config = attributes[LOWERING_CONFIG]
    return list(config.attributes) if isinstance(config, iree_gpu.LoweringConfigAttr) else []


def _options(info: iree_codegen.TranslationInfoAttr) -> dict[str, ir.Attribute | bool | int]:
    """The pipeline options of a translation info that are given."""
    for named in info.configuration or ():
        if named.name == _PIPELINE_OPTIONS:
            given = iree_gpu.PipelineOptionsAttr(named.attr)
            values = {name: getattr(given, name) for name in _OPTION_NAMES}
            return {name: value for name, value in values.items() if value is not None}
    return {}


def _option_texts(info: iree_codegen.TranslationInfoAttr) -> tuple[tuple[str, str], ...]:
    given = _options(info).items()
    return tuple(
        (name, str(v) if isinstance(v, ir.Attribute) else print_attribute(v)) for name, v in given
    )


# Which values of the knobs give the compiler's own choice


class _Differs(Exception):
    """The configuration is not of the form that the knobs are in."""


def _match(
    constraints: ir.Operation, info: iree_codegen.TranslationInfoAttr, root: ir.Operation
) -> tuple[tuple[str, int], ...] | None:
    if constraints.attributes["pipeline"] != info.pass_pipeline:
        return None
    lowering = {named.name: named.attr for named in _lowering_entries(root.attributes)}
    found: dict[str, int] = {}
    try:
        for named in ir.DictAttr(constraints.attributes["knobs"]):
            if named.name == "workgroup_size":
                _unify(named.attr, list(info.workgroup_size), found)
            elif named.name == "subgroup_size":
                _unify(named.attr, info.subgroup_size, found)
            elif named.name == _PIPELINE_OPTIONS:
                options = _options(info)
                for option in ir.DictAttr(named.attr):
                    _unify(option.attr, options.get(option.name), found)
            elif named.name in lowering:
                _unify(named.attr, lowering[named.name], found)
            elif named.name in root.attributes:
                _unify(named.attr, root.attributes[named.name], found)
            else:
                return None
    except _Differs:
        return None
    return tuple(found.items())


def _unify(knobs: Any, actual: Any, found: dict[str, int]) -> None:
    """Adds the values that make `knobs` what is given as an attribute, or as the Python number or
    list that the bindings have for it. Raises _Differs."""
    actual = _plain(actual)
    if isinstance(knobs, iree_codegen.IntKnobAttr):
        if not isinstance(actual, int | None):
            raise _Differs
        _assign(knobs, int(actual or 0), found)
    elif isinstance(knobs, iree_codegen.OneOfKnobAttr):
        options = [_plain(option) for option in knobs.options]
        if actual not in options:
            raise _Differs
        _assign(knobs, options.index(actual), found)
    elif isinstance(knobs, ir.ArrayAttr) and isinstance(actual, ir.ArrayAttr | Sequence):
        if len(knobs) != len(actual):
            raise _Differs
        for one, other in zip(knobs, actual, strict=True):
            _unify(one, other, found)
    elif isinstance(knobs, ir.DictAttr) and isinstance(actual, ir.DictAttr):
        for named in knobs:
            if named.name not in actual:
                raise _Differs
            _unify(named.attr, actual[named.name], found)
    elif isinstance(knobs, iree_gpu.LoweringConfigAttr) and isinstance(
        actual, iree_gpu.LoweringConfigAttr
    ):
        _unify(knobs.attributes, actual.attributes, found)
    elif _plain(knobs) != actual:
        raise _Differs


def _plain(value: Any) -> Any:
    """A number's attribute as the number."""
    if isinstance(value, ir.BoolAttr):
        return bool(value.value)
    return int(value.value) if isinstance(value, ir.IntegerAttr) else value


def _assign(knob: Any, value: int, found: dict[str, int]) -> None:
    if found.setdefault(knob_name(knob), value) != value:
        raise _Differs


# Making


def resolve(
    function: ir.Operation, configuration: GpuCompilationInfo
) -> tuple[ir.Attribute, list[tuple[int, str, ir.Attribute]]]:
    """The translation info of the function, and (position of the op, name, attribute) of its ops.

    Raises ValueError where the compiler refuses to make it or a text does not parse.
    """
    context = function.context
    if configuration.ordinal < 0:
        with context:
            info = _edited(_parse(configuration.info, context), configuration)
        return info, [
            (i, name, _parse(text, context)) for i, name, text in configuration.attributes
        ]
    with context:
        info, lowering, further = materialize(
            function, configuration.ordinal, dict(configuration.assignment)
        )
        entries = {n.name: n.attr for n in iree_gpu.LoweringConfigAttr(lowering).attributes}
        entries.update((k, _parse(v, context)) for k, v in configuration.lowering)
        lowering = iree_gpu.LoweringConfigAttr.get(ir.DictAttr.get(entries))
        root = configuration.root
        return _edited(info, configuration), [
            (root, LOWERING_CONFIG, lowering),
            *((root, name, attribute) for name, attribute in further.items()),
        ]


def _edited(attribute: ir.Attribute, configuration: GpuCompilationInfo) -> ir.Attribute:
    """A translation info with other pipeline options and settings."""
    if not configuration.options and not configuration.settings:
        return attribute
    info = iree_codegen.TranslationInfoAttr(attribute)
    context = attribute.context
    entries = {n.name: n.attr for n in info.configuration or ()}
    if configuration.options:
        options: dict[str, Any] = dict(_options(info))
        options.update((k, _option(v, context)) for k, v in configuration.options)
        entries[_PIPELINE_OPTIONS] = iree_gpu.PipelineOptionsAttr.get(**options, ctx=context)
    entries.update((k, _parse(v, context)) for k, v in configuration.settings)
    return iree_codegen.TranslationInfoAttr.get(
        info.pass_pipeline,
        info.codegen_spec,
        list(info.workgroup_size),
        info.subgroup_size,
        ir.DictAttr.get(entries),
    )


def _option(text: str, context: ir.Context) -> Any:
    value = parse_attribute(text)
    return value if isinstance(value, bool | int) else attribute_of(value, context)


def _parse(text: str, context: ir.Context) -> ir.Attribute:
    return attribute_of(parse_attribute(text), context)
