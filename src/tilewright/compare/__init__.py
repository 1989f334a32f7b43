"""Workloads with providers side by side: checked, interleaved, with intervals.

run = compare(find_workloads(["matmul"]), find_providers("iree,numpy"), options)
"""

from tilewright.compare.diff import Change, diff
from tilewright.compare.harness import compare
from tilewright.compare.options import CompareOptions
from tilewright.compare.providers.interface import Budget, Prepared, Provider, Threads
from tilewright.compare.providers.registry import PROVIDERS, find_providers
from tilewright.compare.results import Outcome, Row, Run, read_runs, write_run
from tilewright.compare.workloads import Task, Workload, find_workloads

__all__ = [
    "PROVIDERS",
    "Budget",
    "Change",
    "CompareOptions",
    "Outcome",
    "Prepared",
    "Provider",
    "Row",
    "Run",
    "Task",
    "Threads",
    "Workload",
    "compare",
    "diff",
    "find_providers",
    "find_workloads",
    "read_runs",
    "write_run",
]
