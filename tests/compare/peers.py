"""Providers that tests compare with: right, wrong, greedy, crashing, hanging, missing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.providers.interface import (
    Budget,
    Built,
    Place,
    PreparedTask,
    PrepareRequest,
    Provider,
    Threads,
)
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.errors import UserError
from tilewright.target import Target


class Peer(Provider):
    """Computes in NumPy what is asked, on the thread that asks."""

    name = "right"
    about = "right"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        return "it is no operation" if workload.is_program else ""

    def version(self) -> str:
        return "1.0"

    def threads(self) -> Threads:
        return Threads(1, "it has no others")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        operation = request.operation
        return PreparedTask(
            lambda: self.compute(operation.kind.reference(operation, arguments)),
            lambda result: [np.asarray(result)],
        )

    def compute(self, result: Any) -> Any:
        return result


class Wrong(Peer):
    name = "wrong"

    def compute(self, result: Any) -> Any:
        result = np.array(result)
        result.flat[0] += 1.0
        return result


class LateWrong(Peer):
    """Right at first, and wrong once it has been timed."""

    name = "late-wrong"
    calls = 0

    def compute(self, result: Any) -> Any:
        self.calls += 1
        return result if self.calls < 20 else result + 1.0


class Greedy(Peer):
    """Told to use one thread, it keeps another one busy."""

    name = "greedy"

    def open(self, place: Place) -> None:
        threading.Thread(target=_spin, daemon=True).start()


class Crashing(Peer):
    name = "crashing"

    def compute(self, result: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)
        return result


class LateCrashing(Peer):
    """Crashes while it is timed."""

    name = "late-crashing"
    calls = 0

    def compute(self, result: Any) -> Any:
        self.calls += 1
        if self.calls > 10:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(0.002)
        return result


class Hanging(Peer):
    name = "hanging"

    def prepare_s(self, budget: Budget) -> float:
        return 1.0

    def compute(self, result: Any) -> Any:
        time.sleep(1000)
        return result


class Raising(Peer):
    name = "raising"

    def build(self, task: ProviderTask, options: Any, folder: Path) -> Built:
        raise UserError("it does not compile")


class Unopened(Peer):
    name = "unopened"

    def open(self, place: Place) -> None:
        raise RuntimeError("the library is broken")


class Missing(Peer):
    name = "missing"
    modules = ("no_such_library_anywhere.core",)
    pip = "no-such-library"


class Elsewhere(Peer):
    name = "elsewhere"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        return "it does something else"


def _spin() -> None:
    # Without the lock of the interpreter: hashing a large buffer gives it up.
    import hashlib

    data = bytes(1 << 22)
    while True:
        hashlib.sha256(data).digest()


KNOWN = {
    kind.name: kind
    for kind in (
        Peer,
        Wrong,
        LateWrong,
        Greedy,
        Crashing,
        LateCrashing,
        Hanging,
        Raising,
        Unopened,
        Missing,
        Elsewhere,
    )
}
