# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""Small programs, one per kind of op that the reference interprets; each has a function `main`."""

from __future__ import annotations


def matmul(m: int, n: int, k: int, source: str, result: str, op: str = "linalg.matmul") -> str:
    zero = "0" if result.startswith("i") else "0.0"
    a, b, c = f"tensor<{m}x{k}x{source}>", f"tensor<{k}x{n}x{source}>", f"tensor<{m}x{n}x{result}>"
    return f"""
func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %z = arith.constant {zero} : {result}
  %e = tensor.empty() : {c}
  %f = linalg.fill ins(%z : {result}) outs(%e : {c}) -> {c}
  %r = {op} ins(%a, %b : {a}, {b}) outs(%f : {c}) -> {c}
  return %r : {c}
}}"""


def elementwise(body: str, source: str, result: str, operands: int = 1, n: int = 97) -> str:
    """A parallel linalg.generic over vectors; `body` defines %r from %x0, %x1…"""
    one_in, one_out = f"tensor<{n}x{source}>", f"tensor<{n}x{result}>"
    arguments = ", ".join(f"%a{i}: {one_in}" for i in range(operands))
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (operands + 1))
    return f"""
func.func @main({arguments}) -> {one_out} {{
  %c = arith.constant 1.5 : f32
  %e = tensor.empty() : {one_out}
  %o = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins({", ".join(f"%a{i}" for i in range(operands))} : {", ".join([one_in] * operands)})
      outs(%e : {one_out}) {{
  ^bb0({", ".join(f"%x{i}: {source}" for i in range(operands))}, %out: {result}):
    {body}
    linalg.yield %r : {result}
  }} -> {one_out}
  return %o : {one_out}
}}"""


def window(
    op: str, image: str, weights: str, result: str, attributes: str, zero: str = "0.0"
) -> str:
    """A convolution or pooling; `weights` of a pooling is the shape of its window."""
    pooling = "pooling" in op
    element = result.rsplit("x", 1)[1]
    head = f"%a: tensor<{image}>" + ("" if pooling else f", %b: tensor<{weights}>")
    made = f"%b = tensor.empty() : tensor<{weights}>" if pooling else ""
    return f"""
func.func @main({head}) -> tensor<{result}> {{
  {made}
  %z = arith.constant {zero} : {element}
  %e = tensor.empty() : tensor<{result}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<{result}>) -> tensor<{result}>
  %r = {op} {{{attributes}}} ins(%a, %b : tensor<{image}>, tensor<{weights}>)
      outs(%f : tensor<{result}>) -> tensor<{result}>
  return %r : tensor<{result}>
}}"""


def _window2(stride: int, dilation: int) -> str:
    return (
        f"strides = dense<{stride}> : vector<2xi64>, dilations = dense<{dilation}> : vector<2xi64>"
    )


def quantised(unsigned: bool) -> str:
    """Numbers as bytes; these, whose rows have scales and zero points of their own, as numbers in
    another order."""
    low, high, stored, read = (
        (0, 255, ", storage_unsigned", ", input_unsigned, zp_unsigned")
        if unsigned
        else (-128, 127, "", "")
    )
    same, row, one, turned = (
        f"affine_map<(d0, d1) -> ({to})>" for to in ("d0, d1", "d0", "", "d1, d0")
    )
    return f"""
func.func @main(%x: tensor<7x9xf32>, %p: tensor<7xi8>) -> (tensor<7x9xi8>, tensor<9x7xf32>) {{
  %s = arith.constant 0.0173 : f32
  %z = arith.constant 3 : i64
  %t = arith.constant dense<[0.5, 0.25, 1.5, 0.125, 3.0, 0.75, 0.875]> : tensor<7xf32>
  %e = tensor.empty() : tensor<7x9xi8>
  %q = iree_linalg_ext.quantize_affine <indexing_maps = [{same}, {one}, {one}, {same}], quant_min = {low}, quant_max = {high}{stored}>
      ins(%x, %s, %z : tensor<7x9xf32>, f32, i64) outs(%e : tensor<7x9xi8>) -> tensor<7x9xi8>
  %f = tensor.empty() : tensor<9x7xf32>
  %d = iree_linalg_ext.dequantize_affine <indexing_maps = [{same}, {row}, {row}, {turned}], quant_min = {low}, quant_max = {high}{read}>
      ins(%q, %t, %p : tensor<7x9xi8>, tensor<7xf32>, tensor<7xi8>) outs(%f : tensor<9x7xf32>) -> tensor<9x7xf32>
  return %q, %d : tensor<7x9xi8>, tensor<9x7xf32>
}}"""


