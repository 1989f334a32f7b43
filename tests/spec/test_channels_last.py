# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""Channels last in a whole network: no transpose is left inside, numbers stay right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from iree.compiler import ir
from test_blocking import Compiler, is_constant, names

from convolution_networks import Network, Value, network, quantised_network
from tilewright.ir.walk import walk
from tilewright.spec.channels_last import (
    ChannelsFirst,
    find_channels_first,
    write_channels_last_spec,
)
from tilewright.spec.pixel_chains import pixel_chain


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def spec_of(compiler: Compiler, text: str) -> str:
    return write_channels_last_spec(find_channels_first(compiler.module(text, None)))


def transposed(module: ir.Operation) -> list[str]:
    """The types of what is transposed in a call, but for the picture and what has one point."""
    found = [op.operands[0] for op in walk(module) if op.name == "linalg.transpose"]
    data = [ir.RankedTensorType(value.type) for value in found if not is_constant(value)]
    return [str(t) for t in data if 3 not in t.shape and sum(size > 1 for size in t.shape) > 1]


def concatenated(net: Network, *parts: Value) -> Value:
    types = ", ".join(net.type(one.channels, one.side) for one in parts)
    channels, side = sum(one.channels for one in parts), parts[0].side
    values = ", ".join(one.name for one in parts)
    name = net.add(f"tensor.concat dim(1) {values} : ({types}) -> {net.type(channels, side)}")
    return Value(name, channels, side)


def spread(net: Network, x: Value) -> Value:
    """Zeros between the elements, as before the convolution that a transposed one is."""
    side = 2 * x.side - 1
    type_, into = net.type(x.channels, x.side), net.type(x.channels, side)
    name = net.add(
        f"tensor.insert_slice {x.name} into {net.filled(into)}[0, 0, 0, 0] [1, {x.channels}, {x.side}, {x.side}] [1, 1, 2, 2] : {type_} into {into}"
    )
    return Value(name, x.channels, side)


def in_groups(net: Network, x: Value, groups: int, channels: int) -> Value:
    """A 1x1 convolution of groups of channels, as importers write it."""
    part, made, side = x.channels // groups, channels // groups, x.side
    image, whole = f"tensor<1x{groups}x{part}x{side}x{side}xf32>", net.type(channels, side)
    filters, sums = (
        f"tensor<{groups}x{made}x{part}x1x1xf32>",
        f"tensor<1x{groups}x{made}x{side}x{side}xf32>",
    )
    shape = f"[[0], [1, 2], [3], [4]] output_shape [1, {groups}, {part}, {side}, {side}]"
    read = net.add(
        f"tensor.expand_shape {x.name} {shape} : {net.type(x.channels, side)} into {image}"
    )
    name = net.add(
        f"linalg.conv_2d_ngchw_gfchw {{strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}} "
        f"ins({read}, {net.weights(filters)} : {image}, {filters}) outs({net.filled(sums)} : {sums}) -> {sums}"
    )
    name = net.add(f"tensor.collapse_shape {name} [[0], [1, 2], [3], [4]] : {sums} into {whole}")
    return Value(name, channels, side)


def swish(net: Network, x: Value) -> Value:
    """Twice an input: x * min(x, 3)."""
    type_, same = net.type(x.channels, x.side), "(n, a, b, c) -> (n, a, b, c)"
    kinds = '["parallel", "parallel", "parallel", "parallel"]'
    empty, three = net.add(f"tensor.empty() : {type_}"), net.add("arith.constant 3.0 : f32")
    least = net.add(
        f"linalg.generic {{indexing_maps = [affine_map<{same}>, affine_map<{same}>], iterator_types = {kinds}}} "
        f"ins({x.name} : {type_}) outs({empty} : {type_}) {{\n^bb0(%p: f32, %o: f32):\n"
        f"  %s = arith.minimumf %p, {three} : f32\n  linalg.yield %s : f32\n}} -> {type_}"
    )
    name = net.add(
        f"linalg.generic {{indexing_maps = [affine_map<{same}>, affine_map<{same}>, affine_map<{same}>], iterator_types = {kinds}}} "
        f"ins({x.name}, {least} : {type_}, {type_}) outs({empty} : {type_}) {{\n^bb0(%p: f32, %q: f32, %o: f32):\n"
        f"  %s = arith.mulf %p, %q : f32\n  linalg.yield %s : f32\n}} -> {type_}"
    )
    return Value(name, x.channels, x.side)


