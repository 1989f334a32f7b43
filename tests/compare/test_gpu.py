"""Comparisons on GPUs: IREE's providers on a software Vulkan device where there is one, and in
flight on the processors; PyTorch on a double of its CUDA part."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import M64, MOMENT, STATE, row, run
from torch_double import WORK_MS, Torch

from tilewright.compare import (
    PROVIDERS,
    CompareOptions,
    ComparisonRun,
    ProviderOutcome,
    compare,
    diff,
    find_providers,
    find_workloads,
)
from tilewright.compare.comparison_options import NO_BUDGET, Budget, Place
from tilewright.compare.diff import DiffVerdict
from tilewright.compare.machine_state import MachineState
from tilewright.compare.providers.interface import Built, PreparedTask, PrepareRequest
from tilewright.compare.providers.torch import Torch as TorchProvider
from tilewright.compare.reference import made_task
from tilewright.compare.tables import rows_table
from tilewright.errors import UserError
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.devices import devices
from tilewright.measure.in_flight import IN_FLIGHT_FLAG, InFlight
from tilewright.measure.runtime import Device
from tilewright.target import parse_target
from tilewright.toolchain import Toolchain

CUDA = parse_target("cuda:sm_80")
VULKAN = parse_target("vulkan:ampere")
ON_CARD = Place(2, "cuda", "cuda")


# -- IREE ------------------------------------------------------------------------------------------

PROGRAM = """
func.func @main(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %r = arith.addf %a, %a : tensor<16x16xf32>
  return %r : tensor<16x16xf32>
}
"""


def test_calls_in_flight_are_complete_and_in_order(tmp_path: Path) -> None:
    """More of them than are let ahead of the device, on the processors."""
    (source := tmp_path / "p.mlir").write_text(PROGRAM)
    vmfb = tmp_path / "p.vmfb"
    flags = (*parse_target("cpu", 2).flags, IN_FLIGHT_FLAG)
    assert Toolchain().compile(source, vmfb, flags, timeout_s=300).ok
    device = Device(DeviceOptions("local-task"))
    program = device.load(str(vmfb))
    data = np.arange(256, dtype=np.float32).reshape(16, 16)
    calls = InFlight(device, program, "main", [device.upload(data)])
    (result,) = program.outputs(calls.call())
    assert np.array_equal(result, 2 * data)
    assert 0 < calls.timed(100) < 60
    (result,) = program.outputs(calls.call())
    assert np.array_equal(result, 2 * data)
    with pytest.raises(ValueError, match="no function 'other'"):
        InFlight(device, program, "other", [])


@pytest.fixture(scope="module")
def vulkan() -> CompareOptions:
    if not devices("vulkan"):
        pytest.skip("no Vulkan device here, not even a software one")
    return CompareOptions(VULKAN, rounds=6, min_sample_s=0.002, budget=Budget(trials=2))


def test_iree_on_a_device(vulkan: CompareOptions, tmp_path: Path) -> None:
    providers = find_providers("iree,iree-variant:data-tiling,iree-tuned,numpy,torch")
    options = replace(vulkan, db=tmp_path / "database.db")
    result = compare(find_workloads([], ["32x32x32"]), providers, options)
    assert len(result.rows) == len(providers)
    for one in result.rows[:3]:
        assert one.outcome is ProviderOutcome.OK, one.reason
        assert len(one.samples) == 6
        assert one.cores is None
        assert one.processor == ()
        assert "in flight" in one.threads
    assert [one.outcome for one in result.rows[3:]] == [ProviderOutcome.ABSENT] * 2
    assert result.gpu
    assert result.computer == result.gpu
    assert result.settings["device"] == "vulkan"
    assert result.state.gflops is None
    table = rows_table(result, "iree")
    assert "cores" not in table.columns
    assert VULKAN.name in table.title


def test_a_device_that_is_not_there_is_said(tmp_path: Path) -> None:
    if devices("cuda"):
        pytest.skip("there is one here")
    options = CompareOptions(CUDA, rounds=6)
    (one,) = compare(find_workloads([], ["8x8x8"]), find_providers("iree"), options).rows
    assert one.outcome is ProviderOutcome.ERROR
    assert "device 'cuda' cannot be opened" in one.reason


def test_only_some_run_on_a_gpu() -> None:
    there = {n for n, p in PROVIDERS.items() if not p.takes and not p().reason_against_target(CUDA)}
    assert there == {"iree", "iree-configured", "iree-tuned", "torch", "torch-compiled"}
    assert "not on vulkan" in TorchProvider().reason_against_target(VULKAN)


def test_a_target_that_no_flag_names_stands_in_the_program(tmp_path: Path) -> None:
    target = parse_target("cuda:sm_90")
    (workload,) = find_workloads([], ["16x16x16"])
    with made_task(workload, CompareOptions(target), tmp_path) as task:
        vmfb = tmp_path / "p.vmfb"
        assert Toolchain().compile(task.mlir, vmfb, task.flags, timeout_s=300).ok
        assert task.target.name.startswith("cuda:")


# -- PyTorch ---------------------------------------------------------------------------------------


def opened(monkeypatch: pytest.MonkeyPatch, torch: Torch, place: Place = ON_CARD) -> TorchProvider:
    monkeypatch.setitem(sys.modules, "torch", torch)
    provider = TorchProvider()
    provider.open(place)
    return provider


def prepared(provider: TorchProvider, name: str, tmp_path: Path) -> tuple[PreparedTask, Any]:
    """A workload ready, and what is right."""
    (workload,) = find_workloads([name])
    operation = workload.operation
    assert operation is not None
    rng = np.random.default_rng(0)
    arrays = [rng.random(a.shape or ()).astype(a.dtype) for a in operation.arguments]
    task: Any = type("Task", (), {"workload": workload})
    made = provider.prepare(PrepareRequest(task, Built(), NO_BUDGET), arrays)
    return made, operation.kind.reference(operation, arrays)


@pytest.mark.parametrize(
    "name", ["matmul_4x6x8_f32t_f32n_f32t", "matmul_4x6x8_f16t_f16t_f32t", M64]
)
def test_torch_on_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    torch = Torch()
    provider = opened(monkeypatch, torch)
    made, right = prepared(provider, name, tmp_path)
    (result,) = made.outputs(made.call())
    assert np.allclose(result, right, rtol=1e-3)
    # The device's own milliseconds, and no waiting between the calls.
    waits, launched = torch.stream.waits, torch.stream.launched
    assert made.timed is not None
    assert made.timed(25) == pytest.approx(25 * WORK_MS / 1e3)
    assert torch.stream.waits == waits + 1
    assert torch.stream.launched == launched + 25


def test_a_call_ends_when_the_device_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = Torch()
    made, _ = prepared(opened(monkeypatch, torch), M64, tmp_path)
    made.call()
    assert torch.stream.queue == []


def test_float32_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(devices=3)
    provider = opened(monkeypatch, torch, Place(2, "cuda://2", "cuda"))
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert not torch.backends.cudnn.allow_tf32
    assert torch.chosen == "cuda:2"
    assert "cuda:2 (a card" in provider.threads().how
    assert provider.version() == "torch 2.99 (CUDA 12.8, cuDNN 91000)"


def test_rocm_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(2, "hip://0", "rocm")
    assert "ROCm 6.4" in opened(monkeypatch, Torch(cuda=None, hip="6.4"), place).version()
    with pytest.raises(UserError, match="not built for rocm"):
        opened(monkeypatch, Torch(), place)


@pytest.mark.parametrize(
    ("torch", "uri", "says"),
    [
        (Torch(cuda=None), "cuda", "not built for cuda; pip install torch --index-url"),
        (Torch(devices=0), "cuda", "finds no device"),
        (Torch(), "cuda://1", "finds 1 devices"),
        (Torch(), "cuda://GPU-2f", "write cuda://0"),
    ],
)
def test_where_torch_cannot(
    monkeypatch: pytest.MonkeyPatch, torch: Torch, uri: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        opened(monkeypatch, torch, Place(2, uri, "cuda"))


# -- results ---------------------------------------------------------------------------------------


def on_card(*rows: Any, name: str = "a card", **moment: Any) -> ComparisonRun:
    gpu = {"throttled": 0, **moment}
    blind = replace(MOMENT, gflops=None, gbytes_per_s=None, gpu=gpu)
    state = MachineState({**STATE.machine, "gpu": name}, blind, blind)
    return replace(run(*rows, state=state), settings={"target": "cuda:sm_80"})


def test_results_of_cards_are_compared_with_the_same_card_only() -> None:
    old, new = on_card(row(seed=1)), on_card(row(seed=2, seconds=1.2e-3))
    assert [c.verdict for c in diff(old, new)] == [DiffVerdict.SLOWER]
    assert [c.verdict for c in diff(old, replace(new, threads=7))] == [DiffVerdict.SLOWER]
    with pytest.raises(UserError, match="another card"):
        diff(old, on_card(row(), name="another card"))
    with pytest.raises(UserError, match="a processor"):
        diff(old, run(row()))


def test_a_card_that_held_back_is_told() -> None:
    assert on_card(row()).state.warnings() == ()
    (warning,) = on_card(row(), throttled=4).state.warnings()
    assert "clocks" in warning
