"""Targets by the names that users write: `cpu`, `cpu:znver4`, `cuda:sm_80`."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from tilewright.errors import UnknownNameError, UserError
from tilewright.gpu_target import BACKENDS, example_names, parse_gpu_target
from tilewright.target import Target, cache_sizes, usable_cores

CPU = "cpu"


def parse_target(name: str, threads: int | None = None) -> Target:
    """The target of a name.

    Args:
        name: `cpu` (this machine), `cpu:NAME` with LLVM's name of a processor, or a GPU, such as
            `cuda:sm_80` or `metal`.
        threads: worker threads of the runtime, by default one for each core that this process may
            use; of a GPU those that compile.

    Raises:
        UserError: for another kind of target, or an impossible number of threads.
    """
    kind, _, processor = name.partition(":")
    if kind in BACKENDS:
        return parse_gpu_target(name, threads or usable_cores())
    if kind != CPU:
        raise UnknownNameError("target", name, ["cpu", "cpu:NAME", *example_names()], "--target")
    if name.endswith(":"):
        raise UserError(
            "--target: 'cpu:' lacks a processor; write cpu for this machine or cpu:znver4"
        )
    if threads is not None and not 1 <= threads <= 1024:
        raise UserError(f"--threads: {threads} is not possible; allowed: 1 to 1024")
    caches = cache_sizes()
    vector = _host_vector_bytes()
    return Target(
        name=name,
        cpu=processor or "host",
        cores=threads or usable_cores(),
        vector_bytes=vector,
        vector_registers=32 if vector == 64 or platform.machine() == "aarch64" else 16,
        l1_bytes=caches[0],
        l2_bytes=caches[1],
        l3_bytes=caches[2],
        max_vector_bytes=512 * vector,
    )


@cache
def _host_vector_bytes() -> int:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return 16
    words = set(info.split())
    if "avx512f" in words:
        return 64
    return 32 if "avx2" in words or "avx" in words else 16