def scaled(net: Network, x: Value, by: Value) -> Value:
    """Each channel by a number of its own, which is read at the only point that there is."""
    type_, one = net.type(x.channels, x.side), net.type(x.channels, 1)
    same, point = "(n, a, b, c) -> (n, a, b, c)", "(n, a, b, c) -> (n, a, 0, 0)"
    empty = net.add(f"tensor.empty() : {type_}")
    name = net.add(
        f"linalg.generic {{indexing_maps = [affine_map<{same}>, affine_map<{point}>, affine_map<{same}>], "
        'iterator_types = ["parallel", "parallel", "parallel", "parallel"]} '
        f"ins({x.name}, {by.name} : {type_}, {one}) outs({empty} : {type_}) {{\n^bb0(%p: f32, %q: f32, %o: f32):\n"
        f"  %s = arith.mulf %p, %q : f32\n  linalg.yield %s : f32\n}} -> {type_}"
    )
    return Value(name, x.channels, x.side)


def tensor_of(shape: list[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def twice(
    shape: list[int], dim: int
) -> tuple[list[int], str, str, list[int], str, list[list[int]]]:
    """An image's shape with one step for each element of a dimension, and its type; the type with
    two; the shape and the type of which these are; which dimensions become one again."""
    apart, made = [*shape[: dim + 1], 1, *shape[dim + 1 :]], list(shape)
    made[dim] *= 2
    groups = [[at + (at > dim)] for at in range(4)]
    groups[dim] = [dim, dim + 1]
    wide = tensor_of([*shape[: dim + 1], 2, *shape[dim + 1 :]])
    return apart, tensor_of(apart), wide, made, tensor_of(made), groups


def steps(zero: int | None = None) -> str:
    """The dimensions of five loops; `zero` is read in one place alone."""
    return ", ".join("0" if at == zero else f"d{at}" for at in range(5))


def doubled(net: Network, x: Value) -> Value:
    """Twice as large, linear between elements, as the importer has it: rows, then columns."""
    name, shape = x.name, [1, x.channels, x.side, x.side]
    for dim in (2, 3):
        old = tensor_of(shape)

        def part(
            of: str, kind: str, begin: int, count: int, dim: int = dim, shape: list[int] = shape
        ) -> tuple[str, str]:
            sizes = [count if at == dim else size for at, size in enumerate(shape)]
            begins = [begin if at == dim else 0 for at in range(4)]
            type_ = tensor_of(sizes)
            found = net.add(
                f"tensor.extract_slice {of}{begins} {sizes} [1, 1, 1, 1] : {kind} to {type_}"
            )
            return found, type_

        count = shape[dim]
        (first, edge), (last, _) = part(name, old, 0, 1), part(name, old, count - 1, 1)
        longer = [count + 1 if at == dim else size for at, size in enumerate(shape)]
        whole = tensor_of(longer)
        low = net.add(f"tensor.concat dim({dim}) {first}, {name} : ({edge}, {old}) -> {whole}")
        high = net.add(f"tensor.concat dim({dim}) {name}, {last} : ({old}, {edge}) -> {whole}")
        parts = [part(low, whole, 0, count)[0], name, part(high, whole, 1, count)[0]]
        apart, one, two, new, made, groups = twice(shape, dim)
        wide = [
            net.add(f"tensor.expand_shape {value} {groups} output_shape {apart} : {old} into {one}")
            for value in parts
        ]
        weights = [
            net.add(f"arith.constant dense<{numbers}> : tensor<2xf32>")
            for numbers in ([0.25, 0.0], [0.75, 0.75], [0.0, 0.25])
        ]
        dims, read = steps(), steps(zero=dim + 1)
        maps = ", ".join(
            f"affine_map<({dims}) -> ({to})>" for to in (*[read] * 3, *[f"d{dim + 1}"] * 3, dims)
        )
        empty, kinds = net.add(f"tensor.empty() : {two}"), ", ".join(['"parallel"'] * 5)
        values, types = ", ".join([*wide, *weights]), ", ".join([one] * 3 + ["tensor<2xf32>"] * 3)
        body = net.add(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
            f"ins({values} : {types}) outs({empty} : {two}) {{\n"
            "^bb0(%a: f32, %b: f32, %c: f32, %p: f32, %q: f32, %r: f32, %o: f32):\n"
            "  %s = arith.mulf %a, %p : f32\n  %t = arith.mulf %b, %q : f32\n  %u = arith.mulf %c, %r : f32\n"
            "  %v = arith.addf %s, %t : f32\n  %w = arith.addf %v, %u : f32\n"
            f"  linalg.yield %w : f32\n}} -> {two}"
        )
        name = net.add(f"tensor.collapse_shape {body} {groups} : {two} into {made}")
        shape = new
    return Value(name, x.channels, 2 * x.side)


def decoding() -> str:
    """An image that is made larger between convolutions, and is read twice."""
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    x = net.biased(net.convolution(x, 8, 3, 2))
    y = doubled(net, net.biased(net.convolution(x, 8, 1)))
    z = net.sum(net.convolution(y, 8, 1), y)
    z = net.biased(net.convolution(z, 8, 3))
    return net.program(z.name, net.type(8, 16))


def enlarged(dim: int = 2, given: str = "%p") -> str:
    """Elements of one dimension twice, each added to itself or to a number from outside."""
    shape = [1, 4, 4, 4]
    apart, one, two, _, made, groups = twice(shape, dim)
    image, kinds = tensor_of(shape), ", ".join(['"parallel"'] * 5)
    return f"""
func.func @main(%x: {image}) -> {made} {{
  %z = arith.constant 2.0 : f32
  %a = tensor.expand_shape %x {groups} output_shape {apart} : {image} into {one}
  %e = tensor.empty() : {two}
  %t = linalg.generic {{indexing_maps = [affine_map<({steps()}) -> ({steps(zero=dim + 1)})>,
      affine_map<({steps()}) -> ({steps()})>], iterator_types = [{kinds}]}}
      ins(%a : {one}) outs(%e : {two}) {{
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, {given} : f32
    linalg.yield %s : f32
  }} -> {two}
  %c = tensor.collapse_shape %t {groups} : {two} into {made}
  return %c : {made}
}}
"""


def mobile() -> str:
    """Depthwise convolutions, hard-swish, squeeze and excitation."""
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    x = net.biased(net.convolution(x, 8, 3, 2))
    y = swish(net, net.biased(net.depthwise(x)))
    squeezed = net.biased(net.convolution(net.pooled(y, "sum", 8, 1), 8, 1))
    y = net.sum(net.convolution(scaled(net, y, squeezed), 8, 1), x)
    y = net.biased(net.convolution(y, 12, 1, 2))
    return net.program(y.name, net.type(12, 4))


def branching() -> str:
    """Padded pooling, branches that are concatenated, a transposed convolution."""
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    x = net.biased(net.convolution(x, 8, 3, 2))
    y = net.pooled(net.padded(x, 1, 1, "0xFF800000"), "max", 3, 1, "0xFF800000")
    y = net.biased(net.convolution(y, 4, 1))
    z = concatenated(net, net.biased(net.convolution(x, 8, 3)), y)
    z = net.biased(net.convolution(spread(net, z), 8, 3))
    return net.program(z.name, net.type(8, 15))


def grouped() -> str:
    """A residual around a convolution of two groups, one with other channels behind it."""
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    x = net.biased(net.convolution(x, 8, 3, 2))
    y = net.biased(net.sum(in_groups(net, x, 2, 8), x))
    z = net.biased(in_groups(net, y, 2, 12))
    return net.program(z.name, net.type(12, 8))


def dense() -> str:
    """Each layer reads what all before it made; the last also only what layers made."""
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    made = [net.biased(net.convolution(x, 8, 3, 2))]
    for _ in range(3):
        read = concatenated(net, *made) if len(made) > 1 else made[0]
        made.append(net.biased(net.convolution(read, 4, 3)))
    last = concatenated(net, *made[1:])
    both = net.convolution(last, 4, 1), net.convolution(concatenated(net, *made), 4, 1)
    return net.program(net.sum(*both).name, net.type(4, 8))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        # Of the result, which has channels first in the program.
        pytest.param(mobile(), 1, marks=pytest.mark.slow),
        (decoding(), 1),
        pytest.param(branching(), 1, marks=pytest.mark.slow),
        # Of both results before groups and channels become one: their readers take them along.
        (grouped(), 2),
    ],
    ids=["mobile", "decoding", "branching", "grouped"],
)
def test_no_transpose_is_left_inside_and_numbers_stay_right(
    compiler: Compiler, text: str, left: int
) -> None:
    spec = spec_of(compiler, text)
    module = compiler.module(text, spec)
    assert not any("nchw" in name or "ngchw" in name for name in names(module))
    assert len(transposed(module)) <= left
    np.testing.assert_allclose(
        compiler.run(text, spec), compiler.run(text, None), rtol=2e-5, atol=2e-5
    )


