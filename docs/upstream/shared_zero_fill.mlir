// Two contractions begin with one zero fill, which is packed; their results are added.
// The result is f(x, u) + 2 f(x, v): one of them is written over the fill that the other begins with.
#image = affine_map<(o, h, w, p, c, q) -> (c, h, w, q)>
#weights = affine_map<(o, h, w, p, c, q) -> (o, c, q, p)>
#result = affine_map<(o, h, w, p, c, q) -> (o, h, w, p)>
#same = affine_map<(a, b, c, d) -> (a, b, c, d)>
func.func @main(%x: tensor<4x56x56x16xf32>, %u: tensor<16x4x16x16xf32>, %v: tensor<16x4x16x16xf32>)
    -> tensor<16x56x56x16xf32> {
  %zero = arith.constant 0.0 : f32
  %flat = tensor.empty() : tensor<256x56x56xf32>
  %blocked = tensor.empty() : tensor<16x56x56x16xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%flat : tensor<256x56x56xf32>) -> tensor<256x56x56xf32>
  %start = linalg.pack %fill inner_dims_pos = [0] inner_tiles = [16] into %blocked
      : tensor<256x56x56xf32> -> tensor<16x56x56x16xf32>
  %0 = linalg.generic {
      indexing_maps = [#image, #weights, #result],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]
    } ins(%x, %u : tensor<4x56x56x16xf32>, tensor<16x4x16x16xf32>)
      outs(%start : tensor<16x56x56x16xf32>) {
  ^bb0(%l: f32, %r: f32, %sum: f32):
    %product = arith.mulf %l, %r : f32
    %next = arith.addf %sum, %product : f32
    linalg.yield %next : f32
  } -> tensor<16x56x56x16xf32>
  %1 = linalg.generic {
      indexing_maps = [#image, #weights, #result],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]
    } ins(%x, %v : tensor<4x56x56x16xf32>, tensor<16x4x16x16xf32>)
      outs(%start : tensor<16x56x56x16xf32>) {
  ^bb0(%l: f32, %r: f32, %sum: f32):
    %product = arith.mulf %l, %r : f32
    %next = arith.addf %sum, %product : f32
    linalg.yield %next : f32
  } -> tensor<16x56x56x16xf32>
  %2 = linalg.generic {
      indexing_maps = [#same, #same, #same],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]
    } ins(%0, %1 : tensor<16x56x56x16xf32>, tensor<16x56x56x16xf32>)
      outs(%blocked : tensor<16x56x56x16xf32>) {
  ^bb0(%l: f32, %r: f32, %out: f32):
    %sum = arith.addf %l, %r : f32
    linalg.yield %sum : f32
  } -> tensor<16x56x56x16xf32>
  return %2 : tensor<16x56x56x16xf32>
}
