func.func @main(%x: tensor<48x65x65xf32>, %f: tensor<48x3x3xf32>) -> tensor<48x32x32xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x32x32xf32>
  %0 = linalg.fill ins(%z : f32) outs(%e : tensor<48x32x32xf32>) -> tensor<48x32x32xf32>
  %1 = linalg.generic {
      indexing_maps = [affine_map<(c, i, j, k, l) -> (c, i * 2 + k, j * 2 + l)>,
                       affine_map<(c, i, j, k, l) -> (c, k, l)>,
                       affine_map<(c, i, j, k, l) -> (c, i, j)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %f : tensor<48x65x65xf32>, tensor<48x3x3xf32>) outs(%0 : tensor<48x32x32xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %p = arith.mulf %a, %b : f32
    %q = arith.addf %s, %p : f32
    linalg.yield %q : f32
  } -> tensor<48x32x32xf32>
  %2 = linalg.generic {
      indexing_maps = [affine_map<(c, i, j) -> (c, i * 2, j * 2)>,
                       affine_map<(c, i, j) -> (c, i, j)>, affine_map<(c, i, j) -> (c, i, j)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %1 : tensor<48x65x65xf32>, tensor<48x32x32xf32>) outs(%e : tensor<48x32x32xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %p = arith.addf %a, %b : f32
    linalg.yield %p : f32
  } -> tensor<48x32x32xf32>
  return %2 : tensor<48x32x32xf32>
}
