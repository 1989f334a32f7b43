// 128x128 times 128x128, added to 128x128.
func.func @matmul_tensors(
    %a: tensor<128x128xf32>, %b: tensor<128x128xf32>, %c: tensor<128x128xf32>)
    -> tensor<128x128xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<128x128xf32>, tensor<128x128xf32>)
                     outs(%c : tensor<128x128xf32>) -> tensor<128x128xf32>
  return %0 : tensor<128x128xf32>
}
