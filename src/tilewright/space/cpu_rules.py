"""What several generator modules share."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.tiling import DispatchTemplate
from tilewright.workload import Workload


def fits_only_own(pipeline: str) -> Callable[[DispatchTemplate, Workload], bool]:
    """For a pipeline that compiles only the dispatches that the compiler itself gives to it."""

    def fits(template: DispatchTemplate, workload: Workload) -> bool:
        return template.translation.pipeline == pipeline

    return fits
