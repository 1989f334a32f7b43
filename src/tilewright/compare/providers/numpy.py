"""NumPy, which is its BLAS for matrix products."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.providers.interface import PreparedTask, PrepareRequest, Provider, Threads
from tilewright.compare.workloads import ComparedWorkload
from tilewright.target import Target

_PRODUCTS = ("matmul", "batch_matmul", "matmul_splitk", "batch_matmul_splitk", "matvec")
_TYPES = ("f32", "f64")
# What the function is called in the libraries that wheels and distributions carry.
_COUNTERS = (
    "scipy_openblas_get_num_threads64_",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
)


class NumPy(Provider):
    """Matrix products by `numpy.matmul` into an array made once; other kinds from their definition
    in array operations, as NumPy users write them."""

    name = "numpy"
    about = "NumPy, which is its BLAS for matrix products"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        if workload.is_program:
            return "NumPy runs no programs"
        if workload.element_type not in _TYPES:
            return f"NumPy has no fast code for {workload.element_type}, only for f32 and f64"
        return ""

    def version(self) -> str:
        config: Any = np.show_config(mode="dicts")
        blas = config.get("Build Dependencies", {}).get("blas", {})
        found = f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()
        return f"numpy {np.__version__} ({found})"

    def threads(self) -> Threads:
        for path in _loaded_libraries():
            library = ctypes.CDLL(path)
            for name in _COUNTERS:
                function = getattr(library, name, None)
                if function is not None:
                    return Threads(int(function()), f"{name}()")
        return Threads(None, "NumPy's BLAS does not say how many threads it uses")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        operation = request.operation
        kind = operation.kind
        if kind.name in _PRODUCTS:
            lhs, rhs = operation.row_major(arguments)
            out = np.empty(operation.result.shape or (), operation.result.dtype)
            return PreparedTask(lambda: np.matmul(lhs, rhs, out=out), lambda result: [result])
        return PreparedTask(
            lambda: kind.reference(operation, arguments),
            lambda result: [np.asarray(result, operation.result.dtype)],
        )


def _loaded_libraries() -> list[str]:
    """The files of the BLAS libraries that this process has loaded, on Linux."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(f for f in files if "blas" in Path(f).name or "mkl_rt" in Path(f).name)


PROVIDERS: tuple[type[Provider], ...] = (NumPy,)
