// The last residual block of ResNet-50 (He et al., 2016): three convolutions over 7x7 positions and
// the shortcut around them. StableHLO, NHWC, f32; weights are arguments.

func.func @bottleneck(%image: tensor<1x7x7x2048xf32>,
                      %squeeze: tensor<1x1x2048x512xf32>,
                      %spatial: tensor<3x3x512x512xf32>,
                      %expand: tensor<1x1x512x2048xf32>) -> tensor<1x7x7x2048xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<1x7x7x512xf32>
  %wide = stablehlo.constant dense<0.0> : tensor<1x7x7x2048xf32>

  %c0 = stablehlo.convolution(%image, %squeeze)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x7x7x2048xf32>, tensor<1x1x2048x512xf32>) -> tensor<1x7x7x512xf32>
  %r0 = stablehlo.maximum %c0, %zero : tensor<1x7x7x512xf32>
  %c1 = stablehlo.convolution(%r0, %spatial)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x7x7x512xf32>, tensor<3x3x512x512xf32>) -> tensor<1x7x7x512xf32>
  %r1 = stablehlo.maximum %c1, %zero : tensor<1x7x7x512xf32>
  %c2 = stablehlo.convolution(%r1, %expand)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x7x7x512xf32>, tensor<1x1x512x2048xf32>) -> tensor<1x7x7x2048xf32>

  %sum = stablehlo.add %c2, %image : tensor<1x7x7x2048xf32>
  %block = stablehlo.maximum %sum, %wide : tensor<1x7x7x2048xf32>
  return %block : tensor<1x7x7x2048xf32>
}
