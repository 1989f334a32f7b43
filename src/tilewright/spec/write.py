"""Write a tuning spec, for `iree-compile --iree-codegen-tuning-spec-path=`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen, transform

from tilewright.errors import UserError
from tilewright.spec import library
from tilewright.spec.matcher import Dispatch, check_dispatch

_NO_HEADER: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class OpConfig:
    """The lowering configuration of one op of a dispatch.

    `op_index` is the op's position in :func:`tilewright.ir.compute_ops.compute_ops` of the
    dispatch's function; `lowering_config` is the attribute's text, such as
    `#iree_cpu.lowering_config<distribution = [64, 64, 0], vector_common_parallel = [8, 32, 0]>`.
    `further`: names and texts of other attributes that the op gets.
    """

    op_index: int
    lowering_config: str
    further: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SpecEntry:
    """One dispatch with the configuration that a spec shall give it.

    `name` is unique within a spec and readable; it is what the marker on the configured function
    says. `function` is the `func.func` of the dispatch as `--compile-to=executable-configurations`
    prints it (configured or with the configuration stripped); everything that the spec compares is
    read from it. Keep its module alive until the spec is written. `translation_info` is attribute
    text, `#iree_codegen.translation_info<…>`. Ops without an `OpConfig` get none, so name every op
    that the compiler's own choice configures.
    """

    name: str
    function: ir.Operation
    translation_info: str
    op_configs: tuple[OpConfig, ...]


def write_spec(entries: Sequence[SpecEntry], *, header: Mapping[str, str] = _NO_HEADER) -> str:
    """The text of a verified tuning spec that configures the dispatches of `entries`.

    Each entry applies to a dispatch that has the same compute ops as its function (see
    :mod:`tilewright.spec.matcher`), sets `translation_info` on the function and `lowering_config`
    on its ops, and leaves the attribute `tilewright.tuned = "<name>"` on the function. Where two
    entries fit a dispatch, the first applies; a dispatch that the input already configures is left
    alone.

    Args:
        entries: what it sets; all functions in one context. None give a valid spec that changes
            nothing.
        header: kept on the module (`tilewright.spec`).

    Returns:
        A module of the transform dialect, for `--iree-codegen-tuning-spec-path=`.

    Raises:
        UserError: An entry without compute ops or configurations, an attribute that does not parse,
        an
            op index out of range, or two entries of one name.
    """
    _expect_unique([entry.name for entry in entries])
    context = entries[0].function.context if entries else library.new_context()
    with context, ir.Location.unknown():
        module = library.new_module(dict(header))
        names = [f"tuned_{number}" for number in range(len(entries))]
        with ir.InsertionPoint(module.body):
            for name, entry in zip(names, entries, strict=True):
                _build_entry(name, entry)
            prologue = library.CPU_PROLOGUE if any(map(_is_for_cpu, entries)) else ()
            _build_entry_point(names, prologue)
        library.add_helpers(module)
        module.operation.verify()
        return str(module.operation.get_asm())


def _expect_unique(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"tuning spec: {names.count(name)} entries are named '{name}'; "
                "give each entry a name of its own"
            )


def _parse(entry: SpecEntry, what: str, attribute: str) -> ir.Attribute:
    try:
        return ir.Attribute.parse(attribute)
    except ir.MLIRError as error:
        reason = error.error_diagnostics[0].message if error.error_diagnostics else str(error)
        raise UserError(
            f"tuning spec: {what} of entry '{entry.name}' does not parse: {reason} "
            f"(in '{attribute}')"
        ) from error


def _is_for_cpu(entry: SpecEntry) -> bool:
    """Whether the entry's dispatch goes through one of IREE's CPU pipelines."""
    info = _parse(entry, "translation_info", entry.translation_info)
    cpu = ir.Attribute.parse("#iree_cpu.pipeline<DoubleTilingExpert>")
    return bool(info.pass_pipeline.typeid == cpu.typeid)


def _build_entry(name: str, entry: SpecEntry) -> None:
    """The named sequence that checks a function and then configures it."""
    dispatch = Dispatch.of(entry.function)
    if not dispatch.ops:
        raise UserError(f"tuning spec: the dispatch of entry '{entry.name}' has no op to configure")
    if not entry.op_configs:
        raise UserError(f"tuning spec: entry '{entry.name}' configures none of its ops")
    for config in entry.op_configs:
        if not 0 <= config.op_index < len(dispatch.ops):
            raise UserError(
                f"tuning spec: entry '{entry.name}' configures op {config.op_index}, but its "
                f"dispatch has {len(dispatch.ops)} compute ops (0 to {len(dispatch.ops) - 1})"
            )

    def check_and_configure(func: ir.Value) -> None:
        handles = check_dispatch(dispatch, func)
        info = _parse(entry, "translation_info", entry.translation_info)
        if not isinstance(info, iree_codegen.TranslationInfoAttr):
            raise UserError(
                f"tuning spec: translation_info of entry '{entry.name}' must be an "
                f"#iree_codegen.translation_info<…>, not '{entry.translation_info}'"
            )
        _annotate(func, "translation_info", info)
        for config in entry.op_configs:
            for name, text in (("lowering_config", config.lowering_config), *config.further):
                what = f"{name} of op {config.op_index}"
                _annotate(handles[config.op_index], name, _parse(entry, what, text))
        _annotate(func, library.MARKER, ir.StringAttr.get(entry.name))

    library.define(name, [library.any_op()], check_and_configure)


def _annotate(target: ir.Value, name: str, value: ir.Attribute) -> None:
    param = transform.ParamConstantOp(library.any_param(), value).result
    transform.AnnotateOp(target, name, param=param)


def _build_entry_point(
    entries: Sequence[str], prologue: Sequence[tuple[str, tuple[tuple[str, str], ...]]]
) -> None:
    """`__kernel_config`: the prologue, then every entry on the function that it is run on."""

    def run(func: ir.Value) -> ir.Value:
        for name, options in prologue:
            func = transform.apply_registered_pass(
                library.any_op(), func, name, options=dict(options)
            )
        if entries:
            # Every entry is tried, going on after one that does not fit.
            sequence = transform.SequenceOp(transform.FailurePropagationMode.Suppress, [], func)
            with ir.InsertionPoint(sequence.body):
                for name in entries:
                    library.include(name, [sequence.bodyTarget])
                transform.YieldOp()
        return func

    library.define_entry_point(run, consumes=bool(prologue))
