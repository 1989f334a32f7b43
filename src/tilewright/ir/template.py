"""Reads a dispatch as the compiler configures it: its compute ops, its configuration in words, and
the template that candidates are made from.

A lowering configuration belongs to one op of a dispatch, and a tuning spec has to name that op
again in another compilation of it. The name is the op's position among the ops that implement
`TilingInterface`, in the order of `transform.structured.match`, so that op is asked here too: no
list of op names has to be kept in step with the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen
from iree.compiler.dialects.transform import interpreter

from tilewright.ir.classify import classify, element_bits
from tilewright.ir.gpu_lowering import gpu_pipeline, gpu_template
from tilewright.ir.loops import find_loops, uses_of_loops
from tilewright.ir.lowering import (
    LOWERING_CONFIG,
    TRANSLATION_INFO,
    UnreadableConfiguration,
    read_tiling,
    read_translation,
)
from tilewright.ir.reference.access import indexing_maps
from tilewright.ir.sizes import SizeEvaluator
from tilewright.ir.walk import string_attribute, symbols, walk
from tilewright.tiling import DispatchTemplate, OpTemplate, Tiling, Translation
from tilewright.workload import Workload

_MARK = "tilewright.compute_op"
# Of dispatches; the second of those whose code is linked (`ir/bitcode`).
_FUNCTIONS = ("func.func", "llvm.func")
_LINKAGE, _INTERNAL = "linkage", "#llvm.linkage<internal>"

_PROBE = f"""
module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @__transform_main(%func: !transform.any_op {{transform.readonly}}) {{
    %ops = transform.structured.match interface{{TilingInterface}} in %func
      : (!transform.any_op) -> !transform.any_op
    transform.annotate %ops "{_MARK}" : !transform.any_op
    transform.yield
  }}
}}
"""


def compute_ops(func: ir.Operation) -> list[ir.Operation]:
    """The ops of a dispatch that implement `TilingInterface`, in program order.

    An op inside the region of another one (in `iree_linalg_ext.custom_op`) comes before the op that
    holds it, because that is how `transform.structured.match` walks. The function is left as it
    was.

    Args:
        func: the `func.func` of a dispatch, in a context that has all dialects loaded.

    Returns:
        The ops, in the order in which specs count them.
    """
    func = func.operation
    with func.context, ir.Location.unknown():
        probe = ir.Module.parse(_PROBE)
        interpreter.apply_named_sequence(func, probe.body.operations[0], probe)
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if _MARK in op.attributes:
            del op.attributes[_MARK]
            found.append(op)
        return ir.WalkResult.ADVANCE

    func.walk(visit)
    return found


@dataclass(frozen=True)
class ConfiguredDispatch:
    """A dispatch function of a module at the executable-configurations phase, and what it is."""

    function: ir.Operation
    ops: tuple[ir.Operation, ...]
    template: DispatchTemplate
    workload: Workload


def dispatch_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The entry functions of every executable.

    Args:
        module: a module at a phase behind `flow`.

    Returns:
        The functions by `executable name`/`function name`.
    """
    return {
        f"{name}/{string_attribute(op, 'sym_name')}": op
        for name, executable in executables(module).items()
        for op in walk(executable, lambda o: o.name not in _FUNCTIONS)
        if op.name in _FUNCTIONS and len(op.regions[0].blocks) and not _is_internal(op)
    }


def _is_internal(function: ir.Operation) -> bool:
    """Whether only other functions of its executable call it."""
    if _LINKAGE not in function.attributes:
        return False
    with function.context:
        return bool(function.attributes[_LINKAGE] == ir.Attribute.parse(_INTERNAL))


def executables(module: ir.Module) -> dict[str, ir.Operation]:
    """The executables of a module.

    Args:
        module: a module at a phase behind `flow`; it must outlive them.

    Returns:
        The `hal.executable` ops by name.
    """
    return {n: op for n, op in symbols(module).items() if op.name == "hal.executable"}


def read_dispatch(
    module: ir.Module, executable: str, entry: str, workload: Sequence[int | None] = ()
) -> ConfiguredDispatch:
    """The template and workload of one dispatch of a configured module.

    The module must have been compiled with `--iree-codegen-add-tuner-attributes`, so that the
    compiler marks the root ops itself; where it marks none, the op that carries distribution tiles
    is the root.

    Args:
        module: a module at the executable-configurations phase.
        executable: the name of the dispatch's executable.
        entry: the name of its entry point.
        workload: the values that the dispatch is called with as its workload, which its sizes
            follow from where its types leave them open.

    Returns:
        The function with what was read of it.

    Raises:
        UnreadableConfiguration: the dispatch has no configuration that is modelled, or no root op.
    """
    function = find_function(module, executable, entry)
    if TRANSLATION_INFO not in function.attributes:
        raise UnreadableConfiguration("the compiler chose no pipeline")
    gpu = gpu_pipeline(function.attributes[TRANSLATION_INFO])
    translation = (
        Translation(gpu) if gpu else read_translation(function.attributes[TRANSLATION_INFO])
    )
    ops = compute_ops(function)
    sizes = SizeEvaluator(workload=workload)
    loops = find_loops(ops, sizes)
    # The sizes on a GPU are in the configuration that the template has as a whole.
    tilings = [
        (Tiling() if gpu else read_tiling(op.attributes[LOWERING_CONFIG]))
        if LOWERING_CONFIG in op.attributes
        else None
        for op in ops
    ]
    root = _find_root(module, ops)
    templates = tuple(
        OpTemplate(
            name=op.name,
            extents=loop.extents,
            reduction=loop.reduction,
            shared=loop.shared,
            tiling=tiling,
            element_bits=_widest(op),
            before_root=_feeds(op, ops[root]),
            operand_loops=tuple(tuple(sorted(uses_of_loops(m)[0])) for m in indexing_maps(op)),
            operand_inner=tuple(_innermost(m) for m in indexing_maps(op)),
            scales=loop.scales,
        )
        for op, loop, tiling in zip(ops, loops, tilings, strict=True)
    )
    template = DispatchTemplate(translation, templates, root)
    if gpu:
        template = gpu_template(function, ops, template)
    found = classify(function, ops, template, sizes)
    return ConfiguredDispatch(function, tuple(ops), template, found)


