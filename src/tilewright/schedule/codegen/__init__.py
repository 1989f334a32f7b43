"""From loop nests to MLIR, in one pass: `module` makes executables of a program's kernels, `kernel`
emits statements, `values` expressions, `memory` loads and stores, `sums` index arithmetic,
`scalars` single operations."""

from __future__ import annotations

from tilewright.schedule.codegen.module import executables_for, module_for

__all__ = ["executables_for", "module_for"]
