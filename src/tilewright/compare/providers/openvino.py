"""OpenVINO, for ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import PreparedTask, PrepareRequest, Provider, Threads
from tilewright.compare.workloads import ComparedWorkload
from tilewright.target import Target


class OpenVino(Provider):
    """A model compiled by OpenVINO's CPU plugin for latency, in f32."""

    name = "openvino"
    about = "OpenVINO, for .onnx models"
    modules = ("openvino",)
    pip = "openvino"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        return "" if workload.is_onnx else "OpenVINO is given .onnx models only"

    def open(self, place: Place) -> None:
        import openvino

        self._library: Any = openvino
        self._core: Any = openvino.Core()
        self._threads = place.threads
        self._settings = {
            "INFERENCE_NUM_THREADS": place.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Processors with bf16 or f16 arithmetic would compute with less otherwise.
            "INFERENCE_PRECISION_HINT": "f32",
        }

    def version(self) -> str:
        return f"openvino {self._library.__version__.split('-')[0]}"

    def threads(self) -> Threads:
        return Threads(self._threads, "INFERENCE_NUM_THREADS")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        model = self._core.read_model(str(request.task.workload.program))
        # Sizes that the file leaves open are those of the arguments.
        model.reshape({one: np.shape(a) for one, a in zip(model.inputs, arguments, strict=True)})
        compiled = self._core.compile_model(model, "CPU", self._settings)
        running = compiled.create_infer_request()
        # Tensors over the caller's own memory: a call copies nothing.
        kept = [self._library.Tensor(np.ascontiguousarray(a), True) for a in arguments]
        for index, one in enumerate(kept):
            running.set_input_tensor(index, one)
        count = len(compiled.outputs)

        def outputs(_: Any) -> list[Any]:
            return [np.array(running.get_output_tensor(i).data) for i in range(count)]

        return PreparedTask(running.infer, outputs, kept=(model, compiled, kept))


PROVIDERS: tuple[type[Provider], ...] = (OpenVino,)