def find_function(module: ir.Module, executable: str, entry: str) -> ir.Operation:
    """The function of an entry point.

    Args:
        module: a module at a phase behind `flow`.
        executable: the name of an executable of it.
        entry: the name of an entry point of that.

    Raises:
        UnreadableConfiguration: there is none.
    """
    found = dispatch_functions(module).get(f"{executable}/{entry}")
    if found is None:
        raise UnreadableConfiguration(f"no function {entry} in executable {executable}")
    return found


def _find_root(module: ir.Module, ops: Sequence[ir.Operation]) -> int:
    marked = [op.operation for op in iree_codegen.get_tuner_root_ops(module)]
    roots = [op for op in ops if any(op == root for root in marked)]
    root = roots[-1] if roots else _root(ops)
    if root is None:
        raise UnreadableConfiguration("the compiler gives no op of the dispatch a configuration")
    return ops.index(root)


def _widest(op: ir.Operation) -> int:
    """Bits of the widest element among the op's operands and results; 32 where there are none."""
    bits = [
        element_bits(value.type.element_type)
        for value in (*op.operands, *op.results)
        if isinstance(value.type, ir.ShapedType)
    ]
    return max(bits, default=32)


def _feeds(producer: ir.Operation, consumer: ir.Operation) -> bool:
    """Whether a result of `producer` reaches an operand of `consumer`."""
    if producer == consumer:
        return False
    pending = list(consumer.operands)
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, ir.Block):
            continue
        if owner == producer:
            return True
        pending += owner.operands
    return False


def _innermost(map_: ir.AffineMap) -> int:
    """The loop that walks an operand's last dimension, -1 if no single loop does."""
    if not len(map_.results):
        return -1
    last = map_.results[len(map_.results) - 1]
    return int(last.position) if isinstance(last, ir.AffineDimExpr) else -1


@dataclass(frozen=True)
class DispatchFunction:
    """A dispatch function and its compute ops; `root` is the op that decides the configuration.

    None where the compiler configures no op of it.
    """

    name: str
    function: ir.Operation
    ops: tuple[ir.Operation, ...]
    root: ir.Operation | None

    @property
    def translation_info(self) -> ir.Attribute | None:
        """The function's pipeline; None where the compiler chose none."""
        return _attribute(self.function, TRANSLATION_INFO)

    @property
    def configuration(self) -> tuple[str, ...]:
        """All that configures the function as text: its pipeline, then `op: tiles` of each op that
        has some."""
        configs = zip(self.ops, self.lowering_configs, strict=True)
        return (
            str(self.translation_info or ""),
            *(f"{op.name}: {config}" for op, config in configs if config),
        )

    @property
    def lowering_configs(self) -> tuple[str, ...]:
        """The configuration of each compute op as text, '' where it has none."""
        return tuple(str(_attribute(op, LOWERING_CONFIG) or "") for op in self.ops)

    @property
    def root_config(self) -> ir.Attribute | None:
        """The lowering configuration of the root op; None without one."""
        return None if self.root is None else self.root.attributes[LOWERING_CONFIG]


def _attribute(op: ir.Operation, name: str) -> ir.Attribute | None:
    return op.attributes[name] if name in op.attributes else None  # noqa: SIM401 (no `get`)


def configured_functions(module: ir.Module) -> dict[str, DispatchFunction]:
    """Every dispatch function of a program.

    Args:
        module: a program at the executable-configurations phase.

    Returns:
        The functions by name, in order.
    """
    found: dict[str, DispatchFunction] = {}
    for function in dispatch_functions(module).values():
        ops = tuple(compute_ops(function))
        name = string_attribute(function, "sym_name")
        found[name] = DispatchFunction(name, function, ops, _root(ops))
    return found


def _root(ops: Sequence[ir.Operation]) -> ir.Operation | None:
    """The last op that has distribution tiles, else the last that is configured at all.

    The compiler gives distribution tiles to the op that it starts from; that mark of its own which
    says so is not put where a tuning spec applied.
    """
    configured = [op for op in ops if LOWERING_CONFIG in op.attributes]
    starting = [op for op in configured if _distributes(op)]
    return next(reversed(starting or configured), None)


def _distributes(op: ir.Operation) -> bool:
    try:
        return "distribution" in read_tiling(op.attributes[LOWERING_CONFIG]).by_level
    except UnreadableConfiguration:
        return False


def describe(found: DispatchFunction) -> str:
    """The configuration of a dispatch in words.

    Args:
        found: its function.

    Returns:
        `DoubleTilingExpert: distribution 64,64,0; …`; attribute text for what is not modelled.
    """
    info = found.translation_info
    if info is None:
        return "no pipeline"
    try:
        words = str(read_translation(info))
    except UnreadableConfiguration:
        words = str(info)
    config = found.root_config
    if config is None:
        return words
    try:
        return f"{words}: {read_tiling(config)}"
    except UnreadableConfiguration:
        return f"{words}: {config}"
