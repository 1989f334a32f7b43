"""What a call makes of constants alone is found; what is done ahead is not."""

import pytest

from convolution_networks import network
from dispatch_corpus import FLAGS
from tilewright.ir.constant_work import constant_dispatches
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession

DATA = bytes(n % 61 for n in range(32 * 64 * 4)).hex().upper()
TRANSPOSED = f"""
#in = affine_map<(i, j) -> (j, i)>
#out = affine_map<(i, j) -> (i, j)>
func.func @main(%x: tensor<64x32xf32>) -> (tensor<64x32xf32>, tensor<64x32xf32>) {{
  %w = arith.constant dense<"0x{DATA}"> : tensor<32x64xf32>
  %e = tensor.empty() : tensor<64x32xf32>
  %t = linalg.transpose ins(%w : tensor<32x64xf32>) outs(%e : tensor<64x32xf32>)
    permutation = [1, 0]
  %s = linalg.generic {{indexing_maps = [#out, #in, #out],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x, %w : tensor<64x32xf32>, tensor<32x64xf32>) outs(%e : tensor<64x32xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %0 = arith.addf %a, %b : f32
    linalg.yield %0 : f32
  }} -> tensor<64x32xf32>
  return %t, %s : tensor<64x32xf32>, tensor<64x32xf32>
}}
"""
NOT_AHEAD = "--iree-opt-const-expr-hoisting=false"


def found(text: str, *flags: str) -> dict[str, int]:
    session = CompilerSession([*FLAGS, *flags])
    return dict(constant_dispatches(session.parse(session.compile(text, None, CONFIGURED_PHASE))))


@pytest.mark.parametrize("ahead", [True, False])
def test_a_transposed_constant(ahead: bool) -> None:
    # The sum reads the constant, too, with what it is added to: that is no work on it alone.
    names = found(TRANSPOSED) if ahead else found(TRANSPOSED, NOT_AHEAD)
    assert [("transpose" in name, count) for name, count in names.items()] == (
        [] if ahead else [(True, 1)]
    )


def test_a_network_with_weights_in_it() -> None:
    assert found(network("nchw", seed=0)) == {}
