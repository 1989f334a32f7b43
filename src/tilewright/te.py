"""Tensor expressions and their schedules: `from tilewright import te`.

A = te.placeholder((n, n), "f32", name="A")
B = te.placeholder((n, n), "f32", name="B")
k = te.reduce_axis(n, "k")
C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
s = te.create_schedule(C)
print(te.lower(s, [A, B, C]))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.schedule.build import BuildError, Function, VerificationError, build
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import binary, cast, const
from tilewright.schedule.extern_calls import call_extern, decl_buffer, ir_builder
from tilewright.schedule.functions import *
from tilewright.schedule.intrinsic import TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.intrinsic import registered as intrinsic
from tilewright.schedule.lower import Lowered, lower
from tilewright.schedule.schedule import Schedule, Trace, create_schedule
from tilewright.schedule.stage import Group, Stage
from tilewright.schedule.template import Config, Template, template
from tilewright.schedule.tensor import (
    IterVar,
    Tensor,
    compute,
    placeholder,
    reduce_axis,
    thread_axis,
)

if TYPE_CHECKING:
    from tilewright.schedule import intrinsics
    from tilewright.tuning.template_search import TemplateResult
    from tilewright.tuning.template_search import tune_template as tune

__all__ = [
    "BuildError",
    "Config",
    "Function",
    "Group",
    "IterVar",
    "Lowered",
    "Schedule",
    "ScheduleError",
    "Stage",
    "Template",
    "TemplateResult",
    "Tensor",
    "TensorIntrinsic",
    "Trace",
    "VerificationError",
    "abs",
    "acos",
    "all",
    "any",
    "asin",
    "atan",
    "atan2",
    "binary",
    "build",
    "call_extern",
    "cast",
    "ceil",
    "comm_reducer",
    "compute",
    "const",
    "cos",
    "cosh",
    "create_schedule",
    "decl_buffer",
    "decl_tensor_intrin",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "fma",
    "if_then_else",
    "infinity",
    "intrinsic",
    "intrinsics",
    "ir_builder",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "lower",
    "max",
    "max_value",
    "maximum",
    "min",
    "min_value",
    "minimum",
    "placeholder",
    "power",
    "prod",
    "reduce_axis",
    "round",
    "rsqrt",
    "select",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "sum",
    "tan",
    "tanh",
    "template",
    "thread_axis",
    "trunc",
    "truncdiv",
    "truncmod",
    "tune",
    "var",
]


def __getattr__(name: str) -> Any:
    # The compiler's bindings and the search take a while to load; most programs need neither.
    if name == "intrinsics":
        return importlib.import_module("tilewright.schedule.intrinsics")
    if name in ("tune", "TemplateResult"):
        home = importlib.import_module("tilewright.tuning.template_search")
        return getattr(home, "tune_template" if name == "tune" else name)
    raise AttributeError(f"module 'tilewright.te' has no attribute '{name}'")
