"""Reads a program at the executable-configurations phase: each dispatch's configuration in words.

Runs in workers: it needs the MLIR bindings.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.compute_ops import compute_ops
from tilewright.ir.lowering import (
    LOWERING_CONFIG,
    TRANSLATION_INFO,
    UnreadableConfiguration,
    read_tiling,
    read_translation,
)
from tilewright.ir.template import dispatch_functions
from tilewright.ir.walk import string_attribute


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


def _root(ops: tuple[ir.Operation, ...]) -> ir.Operation | None:
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
