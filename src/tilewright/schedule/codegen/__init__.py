"""From loop nests to MLIR, in one pass: `module` makes executables of a program's kernels, `kernel`
emits statements, `values` expressions, `scalars` single operations."""

from __future__ import annotations

from tilewright.schedule.codegen.module import module_for

__all__ = ["module_for"]
