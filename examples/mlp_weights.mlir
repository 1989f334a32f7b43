// The multi-layer perceptron of mlp.mlir with its weights outside the program: parameters of the
// scope `model`, given when it runs (and when it is tuned) by --parameters=model=FILE.

util.global private @w0 = #flow.parameter.named<"model"::"w0"> : tensor<256x1024xf32>
util.global private @b0 = #flow.parameter.named<"model"::"b0"> : tensor<1024xf32>
util.global private @w1 = #flow.parameter.named<"model"::"w1"> : tensor<1024x512xf32>
util.global private @b1 = #flow.parameter.named<"model"::"b1"> : tensor<512xf32>
util.global private @w2 = #flow.parameter.named<"model"::"w2"> : tensor<512x128xf32>
util.global private @b2 = #flow.parameter.named<"model"::"b2"> : tensor<128xf32>

func.func @mlp(%x: tensor<196x256xf32>) -> tensor<196x128xf32> {
  %w0 = util.global.load @w0 : tensor<256x1024xf32>
  %b0 = util.global.load @b0 : tensor<1024xf32>
  %w1 = util.global.load @w1 : tensor<1024x512xf32>
  %b1 = util.global.load @b1 : tensor<512xf32>
  %w2 = util.global.load @w2 : tensor<512x128xf32>
  %b2 = util.global.load @b2 : tensor<128xf32>

  %p0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<196x256xf32>, tensor<256x1024xf32>) -> tensor<196x1024xf32>
  %c0 = stablehlo.broadcast_in_dim %b0, dims = [1] : (tensor<1024xf32>) -> tensor<196x1024xf32>
  %h0 = stablehlo.add %p0, %c0 : tensor<196x1024xf32>
  %a0 = call @gelu(%h0) : (tensor<196x1024xf32>) -> tensor<196x1024xf32>

  %p1 = stablehlo.dot_general %a0, %w1, contracting_dims = [1] x [0]
      : (tensor<196x1024xf32>, tensor<1024x512xf32>) -> tensor<196x512xf32>
  %c1 = stablehlo.broadcast_in_dim %b1, dims = [1] : (tensor<512xf32>) -> tensor<196x512xf32>
  %h1 = stablehlo.add %p1, %c1 : tensor<196x512xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<196x512xf32>
  %a1 = stablehlo.maximum %h1, %zero : tensor<196x512xf32>

  %p2 = stablehlo.dot_general %a1, %w2, contracting_dims = [1] x [0]
      : (tensor<196x512xf32>, tensor<512x128xf32>) -> tensor<196x128xf32>
  %c2 = stablehlo.broadcast_in_dim %b2, dims = [1] : (tensor<128xf32>) -> tensor<196x128xf32>
  %y = stablehlo.add %p2, %c2 : tensor<196x128xf32>
  return %y : tensor<196x128xf32>
}

// GELU with the tanh approximation: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))).
func.func private @gelu(%x: tensor<196x1024xf32>) -> tensor<196x1024xf32> {
  %half = stablehlo.constant dense<0.5> : tensor<196x1024xf32>
  %one = stablehlo.constant dense<1.0> : tensor<196x1024xf32>
  %cubic = stablehlo.constant dense<0.044715> : tensor<196x1024xf32>
  %scale = stablehlo.constant dense<0.797884583> : tensor<196x1024xf32>
  %x2 = stablehlo.multiply %x, %x : tensor<196x1024xf32>
  %x3 = stablehlo.multiply %x2, %x : tensor<196x1024xf32>
  %c = stablehlo.multiply %cubic, %x3 : tensor<196x1024xf32>
  %s = stablehlo.add %x, %c : tensor<196x1024xf32>
  %u = stablehlo.multiply %scale, %s : tensor<196x1024xf32>
  %t = stablehlo.tanh %u : tensor<196x1024xf32>
  %v = stablehlo.add %one, %t : tensor<196x1024xf32>
  %h = stablehlo.multiply %half, %x : tensor<196x1024xf32>
  %y = stablehlo.multiply %h, %v : tensor<196x1024xf32>
  return %y : tensor<196x1024xf32>
}
