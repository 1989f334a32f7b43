"""Where PyTorch computes: the processors, or a GPU by CUDA or ROCm, with its own clock.

Work for a GPU is only queued by the calls of PyTorch; it is complete when the device has been
waited for. So one call ends with that, and many calls in a row are timed by events, which the
device stamps with its clock between one piece of work and the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import Threads
from tilewright.errors import UserError
from tilewright.target import CUDA, ROCM

#: Kinds of GPU that PyTorch knows; both under the name `cuda`.
BACKENDS = (CUDA, ROCM)

_INDEX = {CUDA: "https://download.pytorch.org/whl/cu128", ROCM: "https://pytorch.org/get-started"}


class Processors:
    """The processors of this machine, with a number of threads."""

    def __init__(self, torch: Any, place: Place) -> None:
        torch.set_num_threads(place.threads)
        torch.set_num_interop_threads(1)
        self._torch = torch

    def put(self, tensor: Any) -> Any:
        """The tensor where work is done.

        Args:
            tensor: of the host.
        """
        return tensor

    def back(self, tensor: Any) -> Any:
        """The tensor where NumPy sees it.

        Args:
            tensor: a result.
        """
        return tensor

    def libraries(self) -> str:
        """What computes underneath, with versions where they are told."""
        built = self._torch.backends
        pairs = (("MKL", built.mkl), ("oneDNN", built.mkldnn))
        return ", ".join(name for name, there in pairs if there.is_available()) or (
            "no MKL, no oneDNN"
        )

    def threads(self) -> Threads:
        """What PyTorch says of its threads."""
        return Threads(self._torch.get_num_threads(), "torch.get_num_threads()")

    def complete(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A call that returns when its result is complete.

        Args:
            function: computes a result.
        """
        return function

    def timed(self, function: Callable[[], Any]) -> Callable[[int], float] | None:
        """Seconds of so many calls by the device's clock; None: the host's will do.

        Args:
            function: computes a result.
        """
        return None


class Gpu:
    """A GPU. float32 stays float32 there: neither TF32, nor sums of halves in halves, which would
    be faster and other numbers. cuDNN may try its algorithms out before the clock runs.

    Raises UserError where this PyTorch has no such device.
    """

    def __init__(self, torch: Any, place: Place) -> None:
        self._torch, self._backend = torch, place.backend
        _check(torch, place)
        self._device = torch.device(f"cuda:{_number(torch, place)}")
        torch.cuda.set_device(self._device)
        products = torch.backends.cuda.matmul
        products.allow_tf32 = False
        products.allow_fp16_reduced_precision_reduction = False
        products.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True

    def put(self, tensor: Any) -> Any:
        """The tensor on the device.

        Args:
            tensor: of the host.
        """
        return tensor.to(self._device)

    def back(self, tensor: Any) -> Any:
        """The tensor on the host, once it is complete.

        Args:
            tensor: a result.
        """
        return tensor.cpu()

    def libraries(self) -> str:
        """What computes underneath, with versions."""
        if self._backend == ROCM:
            return f"ROCm {self._torch.version.hip}"
        return f"CUDA {self._torch.version.cuda}, cuDNN {self._torch.backends.cudnn.version()}"

    def threads(self) -> Threads:
        """Which device it is."""
        name = self._torch.cuda.get_device_name(self._device)
        return Threads(None, f"{self._device} ({name}), timed by its events")

    def complete(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A call that returns when the device is done.

        Args:
            function: queues the work.
        """
        wait = self._torch.cuda.synchronize

        def call() -> Any:
            result = function()
            wait(self._device)
            return result

        return call

    def timed(self, function: Callable[[], Any]) -> Callable[[int], float] | None:
        """Seconds of so many calls in a row, by the device's events.

        Args:
            function: queues the work.
        """
        event = self._torch.cuda.Event

        def seconds(count: int) -> float:
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            for _ in range(count):
                function()
            end.record()
            end.synchronize()
            # Events tell milliseconds.
            return float(begin.elapsed_time(end)) / 1e3

        return seconds


def open_device(torch: Any, place: Place) -> Processors | Gpu:
    """Where to compute, told its threads or chosen as the current device.

    Args:
        torch: the library.
        place: where.

    Raises:
        UserError: this PyTorch has no such device.
    """
    return Gpu(torch, place) if place.is_gpu else Processors(torch, place)


def _check(torch: Any, place: Place) -> None:
    built = torch.version.cuda if place.backend == CUDA else getattr(torch.version, "hip", None)
    if not built:
        raise UserError(
            f"this torch {torch.__version__} is not built for {place.backend}; "
            f"pip install torch --index-url {_INDEX[place.backend]}"
        )
    if not torch.cuda.is_available():
        raise UserError(f"torch finds no device of {place.backend} on this machine")


def _number(torch: Any, place: Place) -> int:
    """Of the device of the runtime (`cuda://1`) as PyTorch counts them, which is the same way."""
    path = place.device.partition("://")[2]
    if path and not path.isdigit():
        raise UserError(
            f"--device {place.device}: torch knows devices by their numbers; write "
            f"{place.device.partition(':')[0]}://0"
        )
    number, count = int(path or 0), torch.cuda.device_count()
    if number >= count:
        raise UserError(f"--device {place.device}: torch finds {count} devices, the first is 0")
    return number
