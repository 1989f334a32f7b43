"""Transposed convolutions by phases: no product with a zero between elements is left."""

from __future__ import annotations

from math import prod

import pytest
from reference_support import parsed
from window_cases import convolution, upsampling

from tilewright import te
from tilewright.schedule.expr import Binary
from tilewright.schedule.tensor import ComputeOp, PlaceholderOp
from tilewright.schedule.walk import nodes
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.phases import PhasedReduction, by_phases
from tilewright.sketch.sliding import sliding_reduction
from tilewright.sketch.structure import computed_stages, extent
from tilewright.sketch.translate import translate


def phased(site: SiteExpression) -> PhasedReduction | None:
    (op,) = (op for op in computed_stages(site.output) if op.reduction is not None)
    return by_phases(site, op)


def points(op: ComputeOp) -> int:
    return prod(map(extent, (*op.axis, *op.reduce_axis)))


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (4, 2, 1), (6, 3, 0), (4, 4, 0)])
def test_each_output_has_the_taps_of_its_phase(kernel: int, stride: int, pad: int) -> None:
    site = upsampling(5, 3, 8, kernel, stride, pad=pad)
    found = phased(site)
    assert found is not None
    taps = kernel // stride
    assert points(found.op) == prod(site.output.shape) * 3 * taps**2
    (image,) = (one for one in found.op.input_tensors if one.name != "w")
    bodies = image.op.body if isinstance(image.op, ComputeOp) else ()
    divided = [n for e in bodies for n in nodes(e) if isinstance(n, Binary) and "floor" in n.op]
    assert not divided


def test_an_image_whose_windows_stay_inside_is_read_where_it_is() -> None:
    found = phased(upsampling(5, 3, 8))
    assert found is not None
    assert isinstance(found.image.tensor.op, PlaceholderOp)


def test_of_three_taps_one_phase_has_two_and_the_other_one() -> None:
    found = phased(upsampling(4, 2, 8, 3, pad=1, more=1))
    assert found is not None
    reduction = found.op.reduction
    assert reduction is not None
    assert [extent(phase.window) for phase in found.phases] == [2, 2]
    assert "< 3" in reduction.condition.text({})


def test_padding_alone_is_no_phase() -> None:
    assert phased(convolution((5, 6), 3, 8, pad=1, last=False)) is None


def test_a_stride_over_zeros_stays_as_it_is() -> None:
    # Every second window of what has a zero between its elements.
    x, w = te.placeholder((9,), name="x"), te.placeholder((4, 3), name="w")
    apart = te.compute(
        (17,), lambda i: te.if_then_else((i % 2).equal(0), x[i // 2], 0.0), name="apart"
    )
    k = te.reduce_axis(3, "k")
    y = te.compute((4, 8), lambda f, i: te.sum(apart[i * 2 + k] * w[f, k], axis=k), name="y")
    site = SiteExpression((x, w), (False, True), y)
    assert phased(site) is None
    assert not sliding_reduction(site).phases


def test_an_image_without_its_batch_is_spread_out_with_channels_last() -> None:
    """Dispatches drop the dimension of one element, which insert_slice puts back."""
    image, spread, filters, result = (
        f"tensor<{shape}xf32>" for shape in ("4x5x8", "1x11x13x8", "4x4x8x6", "1x8x10x6")
    )
    module = f"""
func.func @main(%x: {image}, %w: {filters}) -> {result} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {spread}
  %f = linalg.fill ins(%zero : f32) outs(%e : {spread}) -> {spread}
  %s = tensor.insert_slice %x into %f[0, 2, 2, 0] [1, 4, 5, 8] [1, 2, 2, 1] : {image} into {spread}
  %r = tensor.empty() : {result}
  %g = linalg.fill ins(%zero : f32) outs(%r : {result}) -> {result}
  %y = linalg.conv_2d_nhwc_hwcf ins(%s, %w : {spread}, {filters}) outs(%g : {result}) -> {result}
  return %y : {result}
}}
"""
    with parsed(module) as read:
        found = phased(translate(read, "main"))
    assert found is not None
    assert points(found.op) == 8 * 10 * 6 * 8 * 2**2
