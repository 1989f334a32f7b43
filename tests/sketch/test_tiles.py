"""Contractions in tiles: every configuration computes the same, whatever the operation is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import erf
from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate
from sketch_cases import AVX2, AVX512

from tilewright import te
from tilewright.schedule.nest import VECTORIZED, For, Store, statements
from tilewright.schedule.types import numpy_type
from tilewright.sketch.contraction import contraction_of
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.tiles import TilesSketch, _climbed
from tilewright.space.generators import DispatchSpace
from tilewright.space.pipeline import Unfit
from tilewright.space.search_space import SearchSpace
from tilewright.target import parse_target
from tilewright.trial import Configuration

TARGET = parse_target("cpu", 2)


def product(
    left: tuple[int, ...], right: tuple[int, ...], letters: str, constant: tuple[bool, ...] = ()
) -> SiteExpression:
    """A contraction of f32 by the letters of `numpy.einsum`."""
    operands, result = letters.split("->")
    sizes: dict[str, int] = {}
    for names, shape in zip(operands.split(","), (left, right), strict=True):
        sizes.update(zip(names, shape, strict=True))
    a, b = te.placeholder(left, "f32", name="a"), te.placeholder(right, "f32", name="b")
    summed = {n: te.reduce_axis(sizes[n], n) for n in sizes if n not in result}

    def element(*axes: Any) -> Any:
        at = dict(zip(result, axes, strict=True)) | summed
        reads = [
            t[tuple(at[n] for n in names)]
            for t, names in zip((a, b), operands.split(","), strict=True)
        ]
        return te.sum(reads[0] * reads[1], axis=list(summed.values()))

    c = te.compute(tuple(sizes[n] for n in result), element, name="c")
    return SiteExpression((a, b), constant or (False, False), c)


def check(site: SiteExpression, wanted: Callable[..., Any], configurations: int = 3) -> TilesSketch:
    """Evaluates random configurations and the default with small integers, which add up exactly."""
    sketch = TilesSketch(site, TARGET)
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, t.shape).astype(numpy_type(t.dtype)) for t in site.inputs]
    expected = wanted(*(v.astype("f8") for v in values))
    for configuration in (sketch.space.default, *sketch.space.sample(rng, configurations)):
        kernel = sketch.schedule(configuration)
        given = list(values)
        for position, packing in kernel.packings.items():
            assert site.constant[position]
            given[position] = packing.of(values[position])
        (found,) = evaluate(kernel.lower().program, given, "random")
        assert np.array_equal(found.astype("f8"), expected), configuration
    return sketch


@pytest.mark.parametrize(
    ("left", "right", "letters"),
    [
        ((7, 17), (17, 33), "mk,kn->mn"),
        ((7, 17), (33, 17), "mk,nk->mn"),
        ((17, 7), (17, 20), "km,kn->mn"),
        ((1, 33), (33, 17), "mk,kn->mn"),
        ((17, 33), (33, 1), "mk,kn->mn"),
        ((2, 5, 6), (2, 6, 18), "bmk,bkn->bmn"),
        ((2, 3, 5, 4), (2, 3, 7, 4), "bhqd,bhkd->bhqk"),
        ((5, 2, 6), (2, 6, 18), "mbk,bkn->mbn"),
        ((3, 4, 5), (5, 2, 9), "hwc,cij->hwij"),
        ((3, 2, 8), (2, 8, 17), "mij,ijn->mn"),
        ((4, 3), (4, 16), "km,kn->nm"),
    ],
)
@pytest.mark.parametrize("constant", [(False, False), (True, True)])
def test_products_of_all_kinds(
    left: tuple[int, ...], right: tuple[int, ...], letters: str, constant: tuple[bool, ...]
) -> None:
    check(product(left, right, letters, constant), lambda a, b: np.einsum(letters, a, b))


def test_a_strided_convolution_with_bias_and_residual() -> None:
    x, w = (
        te.placeholder((1, 9, 7, 5), "f32", name="x"),
        te.placeholder((1, 1, 5, 18), "f32", name="w"),
    )
    b, r = te.placeholder((18,), "f32", name="b"), te.placeholder((1, 5, 4, 18), "f32", name="r")
    axes = [te.reduce_axis(e, n) for e, n in ((1, "p"), (1, "q"), (5, "c"))]
    p, q, c = axes
    shape = (1, 5, 4, 18)
    y = te.compute(
        shape,
        lambda n, h, v, o: te.sum(x[n, h * 2 + p, v * 2 + q, c] * w[p, q, c, o], axis=axes),
        name="y",
    )
    biased = te.compute(shape, lambda n, h, v, o: y[n, h, v, o] + b[o], name="biased")
    z = te.compute(
        shape, lambda n, h, v, o: te.maximum(biased[n, h, v, o] + r[n, h, v, o], 0.0), name="z"
    )
    site = SiteExpression((x, w, b, r), (False, True, True, False), z)
    check(site, lambda x, w, b, r: np.maximum(x[:, ::2, ::2] @ w[0, 0] + b + r, 0))


def test_a_result_that_is_enlarged_has_each_sum_several_times() -> None:
    x, w = te.placeholder((1, 5, 7, 6), "f32", name="x"), te.placeholder((6, 20), "f32", name="w")
    more = te.placeholder((1, 10, 21, 20), "f32", name="more")
    c = te.reduce_axis(6, "c")
    y = te.compute(
        (1, 5, 7, 20), lambda n, i, j, o: te.sum(x[n, i, j, c] * w[c, o], axis=c), name="y"
    )
    positive = te.compute(y.shape, lambda *at: te.maximum(y(*at), 0.0), name="positive")
    z = te.compute(
        more.shape, lambda n, i, j, o: positive[n, i // 2, j // 3, o] + more[n, i, j, o], name="z"
    )

    def wanted(x: Any, w: Any, more: Any) -> Any:
        large = np.maximum(x @ w, 0).repeat(2, axis=1).repeat(3, axis=2) + more
        # Each repetition is a dimension of its own; elements lie where they did.
        return large.reshape(1, 5, 2, 7, 3, 20)

    site = SiteExpression((x, w, more), (False, True, False), z)
    check(site, wanted)
    assert contraction_of(site).sizes == (35, 20, 6)


def test_a_result_whose_channels_are_those_of_groups_has_both_apart() -> None:
    """As a grouped 1x1 convolution has them where something with channels alone is added."""
    x, w = te.placeholder((35, 18), "f32", name="x"), te.placeholder((3, 20, 6), "f32", name="w")
    more = te.placeholder((35, 60), "f32", name="more")
    c = te.reduce_axis(6, "c")
    y = te.compute(
        (35, 3, 20), lambda i, g, o: te.sum(x[i, g * 6 + c] * w[g, o, c], axis=c), name="y"
    )
    z = te.compute((35, 60), lambda i, o: y[i, o // 20, o % 20] + more[i, o], name="z")
    site = SiteExpression((x, w, more), (False, True, False), z)

    def wanted(x: Any, w: Any, more: Any) -> Any:
        groups = np.einsum("igc,goc->igo", x.reshape(35, 3, 6), w)
        return groups + more.reshape(35, 3, 20)

    check(site, wanted)
    found = contraction_of(site)
    assert (found.batches, *found.sizes) == (3, 35, 20, 6)


def test_blocks_of_channels_are_read_in_place() -> None:
    """A 1x1 convolution of 24 channels in blocks of 8: rows are one axis, the depth is three."""
    site = product((3, 5, 7, 8), (4, 3, 8, 8), "chvq,ocqp->ohvp", (False, True))
    sketch = check(site, lambda a, b: np.einsum("chvq,ocqp->ohvp", a, b), 6)
    assert sketch.space.default["left"] == "in place"


@pytest.mark.parametrize("rows", [1, 3])
def test_weights_are_packed_in_the_order_of_a_flattened_image_that_they_are_multiplied_with(
    rows: int,
) -> None:
    """Its channels lie side by side, and a framework that has them first flattened it."""
    x = te.placeholder((rows, 2, 3, 8), "f32", name="x")
    w = te.placeholder((17, 48), "f32", name="w")
    c, i, j = (te.reduce_axis(n, name) for n, name in ((8, "c"), (2, "i"), (3, "j")))
    y = te.compute(
        (rows, 17),
        lambda m, n: te.sum(x[m, i, j, c] * w[n, c * 6 + i * 3 + j], axis=[c, i, j]),
        name="y",
    )
    sketch = check(
        SiteExpression((x, w), (False, True), y),
        lambda a, b: np.einsum("mijc,ncij->mn", a, b.reshape(17, 8, 2, 3)),
    )
    default = dict(sketch.space.default.items)
    assert (default["left"], default["right"]) == ("in place", "ahead")
    form = contraction_of(SiteExpression((x, w), (False, True), y))
    assert form.left.flat[1]
    unknown = contraction_of(SiteExpression((x, w), (False, False), y))
    assert unknown.right.flat[1]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("place", ["in place", "first", "by block"])
def test_a_long_depth_in_parts(apart: bool, place: str) -> None:
    """Parts in turn or as parallel work, with what comes behind."""
    site = product((13, 128), (128, 20), "mk,kn->mn")
    c, b = site.output, te.placeholder((20,), "f32", name="b")
    out = te.compute((13, 20), lambda i, j: te.maximum(c[i, j] + b[j], 0.0), name="out")
    sketch = TilesSketch(SiteExpression((*site.inputs, b), (False,) * 3, out), TARGET)
    wanted = {"depth_pieces": 2, "depth_apart": apart, "left": place, "right": place}
    configuration = Configuration.of(dict(sketch.space.default.items) | wanted)
    assert not sketch.space.violations(configuration)
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, t.shape).astype("f4") for t in (*site.inputs, b)]
    program = sketch.schedule(configuration).lower().program
    assert len(program.kernels) == 1 + apart + 2 * (place == "first")
    (found,) = evaluate(program, values, "random")
    assert np.array_equal(found, np.maximum(values[0] @ values[1] + values[2], 0))


def test_parts_of_the_depth_are_added_up_in_the_result() -> None:
    """No memory of a block's own, no copy, no loops that clear it; what is added to is fetched
    before it is needed."""
    site = product((13, 128), (128, 20), "mk,kn->mn")
    sketch = TilesSketch(site, TARGET)
    configuration = Configuration.of(dict(sketch.space.default.items) | {"depth_pieces": 2})
    assert not sketch.space.violations(configuration)
    lowered = sketch.schedule(configuration).lower()
    text = str(lowered)
    assert "sums" not in text
    assert "prefetch(c.result[" in text
    assert text.count("] = 0.0") == 1
    assert "select(chunk > 0, c.result[" in text
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, t.shape).astype("f4") for t in site.inputs]
    (found,) = evaluate(lowered.program, values, "random")
    assert np.array_equal(found, values[0] @ values[1])


def test_what_is_added_to_a_tile_is_fetched_while_it_is_summed_up() -> None:
    """A matrix behind the sums is, a vector of as many elements as there are columns is not."""
    site = product((12, 16), (16, 32), "mk,kn->mn")
    c, b = site.output, te.placeholder((32,), "f32", name="b")
    r = te.placeholder((12, 32), "f32", name="r")
    biased = te.compute((12, 32), lambda i, j: c[i, j] + b[j], name="biased")
    out = te.compute((12, 32), lambda i, j: te.maximum(biased[i, j] + r[i, j], 0.0), name="out")
    sketch = TilesSketch(SiteExpression((*site.inputs, b, r), (False,) * 4, out), TARGET)
    text = str(sketch.schedule(sketch.space.default).lower())
    assert text.count("prefetch(r[") == 1
    assert "prefetch(b[" not in text


@pytest.mark.parametrize(
    ("columns", "right", "summed"),
    [(20, "ahead", {24}), (20, "by block", {24}), (20, "in place", {20}), (5, "ahead", {8})],
)
@pytest.mark.parametrize(
    "pieces", [{}, {"depth_pieces": 2}, {"depth_pieces": 2, "depth_apart": True}]
)
def test_panels_are_added_up_in_whole_vectors(
    columns: int, right: str, summed: set[int], pieces: dict[str, Any]
) -> None:
    site = product((12, 128), (128, columns), "mk,kn->mn", (False, True))
    sketch = TilesSketch(site, AVX2)
    tile = {"rows": 4, "columns": -(-columns // 8) * 8, "row_pieces": 1, "column_pieces": 1}
    values = {**dict(sketch.space.default.items), **tile, **pieces, "right": right}
    program = sketch.schedule(Configuration.of(values)).lower().program
    inside = [part for kernel in program.kernels for part in statements(kernel.body)]
    loops = [one for one in inside if isinstance(one, For) and one.kind == VECTORIZED]
    stores = [(loop.extent, loop.body) for loop in loops if isinstance(loop.body, Store)]
    assert {extent for extent, store in stores if store.buffer.name == "parts"} == summed


@pytest.mark.parametrize("columns", [5, 20, 21])
def test_columns_that_end_within_a_vector_are_read_from_panels_where_these_cost_nothing(
    columns: int,
) -> None:
    """3136x144 by 20 took 0.41 ms in place and 0.22 with panels (AVX2, one thread)."""
    site = product((3136, 144), (144, columns), "mk,kn->mn", (False, True))
    assert TilesSketch(site, AVX2).space.default["right"] == "ahead"


@pytest.mark.parametrize("inside", [True, False])
def test_the_operand_of_the_next_tiles_is_fetched_while_others_read_this_one(inside: bool) -> None:
    """Panels of the constant below tiles of rows, rows of the other below tiles of columns."""
    site = product((48, 64), (64, 256), "mk,kn->mn", (False, True))
    sketch = TilesSketch(site, AVX512)
    lanes = AVX512.lanes(32)
    values = dict(sketch.space.default.items) | {
        **{"rows": 4, "columns": lanes, "row_pieces": 1, "column_pieces": 1, "unroll": 2},
        **{"left": "in place", "right": "ahead", "rows_inside": inside, "depth_pieces": 1},
    }
    chosen = Configuration.of(values | {"depth_apart": False})
    assert sketch.space.contains(chosen)
    text = str(sketch.schedule(chosen).lower())
    fetched = {line.split("[")[0].strip() for line in text.splitlines() if "cache=2" in line}
    assert fetched == {"prefetch(b.packed" if inside else "prefetch(a"}
    small = TilesSketch(site, replace(AVX512, l2_bytes=2048))
    assert "cache=2" not in str(small.schedule(chosen).lower())
    few = Configuration.of(dict(chosen.items) | {"row_pieces": 12 if inside else 1})
    assert ("cache=2" in str(sketch.schedule(few).lower())) == (not inside)


def test_a_factor_for_all_is_no_operand() -> None:
    x = te.placeholder((4, 9), "f32", name="x")
    k = te.reduce_axis(9, "k")
    mean = te.compute((4,), lambda i: te.sum(x[i, k] * 0.5, axis=k), name="mean")
    with pytest.raises(Unfit, match="no operand is shared"):
        TilesSketch(SiteExpression((x,), (False,), mean), TARGET)


def test_bytes_are_added_up_in_words_and_heads_put_together() -> None:
    """The output's innermost two axes are one of the sums'."""
    a, b = te.placeholder((5, 12), "i8", name="a"), te.placeholder((12, 18), "i8", name="b")
    k = te.reduce_axis(12, "k")
    c = te.compute(
        (5, 18),
        lambda i, j: te.sum(a[i, k].astype("i32") * b[k, j].astype("i32"), axis=k),
        name="c",
    )
    d = te.compute((3, 5, 6), lambda h, i, e: c[i, h * 6 + e] * 2, name="d")
    site = SiteExpression((a, b), (False, False), d)
    check(site, lambda a, b: 2 * (a @ b).reshape(5, 3, 6).transpose(1, 0, 2))


def test_what_comes_before_is_computed_where_it_is_read() -> None:
    a, s = te.placeholder((6, 10), "f16", name="a"), te.placeholder((6,), "f32", name="s")
    b = te.placeholder((16, 10), "f16", name="b")
    wide = te.compute((6, 10), lambda i, k: a[i, k].astype("f32") * s[i], name="wide")
    k = te.reduce_axis(10, "k")
    c = te.compute(
        (6, 16), lambda i, j: te.sum(wide[i, k] * b[j, k].astype("f32"), axis=k), name="c"
    )
    check(SiteExpression((a, s, b), (False,) * 3, c), lambda a, s, b: (a * s[:, None]) @ b.T)


@pytest.mark.parametrize("size", [(100, 33, 70), (7, 1, 64), (33, 256, 128)])
def test_builds_are_right(size: tuple[int, int, int]) -> None:
    """Compiled, with epilogue, of a size that no tile divides."""
    rows, columns, depth = size
    site = product((rows, depth), (depth, columns), "mk,kn->mn", (False, True))
    bias = te.placeholder((columns,), "f32", name="bias")
    c = site.output
    out = te.compute((rows, columns), lambda i, j: te.erf(c[i, j] + bias[j]), name="out")
    site = SiteExpression((*site.inputs, bias), (False, True, True), out)
    sketch = TilesSketch(site, TARGET)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(t.shape).astype("f4") for t in site.inputs]
    wanted = np.vectorize(erf)(values[0].astype("f8") @ values[1] + values[2])
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 1)):
        kernel = sketch.schedule(configuration)
        given = list(values)
        for position, packing in kernel.packings.items():
            given[position] = packing.of(values[position])
        te.build(kernel.schedule, kernel.arguments).verify(wanted, *given)


def test_constraints_say_why() -> None:
    sketch = TilesSketch(product((512, 512), (512, 512), "mk,kn->mn"), TARGET)
    lanes = TARGET.lanes(32)
    wrong = dict(sketch.space.default.items) | {"rows": 16, "columns": 4 * lanes}
    (violation, *_) = sketch.space.violations(Configuration.of(wrong))
    assert violation.name == "registers"
    assert f"{17 * 4 + 1} registers, more than {TARGET.vector_registers}" in violation.reason
    names = {c.name for c in sketch.space.constraints}
    assert {"registers", "unrolled code", "row_pieces of tiles", "memory of a workgroup"} <= names


@pytest.mark.parametrize("knob", ["row_pieces", "column_pieces"])
def test_numbers_of_pieces_are_different_programs(knob: str) -> None:
    """Of 35 rows of tiles and 32 columns, 10 pieces are 9 and 8."""
    wide = 2 * TARGET.lanes(32)
    sketch = TilesSketch(product((210, 64), (64, 32 * wide), "mk,kn->mn"), TARGET)
    plain = dict(sketch.space.default.items) | {"rows": 6, "columns": wide, "depth_apart": False}
    plain |= {"row_pieces": 2, "column_pieces": 2, "left": "in place", "right": "in place"}
    (domain,) = (one for one in sketch.space.knobs if one.name == knob)
    choices = [Configuration.of(plain | {knob: domain.value(n)}) for n in range(domain.cardinality)]
    members = [one for one in choices if sketch.space.contains(one)]
    programs = {sketch.schedule(one).lower().text for one in members}
    assert len(programs) == len(members)
    assert 10 not in {dict(one.items)[knob] for one in members}
    assert {1, 2, 3, 4, 5} <= {dict(one.items)[knob] for one in members}


def test_default_is_the_best_of_the_prior_among_random_ones() -> None:
    sketch = TilesSketch(product((768, 512), (512, 384), "mk,kn->mn"), TARGET)
    others = sketch.space.sample(np.random.default_rng(3), 200)
    (height,) = sketch.space.prior_many([sketch.space.default])
    assert (sketch.space.prior_many(others) <= height + 0.05).mean() > 0.98


def test_what_shares_no_operand_is_for_other_rules() -> None:
    x, w = te.placeholder((9, 16), "f32", name="x"), te.placeholder((3, 16), "f32", name="w")
    k = te.reduce_axis(3, "k")
    depthwise = te.compute((7, 16), lambda i, c: te.sum(x[i + k, c] * w[k, c], axis=k), name="d")
    with pytest.raises(Unfit, match="no operand is shared"):
        TilesSketch(SiteExpression((x, w), (False, True), depthwise), TARGET)
    r = te.reduce_axis(16, "r")
    total = te.compute((9,), lambda i: te.sum(x[i, r], axis=r), name="total")
    with pytest.raises(Unfit, match="no sum of products"):
        TilesSketch(SiteExpression((x,), (False,), total), TARGET)


def test_registered() -> None:
    found = sketches(product((8, 8), (8, 8), "mk,kn->mn"), TARGET)
    assert "tiles" in [sketch.name for sketch in found]


def test_what_another_took_for_best_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = product((96, 64), (64, 80), "mk,kn->mn")
    first, second = TilesSketch(site, TARGET), TilesSketch(site, TARGET)
    second.best = first.space.anchors
    monkeypatch.setattr("tilewright.sketch.tiles._FOUND", {})
    monkeypatch.setattr("tilewright.sketch.tiles._climbed", lambda *_: pytest.fail("climbed"))
    assert second.space.default == first.space.default
    assert second.space.order_size == first.space.order_size
    assert second.space.anchors == first.space.anchors


def test_products_that_differ_by_what_becomes_of_them_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def added(rows: int, factor: float = 1.0) -> SiteExpression:
        plain = product((rows, 64), (64, 80), "mk,kn->mn")
        bias = te.placeholder((80,), "f32", name="bias")
        c = plain.output
        total = te.compute((rows, 80), lambda i, j: c[i, j] * factor + bias[j], name="total")
        return replace(plain, inputs=(*plain.inputs, bias), output=total, constant=(False,) * 3)

    climbed = _climbed
    looked: list[SearchSpace] = []

    def counted(space: SearchSpace, *rest: Any) -> Configuration:
        looked.append(space)
        return climbed(space, *rest)

    monkeypatch.setattr("tilewright.sketch.tiles._FOUND", {})
    monkeypatch.setattr("tilewright.sketch.tiles._climbed", counted)
    first, second = TilesSketch(added(96), TARGET).space, TilesSketch(added(96, 2.0), TARGET).space
    assert second.anchors == first.anchors
    assert len(looked) == 1
    assert TilesSketch(added(48), TARGET).space.default.items
    assert len(looked) == 2, "another size is another product"


def test_each_way_to_read_operands_that_come_with_a_call_is_worth_a_trial() -> None:
    site = product((784, 1152), (1152, 128), "mk,kn->mn")
    caches = {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 32 << 20}
    space = TilesSketch(site, replace(TARGET, vector_bytes=64, vector_registers=32, **caches)).space
    ways = [(dict(one.items)["left"], dict(one.items)["right"]) for one in space.anchors]
    assert space.anchors[0] == space.default
    assert len(set(ways)) == len(ways) > 2
    heights = space.prior_many(space.anchors)
    assert list(heights) == sorted(heights, reverse=True)
    assert heights[0] - heights[-1] < np.log(1.25)
    member = DispatchSpace([], "", None, {"tiles": space}).space
    assert [dict(one.items)["left"] for one in member.anchors[1:]] == [left for left, _ in ways]


def test_where_an_operand_is_known_ahead_one_way_is_tried() -> None:
    site = product((784, 1152), (1152, 128), "mk,kn->mn", constant=(False, True))
    space = TilesSketch(site, TARGET).space
    assert space.anchors == (space.default,)
