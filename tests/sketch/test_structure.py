"""Structure of expressions: stages, strides of reads, register tiles, other ways to write them."""

from __future__ import annotations

import numpy as np
import pytest
from nest_evaluator import evaluate

from tilewright import te
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.packing import Packing
from tilewright.sketch.structure import (
    axes_of,
    factors,
    rewritten,
    source_read,
    structure_of,
    tile_sizes,
    values_along,
)


def strided_convolution() -> SiteExpression:
    """A 1x1 convolution with stride 2 of f16, added up in f32, with a bias and a cast before."""
    x, w = te.placeholder((9, 7, 5), "f16", name="x"), te.placeholder((5, 6), "f16", name="w")
    b = te.placeholder((6,), "f32", name="b")
    wide = te.compute((9, 7, 5), lambda h, v, c: te.cast("f32", x[h, v, c]), name="wide")
    c = te.reduce_axis(5, "c")
    y = te.compute(
        (5, 4, 6),
        lambda h, v, o: te.sum(wide[h * 2, v * 2, c] * te.cast("f32", w[c, o]), axis=c),
        name="y",
    )
    z = te.compute((5, 4, 6), lambda h, v, o: y[h, v, o] + b[o], name="z")
    return SiteExpression((x, w, b), (False, True, True), z)


def test_reads_of_a_strided_convolution_have_strides_along_each_axis() -> None:
    site = strided_convolution()
    found = structure_of(site)
    assert found.is_single
    assert found.main is not None
    assert [op.name for op in found.consumers] == ["z"]
    main = found.main
    height, width, channel = main.spatial
    (depth,) = main.reduced
    x, w = main.reads
    assert (x.tensor, w.tensor) == site.inputs[:2]
    assert dict(x.strides) == {height: 70, width: 10, channel: 0, depth: 1}
    assert dict(w.strides) == {height: 0, width: 0, channel: 1, depth: 6}
    assert main.reusing(channel) == (x,)
    assert [main.output_stride(a) for a in main.axes] == [24, 6, 1, 0]
    assert main.widest_bits == 32
    assert main.iterations == 5 * 4 * 6 * 5
    left, right = factors(main.body)
    assert axes_of(left, main.axes) == (height, width, depth)
    read = source_read(right)
    assert read is not None
    assert read.tensor is site.inputs[1]


def test_the_reduction_with_the_most_iterations_is_the_main_one() -> None:
    x = te.placeholder((4, 8), "f32", name="x")
    r, q = te.reduce_axis(8, "r"), te.reduce_axis(4, "q")
    rows = te.compute((4,), lambda i: te.max(x[i, r], axis=r), name="rows")
    total = te.compute((), lambda: te.sum(rows[q], axis=q), name="total")
    found = structure_of(SiteExpression((x,), (False,), total))
    assert [one.op.name for one in found.reductions] == ["rows", "total"]
    assert found.main is found.reductions[0]
    assert not factors(found.main.body)
    assert not found.consumers


def test_a_read_by_quotients_has_no_stride() -> None:
    x = te.placeholder((8,), "f32", name="x")
    r = te.reduce_axis(2, "r")
    y = te.compute((6,), lambda i: te.sum(x[i // 3 + r], axis=r), name="y")
    main = structure_of(SiteExpression((x,), (False,), y)).main
    assert main is not None
    (read,) = main.reads
    assert list(read.strides.values()) == [None, 1]
    assert None in read.strides.values()


def test_an_elementwise_expression_has_no_main_reduction() -> None:
    x = te.placeholder((8,), "f32", name="x")
    y = te.compute((8,), lambda i: x[i] + 1.0, name="y")
    assert structure_of(SiteExpression((x,), (False,), y)).main is None


def test_tile_sizes_have_divisors_and_common_sizes() -> None:
    assert tile_sizes(28, 16) == (1, 2, 3, 4, 6, 7, 8, 12, 14, 16)
    assert tile_sizes(100, 64, 16) == (16, 32, 48, 64)
    assert tile_sizes(5, 64, 16) == (5,)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_packed_operand_in_the_place_of_a_plain_one_gives_the_same(ahead: bool) -> None:
    site = strided_convolution()
    x, w, b = site.inputs
    packing = Packing((0, 2), ((5,), (2, 4)), (1, 0, 2))
    packed = packing.placeholder(w) if ahead else packing.stage(w)
    output = rewritten(site.output, {w: lambda indices: packing.read(packed, indices)})
    arguments = (x, packed if ahead else w, b, output)
    rng = np.random.default_rng(0)
    values = [
        rng.integers(-4, 5, t.shape).astype("f2" if t is not b else "f4") for t in site.inputs
    ]
    given = [values[0], packing.of(values[1]) if ahead else values[1], values[2]]
    (found,) = evaluate(te.lower(te.create_schedule(output), arguments).program, given)
    wanted = values[0][::2, ::2].astype("f4") @ values[1].astype("f4") + values[2]
    assert np.array_equal(found, wanted)
    assert structure_of(SiteExpression(arguments[:-1], (False,) * 3, output)).is_single


def test_values_along_an_axis_are_those_that_it_takes_one_by_one() -> None:
    x = te.placeholder((7, 5), name="x")
    made = te.compute((7, 5), lambda i, j: x[i, j])
    i, j = made.op.axis
    place = te.minimum((i * 3 + 1) // 2 % 4, i - 2)
    assert values_along(place, i).tolist() == [min((n * 3 + 1) // 2 % 4, n - 2) for n in range(7)]
    condition = te.all(i >= 1, te.any(i < 3, i % 2 == 0))
    wanted = [n >= 1 and (n < 3 or n % 2 == 0) for n in range(7)]
    assert values_along(condition, i).tolist() == wanted
    assert values_along(te.const(4, "index"), i).tolist() == [4] * 7
    assert values_along(i + j, i) is None
