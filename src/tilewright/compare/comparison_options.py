"""How to compare: what the user chose, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tilewright.database_address import ServerAddress
from tilewright.errors import UserError
from tilewright.measure.device_options import DeviceOptions
from tilewright.target import GpuTarget, Target, usable_cores
from tilewright.tuning.parse import ParameterFile


@dataclass(frozen=True)
class Budget:
    """What a provider that searches may spend on a workload: candidates, seconds, or both.

    None: no limit of that kind; without any limit nothing is searched."""

    trials: int | None = None
    seconds: float | None = None

    def __bool__(self) -> bool:
        return self.trials is not None or self.seconds is not None


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Place:
    """Where a worker computes.

    threads: of this machine's processors. device: '' for those, else a GPU as the runtime takes it
    (`cuda://0`), of the kind `backend` (cuda, rocm, vulkan, metal).
    """

    threads: int
    device: str = ""
    backend: str = ""

    @property
    def is_gpu(self) -> bool:
        return bool(self.backend)

    @property
    def options(self) -> DeviceOptions:
        """The device of IREE's runtime."""
        return DeviceOptions(self.device) if self.is_gpu else DeviceOptions.cpu(self.threads)


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    threads: of every provider; pin: keep them on as many processors. device: of a target that is a
    GPU, as the runtime takes it ('': the target's first). rounds: in each every provider
    is timed once, for at least min_sample_s; fewer, but not fewer than an interval takes, when a
    workload would need longer than max_s. peak: measure the processors' before and after. inputs,
    parameters: of programs. timeout_s: for one sample.
    """

    target: Target
    pin: bool = False
    device: str = ""
    rounds: int = 25
    max_s: float = 60.0
    min_sample_s: float = 0.02
    budget: Budget = NO_BUDGET
    peak: bool = True
    iree_flags: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    parameters: tuple[ParameterFile, ...] = ()
    db: Path | ServerAddress | None = None
    seed: int = 0
    timeout_s: float = 120.0
    command: str = ""

    @property
    def threads(self) -> int:
        return self.target.cores

    @property
    def place(self) -> Place:
        """Where providers compute. The host has threads enough to compile and to launch."""
        if not isinstance(self.target, GpuTarget):
            return Place(self.threads)
        return Place(self.threads, self.device or self.target.device, self.target.backend)

    def cpus(self) -> tuple[int, ...] | None:
        """The processors to stay on. Raises UserError where there are too few."""
        if not self.pin:
            return None
        if not hasattr(os, "sched_getaffinity"):
            raise UserError("--pin: this system cannot keep a process on a processor")
        there = sorted(os.sched_getaffinity(0))
        if len(there) < self.threads:
            raise UserError(
                f"--pin: {self.threads} threads, but only {usable_cores()} processors may be used"
            )
        return tuple(there[: self.threads])
