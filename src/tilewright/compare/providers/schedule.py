"""Schedules of this project's language, from a file of the user's."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.providers.interface import Built, Provider
from tilewright.compare.providers.iree import Iree, in_flight_flags
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import UserError
from tilewright.target import Target

_FUNCTION = "schedule"


class ScheduleFile(Iree):
    """A Python file with a function `schedule(operation)`.

    It returns a schedule and its tensors, inputs in the operation's order and the result last, or
    None where it has none for the operation (a :class:`tilewright.kernels.Operation`).
    """

    name = "schedule"
    about = "a schedule of tilewright.te, from a file with a function schedule(operation)"
    takes = "FILE"

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if not Path(argument).is_file():
            raise UserError(f"--providers: schedule:{argument}: there is no such file")

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        if workload.operation is None:
            return "schedules are for operations"
        return "" if self._made(workload) is not None else f"{self.argument} has no schedule for it"

    def build(self, task: ProviderTask, options: CompareOptions, folder: Path) -> Built:
        from tilewright import te

        made = self._made(task.workload)
        if made is None:
            raise UserError(f"{self.argument} has no schedule for {task.workload.name}")
        schedule, tensors = made
        function = te.build(
            schedule,
            tensors,
            task.target,
            task.function,
            threads=task.target.cores,
            flags=in_flight_flags(options),
        )
        vmfb = folder / "schedule.vmfb"
        vmfb.write_bytes(function.vmfb)
        return Built(str(vmfb))

    def _made(self, workload: ComparedWorkload) -> Any:
        """What the file's function returns. Raises UserError for a file that cannot be used."""
        try:
            found: Callable[..., Any] | None = runpy.run_path(self.argument).get(_FUNCTION)
            if found is None:
                raise UserError(f"{self.argument}: it has no function {_FUNCTION}(operation)")
            return found(workload.operation)
        except UserError:
            raise
        except Exception as error:
            # The user's code, whatever it raises.
            raise UserError(f"{self.argument}: {type(error).__name__}: {error}") from error


PROVIDERS: tuple[type[Provider], ...] = (ScheduleFile,)
