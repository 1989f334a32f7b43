"""What a provider of code must say and do: the one interface of all that are compared.

An object of a provider is made in the main process, asked there whether it is installed and what it
has, and sent to its own worker process, which it sets up, and where it prepares and runs workloads.
Libraries are imported inside methods only: none of them is needed to list, skip or test providers.
"""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from tilewright.compare.comparison_options import Budget, CompareOptions, Place
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import UserError
from tilewright.kernels.operation import Operation
from tilewright.target import Target

Array = NDArray[Any]

#: How a provider is told its threads by the environment, before its library is loaded.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TVM_NUM_THREADS",
    "HL_NUM_THREADS",
)


class SearchPoint(NamedTuple):
    """A point of a search: seconds since it began, candidates so far, seconds of the best one."""

    wall_s: float
    trials: int
    best_s: float


@dataclass(frozen=True)
class Built:
    """What building gave: whatever the provider's worker takes, remarks for the result, and how the
    search went, where there was one."""

    artifact: Any = None
    note: str = ""
    progress: tuple[SearchPoint, ...] = ()


@dataclass(frozen=True)
class Threads:
    """How many threads a library says that it uses (None: it does not say), and how it said so; on
    a GPU which device, and how it is timed."""

    count: int | None
    how: str


@dataclass(frozen=True)
class PrepareRequest:
    """A task to make ready to run, as `build` has built it, and what may be spent on a search."""

    task: ProviderTask
    built: Built
    budget: Budget

    @property
    def operation(self) -> Operation:
        """What is computed, for a provider that has operations only."""
        found = self.task.workload.operation
        assert found is not None
        return found


@dataclass
class PreparedTask:
    """A workload ready to run in the worker.

    call: runs it once and returns when the result is complete. outputs: the arrays of what `call`
    returned, with the shapes of the reference. kept: what must live as long. timed: on a GPU, runs
    it that often, each when the one before is done, without the host waiting between them, and
    gives the device's seconds for all; None: the host's clock around calls.
    """

    call: Callable[[], Any]
    outputs: Callable[[Any], Sequence[Array]]
    built: Built = field(default_factory=Built)
    kept: tuple[Any, ...] = ()
    timed: Callable[[int], float] | None = None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Provider(abc.ABC):
    """One peer.

    name: as `--providers` takes it; `takes`: what must follow it after a colon (''; nothing).
    modules: what must be importable; pip: what brings it. searches: spends the budget.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    takes: ClassVar[str] = ""
    modules: ClassVar[tuple[str, ...]] = ()
    pip: ClassVar[str] = ""
    searches: ClassVar[bool] = False

    def __init__(self, argument: str = "") -> None:
        if bool(argument) != bool(self.takes):
            form = f"{self.name}:{self.takes}" if self.takes else self.name
            raise UserError(
                f"--providers: '{self.name}:{argument}' is not a provider; write {form}"
            )
        self.argument = argument

    @property
    def label(self) -> str:
        """The provider in results: its name, with what it was given."""
        return f"{self.name}:{self.argument}" if self.argument else self.name

    # -- in the main process

    @classmethod
    def absent(cls) -> str:
        """'' when it is installed, else the pip line that would bring it."""
        if all(_is_there(module) for module in cls.modules):
            return ""
        return f"pip install {cls.pip}"

    def environment(self, threads: int) -> Mapping[str, str]:
        """Variables of its worker, over those of THREAD_VARIABLES.

        Args:
            threads: that it may use.
        """
        return {}

    def reason_against_target(self, target: Target) -> str:
        """Why it does not run on this target; '' when it does.

        Args:
            target: what would be compiled for.
        """
        return f"{self.name} is compared on processors only" if target.is_gpu else ""

    @abc.abstractmethod
    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        """Why it does not have this workload, on a target that it runs on; '' when it does.

        Args:
            workload: what would be computed.
            target: one that it runs on.
        """

    def build(self, task: ProviderTask, options: CompareOptions, folder: Path) -> Built:
        """Compile, in the main process, what the worker will run.

        Args:
            task: the workload, and all that is needed to compute it.
            options: how to compare.
            folder: the provider's own, for this workload.

        Raises:
            UserError: it cannot be built.
        """
        return Built()

    def prepare_s(self, budget: Budget) -> float:
        """Seconds after which preparing a workload is given up.

        Args:
            budget: what it may spend on a search.
        """
        return 600.0

    # -- in the worker

    def open(self, place: Place) -> None:  # noqa: B027
        """Load the library and tell it its threads or device; the first that is called in a worker.
        What needs no more than the environment does nothing.

        Args:
            place: where to compute.

        Raises:
            UserError: it cannot compute there.
        """

    @abc.abstractmethod
    def version(self) -> str:
        """The versions of what computes."""

    @abc.abstractmethod
    def threads(self) -> Threads:
        """What the library itself says of its threads."""

    @abc.abstractmethod
    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        """Make a task ready to run.

        Args:
            request: the task.
            arguments: arrays of its element types, or numbers.

        Returns:
            How it is called, and what it gives.
        """
