"""PyTorch: oneDNN and MKL underneath, on GPUs cuBLAS and cuDNN; eager or compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.compare.comparison_options import Budget, Place
from tilewright.compare.providers.interface import Array, Built, PreparedTask, Provider, Threads
from tilewright.compare.providers.torch_device import BACKENDS, Gpu, Processors, open_device
from tilewright.compare.workloads import ComparedWorkload, ProviderTask
from tilewright.kernels.operation import Operation
from tilewright.target import GpuTarget, Target

Function = Callable[..., Any]


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
        self._device: Processors | Gpu = open_device(torch, place)

    def version(self) -> str:
        return f"torch {self._torch.__version__} ({self._device.libraries()})"

    def threads(self) -> Threads:
        return self._device.threads()

    def prepare(
        self, task: ProviderTask, arguments: Sequence[Any], built: Built, budget: Budget
    ) -> PreparedTask:
        operation = task.workload.operation
        assert operation is not None
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


def _matmul(torch: Any, operation: Operation, tensors: list[Any]) -> tuple[Function, list[Any]]:
    if operation.types.operand == "i8":
        return torch._int_mm, operation.row_major(tensors)
    if _widens(operation):
        multiply = torch.bmm if operation.kind.name == "batch_matmul" else torch.mm
        return functools.partial(multiply, out_dtype=torch.float32), operation.row_major(tensors)
    return torch.matmul, operation.row_major(tensors)


def _matmul_steps(
    torch: Any, operation: Operation, tensors: list[Any]
) -> tuple[Function, list[Any]]:
    steps = _steps(torch, getattr(operation.kind, "steps", ())[1:])
    return (
        lambda lhs, rhs, bias: steps(torch.addmm(bias, lhs, rhs), bias),
        operation.row_major(tensors),
    )


def _convolution(
    torch: Any, operation: Operation, tensors: list[Any]
) -> tuple[Function, list[Any]]:
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


def _reduction(torch: Any, operation: Operation, tensors: list[Any]) -> tuple[Function, list[Any]]:
    axis = 0 if operation.transposed(0) else 1
    if operation.variant == "sum":
        return lambda x: torch.sum(x, axis), tensors
    return lambda x: torch.amax(x, axis), tensors


def _softmax(torch: Any, operation: Operation, tensors: list[Any]) -> tuple[Function, list[Any]]:
    return lambda x: torch.softmax(x, -1), tensors


def _attention(torch: Any, operation: Operation, tensors: list[Any]) -> tuple[Function, list[Any]]:
    def attend(query: Any, key: Any, value: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return attend, operation.row_major(tensors)


def _elementwise(
    torch: Any, operation: Operation, tensors: list[Any]
) -> tuple[Function, list[Any]]:
    return _steps(torch, operation.variant.split("_")), operation.row_major(tensors)


_KINDS: Mapping[str, Callable[[Any, Operation, list[Any]], tuple[Function, list[Any]]]] = {
    "matmul": _matmul,
    "batch_matmul": _matmul,
    "matmul_splitk": _matmul,
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
