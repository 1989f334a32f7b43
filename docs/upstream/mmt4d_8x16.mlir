// Products of 8x1 and 16x1 tiles, two of them added up.
func.func @main(%a: tensor<1x2x8x1xf32>, %b: tensor<1x2x16x1xf32>) -> tensor<1x1x8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x1x8x16xf32>
  %c = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x1x8x16xf32>) -> tensor<1x1x8x16xf32>
  %r = linalg.mmt4d ins(%a, %b : tensor<1x2x8x1xf32>, tensor<1x2x16x1xf32>)
                    outs(%c : tensor<1x1x8x16xf32>) -> tensor<1x1x8x16xf32>
  return %r : tensor<1x1x8x16xf32>
}
