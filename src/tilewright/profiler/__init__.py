"""The dispatch profiler: kernels of many kinds generated, compiled, verified and measured.

selection = make_selection("matmul", {"--problem-m": (("m",), "768")}, types="f32")
suite = make_suite(selection)
generate(directory, suite.operations, GenerateOptions(target))
"""

from tilewright.profiler.compiling import CompileOptions, Selected, compile_dispatches
from tilewright.profiler.configurations import ConfigurationChoice, parse_configs
from tilewright.profiler.folder import GeneratedFolder, OperationFolder
from tilewright.profiler.generating import GenerateOptions, generate
from tilewright.profiler.kinds import KINDS, find_kinds
from tilewright.profiler.names import (
    format_configuration,
    format_dispatch,
    format_operation,
    parse_configuration,
    parse_dispatch,
    parse_operation,
)
from tilewright.profiler.operation import Operation, OperationKind, make_operation
from tilewright.profiler.running import ProfileOutcome, RunOptions, Verification, run_dispatches
from tilewright.profiler.shapes import Shape, SizeChoices, parse_sizes, read_shapes
from tilewright.profiler.suite import Suite, SuiteSelection, make_selection, make_suite

__all__ = [
    "KINDS",
    "CompileOptions",
    "ConfigurationChoice",
    "GenerateOptions",
    "GeneratedFolder",
    "Operation",
    "OperationFolder",
    "OperationKind",
    "ProfileOutcome",
    "RunOptions",
    "Selected",
    "Shape",
    "SizeChoices",
    "Suite",
    "SuiteSelection",
    "Verification",
    "compile_dispatches",
    "find_kinds",
    "format_configuration",
    "format_dispatch",
    "format_operation",
    "generate",
    "make_operation",
    "make_selection",
    "make_suite",
    "parse_configs",
    "parse_configuration",
    "parse_dispatch",
    "parse_operation",
    "parse_sizes",
    "read_shapes",
    "run_dispatches",
]
