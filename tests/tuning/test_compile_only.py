"""Compile-only runs and GPU targets, end to end; no device is needed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpu_programs import contraction

from tilewright.cli.main import commands
from tilewright.tuning.compile_only import CompiledDispatch, CompileOnlyResult, summary_lines

DYNAMIC = """
func.func @main(%a: tensor<?x32xf32>, %b: tensor<32x16xf32>) -> tensor<?x16xf32> {
  %first = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %rows = tensor.dim %a, %first : tensor<?x32xf32>
  %e = tensor.empty(%rows) : tensor<?x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x16xf32>) -> tensor<?x16xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x32xf32>, tensor<32x16xf32>)
      outs(%f : tensor<?x16xf32>) -> tensor<?x16xf32>
  return %r : tensor<?x16xf32>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "matmul.mlir"
    path.write_text(contraction("f16", "f32", 64, 64, 64))
    return path


def run(*arguments):
    return CliRunner().invoke(commands, ["tune", *map(str, arguments)], standalone_mode=True)


@pytest.mark.parametrize(
    "target",
    [
        "cuda:sm_80",
        "vulkan:ampere",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("cuda:sm_90", "rocm:gfx942", "metal")),
    ],
)
def test_candidates_compile_and_a_spec_applies(program, tmp_path, target):
    done = run(
        program,
        "--target",
        target,
        "--compile-only",
        "--max-trials",
        3,
        "--seed",
        3,
        "--output",
        tmp_path / "out",
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["mode"] == "compile-only"
    assert summary["compile_rate"] == 1.0
    (dispatch,) = summary["dispatches"]
    assert dispatch["sampled"] == dispatch["compiled"] == 3
    assert dispatch["applied"] == ""
    assert dispatch["space_points"] == sum(dispatch["spaces"].values()) > 100
    if target != "metal":
        assert dispatch["sizes_found"] == 3


def test_sizes_that_the_types_leave_open_come_from_the_inputs(tmp_path):
    path = tmp_path / "open.mlir"
    path.write_text(DYNAMIC)
    out = tmp_path / "out"
    given = ("--compile-only", "--max-trials", 2, "-o", out)
    assert "known at run time only" in run(path, *given).output
    done = run(path, *given, "--input", "24x32xf32", "--input", "32x16xf32")
    assert done.exit_code == 0, done.output
    (dispatch,) = json.loads((out / "summary.json").read_text())["dispatches"]
    assert dispatch["workload"].startswith("contraction 24?x16x32")


def test_the_old_configuration_file_holds_the_workgroup(program, tmp_path):
    config = tmp_path / "old.cfg"
    config.write_text(f"[Env]\ninput_file = {program}\n[SearchSpace]\nblock_dim_x = [64]\n")
    kept = tmp_path / "kept"
    done = run(
        "--config",
        config,
        "--target",
        "cuda:sm_80",
        "--compile-only",
        "--max-trials",
        3,
        "--keep-candidates",
        kept,
        "--verbose",
        "--output",
        tmp_path / "out",
    )
    assert done.exit_code == 0, done.output
    assert "Trial         : 3 of 3" in done.output
    assert "Result        : ok" in done.output
    assert f"Compile       : iree-compile {kept}" in done.output
    candidates = list(kept.rglob("*.mlir"))
    assert len(candidates) == 3
    for candidate in candidates:
        assert "workgroup_size = [64, 1, 1]" in candidate.read_text()


@pytest.mark.parametrize(
    "option",
    [
        ("--runner", "dir:there"),
        ("--device", "local-sync"),
        ("--variants", "data-tiling"),
        ("--strategy", "random"),
        ("--strategy-option", "plan_size=64"),
        ("--resume",),
        ("--fresh",),
    ],
    ids=lambda option: option[0],
)
def test_what_is_about_measuring_does_not_go_with_it(program, tmp_path, option):
    done = run(program, "--compile-only", *option, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert f"{option[0]}: --compile-only" in done.output
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_there(program, tmp_path):
    done = run(program, "--target", "cuda:sm_80", "-o", tmp_path / "out", "--db", tmp_path / "db")
    assert done.exit_code == 2
    assert "cuda" in done.output
    assert "Traceback" not in done.output


def test_the_summary_says_what_failed():
    dispatch = CompiledDispatch(
        "d",
        "contraction 8x8x8 f32",
        100.0,
        {"TileAndFuse": 100.0},
        4,
        3,
        2,
        3,
        errors={"too much shared memory": 1},
        applied="",
    )
    result = CompileOnlyResult("p", "cuda/sm_80", 0, (dispatch,), (), (), Path("out"), 1.0)
    assert result.compile_rate == 0.75
    text = "\n".join(summary_lines(result))
    assert "75.0%" in text
    assert "1 x too much shared memory" in text


def test_nothing_compiled_is_no_hundred_percent():
    dispatch = CompiledDispatch("d", "contraction 8x8x8 f32", 100.0, {}, 0, 0, 0, None)
    for dispatches in ((dispatch,), ()):
        result = CompileOnlyResult("p", "cuda/sm_80", 0, dispatches, (), (), Path("out"), 1.0)
        assert result.compile_rate is None
        assert result.to_json()["compile_rate"] is None
        text = "\n".join(summary_lines(result))
        assert "%" not in text
        assert "compile rate none was compiled" in text
