"""Compile tasks that may be done on another machine: their requests and replies as plain data.

A task that travels is one that tilewright knows by name on both sides, with what it reads as files
by digest and what it writes handed back as such. What a task is, and how it is written, is told by
the package that has the task; see `PORTABLE_MODULES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from tilewright.measure.encoding import Files
from tilewright.measure.jobs import WorkerTask
from tilewright.registration import registered


class PortableTask(ABC):
    """A task with its way over the network.

    name: by which a request asks for it.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def task(self) -> WorkerTask[Any, Any]:
        """What a run asks its own compile workers."""

    @property
    def done_by(self) -> WorkerTask[Any, Any]:
        """What a compile worker elsewhere runs for it, with what `unpack` makes."""
        return self.task

    @abstractmethod
    def pack(self, request: Any, files: Files) -> dict[str, Any] | None:
        """A request as plain data; None for one that cannot travel.

        Args:
            request: of the task.
            files: where the files that it reads are stored.
        """

    @abstractmethod
    def unpack(self, data: Mapping[str, Any], files: Files, folder: Path) -> Any:
        """The request, to be done here.

        Args:
            data: as `pack` made it.
            files: where the files that it names are.
            folder: for what it writes; kept for requests that differ in the candidate alone.

        Raises:
            UserError: it is not what `pack` makes.
        """

    @abstractmethod
    def pack_reply(self, request: Any, reply: Any, files: Files) -> dict[str, Any]:
        """The reply as plain data.

        Args:
            request: that was done here.
            reply: of the task.
            files: where what it wrote is stored.
        """

    @abstractmethod
    def unpack_reply(self, request: Any, data: Mapping[str, Any], files: Files) -> Any:
        """The reply, with what was written in the places that the request names.

        Args:
            request: as it was asked for.
            data: as `pack_reply` made it.
            files: where the files are.

        Raises:
            UserError: it is not what `pack_reply` makes.
        """


# Packages above this one, with the names of modules that have `PORTABLE`.
PORTABLE_MODULES = (("tilewright.tuning", ("portable_tasks",)),)


@cache
def portable_tasks() -> Mapping[str, PortableTask]:
    """All tasks that travel, by their names."""
    return {
        one.name: one
        for package, modules in PORTABLE_MODULES
        for one in registered(package, modules, "PORTABLE")
    }
