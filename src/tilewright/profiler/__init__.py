"""The dispatch profiler: kernels of many kinds generated, compiled, verified and measured.

selection = make_selection("matmul", {"--problem-m": (("m",), "768")}, types="f32")
suite = make_suite(selection)  # both of tilewright.kernels
generate(directory, suite.operations, GenerateOptions(target))
"""

from tilewright.profiler.compiling import CompileOptions, compile_dispatches
from tilewright.profiler.configurations import ConfigurationChoice, parse_configs
from tilewright.profiler.folder import GeneratedFolder, OperationFolder, Selected
from tilewright.profiler.generating import GenerateOptions, generate
from tilewright.profiler.names import (
    format_configuration,
    format_dispatch,
    parse_configuration,
    parse_dispatch,
)
from tilewright.profiler.running import ProfileOutcome, RunOptions, Verification, run_dispatches

__all__ = [
    "CompileOptions",
    "ConfigurationChoice",
    "GenerateOptions",
    "GeneratedFolder",
    "OperationFolder",
    "ProfileOutcome",
    "RunOptions",
    "Selected",
    "Verification",
    "compile_dispatches",
    "format_configuration",
    "format_dispatch",
    "generate",
    "parse_configs",
    "parse_configuration",
    "parse_dispatch",
    "run_dispatches",
]
