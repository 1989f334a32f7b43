"""Workloads with providers side by side: checked, interleaved, with intervals.

run = compare(find_workloads(["matmul"]), find_providers("iree,numpy"), options)
"""

from tilewright.compare.comparison_options import Budget, CompareOptions
from tilewright.compare.diff import TimeChange, diff
from tilewright.compare.harness import compare
from tilewright.compare.providers.interface import PreparedTask, Provider, Threads
from tilewright.compare.providers.registry import PROVIDERS, find_providers
from tilewright.compare.results import (
    ComparisonRow,
    ComparisonRun,
    ProviderOutcome,
    read_runs,
    write_run,
)
from tilewright.compare.workloads import ComparedWorkload, ProviderTask, find_workloads

__all__ = [
    "PROVIDERS",
    "Budget",
    "CompareOptions",
    "ComparedWorkload",
    "ComparisonRow",
    "ComparisonRun",
    "PreparedTask",
    "Provider",
    "ProviderOutcome",
    "ProviderTask",
    "Threads",
    "TimeChange",
    "compare",
    "diff",
    "find_providers",
    "find_workloads",
    "read_runs",
    "write_run",
]
