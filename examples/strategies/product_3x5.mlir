// 3x5 times 5x3, added to 3x3.
func.func @matmul_static(%a: tensor<3x5xf32>, %b: tensor<5x3xf32>, %c: tensor<3x3xf32>)
    -> tensor<3x3xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<3x5xf32>, tensor<5x3xf32>)
                     outs(%c : tensor<3x3xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}
