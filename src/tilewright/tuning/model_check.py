"""What IREE makes of an ONNX model, beside what ONNX Runtime computes from it.

A tuned program is held to the untuned one's results. Where IREE's importer, or the compiler, has
made something else of a model, both are wrong alike: a super-resolution network's pixels were in
another order in IREE 3.13. ONNX Runtime, where it is installed, runs the model itself, once.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.measure.inputs import InputSet, load_arguments, read_outputs
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.tuning.programs import Programs

_RUNTIME = "onnxruntime"
# Seconds for it, and as a part of what a run has left; with less than the least, a worker would be
# ended for nothing.
_LEAST_S, _MOST_S, _OF_LEFT = 1.0, 60.0, 0.1
# Weights of which a second copy is not put into memory.
_LARGE = 2 << 30
# Differences that rounding does not make: of a program in f32, and of one that rounds to integers
# or to shorter floats on its way, each as a part of the largest value.
_CLEAR, _CLEAR_IF_ROUNDED = 1e-2, 0.1


@dataclass(frozen=True)
class ModelCheck:
    """How far the untuned program is from the model.

    by: what ran the model. error: the largest `difference` of a result. result: which one has it,
    from 0. wrong: it is more than rounding makes.
    """

    by: str
    error: float
    result: int
    wrong: bool


@dataclass(frozen=True)
class ModelRequest:
    """Run a model and compare its results with those of its program.

    model: the .onnx file. inputs: of the program. expected: its results (`inputs.read_outputs`).
    threads: to run it on.
    """

    model: Path
    inputs: InputSet
    expected: Path
    threads: int


def check_model(programs: Programs) -> ModelCheck | None:
    """Compare the results of the untuned program of an ONNX model with ONNX Runtime's.

    Where they are not the same, the user is told. The run goes on: what is tuned may be what is
    used.

    Args:
        programs: of the run; the untuned program's results are known.

    Returns:
        How far they are apart; None where nothing was compared: no ONNX model, one that ONNX
        Runtime does not run, no ONNX Runtime, no time, not to be verified.
    """
    context = programs.context
    model, left_s = context.program.source, context.left_s
    if model.suffix.lower() != ".onnx" or context.options.no_verify:
        return None
    if importlib.util.find_spec(_RUNTIME) is None:
        return None
    if sum(path.stat().st_size for _, path in context.program.parameters) > _LARGE:
        return None
    most_s = _MOST_S if left_s is None else min(_MOST_S, _OF_LEFT * left_s)
    if most_s < _LEAST_S:
        return None
    request = ModelRequest(model, programs.inputs, programs.expected, context.target.cores)
    found = context.compilers.ask(compare_with_model, request, most_s)
    if isinstance(found, WorkerFailure):
        return None
    if found.wrong:
        context.note(
            f"result {found.result} of the program that IREE makes of {model.name}, untuned, is "
            f"not {found.by}'s: {found.error:.2g} of the largest value. Tuning keeps what it "
            "computes. See that it is right before it is used; "
            "https://github.com/iree-org/iree/issues is where to report it",
            warning=True,
        )
    return found


def compare_with_model(state: WorkerState, request: ModelRequest) -> ModelCheck:
    """Task: see ModelRequest.

    Args:
        state: the worker's.
        request: which model, on what, and what its program makes of that.

    Returns:
        How far they are apart.

    Raises:
        Exception: what ONNX Runtime raises, which knows neither all models nor all types.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(request.model), options, providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_inputs()]
    feeds = dict(zip(names, map(np.asarray, load_arguments(request.inputs)), strict=True))
    results = session.run(None, feeds)
    found = read_outputs(request.expected)
    errors = [difference(a, np.asarray(b)) for a, b in zip(found, results, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    clear = _CLEAR_IF_ROUNDED if _rounds(request.model) else _CLEAR
    by = f"{_RUNTIME} {onnxruntime.__version__}"
    return ModelCheck(by, errors[worst], worst, errors[worst] > clear)


def difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """How far a result is from another, from 0 to 1.

    Args:
        found: one.
        expected: the other, whose type decides.

    Returns:
        The largest difference as a part of the largest value; of integers the part that differs; 1
        where one has other elements, or a NaN or an infinity that the other has not.
    """
    if found.size != expected.size:
        return 1.0
    if not expected.size:
        return 0.0
    found = found.reshape(expected.shape)
    if expected.dtype.kind in "biu":
        return float(np.mean(found != expected))
    one, other = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return 1.0
    one, other = one[finite], other[finite]
    largest = np.max(np.abs(other), initial=0.0)
    off = np.max(np.nan_to_num(np.abs(one - other), nan=np.inf), initial=0.0)
    return float(min(1.0, off / largest if largest else off))


def _rounds(model: Path) -> bool:
    """Whether a model rounds to integers or to floats of less than 32 bits on its way."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    short = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    types = {one.data_type for one in graph.initializer}
    types |= {one.type.tensor_type.elem_type for one in graph.input}
    quantised = ("Quantize", "QLinear", "Integer")
    return bool(types & short) or any(
        word in node.op_type for node in graph.node for word in quantised
    )
