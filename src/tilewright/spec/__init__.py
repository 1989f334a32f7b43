"""Write, merge, check and explain tuning specs, which carry winners into `iree-compile`."""

from tilewright.spec.effect import ConfigurationChange, applied, changed_configurations
from tilewright.spec.entry import OpConfig, SpecEntry
from tilewright.spec.merge import MergeResult, merge_specs
from tilewright.spec.read import SpecReport, SpecRow, check_spec, show_spec
from tilewright.spec.write import write_spec

__all__ = [
    "ConfigurationChange",
    "MergeResult",
    "OpConfig",
    "SpecEntry",
    "SpecReport",
    "SpecRow",
    "applied",
    "changed_configurations",
    "check_spec",
    "merge_specs",
    "show_spec",
    "write_spec",
]
