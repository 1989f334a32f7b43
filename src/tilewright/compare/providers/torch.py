"""PyTorch: oneDNN and MKL underneath, on GPUs cuBLAS and cuDNN; eager or compiled.

Work for a GPU is only queued by the calls of PyTorch; it is complete when the device has been
waited for. So one call ends with that, and many calls in a row are timed by events, which the
device stamps with its clock between one piece of work and the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import (
    Array,
    PreparedTask,
    PrepareRequest,
    Provider,
    Threads,
)
from tilewright.compare.workloads import ComparedWorkload
from tilewright.errors import UserError
from tilewright.kernels.operation import Operation
from tilewright.target import CUDA, ROCM, GpuTarget, Target

Function = Callable[..., Any]
Made = tuple[Function, list[Any]]
"""A function of tensors, and the tensors that it takes."""

#: Kinds of GPU that PyTorch knows; both under the name `cuda`.
BACKENDS = (CUDA, ROCM)

_INDEX = {CUDA: "https://download.pytorch.org/whl/cu128", ROCM: "https://pytorch.org/get-started"}


class Torch(Provider):
    """Eager PyTorch. Filters of convolutions are laid out once, as a model's weights are."""

    name = "torch"
    about = "PyTorch, eager"
    modules = ("torch",)
    pip = "torch"

    def reason_against_target(self, target: Target) -> str:
        if isinstance(target, GpuTarget) and target.backend not in BACKENDS:
            return f"torch computes on {' and '.join(BACKENDS)}, not on {target.backend}"
        return ""

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        operation = workload.operation
        if operation is None:
            return "torch runs no MLIR or ONNX programs"
        types = operation.types
        if operation.kind.name not in _KINDS:
            return f"torch has no {operation.kind.name}"
        if types.operand != types.result:
            if types.name == "i8" and operation.kind.name == "matmul":
                return ""
            if target.is_gpu and _widens(operation):
                return ""
            return f"torch does not compute {types.operand} into {types.result}"
        return ""

    def open(self, place: Place) -> None:
        import torch

        self._torch: Any = torch
        self._device = (Gpu if place.is_gpu else Processors)(torch, place)

    def version(self) -> str:
        return f"torch {self._torch.__version__} ({self._device.libraries()})"

    def threads(self) -> Threads:
        return self._device.threads()

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        operation = request.operation
        torch, device = self._torch, self._device
        tensors = [device.put(_tensor(torch, a)) for a in arguments]
        function, tensors = _KINDS[operation.kind.name](torch, operation, tensors)
        function = self._made(function)

        def call() -> Any:
            with torch.inference_mode():
                return function(*tensors)

        return PreparedTask(
            device.complete(call),
            lambda result: [_array(torch, device.back(result))],
            timed=device.timed(call),
        )

    def _made(self, function: Function) -> Function:
        return function


class TorchCompiled(Torch):
    """`torch.compile`, which generates C++ and needs a compiler for it."""

    name = "torch-compiled"
    about = "PyTorch through torch.compile"
    searches: ClassVar[bool] = False

    def _made(self, function: Function) -> Function:
        compiled: Function = self._torch.compile(function, dynamic=False)
        return compiled


def _tensor(torch: Any, array: Array) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(torch: Any, tensor: Any) -> Array:
    tensor = tensor.contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: Array = tensor.numpy()
    return found


# -- where it computes -----------------------------------------------------------------------------


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


# -- the kinds: each gives a function of tensors, and the tensors that it takes --------------------


def _steps(torch: Any, names: Sequence[str]) -> Function:
    apply: Mapping[str, Function] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "relu": lambda x, y: torch.relu(x),
        "gelu": lambda x, y: torch.nn.functional.gelu(x),
        "exp": lambda x, y: torch.exp(x),
        "tanh": lambda x, y: torch.tanh(x),
        "sigmoid": lambda x, y: torch.sigmoid(x),
    }

    def steps(value: Any, other: Any) -> Any:
        for name in names:
            value = apply[name](value, other)
        return value

    return steps


def _widens(operation: Operation) -> bool:
    """A product of halves with a result in float32, which PyTorch 2.8 and later have on GPUs."""
    types = operation.types
    widening = types.operand in ("f16", "bf16") and types.result == "f32"
    return widening and operation.kind.name in ("matmul", "batch_matmul")


def _matmul(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    if operation.types.operand == "i8":
        return torch._int_mm, operation.row_major(tensors)
    if _widens(operation):
        multiply = torch.bmm if operation.kind.name == "batch_matmul" else torch.mm
        return functools.partial(multiply, out_dtype=torch.float32), operation.row_major(tensors)
    return torch.matmul, operation.row_major(tensors)


def _matmul_steps(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    steps = _steps(torch, getattr(operation.kind, "steps", ())[1:])
    return (
        lambda lhs, rhs, bias: steps(torch.addmm(bias, lhs, rhs), bias),
        operation.row_major(tensors),
    )


def _convolution(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    o = operation
    nhwc, depthwise = o.variant.startswith("nhwc"), o.kind.name.startswith("depthwise")
    image, filters, *bias = tensors
    groups = o["ci"] if depthwise else 1
    if depthwise:
        filters = (filters.permute(2, 0, 1) if nhwc else filters)[:, None]
    elif nhwc:
        filters = filters.permute(3, 2, 0, 1)
    if nhwc:
        image = image.permute(0, 3, 1, 2)
        filters = filters.contiguous(memory_format=torch.channels_last)
    steps = _steps(torch, getattr(o.kind, "steps", ())[1:])

    def convolve(image: Any, filters: Any, *bias: Any) -> Any:
        found = torch.nn.functional.conv2d(
            image,
            filters,
            bias[0] if bias else None,
            (o["sh"], o["sw"]),
            (o["ph"], o["pw"]),
            (o["dh"], o["dw"]),
            groups,
        )
        found = steps(found, None)
        return found.permute(0, 2, 3, 1) if nhwc else found

    return convolve, [image, filters.contiguous() if not nhwc else filters, *bias]


def _reduction(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    axis = 0 if operation.transposed(0) else 1
    if operation.variant == "sum":
        return lambda x: torch.sum(x, axis), tensors
    return lambda x: torch.amax(x, axis), tensors


def _softmax(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    return lambda x: torch.softmax(x, -1), tensors


def _attention(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    def attend(query: Any, key: Any, value: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return attend, operation.row_major(tensors)


def _elementwise(torch: Any, operation: Operation, tensors: list[Any]) -> Made:
    return _steps(torch, operation.variant.split("_")), operation.row_major(tensors)


_KINDS: Mapping[str, Callable[[Any, Operation, list[Any]], tuple[Function, list[Any]]]] = {
    "matmul": _matmul,
    "batch_matmul": _matmul,
    "matmul_splitk": _matmul,
    "batch_matmul_splitk": _matmul,
    "matvec": _matmul,
    "matmul_bias": _matmul_steps,
    "matmul_bias_relu": _matmul_steps,
    "matmul_bias_gelu": _matmul_steps,
    "conv2d": _convolution,
    "conv2d_bias_relu": _convolution,
    "depthwise_conv2d": _convolution,
    "reduction": _reduction,
    "softmax": _softmax,
    "attention": _attention,
    "elementwise": _elementwise,
}


PROVIDERS: tuple[type[Provider], ...] = (Torch, TorchCompiled)
