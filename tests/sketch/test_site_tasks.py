"""The task that finds a program's sites: plain data and files that the compiler takes."""

from pathlib import Path

import pytest

import dispatch_corpus as corpus
from tilewright.argument import ArgumentType
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.measure.jobs import WorkerState
from tilewright.sketch.site_tasks import FindSitesRequest, find_sites

ROOT = Path(__file__).parents[2]


def find(program: Path, tmp_path: Path, **more):
    return find_sites(
        WorkerState(), FindSitesRequest(program, corpus.FLAGS, tmp_path / "sites", **more)
    )


def test_sites_of_a_program_with_weights_in_a_file(tmp_path):
    """Weights are constant inputs."""
    sites = find(ROOT / "examples" / "mlp_weights.mlir", tmp_path)
    assert all(not site.reason for site in sites)
    assert len({site.name for site in sites}) == len(sites)
    assert any(site.constant.count(True) for site in sites)
    for site in sites:
        assert len(site.inputs) == len(site.constant)
        assert isinstance(site.output, ArgumentType)
        # What the compiler makes of it alone is one dispatch again.
        text = CompilerSession(corpus.FLAGS).compile(site.module.read_text(), compile_to="flow")
        assert text.count(b"flow.executable private") == 1


def test_what_has_no_module_has_a_reason(tmp_path):
    program = tmp_path / "two.mlir"
    program.write_text(TWO_RESULTS)
    (site,) = find(program, tmp_path)
    assert site.reason == "it has 2 results"
    assert site.module == Path()
    assert site.output is None


TWO_RESULTS = """
func.func @main(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %e = tensor.empty() : tensor<64xf32>
  %s, %c = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
      affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<64xf32>) outs(%e, %e : tensor<64xf32>, tensor<64xf32>) {
  ^bb0(%a: f32, %p: f32, %q: f32):
    %m = arith.addf %a, %a : f32
    %n = arith.mulf %a, %a : f32
    linalg.yield %m, %n : f32, f32
  } -> (tensor<64xf32>, tensor<64xf32>)
  return %s, %c : tensor<64xf32>, tensor<64xf32>
}
"""


def test_a_program_that_does_not_compile(tmp_path):
    program = tmp_path / "wrong.mlir"
    program.write_text("func.func @main() { return %0 }")
    with pytest.raises(CompileError):
        find(program, tmp_path)
