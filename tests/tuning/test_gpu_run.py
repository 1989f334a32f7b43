"""A whole run for a GPU, with the device played: everything but the measuring is real."""

import json

import pytest
from click.testing import CliRunner
from gpu_programs import attention, contraction
from played_device import PlayedDevice

from tilewright.cli.main import commands
from tilewright.target import LIBRARY_FLAG, SPEC_FLAG


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
    program.write_text(contraction("f16", "f32", 64, 64, 64))
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
    # Candidates of a round are measured together: few batches, however many candidates.
    assert len(list(folder.glob("batch_*"))) <= 10
    assert device.asked["TimeRequest"] >= 4
    assert dispatch["status"] == "tuned"
    if target.startswith("vulkan"):
        _emit(program, tmp_path)
    assert summary["changed"]
    assert "tilewright.tuned" in (tmp_path / "out" / "tuning_spec.mlir").read_text()


def _emit(program, folder):
    """The configuration on the op itself, for who has no use for a spec."""
    arguments = ["apply", str(program), str(folder / "out"), "--emit-mlir", str(folder / "on.mlir")]
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 0, done.output
    assert "#iree_gpu.spirv_pipeline<" in (folder / "on.mlir").read_text()


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
