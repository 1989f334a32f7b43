"""Programs whose sizes are known at run time only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.tuning.inspect import inspect
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.session import TuningSession
from tilewright.tuning.variants import DEFAULT_VARIANT

PROGRAM = """
func.func @main(%a: tensor<?x128xf32>, %b: tensor<128x96xf32>, %bias: tensor<96xf32>)
    -> tensor<?x96xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %a, %c0 : tensor<?x128xf32>
  %e = tensor.empty(%n) : tensor<?x96xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x96xf32>) -> tensor<?x96xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x128xf32>, tensor<128x96xf32>)
    outs(%f : tensor<?x96xf32>) -> tensor<?x96xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
                                        affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
    ins(%r, %bias : tensor<?x96xf32>, tensor<96xf32>) outs(%e : tensor<?x96xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %t = arith.addf %x, %y : f32
    linalg.yield %t : f32
  } -> tensor<?x96xf32>
  %q = linalg.softmax dimension(1) ins(%s : tensor<?x96xf32>) outs(%e : tensor<?x96xf32>)
    -> tensor<?x96xf32>
  return %q : tensor<?x96xf32>
}
"""
INPUTS = ("80x128xf32", "128x96xf32", "96xf32")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "dynamic.mlir"
    path.write_text(PROGRAM)
    return path


def test_without_sizes_the_dispatches_are_named_as_skipped(program: Path):
    (variant,) = inspect(program).variants
    assert not variant.dispatches
    assert len(variant.skipped) == 2
    assert all("run time only" in s.reason and "--input" in s.reason for s in variant.skipped)


def test_with_sizes_they_have_spaces(program: Path):
    (variant,) = inspect(program, inputs=INPUTS).variants
    assert not variant.skipped
    assert any("80?x96x128" in d.workload for d in variant.dispatches)
    assert all(d.points > 100 for d in variant.dispatches)


def test_tuning_without_sizes_says_what_to_give(program: Path, tmp_path: Path):
    options = TuneOptions(db=tmp_path / "x.db", output=tmp_path / "out")
    with pytest.raises(UserError, match="--input"):
        TuningSession(program, options).run()
    assert not (tmp_path / "out").exists()


def test_sizes_that_do_not_fit(program: Path):
    with pytest.raises(UserError, match=r"argument 1 of the program is \?x128xf32"):
        inspect(program, inputs=("80x127xf32", *INPUTS[1:]))


def test_sizes_of_packed_data_are_known_too(program: Path):
    (variant,) = inspect(program, inputs=INPUTS, variants="data-tiling").variants
    assert any(d.workload.startswith("mmt4d") for d in variant.dispatches)


@pytest.mark.slow
def test_tuned_at_the_sizes_given(program: Path, tmp_path: Path):
    options = TuneOptions(
        effort="quick",
        max_trials=12,
        variants=(DEFAULT_VARIANT,),
        inputs=INPUTS,
        db=tmp_path / "x.db",
        output=tmp_path / "out",
    )
    result = TuningSession(program, options).run()
    assert result.program.verified
    tuned = [d for d in result.dispatches if d.trials]
    assert {d.workload.split()[0] for d in tuned} == {"contraction", "softmax"}
    assert {d.verification for d in tuned} == {"float64 NumPy"}
    ok = (tmp_path / "out" / "trials.csv").read_text().count(",ok,")
    assert ok >= 6
