"""Programs in StableHLO, f32, as texts to be filled with types: what IREE is given."""

from __future__ import annotations


def tensor(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


SOFTMAX = """func.func @main(%x: {matrix}) -> {matrix} {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %largest = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
    : ({matrix}, tensor<f32>) -> {rows}
  %0 = stablehlo.broadcast_in_dim %largest, dims = [0] : ({rows}) -> {matrix}
  %1 = stablehlo.subtract %x, %0 : {matrix}
  %power = stablehlo.exponential %1 : {matrix}
  %total = stablehlo.reduce(%power init: %zero) applies stablehlo.add across dimensions = [1]
    : ({matrix}, tensor<f32>) -> {rows}
  %2 = stablehlo.broadcast_in_dim %total, dims = [0] : ({rows}) -> {matrix}
  %y = stablehlo.divide %power, %2 : {matrix}
  return %y : {matrix}
}}"""

LAYER_NORM = """func.func @main(%x: {matrix}, %gain: {columns}, %bias: {columns}) -> {matrix} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %count = stablehlo.constant dense<{count}> : {rows}
  %epsilon = stablehlo.constant dense<{epsilon:e}> : {rows}
  %total = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
    : ({matrix}, tensor<f32>) -> {rows}
  %mean = stablehlo.divide %total, %count : {rows}
  %0 = stablehlo.broadcast_in_dim %mean, dims = [0] : ({rows}) -> {matrix}
  %centred = stablehlo.subtract %x, %0 : {matrix}
  %1 = stablehlo.multiply %centred, %centred : {matrix}
  %squares = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
    : ({matrix}, tensor<f32>) -> {rows}
  %2 = stablehlo.divide %squares, %count : {rows}
  %3 = stablehlo.add %2, %epsilon : {rows}
  %scale = stablehlo.rsqrt %3 : {rows}
  %4 = stablehlo.broadcast_in_dim %scale, dims = [0] : ({rows}) -> {matrix}
  %5 = stablehlo.multiply %centred, %4 : {matrix}
  %6 = stablehlo.broadcast_in_dim %gain, dims = [1] : ({columns}) -> {matrix}
  %7 = stablehlo.multiply %5, %6 : {matrix}
  %8 = stablehlo.broadcast_in_dim %bias, dims = [1] : ({columns}) -> {matrix}
  %y = stablehlo.add %7, %8 : {matrix}
  return %y : {matrix}
}}"""

# The filter's shape differs, not its elements: depthwise ones are [3, 3, 1, channels].
CONVOLUTION = """func.func @main(%x: {image}, %w: {filter}) -> {result} {{
  %shaped = stablehlo.reshape %w : ({filter}) -> {shaped}
  %y = stablehlo.convolution(%x, %shaped) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
    : ({image}, {shaped}) -> {result}
  return %y : {result}
}}"""

MATMUL = """func.func @main(%a: {a}, %b: {b}) -> {result} {{
  %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {result}
  return %y : {result}
}}"""

MATMUL_BIAS_GELU = """func.func @main(%a: {a}, %b: {b}, %bias: {bias}) -> {result} {{
  %half = stablehlo.constant dense<0.5> : {result}
  %one = stablehlo.constant dense<1.0> : {result}
  %root = stablehlo.constant dense<0.70710678118654752> : {result}
  %product = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {result}
  %0 = stablehlo.broadcast_in_dim %bias, dims = [1] : ({bias}) -> {result}
  %hidden = stablehlo.add %product, %0 : {result}
  %1 = stablehlo.multiply %hidden, %root : {result}
  %2 = chlo.erf %1 : {result} -> {result}
  %3 = stablehlo.add %2, %one : {result}
  %4 = stablehlo.multiply %hidden, %half : {result}
  %y = stablehlo.multiply %4, %3 : {result}
  return %y : {result}
}}"""

RMS_NORM = """func.func @main(%x: {matrix}, %gain: {columns}) -> {matrix} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %count = stablehlo.constant dense<{count}> : {rows}
  %epsilon = stablehlo.constant dense<{epsilon:e}> : {rows}
  %0 = stablehlo.multiply %x, %x : {matrix}
  %squares = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1]
    : ({matrix}, tensor<f32>) -> {rows}
  %1 = stablehlo.divide %squares, %count : {rows}
  %2 = stablehlo.add %1, %epsilon : {rows}
  %scale = stablehlo.rsqrt %2 : {rows}
  %3 = stablehlo.broadcast_in_dim %scale, dims = [0] : ({rows}) -> {matrix}
  %4 = stablehlo.multiply %x, %3 : {matrix}
  %5 = stablehlo.broadcast_in_dim %gain, dims = [1] : ({columns}) -> {matrix}
  %y = stablehlo.multiply %4, %5 : {matrix}
  return %y : {matrix}
}}"""

MAX_POOL = """func.func @main(%x: {image}) -> {result} {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = "stablehlo.reduce_window"(%x, %low) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %larger = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %larger : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>,
      padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>}}
    : ({image}, tensor<f32>) -> {result}
  return %y : {result}
}}"""

# Queries, keys and values of {heads} heads; the scores are scaled by {scale}.
ATTENTION = """func.func @main(%q: {rows}, %k: {rows}, %v: {rows}) -> {rows} {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %factor = stablehlo.constant dense<{scale:e}> : {scores}
  %products = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : ({rows}, {rows}) -> {scores}
  %scaled = stablehlo.multiply %products, %factor : {scores}
  %largest = stablehlo.reduce(%scaled init: %low) applies stablehlo.maximum across dimensions = [2]
    : ({scores}, tensor<f32>) -> {queries}
  %0 = stablehlo.broadcast_in_dim %largest, dims = [0, 1] : ({queries}) -> {scores}
  %1 = stablehlo.subtract %scaled, %0 : {scores}
  %power = stablehlo.exponential %1 : {scores}
  %total = stablehlo.reduce(%power init: %zero) applies stablehlo.add across dimensions = [2]
    : ({scores}, tensor<f32>) -> {queries}
  %2 = stablehlo.broadcast_in_dim %total, dims = [0, 1] : ({queries}) -> {scores}
  %weights = stablehlo.divide %power, %2 : {scores}
  %y = stablehlo.dot_general %weights, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : ({scores}, {rows}) -> {rows}
  return %y : {rows}
}}"""