def volumes() -> str:
    """A volume and one with zeros between its elements, each convolved, and put together."""
    rng = np.random.default_rng(0)

    def filters(outputs: int, side: int) -> str:
        numbers = rng.standard_normal((outputs, 4, side, side, side)).round(3)
        return f"dense<{numbers.tolist()}> : tensor<{outputs}x4x{side}x{side}x{side}xf32>"

    once = "{strides = dense<1> : tensor<3xi64>, dilations = dense<1> : tensor<3xi64>}"
    return f"""
func.func @main(%x: tensor<1x4x6x6x6xf32>) -> tensor<1x9x4x4x4xf32> {{
  %zero = arith.constant 0.0 : f32
  %a = arith.constant {filters(5, 3)}
  %b = arith.constant {filters(4, 8)}
  %e0 = tensor.empty() : tensor<1x5x4x4x4xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x5x4x4x4xf32>) -> tensor<1x5x4x4x4xf32>
  %c = linalg.conv_3d_ncdhw_fcdhw {once} ins(%x, %a : tensor<1x4x6x6x6xf32>, tensor<5x4x3x3x3xf32>) outs(%z0 : tensor<1x5x4x4x4xf32>) -> tensor<1x5x4x4x4xf32>
  %e1 = tensor.empty() : tensor<1x4x11x11x11xf32>
  %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x4x11x11x11xf32>) -> tensor<1x4x11x11x11xf32>
  %s = tensor.insert_slice %x into %z1[0, 0, 0, 0, 0] [1, 4, 6, 6, 6] [1, 1, 2, 2, 2] : tensor<1x4x6x6x6xf32> into tensor<1x4x11x11x11xf32>
  %e2 = tensor.empty() : tensor<1x4x4x4x4xf32>
  %z2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<1x4x4x4x4xf32>) -> tensor<1x4x4x4x4xf32>
  %d = linalg.conv_3d_ncdhw_fcdhw {once} ins(%s, %b : tensor<1x4x11x11x11xf32>, tensor<4x4x8x8x8xf32>) outs(%z2 : tensor<1x4x4x4x4xf32>) -> tensor<1x4x4x4x4xf32>
  %both = tensor.concat dim(1) %c, %d : (tensor<1x5x4x4x4xf32>, tensor<1x4x4x4x4xf32>) -> tensor<1x9x4x4x4xf32>
  return %both : tensor<1x9x4x4x4xf32>
}}"""


