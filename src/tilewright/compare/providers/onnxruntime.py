"""ONNX Runtime, for ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import PreparedTask, PrepareRequest, Provider, Threads
from tilewright.compare.workloads import ComparedWorkload
from tilewright.target import Target


class OnnxRuntime(Provider):
    """A model run by ONNX Runtime's CPU provider with all of its graph optimisations."""

    name = "onnxruntime"
    about = "ONNX Runtime, for .onnx models"
    modules = ("onnxruntime",)
    pip = "onnxruntime"

    def reason_against(self, workload: ComparedWorkload, target: Target) -> str:
        return "" if workload.is_onnx else "ONNX Runtime runs .onnx models only"

    def open(self, place: Place) -> None:
        import onnxruntime

        self._runtime: Any = onnxruntime
        self._options: Any = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = place.threads
        self._options.inter_op_num_threads = 1
        self._options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        self._options.log_severity_level = 3

    def version(self) -> str:
        return f"onnxruntime {self._runtime.__version__}"

    def threads(self) -> Threads:
        return Threads(self._options.intra_op_num_threads, "SessionOptions.intra_op_num_threads")

    def prepare(self, request: PrepareRequest, arguments: Sequence[Any]) -> PreparedTask:
        session = self._runtime.InferenceSession(
            str(request.task.workload.program), self._options, providers=["CPUExecutionProvider"]
        )
        names = [one.name for one in session.get_inputs()]
        feeds = dict(zip(names, arguments, strict=True))
        return PreparedTask(lambda: session.run(None, feeds), list, kept=(session,))


PROVIDERS: tuple[type[Provider], ...] = (OnnxRuntime,)
