// One f32 matmul: C[196x1024] = A[196x256] B[256x1024].

func.func @matmul(%a: tensor<196x256xf32>, %b: tensor<256x1024xf32>) -> tensor<196x1024xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<196x1024xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<196x1024xf32>) -> tensor<196x1024xf32>
  %c = linalg.matmul ins(%a, %b : tensor<196x256xf32>, tensor<256x1024xf32>)
                     outs(%init : tensor<196x1024xf32>) -> tensor<196x1024xf32>
  return %c : tensor<196x1024xf32>
}
