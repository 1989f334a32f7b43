"""ONNX models as workloads: the ones that the scripts in benchmarks/ write, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.compare import (
    CompareOptions,
    ProviderOutcome,
    compare,
    find_providers,
    find_workloads,
)
from tilewright.target import parse_target

pytest.importorskip("onnx")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODELS = {
    "onnx_convnet.py": ("--size", "16", "--width", "4"),
    "onnx_transformer.py": (
        *("--layers", "1", "--width", "16", "--heads", "2", "--tokens", "8"),
        *("--vocabulary", "20"),
    ),
    **{
        f"onnx_vision.py {name}": ("--size", "64", "--scale", "0.125")
        for name in ("resnet50", "mobilenetv2", "mobilenetv3", "unet", "inception")
    },
}


@pytest.mark.parametrize(
    "script",
    [pytest.param(m, marks=pytest.mark.slow) if " " in m else m for m in MODELS],
)
def test_a_model_is_right_everywhere(script: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    name, *network = script.split()
    command = [sys.executable, str(BENCHMARKS / name), *network, str(model), *MODELS[script]]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    options = CompareOptions(parse_target("cpu", 1), rounds=6, min_sample_s=0.002, peak=False)
    providers = find_providers("iree,onnxruntime,openvino,torch")
    iree, runtime, openvino, torch = compare(find_workloads([str(model)]), providers, options).rows
    assert iree.outcome is ProviderOutcome.OK, iree.reason
    assert iree.reference == "the program evaluated in float64"
    assert runtime.outcome in (ProviderOutcome.OK, ProviderOutcome.SKIPPED), runtime.reason
    assert openvino.outcome in (ProviderOutcome.OK, ProviderOutcome.ABSENT), openvino.reason
    assert torch.outcome in (ProviderOutcome.ABSENT, ProviderOutcome.SKIPPED)
