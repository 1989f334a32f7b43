// 3456x2048 times 2048x1024.
!lhs = tensor<3456x2048xf32>
!rhs = tensor<2048x1024xf32>
!result = tensor<3456x1024xf32>

func.func @matmul_static(%a: !lhs, %b: !rhs) -> !result {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : !result
  %start = linalg.fill ins(%zero : f32) outs(%empty : !result) -> !result
  %product = linalg.matmul ins(%a, %b : !lhs, !rhs) outs(%start : !result) -> !result
  return %product : !result
}