PROGRAMS: dict[str, str] = {
    "quantised": quantised(False),
    "quantised_unsigned": quantised(True),
    "matmul_f32": matmul(37, 29, 53, "f32", "f32"),
    "matmul_f16_f32": matmul(32, 16, 24, "f16", "f32"),
    "matmul_f16_f16": matmul(32, 16, 24, "f16", "f16"),
    "matmul_bf16_f32": matmul(32, 16, 24, "bf16", "f32"),
    "matmul_i8_i32": matmul(19, 23, 40, "i8", "i32"),
    "matmul_i8_wraps": matmul(9, 7, 50, "i8", "i8"),
    "conv_nhwc_strided_dilated": window(
        "linalg.conv_2d_nhwc_hwcf", "2x15x15x3xf32", "3x3x3x8xf32", "2x6x6x8xf32", _window2(2, 2)
    ),
    "conv_nchw": window(
        "linalg.conv_2d_nchw_fchw", "1x4x12x12xf32", "6x4x3x3xf32", "1x6x10x10xf32", _window2(1, 1)
    ),
    "conv_grouped": window(
        "linalg.conv_2d_ngchw_gfchw",
        "1x2x4x9x9xf32",
        "2x3x4x3x3xf32",
        "1x2x3x7x7xf32",
        _window2(1, 1),
    ),
    "conv_depthwise": window(
        "linalg.depthwise_conv_2d_nhwc_hwc",
        "1x13x13x16xf32",
        "3x3x16xf32",
        "1x6x6x16xf32",
        _window2(2, 1),
    ),
    "conv_1d": window(
        "linalg.conv_1d_nwc_wcf",
        "2x20x4xf32",
        "5x4x8xf32",
        "2x16x8xf32",
        "strides = dense<1> : vector<1xi64>, dilations = dense<1> : vector<1xi64>",
    ),
    "pool_max": window(
        "linalg.pooling_nhwc_max",
        "1x12x12x8xf32",
        "3x3xf32",
        "1x5x5x8xf32",
        _window2(2, 1),
        "0xFF800000",
    ),
    "pool_sum": window(
        "linalg.pooling_nchw_sum", "1x8x12x12xf32", "2x2xf32", "1x8x6x6xf32", _window2(2, 1)
    ),
    "mathematics": elementwise(
        """%a = math.absf %x0 : f32
    %b = arith.addf %a, %c : f32
    %l = math.log %b : f32
    %p = math.powf %b, %l : f32
    %q = math.rsqrt %p : f32
    %t = math.tanh %x1 : f32
    %f = math.erf %x1 : f32
    %e2 = math.exp %t : f32
    %m = math.fma %e2, %f, %q : f32
    %fl = math.floor %m : f32
    %ce = math.ceil %x0 : f32
    %s = arith.subf %ce, %fl : f32
    %w = arith.cmpf olt, %x0, %x1 : f32
    %v = arith.select %w, %s, %m : f32
    %d = arith.divf %v, %b : f32
    %r = arith.minimumf %d, %b : f32""",
        "f32",
        "f32",
        operands=2,
    ),
    "integers": elementwise(
        """%k = arith.constant 3 : i8
    %one = arith.constant 1 : i8
    %m = arith.muli %x0, %x1 : i8
    %h = arith.shli %x0, %k : i8
    %u = arith.shrui %x1, %one : i8
    %v = arith.shrsi %x1, %one : i8
    %den = arith.ori %x1, %one : i8
    %q = arith.divsi %m, %den : i8
    %y = arith.remsi %h, %den : i8
    %z = arith.divui %u, %den : i8
    %lt = arith.cmpi ult, %x0, %x1 : i8
    %s = arith.select %lt, %q, %y : i8
    %s1 = arith.extsi %s : i8 to i32
    %s2 = arith.extui %z : i8 to i32
    %s3 = arith.extsi %v : i8 to i32
    %t = arith.addi %s1, %s2 : i32
    %r = arith.maxsi %t, %s3 : i32""",
        "i8",
        "i32",
        operands=2,
    ),
    "rounding_inside": elementwise(
        """%b = arith.truncf %x0 : f32 to bf16
    %w = arith.extf %b : bf16 to f32
    %r = arith.mulf %w, %c : f32""",
        "f32",
        "f32",
    ),
    "argmax": """
func.func @main(%a: tensor<9x31xf32>) -> (tensor<9xf32>, tensor<9xi32>) {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %e0 = tensor.empty() : tensor<9xf32>
  %e1 = tensor.empty() : tensor<9xi32>
  %f0 = linalg.fill ins(%low : f32) outs(%e0 : tensor<9xf32>) -> tensor<9xf32>
  %f1 = linalg.fill ins(%zero : i32) outs(%e1 : tensor<9xi32>) -> tensor<9xi32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<9x31xf32>) outs(%f0, %f1 : tensor<9xf32>, tensor<9xi32>) {
  ^bb0(%x: f32, %m: f32, %at: i32):
    %i = linalg.index 1 : index
    %j = arith.index_cast %i : index to i32
    %better = arith.cmpf ogt, %x, %m : f32
    %v = arith.select %better, %x, %m : f32
    %k = arith.select %better, %j, %at : i32
    linalg.yield %v, %k : f32, i32
  } -> (tensor<9xf32>, tensor<9xi32>)
  return %r#0, %r#1 : tensor<9xf32>, tensor<9xi32>
}""",
    "sum_and_max": """
func.func @main(%a: tensor<33x65xf32>) -> (tensor<33xf32>, tensor<33xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<33xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<33xf32>) -> tensor<33xf32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<33x65xf32>) outs(%f, %f : tensor<33xf32>, tensor<33xf32>) {
  ^bb0(%x: f32, %s: f32, %m: f32):
    %p = math.exp %x : f32
    %t = arith.addf %s, %p : f32
    %n = arith.maximumf %m, %x : f32
    linalg.yield %t, %n : f32, f32
  } -> (tensor<33xf32>, tensor<33xf32>)
  return %r#0, %r#1 : tensor<33xf32>, tensor<33xf32>
}""",
    "named_movers": """
func.func @main(%a: tensor<6x10xf32>) -> (tensor<10x6xf32>, tensor<10xf32>, tensor<4x10xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6x10xf32>
  %n = linalg.map { arith.negf } ins(%a : tensor<6x10xf32>) outs(%e : tensor<6x10xf32>)
  %e1 = tensor.empty() : tensor<10x6xf32>
  %t = linalg.transpose ins(%n : tensor<6x10xf32>) outs(%e1 : tensor<10x6xf32>) permutation = [1, 0]
  %e2 = tensor.empty() : tensor<10xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e2 : tensor<10xf32>) -> tensor<10xf32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<6x10xf32>) outs(%f : tensor<10xf32>) dimensions = [0]
  %e3 = tensor.empty() : tensor<4x10xf32>
  %b = linalg.broadcast ins(%s : tensor<10xf32>) outs(%e3 : tensor<4x10xf32>) dimensions = [0]
  return %t, %s, %b : tensor<10x6xf32>, tensor<10xf32>, tensor<4x10xf32>
}""",
    "softmax": """
func.func @main(%a: tensor<12x40xf32>) -> tensor<12x40xf32> {
  %e = tensor.empty() : tensor<12x40xf32>
  %r = linalg.softmax dimension(1) ins(%a : tensor<12x40xf32>) outs(%e : tensor<12x40xf32>) -> tensor<12x40xf32>
  return %r : tensor<12x40xf32>
}""",
    "pack_padded": """
func.func @main(%a: tensor<13x30xf32>) -> tensor<4x2x8x8xf32> {
  %p = arith.constant 7.0 : f32
  %e = tensor.empty() : tensor<4x2x8x8xf32>
  %r = linalg.pack %a padding_value(%p : f32) outer_dims_perm = [1, 0] inner_dims_pos = [1, 0]
      inner_tiles = [8, 8] into %e : tensor<13x30xf32> -> tensor<4x2x8x8xf32>
  return %r : tensor<4x2x8x8xf32>
}""",
    "unpack_cropped": """
func.func @main(%a: tensor<4x2x8x8xf32>) -> tensor<13x30xf32> {
  %e = tensor.empty() : tensor<13x30xf32>
  %r = linalg.unpack %a outer_dims_perm = [1, 0] inner_dims_pos = [1, 0]
      inner_tiles = [8, 8] into %e : tensor<4x2x8x8xf32> -> tensor<13x30xf32>
  return %r : tensor<13x30xf32>
}""",
    "mmt4d": """
func.func @main(%a: tensor<4x12x8x2xf32>, %b: tensor<3x12x16x2xf32>, %c: tensor<4x3x8x16xf32>) -> tensor<4x3x8x16xf32> {
  %r = linalg.mmt4d ins(%a, %b : tensor<4x12x8x2xf32>, tensor<3x12x16x2xf32>)
      outs(%c : tensor<4x3x8x16xf32>) -> tensor<4x3x8x16xf32>
  return %r : tensor<4x3x8x16xf32>
}""",
    "quantized_matmul": """
func.func @main(%a: tensor<8x20xi8>, %b: tensor<20x6xi8>, %za: i32, %zb: i32) -> tensor<8x6xi32> {
  %z = arith.constant 0 : i32
  %e = tensor.empty() : tensor<8x6xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<8x6xi32>) -> tensor<8x6xi32>
  %r = linalg.quantized_matmul ins(%a, %b, %za, %zb : tensor<8x20xi8>, tensor<20x6xi8>, i32, i32)
      outs(%f : tensor<8x6xi32>) -> tensor<8x6xi32>
  return %r : tensor<8x6xi32>
}""",
    "division_in_map": """
func.func @main(%a: tensor<5x8xf32>) -> tensor<40xf32> {
  %e = tensor.empty() : tensor<40xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i floordiv 8, i mod 8)>,
      affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%a : tensor<5x8xf32>) outs(%e : tensor<40xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<40xf32>
  return %r : tensor<40xf32>
}""",
    "gather_in_body": """
func.func @main(%table: tensor<16x6xf32>, %at: tensor<7xi32>) -> tensor<7x6xf32> {
  %e = tensor.empty() : tensor<7x6xf32>
  %low = arith.constant 0 : i32
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%at : tensor<7xi32>) outs(%e : tensor<7x6xf32>) {
  ^bb0(%k: i32, %o: f32):
    %c = arith.maxsi %k, %low : i32
    %i = arith.index_cast %c : i32 to index
    %j = linalg.index 1 : index
    %v = tensor.extract %table[%i, %j] : tensor<16x6xf32>
    linalg.yield %v : f32
  } -> tensor<7x6xf32>
  return %r : tensor<7x6xf32>
}""",
    "tensor_ops": """
func.func @main(%a: tensor<6x8xf32>, %b: tensor<2x3xf32>) -> (tensor<9x12xf32>, tensor<12x8xf32>, tensor<6x2x4xf32>) {
  %p = arith.constant 2.5 : f32
  %padded = tensor.pad %a low[1, 2] high[2, 2] {
  ^bb0(%i: index, %j: index):
    tensor.yield %p : f32
  } : tensor<6x8xf32> to tensor<9x12xf32>
  %w = tensor.insert_slice %b into %padded[0, 1] [2, 3] [3, 4] : tensor<2x3xf32> into tensor<9x12xf32>
  %joined = tensor.concat dim(0) %a, %a : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<12x8xf32>
  %x = tensor.expand_shape %a [[0], [1, 2]] output_shape [6, 2, 4] : tensor<6x8xf32> into tensor<6x2x4xf32>
  return %w, %joined, %x : tensor<9x12xf32>, tensor<12x8xf32>, tensor<6x2x4xf32>
}""",
    "attention": """
func.func @main(%q: tensor<2x16x8xf32>, %k: tensor<2x24x8xf32>, %v: tensor<2x24x12xf32>, %m: tensor<2x16x24xf32>) -> tensor<2x16x12xf32> {
  %s = arith.constant 0.35 : f32
  %e = tensor.empty() : tensor<2x16x12xf32>
  %r = iree_linalg_ext.attention <indexing_maps = [affine_map<(b, m, n, k, l) -> (b, m, k)>,
      affine_map<(b, m, n, k, l) -> (b, l, k)>, affine_map<(b, m, n, k, l) -> (b, l, n)>,
      affine_map<(b, m, n, k, l) -> ()>, affine_map<(b, m, n, k, l) -> (b, m, l)>,
      affine_map<(b, m, n, k, l) -> (b, m, n)>]>
      ins(%q, %k, %v, %s, %m : tensor<2x16x8xf32>, tensor<2x24x8xf32>, tensor<2x24x12xf32>, f32, tensor<2x16x24xf32>)
      outs(%e : tensor<2x16x12xf32>) {
  ^bb0(%x: f32):
    iree_linalg_ext.yield %x : f32
  } -> tensor<2x16x12xf32>
  return %r : tensor<2x16x12xf32>
}""",
    "attention_region": """
func.func @main(%q: tensor<2x16x8xf32>, %k: tensor<2x24x8xf32>, %v: tensor<2x24x12xf32>) -> tensor<2x16x12xf32> {
  %s = arith.constant 0.35 : f32
  %e = tensor.empty() : tensor<2x16x12xf32>
  %r = iree_linalg_ext.attention <indexing_maps = [affine_map<(b, m, n, k, l) -> (b, m, k)>,
      affine_map<(b, m, n, k, l) -> (b, l, k)>, affine_map<(b, m, n, k, l) -> (b, l, n)>,
      affine_map<(b, m, n, k, l) -> ()>, affine_map<(b, m, n, k, l) -> (b, m, n)>]>
      ins(%q, %k, %v, %s : tensor<2x16x8xf32>, tensor<2x24x8xf32>, tensor<2x24x12xf32>, f32)
      outs(%e : tensor<2x16x12xf32>) {
  ^bb0(%x: f32):
    %y = math.tanh %x : f32
    iree_linalg_ext.yield %y : f32
  } -> tensor<2x16x12xf32>
  return %r : tensor<2x16x12xf32>
}""",
    "online_attention": """
func.func @main(%q: tensor<2x16x8xf32>, %k: tensor<2x24x8xf32>, %v: tensor<2x24x4xf32>, %o: tensor<2x16x4xf32>, %m: tensor<2x16xf32>, %l: tensor<2x16xf32>) -> (tensor<2x16x4xf32>, tensor<2x16xf32>, tensor<2x16xf32>) {
  %s = arith.constant 0.35 : f32
  %r:3 = iree_linalg_ext.online_attention <indexing_maps = [affine_map<(b, m, n, k, l) -> (b, m, k)>,
      affine_map<(b, m, n, k, l) -> (b, l, k)>, affine_map<(b, m, n, k, l) -> (b, l, n)>,
      affine_map<(b, m, n, k, l) -> ()>, affine_map<(b, m, n, k, l) -> (b, m, n)>,
      affine_map<(b, m, n, k, l) -> (b, m)>, affine_map<(b, m, n, k, l) -> (b, m)>]>
      ins(%q, %k, %v, %s : tensor<2x16x8xf32>, tensor<2x24x8xf32>, tensor<2x24x4xf32>, f32)
      outs(%o, %m, %l : tensor<2x16x4xf32>, tensor<2x16xf32>, tensor<2x16xf32>) {
  ^bb0(%x: f32):
    iree_linalg_ext.yield %x : f32
  } -> tensor<2x16x4xf32>, tensor<2x16xf32>, tensor<2x16xf32>
  return %r#0, %r#1, %r#2 : tensor<2x16x4xf32>, tensor<2x16xf32>, tensor<2x16xf32>
}""",
    "scan": """
func.func @main(%a: tensor<4x20xf32>) -> (tensor<4x20xf32>, tensor<4xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x20xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %r:2 = iree_linalg_ext.scan dimension(1) inclusive(true) ins(%a : tensor<4x20xf32>)
      outs(%e, %f : tensor<4x20xf32>, tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32):
    %s = arith.addf %x, %y : f32
    iree_linalg_ext.yield %s : f32
  } -> tensor<4x20xf32>, tensor<4xf32>
  return %r#0, %r#1 : tensor<4x20xf32>, tensor<4xf32>
}""",
    "scatter": """
func.func @main(%u: tensor<3x5xf32>, %i: tensor<3x1xi32>, %o: tensor<16x5xf32>) -> tensor<16x5xf32> {
  %r = iree_linalg_ext.scatter dimension_map = [0] unique_indices(false)
      ins(%u, %i : tensor<3x5xf32>, tensor<3x1xi32>) outs(%o : tensor<16x5xf32>) {
  ^bb0(%x: f32, %y: f32):
    %s = arith.addf %x, %y : f32
    iree_linalg_ext.yield %s : f32
  } -> tensor<16x5xf32>
  return %r : tensor<16x5xf32>
}""",
    "gather": """
func.func @main(%a: tensor<16x5xf32>, %i: tensor<3xi32>) -> tensor<3x5xf32> {
  %e = tensor.empty() : tensor<3x5xf32>
  %r = iree_linalg_ext.gather dimension_map = [0] ins(%a, %i : tensor<16x5xf32>, tensor<3xi32>)
      outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
  return %r : tensor<3x5xf32>
}""",
    "sort": """
func.func @main(%a: tensor<4x20xf32>) -> tensor<4x20xf32> {
  %r = iree_linalg_ext.sort dimension(1) outs(%a : tensor<4x20xf32>) {
  ^bb0(%x: f32, %y: f32):
    %c = arith.cmpf ogt, %x, %y : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<4x20xf32>
  return %r : tensor<4x20xf32>
}""",
    "topk": """
func.func @main(%a: tensor<4x30xf32>) -> (tensor<4x5xf32>, tensor<4x5xi32>) {
  %low = arith.constant 0xFF800000 : f32
  %z = arith.constant 0 : i32
  %e0 = tensor.empty() : tensor<4x5xf32>
  %e1 = tensor.empty() : tensor<4x5xi32>
  %f0 = linalg.fill ins(%low : f32) outs(%e0 : tensor<4x5xf32>) -> tensor<4x5xf32>
  %f1 = linalg.fill ins(%z : i32) outs(%e1 : tensor<4x5xi32>) -> tensor<4x5xi32>
  %r:2 = iree_linalg_ext.topk dimension(1) ins(%a : tensor<4x30xf32>)
      outs(%f0, %f1 : tensor<4x5xf32>, tensor<4x5xi32>) {
  ^bb0(%x: f32, %y: f32):
    %c = arith.cmpf ogt, %x, %y : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<4x5xf32>, tensor<4x5xi32>
  return %r#0, %r#1 : tensor<4x5xf32>, tensor<4x5xi32>
}""",
    "im2col": """
func.func @main(%a: tensor<2x10x10x4xf32>) -> tensor<2x64x36xf32> {
  %e = tensor.empty() : tensor<2x64x36xf32>
  %r = iree_linalg_ext.im2col strides = [1, 1] dilations = [1, 1] kernel_size = [3, 3]
      offsets = [0, 0, 0] output_sizes = [[2], [8, 8], [3, 3, 4]]
      batch_pos = [0] m_pos = [1, 2] k_pos = [3] input_k_perm = [0, 1, 2] output_perm = [0, 1, 2]
      ins(%a : tensor<2x10x10x4xf32>) outs(%e : tensor<2x64x36xf32>) -> tensor<2x64x36xf32>
  return %r : tensor<2x64x36xf32>
}""",
    "conv_bias_relu": """
func.func @main(%a: tensor<1x10x10x4xf32>, %w: tensor<3x3x4x8xf32>, %bias: tensor<8xf32>) -> tensor<1x8x8x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x8x8x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
  %c = linalg.conv_2d_nhwc_hwcf {strides = dense<1> : vector<2xi64>, dilations = dense<1> : vector<2xi64>}
      ins(%a, %w : tensor<1x10x10x4xf32>, tensor<3x3x4x8xf32>) outs(%f : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(n, h, w, c) -> (n, h, w, c)>,
      affine_map<(n, h, w, c) -> (c)>, affine_map<(n, h, w, c) -> (n, h, w, c)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%c, %bias : tensor<1x8x8x8xf32>, tensor<8xf32>) outs(%e : tensor<1x8x8x8xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    %t = arith.maximumf %s, %z : f32
    linalg.yield %t : f32
  } -> tensor<1x8x8x8xf32>
  return %r : tensor<1x8x8x8xf32>
}""",
}
