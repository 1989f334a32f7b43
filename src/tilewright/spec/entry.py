"""What a tuning spec is written from: a dispatch, and the configuration it shall get."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir


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