def test_volumes_have_them_last_as_images_do(compiler: Compiler) -> None:
    text = volumes()
    found = find_channels_first(compiler.module(text, None))
    for op in ("tensor.insert_slice", "tensor.concat"):
        assert sum(op in one for one in found.ops) == 1
    spec = write_channels_last_spec(found)
    module = compiler.module(text, spec)
    assert not any("ncdhw" in name for name in names(module))
    moved = [op.operands[0] for op in walk(module) if op.name == "linalg.transpose"]
    data = {str(value.type) for value in moved if not is_constant(value)}
    # Of what comes with the call, and of the result.
    assert data == {"tensor<1x4x6x6x6xf32>", "tensor<1x4x4x4x9xf32>"}
    np.testing.assert_allclose(
        compiler.run(text, spec), compiler.run(text, None), rtol=2e-5, atol=2e-4
    )


@pytest.mark.parametrize("unsigned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_quantised_network_has_them_throughout(compiler: Compiler, unsigned: bool) -> None:
    text = quantised_network(unsigned=unsigned)
    spec = spec_of(compiler, text)
    module = compiler.module(text, spec)
    assert not any("nchw" in name for name in names(module))
    assert len(transposed(module)) <= 1, "of the picture"
    before = compiler.module(text, None)
    for op in ("iree_linalg_ext.quantize_affine", "iree_linalg_ext.dequantize_affine"):
        assert names(module)[op] == names(before)[op] > 0
    # Where a sum lies between two bytes another order of its terms gives another byte.
    plain, found = compiler.run(text, None), compiler.run(text, spec)
    assert np.abs(found - plain).mean() < 0.02 * plain.std()


def test_what_a_concatenation_begins_with_is_copied_as_a_whole(compiler: Compiler) -> None:
    text = dense()
    spec = spec_of(compiler, text)
    parts = [
        [ir.RankedTensorType(value.type).shape[-1] for value in op.operands]
        for op in walk(compiler.module(text, spec))
        if op.name == "tensor.concat"
    ]
    # Of 8 channels and what three layers make; parts that no other begins with stay three.
    assert sorted(parts) == [[4, 4, 4], [8, 4], [12, 4], [16, 4]]
    np.testing.assert_allclose(
        compiler.run(text, spec), compiler.run(text, None), rtol=2e-5, atol=2e-5
    )


def test_axes_are_folded_only_where_the_compiler_would_crash(compiler: Compiler) -> None:
    assert find_channels_first(compiler.module(mobile(), None)).folds
    assert not find_channels_first(compiler.module(branching(), None)).folds


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(enlarged(), True), (enlarged(3), True), (enlarged(1), False), (enlarged(given="%z"), False)],
    ids=["rows", "columns", "channels", "a number from outside"],
)
def test_what_mixes_channels_or_needs_more_than_an_image_is_no_chain(
    text: str, is_one: bool
) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        (end,) = (op for op in walk(module.operation) if op.name == "tensor.collapse_shape")
        assert (pixel_chain(end) is not None) == is_one


def test_equal_ops_are_there_once(compiler: Compiler) -> None:
    module = compiler.module(network("nchw"), None)
    found = find_channels_first(module)
    kinds = [name for text in found.ops for name in ("depthwise", "pooling") if name in text]
    assert sorted(kinds) == ["depthwise", "depthwise", "pooling", "pooling"]
    assert len(set(found.ops)) == len(found.ops)


def test_nothing_to_do(compiler: Compiler) -> None:
    for text in (
        network("nhwc"),
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {return %x : tensor<4xf32>}",
    ):
        assert find_channels_first(compiler.module(text, None)) == ChannelsFirst((), False)
    net = Network("nchw")
    x = Value(net.argument(net.type(4, 8)), 4, 8)
    both = concatenated(net, x, x)
    text = net.program(both.name, net.type(8, 8))
    assert not find_channels_first(compiler.module(text, None)).ops, "no convolutions"
