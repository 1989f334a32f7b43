"""A double of the part of PyTorch that computes on a GPU, for machines without one.

What matters is when things happen: work on the device is queued and carried out only when somebody
waits for it, its clock goes on by what the work costs and not by what the host does, tensors of
host and device do not mix, and an event can be asked for its time only when it has been passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

WORK_MS = 2.0


class Stream:
    """Work in order, its clock in milliseconds, and how often the host waited."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.clock_ms = 100.0
        self.launched = 0
        self.waits = 0

    def put(self, work: Callable[[], None], cost_ms: float = 0.0) -> None:
        def run() -> None:
            self.clock_ms += cost_ms
            work()

        self.queue.append(run)

    def wait(self) -> None:
        self.waits += 1
        while self.queue:
            self.queue.pop(0)()


class Tensor:
    """An array of the host's, or a promise of one on the device."""

    def __init__(self, torch: Torch, value: Any, device: str = "cpu") -> None:
        self._torch, self.value, self.device = torch, value, device

    def to(self, device: str) -> Tensor:
        return Tensor(self._torch, self.value, str(device))

    def cpu(self) -> Tensor:
        self._torch.stream.wait()
        return Tensor(self._torch, self.value)

    def contiguous(self) -> Tensor:
        return self

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def swapaxes(self, first: int, second: int) -> Tensor:
        return Tensor(self._torch, np.swapaxes(self.value, first, second), self.device)

    def numpy(self) -> Any:
        if self.device != "cpu":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return self.value


class Event:
    def __init__(self, stream: Stream, enable_timing: bool) -> None:
        self._stream, self._timing = stream, enable_timing
        self.passed_ms: float | None = None

    def record(self) -> None:
        def pass_by() -> None:
            self.passed_ms = self._stream.clock_ms

        self._stream.put(pass_by)

    def synchronize(self) -> None:
        self._stream.wait()

    def elapsed_time(self, end: Event) -> float:
        if not (self._timing and end._timing):
            raise RuntimeError("both events need enable_timing")
        if self.passed_ms is None or end.passed_ms is None:
            raise RuntimeError("device not ready")
        return end.passed_ms - self.passed_ms


class Torch:
    """The module; `devices` of them, built for CUDA, or for ROCm with `hip`."""

    __version__ = "2.99"
    float32 = np.dtype(np.float32)
    bfloat16 = "bfloat16"

    def __init__(self, devices: int = 1, cuda: str | None = "12.8", hip: str | None = None) -> None:
        self.stream = Stream()
        self.version = SimpleNamespace(cuda=cuda, hip=hip)
        on, off = SimpleNamespace(is_available=lambda: True), True
        self.backends = SimpleNamespace(
            mkl=on, mkldnn=on,
            cuda=SimpleNamespace(matmul=SimpleNamespace(
                allow_tf32=off, allow_fp16_reduced_precision_reduction=off,
                allow_bf16_reduced_precision_reduction=off)),
            cudnn=SimpleNamespace(allow_tf32=off, benchmark=False, version=lambda: 91000),
        )  # fmt: skip
        self.chosen = ""

        def choose(device: str) -> None:
            self.chosen = device

        self.cuda = SimpleNamespace(
            is_available=lambda: devices > 0,
            device_count=lambda: devices,
            set_device=choose,
            get_device_name=lambda device: f"a card, {device}",
            synchronize=lambda device: self.stream.wait(),
            Event=lambda enable_timing: Event(self.stream, enable_timing),
        )

    def device(self, name: str) -> str:
        return name

    @contextlib.contextmanager
    def inference_mode(self) -> Iterator[None]:
        yield

    def from_numpy(self, array: Any) -> Tensor:
        return Tensor(self, array)

    def matmul(self, lhs: Tensor, rhs: Tensor) -> Tensor:
        return self._product(lhs, rhs, lhs.dtype)

    def mm(self, lhs: Tensor, rhs: Tensor, out_dtype: Any) -> Tensor:
        return self._product(lhs, rhs, out_dtype)

    def _product(self, lhs: Tensor, rhs: Tensor, dtype: Any) -> Tensor:
        if lhs.device != rhs.device:
            raise RuntimeError("Expected all tensors to be on the same device")
        result = Tensor(self, None, lhs.device)

        def work() -> None:
            wide = lhs.value.astype(np.float32) @ rhs.value.astype(np.float32)
            result.value = wide.astype(dtype)

        if lhs.device == "cpu":
            work()
        else:
            self.stream.launched += 1
            self.stream.put(work, WORK_MS)
        return result
