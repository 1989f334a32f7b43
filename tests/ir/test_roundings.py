"""What a program rounds to integers is found, and moved."""

from __future__ import annotations

import pytest
from iree.compiler import ir

from tilewright.ir.roundings import move_roundings
from tilewright.ir.session import SITE_PHASE, CompilerSession
from tilewright.ir.walk import walk
from tilewright.target import parse_target

SAME = "affine_map<(i) -> (i)>"
VALUE = "affine_map<(i) -> ()>"


def generic(body: str) -> str:
    return f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %e = tensor.empty() : tensor<8xf32>
  %y = linalg.generic {{indexing_maps = [{SAME}, {SAME}], iterator_types = ["parallel"]}}
      ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {{
  ^bb0(%a: f32, %o: f32):
    {body}
    linalg.yield %r : f32
  }} -> tensor<8xf32>
  return %y : tensor<8xf32>
}}"""


ROUNDED = generic("%r = math.roundeven %a : f32")
PLACES = generic("""%i = linalg.index 0 : index
    %n = arith.index_cast %i : index to i32
    %f = arith.sitofp %n : i32 to f32
    %h = arith.mulf %f, %f : f32
    %p = math.roundeven %h : f32
    %r = arith.addf %a, %p : f32""")
QUANTISED = f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xi8> {{
  %s = arith.constant 0.25 : f32
  %e = tensor.empty() : tensor<8xi8>
  %y = iree_linalg_ext.quantize_affine <indexing_maps = [{SAME}, {VALUE}, {SAME}],
      quant_min = -128, quant_max = 127> ins(%x, %s : tensor<8xf32>, f32)
      outs(%e : tensor<8xi8>) -> tensor<8xi8>
  return %y : tensor<8xi8>
}}"""


def moved(source: str, factor: float) -> tuple[int, list[float]]:
    """How many roundings a program has, and what they, or their scales, are multiplied by."""
    compiler = CompilerSession(parse_target("cpu").flags)
    text = compiler.compile(source.encode(), compile_to=SITE_PHASE, output="bytecode")
    module = compiler.parse(text)
    count = move_roundings(module, factor)
    module.operation.verify()
    factors = []
    for op in walk(module.operation):
        if op.name in ("math.roundeven", "iree_linalg_ext.quantize_affine"):
            made = op.operands[1 if op.name.startswith("iree") else 0].owner
            if not isinstance(made, ir.Block) and made.operation.name == "arith.mulf":
                by = made.operation.operands[1].owner.operation
                if by.name == "arith.constant":
                    factors.append(ir.FloatAttr(by.attributes["value"]).value)
    return count, factors


def test_what_is_rounded_is_multiplied() -> None:
    assert moved(ROUNDED, 1.25) == (1, [1.25])


def test_what_is_divided_by_a_scale_is_divided_by_less() -> None:
    assert moved(QUANTISED, 1.25) == (1, [pytest.approx(0.8)])


def test_places_are_not_moved() -> None:
    assert moved(PLACES, 1.25) == (0, [])
