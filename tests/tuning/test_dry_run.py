"""What a run would do, seen without doing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.tuning.dry_run import DryRunResult, PlannedDispatch, plan_lines
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.session import TuningSession

PROGRAM = """func.func @main(%a: tensor<96x80xf32>, %b: tensor<80x112xf32>) -> tensor<96x112xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<96x112xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<96x112xf32>) -> tensor<96x112xf32>
  %r = linalg.matmul ins(%a, %b : tensor<96x80xf32>, tensor<80x112xf32>)
    outs(%f : tensor<96x112xf32>) -> tensor<96x112xf32>
  return %r : tensor<96x112xf32>
}
"""


def test_a_dry_run_tries_and_writes_nothing(tmp_path: Path) -> None:
    program = tmp_path / "matmul.mlir"
    program.write_text(PROGRAM)
    given = TuneOptions(
        dry_run=True,
        max_trials=20,
        strategy="random",
        db=tmp_path / "tilewright.db",
        output=tmp_path / "out",
    )
    result = TuningSession(program, given).dry_run()
    (dispatch,) = result.dispatches
    assert "contraction 96x112x80 f32" in dispatch.workload
    assert dispatch.space_points == pytest.approx(sum(dispatch.spaces.values()), rel=0.1)
    assert any(name.startswith("kernel-") for name in dispatch.spaces)
    assert 1 < len(dispatch.first) == len(set(dispatch.first)) <= 8
    assert dispatch.first[0].startswith("kernel tiles")
    assert result.trials == 20
    assert result.minutes > 0
    assert "default" in result.variants
    assert "data-tiling" in result.variants
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "tilewright.db").exists()
    text = "\n".join(plan_lines(result))
    assert dispatch.name in text
    assert "20 trials by random" in text
    assert "nothing is run" in text


def test_the_plan_in_words() -> None:
    dispatch = PlannedDispatch(
        "d0", "contraction 8x8x8 f32", 2, 3e9, {"Expert": 3e9}, ("Expert: tile 4", "Expert: tile 8")
    )
    plan = DryRunResult(
        "m.mlir", "cpu", "auto", ("default", "o3"), (dispatch,), (("d1", "a copy"),), 64, 2.6
    )
    assert plan_lines(plan) == [
        "m.mlir for cpu: 1 dispatch to tune; nothing is run",
        "d0 (contraction 8x8x8 f32), 2 runs",
        "  space  3.0e+09 configurations (Expert 3.0e+09)",
        "  first  1. Expert: tile 4",
        "         2. Expert: tile 8",
        "d1: not tuned: a copy",
        "variants: default, o3",
        "64 trials by auto, about 3 min",
    ]
    assert plan.to_json()["mode"] == "dry-run"


def test_a_program_without_anything_to_tune(tmp_path: Path) -> None:
    program = tmp_path / "constant.mlir"
    program.write_text(
        "func.func @main() -> i32 {\n  %c = arith.constant 2 : i32\n  return %c : i32\n}\n"
    )
    with pytest.raises(UserError, match="no tunable dispatch"):
        TuningSession(program, TuneOptions(dry_run=True)).dry_run()
