"""What `inspect` finds in a program, without running anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tilewright
from tilewright.errors import UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.store import Database
from tilewright.tuning.inspect import Inspection, inspect
from tuned_samples import matmul

# Two equal matmuls, one that depends on the first, and an elementwise op of a size unknown.
PROGRAM = """
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %d: tensor<?xf32>)
    -> (tensor<64x64xf32>, tensor<?xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%fill : tensor<64x64xf32>) -> tensor<64x64xf32>
  %e = linalg.matmul ins(%c, %b : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%fill : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = math.tanh %d : tensor<?xf32>
  return %e, %r : tensor<64x64xf32>, tensor<?xf32>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "program.mlir"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def found(program: Path) -> Inspection:
    with pytest.MonkeyPatch.context() as patch:

        def forbidden(*_: object, **__: object) -> None:
            raise AssertionError("inspecting measures and stores nothing")

        patch.setattr(Benchmark, "__init__", forbidden)
        patch.setattr(Database, "open", forbidden)
        return inspect(program, threads=2)


def test_equal_workloads_are_one_with_their_count(found: Inspection) -> None:
    (variant,) = found.variants
    (dispatch,) = variant.dispatches
    assert variant.name == "default"
    assert dispatch.count == 2
    assert all("matmul_64x64x64_f32" in name for name in dispatch.names)
    assert dispatch.workload.startswith("contraction 64x64x64 f32")
    assert dispatch.flops == 2 * 64**3


def test_the_compilers_choice_in_words(found: Inspection) -> None:
    (dispatch,) = found.variants[0].dispatches
    assert re.match(
        "DoubleTilingExpert( enable_loop_peeling)?: distribution ", dispatch.configuration
    )


def test_the_space_and_what_removes_how_much(found: Inspection) -> None:
    (dispatch,) = found.variants[0].dispatches
    own = [space for space in dispatch.spaces if space.own]
    assert [space.pipeline for space in own] == ["DoubleTilingExpert"]
    assert dispatch.points == sum(space.points for space in dispatch.spaces)
    for space in dispatch.spaces:
        assert 0 < space.low <= space.points <= space.high <= space.total
        assert space.exact == (space.low == space.high)
        shares = [share for _, share in space.rejections]
        assert shares == sorted(shares, reverse=True)
        assert all(0 <= share <= 1 for share in shares)
        assert 1 - space.points / space.total <= sum(shares) + 0.05, "all that is removed is told"
    assert any(share > 0 for _, share in own[0].rejections)


def test_only_knobs_with_an_effect_are_offered(found: Inspection) -> None:
    (dispatch,) = found.variants[0].dispatches
    (space,) = [space for space in dispatch.spaces if space.own]
    knobs = {knob.name: knob for knob in space.knobs}
    assert knobs["distribution_m"].effect
    assert knobs["distribution_m"].values > 1
    # The compiler's CPU pipelines have no loop order.
    assert "interchange" not in knobs
    assert all(knob.effect for knob in space.knobs)


def test_what_cannot_be_tuned_is_named_with_the_reason(found: Inspection) -> None:
    (skipped,) = found.variants[0].skipped
    assert "elementwise" in skipped.name
    assert "run time" in skipped.reason


def test_as_json(found: Inspection, program: Path) -> None:
    data = json.loads(json.dumps(found.to_json()))
    assert data["program"] == str(program)
    (variant,) = data["variants"]
    space = variant["dispatches"][0]["spaces"][0]
    assert isinstance(space["rejections"], dict)
    assert space["points"] == found.variants[0].dispatches[0].spaces[0].points


def test_variants(program: Path) -> None:
    found = tilewright.inspect(program, variants="default,data-tiling", threads=2)
    first, second = found.variants
    assert (first.name, second.name) == ("default", "data-tiling")
    assert second.flags
    assert {d.workload.split()[0] for d in first.dispatches} == {"contraction"}
    assert "mmt4d" in {d.workload.split()[0] for d in second.dispatches}


def test_only_leaves_the_others_out_and_says_so(program: Path) -> None:
    (variant,) = tilewright.inspect(program, only="softmax", threads=2).variants
    assert variant.dispatches == ()
    reasons = {s.reason for s in variant.skipped if "matmul" in s.name}
    assert reasons == {"left out by --only"}


def test_it_says_the_same_twice(found: Inspection, program: Path) -> None:
    assert inspect(program, threads=2) == found


def test_a_program_without_dispatches(tmp_path: Path) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    )
    (variant,) = inspect(path).variants
    assert variant.dispatches == ()
    assert variant.skipped == ()


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        ("func.func @main( {", {}, "IREE cannot parse the program"),
        (matmul(), {"function": "mian"}, "no public function 'mian'; did you mean 'main'?"),
        (matmul(), {"variants": "im2cool"}, "unknown variant 'im2cool'"),
        (matmul(), {"target": "gpu"}, "unknown target 'gpu'"),
        (matmul(), {"iree_flags": ["--no-such-flag"]}, "--no-such-flag"),
        (matmul(), {"input_type": "onyx"}, "did you mean 'onnx'?"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, given: dict[str, object], told: str) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(text)
    with pytest.raises(UserError) as info:
        inspect(path, **given)  # type: ignore[arg-type]
    assert told in str(info.value)
    assert "\n" not in str(info.value)


def test_f64_that_the_compiler_makes_f32_is_said(tmp_path: Path) -> None:
    path = tmp_path / "double.mlir"
    path.write_text(
        "func.func @main(%a: tensor<8xf64>) -> tensor<8xf64> {\n"
        "  %r = arith.addf %a, %a : tensor<8xf64>\n"
        "  return %r : tensor<8xf64>\n"
        "}\n"
    )
    keep = "--iree-input-demote-f64-to-f32=false"
    (note,) = inspect(path).notes
    assert "f64 as f32" in note
    assert keep in note
    kept = inspect(path, iree_flags=[keep])
    assert kept.notes == ()
    assert kept.variants[0].dispatches[0].workload.startswith("elementwise 8 f64")
