"""From loop nests to MLIR, in three steps: `expand` writes unrolled loops out and makes vectors,
`registers` finds what need not be in memory, `kernel` and `values` emit operations."""

from __future__ import annotations

from tilewright.schedule.codegen.machine import Processor, machine_for
from tilewright.schedule.codegen.module import FUNCTION, context, module_for

__all__ = ["FUNCTION", "Processor", "context", "machine_for", "module_for"]
