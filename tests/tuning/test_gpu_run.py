"""A whole run for a GPU, with the device played: everything but the measuring is real."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from gpu_programs import attention, contraction
from played_device import PlayedDevice

from tilewright.argument import ArgumentType
from tilewright.cli.main import commands
from tilewright.device_code import workgroup_sizes
from tilewright.ir.session import CompilerSession
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.devices import drivers
from tilewright.measure.inputs import random_inputs
from tilewright.target import LIBRARY_FLAG, SPEC_FLAG, parse_target


@pytest.mark.parametrize(
    ("target", "flag"),
    [
        ("cuda:sm_80", LIBRARY_FLAG),
        pytest.param("rocm:gfx942", SPEC_FLAG, marks=pytest.mark.slow),
        pytest.param("vulkan:ampere", LIBRARY_FLAG, marks=pytest.mark.slow),
        pytest.param("cuda:sm_90", LIBRARY_FLAG, marks=pytest.mark.slow),
    ],
)
def test_a_run_for_a_gpu_ends_with_a_spec_that_applies(tmp_path, target, flag):
    program = tmp_path / "matmul.mlir"
    # f16 takes matrix instructions, which the Vulkan device of a test machine need not have.
    element = "f32" if target.startswith("vulkan") else "f16"
    program.write_text(contraction(element, "f32", 64, 64, 64))
    folder = tmp_path / "exchange"
    folder.mkdir()
    device = PlayedDevice(folder)
    device.start()
    try:
        done = CliRunner().invoke(
            commands,
            [
                *("tune", str(program), "--target", target, "--runner", f"dir:{folder}"),
                *("--max-trials", "4", "--effort", "quick", "--db", str(tmp_path / "db")),
                *("--output", str(tmp_path / "out"), "--strategy", "random", "--no-report"),
            ],
        )
    finally:
        device.ended.set()
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (dispatch,) = [d for d in summary["dispatches"] if d["default_ms"] is not None]
    assert dispatch["trials"] == 4
    assert dispatch["failed_trials"] == 0
    command = (tmp_path / "out" / "command.txt").read_text()
    assert flag in command
    # Candidates of a round, and programs in company, are measured together: few batches, however
    # many there are.
    assert len(list(folder.glob("batch_*"))) <= 10
    assert device.asked["TimeRequest"] >= 4
    assert dispatch["status"] == "tuned"
    if target.startswith("vulkan"):
        _emit(program, tmp_path)
        _apply(program, tmp_path)
    assert summary["changed"]
    assert "tilewright.tuned" in (tmp_path / "out" / "tuning_spec.mlir").read_text()


def _emit(program, folder):
    """The configuration on the op itself, for who has no use for a spec."""
    arguments = ["apply", str(program), str(folder / "out"), "--emit-mlir", str(folder / "on.mlir")]
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 0, done.output
    assert "#iree_gpu.spirv_pipeline<" in (folder / "on.mlir").read_text()


def _apply(program, folder):
    """What `apply` makes of the original program has the tuned workgroups, and computes the same
    where there is a device."""
    applied, out = folder / "applied.vmfb", folder / "out"
    done = CliRunner().invoke(commands, ["apply", str(program), str(out), "-o", str(applied)])
    assert done.exit_code == 0, done.output
    default = CompilerSession(parse_target("vulkan:ampere").flags).compile(program.read_text())
    sizes = workgroup_sizes(applied.read_bytes())
    assert len(sizes) == 1
    assert sizes == workgroup_sizes((out / "program.vmfb").read_bytes())
    assert sizes != workgroup_sizes(default)
    found = next((d.devices for d in drivers() if d.name == "vulkan"), ())
    if not found:
        return
    inputs = random_inputs(folder / "in", (ArgumentType("f32", (64, 64)),) * 2, seed=0)
    a, b = (argument.load() for argument in inputs.arguments)
    with Benchmark(DeviceOptions(found[0].uri), timeout_s=300) as benchmark:
        (result,) = benchmark.run(str(applied), inputs, folder / "result.npz")
    np.testing.assert_allclose(result, a @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_run_on_a_vulkan_device(tmp_path):
    found = next((d.devices for d in drivers() if d.name == "vulkan"), ())
    if not found:
        pytest.skip("the runtime finds no Vulkan device")
    program, out = tmp_path / "matmul.mlir", tmp_path / "out"
    program.write_text(contraction("f32", "f32", 32, 32, 32))
    arguments = ["--target", "vulkan:ampere", "--device", found[0].uri, "--max-trials", "3"]
    arguments += ["--effort", "quick", "--db", str(tmp_path / "db"), "--output", str(out)]
    done = CliRunner().invoke(commands, ["tune", str(program), *arguments])
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "summary.json").read_text())
    (dispatch,) = [d for d in summary["dispatches"] if d["default_ms"] is not None]
    assert dispatch["trials"] == 3
    assert workgroup_sizes((out / "program.vmfb").read_bytes())
    assert (out / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:sm_80", "rocm:gfx942"])
def test_specs_for_attention_apply(tmp_path, target):
    program = tmp_path / "attention.mlir"
    program.write_text(attention("f16", heads=2, m=64, k1=32, k2=64))
    arguments = ["tune", str(program), "--target", target, "--compile-only", "--max-trials", "2"]
    done = CliRunner().invoke(commands, [*arguments, "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (dispatch,) = json.loads((tmp_path / "out" / "summary.json").read_text())["dispatches"]
    assert dispatch["applied"] == ""
