"""Dispatches as IREE configured them for GPUs, recorded by `record_gpu.py`."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.gpu import GpuTemplate
from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.target import GpuTarget, parse_target
from tilewright.workload import Workload

FOLDER = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Recorded:
    template: GpuTemplate
    workload: Workload
    target: GpuTarget
    smtlib: tuple[str, ...]

    @functools.cached_property
    def space(self) -> DispatchSpace:
        found = dispatch_space(self.template, self.workload, self.target)
        assert found is not None
        return found


@functools.cache
def recorded(name: str) -> Recorded:
    data = json.loads((FOLDER / f"{name}.json").read_text())
    target = parse_target(data["target"])
    assert isinstance(target, GpuTarget)
    return Recorded(
        GpuTemplate.from_json(data["template"]),
        Workload.from_json(data["workload"]),
        target,
        tuple(data["smtlib"]),
    )
