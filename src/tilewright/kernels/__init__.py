"""Kernels to be measured: operations of many kinds, their programs, and what NumPy says of them.

operation = parse_operation("matmul_768x512x1024_f32t_f32t_f32t")
suite = make_suite(make_selection("matmul", {"--problem-m": (("m",), "768")}, types="f32"))
"""

from tilewright.kernels.kinds import KINDS, find_kinds, parse_operation
from tilewright.kernels.operation import (
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
    make_operation,
    parse_types,
)
from tilewright.kernels.shapes import Shape, SizeChoices, parse_sizes, read_shapes
from tilewright.kernels.suite import Suite, SuiteSelection, make_selection, make_suite

__all__ = [
    "KINDS",
    "Dimension",
    "ElementTypes",
    "Operation",
    "OperationKind",
    "Shape",
    "SizeChoices",
    "Suite",
    "SuiteSelection",
    "find_kinds",
    "make_operation",
    "make_selection",
    "make_suite",
    "parse_operation",
    "parse_sizes",
    "parse_types",
    "read_shapes",
]
