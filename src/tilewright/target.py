"""What code is generated for and measured on: backend, processor, hardware limits, flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

SPEC_FLAG = "--iree-codegen-tuning-spec-path="
# The same for backends that IREE 3.13 does not hand the path of a tuning spec to (CUDA, SPIR-V):
# they take the spec as a library of their own strategies. A library that does not parse is only
# complained about, so it has to be proven that a spec given like this was applied.
LIBRARY_FLAG = "--iree-codegen-transform-dialect-library="


@dataclass(frozen=True)
class Target:
    """A device and the limits that search spaces and priors are made from.

    `cpu` is LLVM's name of the processor or `host`; sizes are in bytes; `cores` is the number of
    worker threads of the runtime. `resolved` is what the compiler made of `host`: it identifies the
    target in the database, so that results are only reused on the same kind of processor.
    """

    name: str
    cpu: str
    cores: int
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    max_vector_bytes: int
    stack_bytes: int = 32768
    resolved: str = ""
    features: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether code runs on a GPU."""
        return False

    @property
    def declaration(self) -> str:
        """The text of the device's attribute, for a target that no flag selects; '' else."""
        return ""

    @property
    def spec_flag(self) -> str:
        """The flag of `iree-compile` that a tuning spec's path is put behind."""
        return SPEC_FLAG

    @property
    def key(self) -> str:
        """What must be equal for measurements to be comparable: processor, features, threads."""
        return f"llvm-cpu/{self.resolved or self.cpu}/{self.vector_bytes}B/{self.cores}t"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of `iree-compile` that select this target."""
        return (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={self.cpu}",
        )

    @property
    def device(self) -> str:
        """The runtime's device: one thread runs inline, more need the task system."""
        return "local-sync" if self.cores == 1 else "local-task"

    def lanes(self, element_bits: int) -> int:
        """Elements of this width in one vector register (at least 1).

        Args:
            element_bits: width of an element.
        """
        return max(1, self.vector_bytes * 8 // max(8, element_bits))

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The target of `to_json`; what a later version added is left out.

        Args:
            data: what JSON was.
        """
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})

    def with_vectors(self, vector_bytes: int, features: str, resolved: str) -> Target:
        """The target with what the compiler says of the processor.

        Args:
            vector_bytes: of a vector register.
            features: LLVM's list of what the processor can do.
            resolved: LLVM's name of the processor.
        """
        registers = 32 if vector_bytes >= 64 or "neon" in features else 16
        return replace(
            self,
            vector_bytes=vector_bytes,
            vector_registers=registers,
            max_vector_bytes=512 * vector_bytes,
            resolved=resolved,
            features=features,
        )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def cache_sizes() -> tuple[int, int, int]:
    """Bytes of the data caches of one core at levels 1, 2 and 3, from sysfs; else common sizes."""
    sizes = [32 << 10, 1 << 20, 16 << 20]
    base = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(base.glob("index*")) if base.is_dir() else []:
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if kind != "Instruction" and 1 <= level <= 3 and digits.isdigit():
            sizes[level - 1] = int(digits) * unit
    return sizes[0], sizes[1], sizes[2]
