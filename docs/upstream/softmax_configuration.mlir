func.func @main(%x: tensor<1x10xf32>) -> tensor<1x10xf32> {
  %e = tensor.empty() : tensor<1x10xf32>
  %0 = linalg.softmax dimension(1) ins(%x : tensor<1x10xf32>) outs(%e : tensor<1x10xf32>)
      -> tensor<1x10xf32>
  return %0 : tensor<1x10xf32>
}
