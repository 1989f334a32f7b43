"""tilewright: an auto-scheduler for the IREE compiler.

    import tilewright

    result = tilewright.tune("matmul.mlir", effort="quick", output="matmul-tuned")
    print(result.program.speedup, result.program.speedup_ci)

Importing the package is cheap: each name below is loaded from its module when it is first used, so
that neither the MLIR bindings nor NumPy are imported before they are needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import tune
    from tilewright.errors import TilewrightError, UserError
    from tilewright.target import Target
    from tilewright.trial import Configuration, Status, Trial
    from tilewright.tuned import TunedProgram, load
    from tilewright.tuning.apply import AppliedProgram, apply
    from tilewright.tuning.events import Event, Listener
    from tilewright.tuning.inspect import Inspection, inspect
    from tilewright.tuning.options import TuneOptions
    from tilewright.tuning.result import DispatchSummary, ProgramSummary, TuneResult
    from tilewright.workload import Dim, Workload

_NAMES = {
    "tilewright.api": ("tune",),
    "tilewright.errors": ("TilewrightError", "UserError"),
    "tilewright.target": ("Target",),
    "tilewright.trial": ("Configuration", "Status", "Trial"),
    "tilewright.tuned": ("TunedProgram", "load"),
    "tilewright.tuning.apply": ("AppliedProgram", "apply"),
    "tilewright.tuning.events": ("Event", "Listener"),
    "tilewright.tuning.inspect": ("Inspection", "inspect"),
    "tilewright.tuning.options": ("TuneOptions",),
    "tilewright.tuning.result": ("DispatchSummary", "ProgramSummary", "TuneResult"),
    "tilewright.workload": ("Dim", "Workload"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AppliedProgram",
    "Configuration",
    "Dim",
    "DispatchSummary",
    "Event",
    "Inspection",
    "Listener",
    "ProgramSummary",
    "Status",
    "Target",
    "TilewrightError",
    "Trial",
    "TuneOptions",
    "TuneResult",
    "TunedProgram",
    "UserError",
    "Workload",
    "apply",
    "inspect",
    "load",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tilewright.toolchain import installed_version

        return installed_version("tilewright")
    if name not in _HOME:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
