// The downsampling block of a residual network and a classifier: StableHLO, NHWC, f32; weights are
// arguments. The shortcut is a strided 1x1 convolution, which IREE makes a `reduction_*` dispatch.

func.func @convnet(%image: tensor<1x28x28x256xf32>,
                   %squeeze: tensor<1x1x256x128xf32>,
                   %spatial: tensor<3x3x128x128xf32>,
                   %expand: tensor<1x1x128x512xf32>,
                   %project: tensor<1x1x256x512xf32>,
                   %classes: tensor<512x10xf32>) -> tensor<1x10xf32> {
  %zero28 = stablehlo.constant dense<0.0> : tensor<1x28x28x128xf32>
  %zero14 = stablehlo.constant dense<0.0> : tensor<1x14x14x128xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x14x14x512xf32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>

  %c0 = stablehlo.convolution(%image, %squeeze)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x28x28x256xf32>, tensor<1x1x256x128xf32>) -> tensor<1x28x28x128xf32>
  %r0 = stablehlo.maximum %c0, %zero28 : tensor<1x28x28x128xf32>
  %c1 = stablehlo.convolution(%r0, %spatial)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[0, 1], [0, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x28x28x128xf32>, tensor<3x3x128x128xf32>) -> tensor<1x14x14x128xf32>
  %r1 = stablehlo.maximum %c1, %zero14 : tensor<1x14x14x128xf32>
  %c2 = stablehlo.convolution(%r1, %expand)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x14x14x128xf32>, tensor<1x1x128x512xf32>) -> tensor<1x14x14x512xf32>

  %shortcut = stablehlo.convolution(%image, %project)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x28x28x256xf32>, tensor<1x1x256x512xf32>) -> tensor<1x14x14x512xf32>
  %sum = stablehlo.add %c2, %shortcut : tensor<1x14x14x512xf32>
  %block = stablehlo.maximum %sum, %zero : tensor<1x14x14x512xf32>

  %total = stablehlo.reduce(%block init: %none) applies stablehlo.add across dimensions = [1, 2]
      : (tensor<1x14x14x512xf32>, tensor<f32>) -> tensor<1x512xf32>
  %points = stablehlo.constant dense<196.0> : tensor<1x512xf32>
  %mean = stablehlo.divide %total, %points : tensor<1x512xf32>
  %logits = stablehlo.dot_general %mean, %classes, contracting_dims = [1] x [0]
      : (tensor<1x512xf32>, tensor<512x10xf32>) -> tensor<1x10xf32>
  return %logits : tensor<1x10xf32>
}
