#config = #iree_cpu.lowering_config<vector_common_parallel = [8, 16]>
#config1 = #iree_cpu.lowering_config<distribution = [8, 16, 0], vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 2]>
#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d2, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map3 = affine_map<(d0, d1) -> (d0, d1)>
#map4 = affine_map<(d0, d1) -> (d1)>
#translation = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>
module attributes {tilewright.spec = {target = "llvm-cpu znver4"}, transform.with_named_sequence} {
  transform.named_sequence @tilewright_unconfigured(%arg0: !transform.any_op {transform.readonly}) {
    %0 = transform.structured.match interface{TilingInterface} in %arg0 : (!transform.any_op) -> !transform.any_op
    transform.foreach %0 : !transform.any_op {
    ^bb0(%arg1: !transform.any_op):
      transform.iree.match.has_no_lowering_config %arg1 : !transform.any_op
    }
    transform.yield 
  }
  transform.named_sequence @tilewright_count_ops(%arg0: !transform.any_op {transform.readonly}, %arg1: !transform.param<i64> {transform.readonly}) {
    %0 = transform.num_associations %arg0 : (!transform.any_op) -> !transform.param<i64>
    transform.match.param.cmpi eq %0, %arg1 : !transform.param<i64>
    transform.yield 
  }
  transform.named_sequence @tilewright_count_values(%arg0: !transform.any_value {transform.readonly}, %arg1: !transform.param<i64> {transform.readonly}) {
    %0 = transform.num_associations %arg0 : (!transform.any_value) -> !transform.param<i64>
    transform.match.param.cmpi eq %0, %arg1 : !transform.param<i64>
    transform.yield 
  }
  transform.named_sequence @tilewright_count_operands(%arg0: !transform.any_op {transform.readonly}, %arg1: !transform.param<i64> {transform.readonly}) {
    %0 = transform.get_operand %arg0[all] : (!transform.any_op) -> !transform.any_value
    %1 = transform.num_associations %0 : (!transform.any_value) -> !transform.param<i64>
    transform.match.param.cmpi eq %1, %arg1 : !transform.param<i64>
    transform.yield 
  }
  transform.named_sequence @tilewright_same_value(%arg0: !transform.any_value {transform.readonly}, %arg1: !transform.any_value {transform.readonly}) {
    %0 = transform.merge_handles deduplicate %arg0, %arg1 : !transform.any_value
    %1 = transform.param.constant 1 : i64 -> !transform.param<i64>
    %2 = transform.num_associations %0 : (!transform.any_value) -> !transform.param<i64>
    transform.match.param.cmpi eq %2, %1 : !transform.param<i64>
    transform.yield 
  }
  transform.named_sequence @tuned_0(%arg0: !transform.any_op {transform.readonly}) {
    %0 = transform.param.constant 1 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_ops failures(propagate) (%arg0, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    %1 = transform.structured.match interface{TilingInterface} in %arg0 : (!transform.any_op) -> !transform.any_op
    %2 = transform.param.constant 3 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_ops failures(propagate) (%1, %2) : (!transform.any_op, !transform.param<i64>) -> ()
    transform.include @tilewright_unconfigured failures(propagate) (%arg0) : (!transform.any_op) -> ()
    %3:3 = transform.split_handle %1 : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %4 = transform.param.constant 2 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_operands failures(propagate) (%3#0, %4) : (!transform.any_op, !transform.param<i64>) -> ()
    %5 = transform.structured.match ops{["linalg.fill"]} attributes {} filter_result_type = tensor<64x48xf32> filter_operand_types = [f32, tensor<64x48xf32>] in %3#0 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%5, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    %6 = transform.get_producer_of_operand %3#0[0] : (!transform.any_op) -> !transform.any_op
    %inputs, %outputs = transform.iree.match.cast_compatible_dag_from_root %6 {
      %cst = arith.constant 0.000000e+00 : f32
    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    transform.include @tilewright_count_operands failures(propagate) (%3#1, %2) : (!transform.any_op, !transform.param<i64>) -> ()
    %7 = transform.structured.match ops{["linalg.matmul"]} attributes {indexing_maps = [#map, #map1, #map2]} filter_result_type = tensor<64x48xf32> filter_operand_types = [tensor<64x32xf32>, tensor<32x48xf32>, tensor<64x48xf32>] in %3#1 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%7, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    transform.iree.match.regions %3#1 : !transform.any_op {
    ^bb0(%arg1: tensor<64x32xf32>, %arg2: tensor<32x48xf32>, %arg3: tensor<64x48xf32>):
      %23 = linalg.matmul ins(%arg1, %arg2 : tensor<64x32xf32>, tensor<32x48xf32>) outs(%arg3 : tensor<64x48xf32>) -> tensor<64x48xf32>
    }
    %8 = transform.get_operand %3#1[2] : (!transform.any_op) -> !transform.any_value
    %9 = transform.get_result %3#0[0] : (!transform.any_op) -> !transform.any_value
    transform.include @tilewright_same_value failures(propagate) (%8, %9) : (!transform.any_value, !transform.any_value) -> ()
    transform.include @tilewright_count_operands failures(propagate) (%3#2, %2) : (!transform.any_op, !transform.param<i64>) -> ()
    %10 = transform.structured.match ops{["linalg.generic"]} attributes {indexing_maps = [#map3, #map4, #map3], iterator_types = [#linalg.iterator_type<parallel>, #linalg.iterator_type<parallel>]} filter_result_type = tensor<64x48xf32> filter_operand_types = [tensor<64x48xf32>, tensor<48xf32>, tensor<64x48xf32>] in %3#2 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%10, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    %11 = transform.structured.match in %3#2 : (!transform.any_op) -> !transform.any_op
    %12 = transform.param.constant 5 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_ops failures(propagate) (%11, %12) : (!transform.any_op, !transform.param<i64>) -> ()
    %13 = transform.structured.match ops{["linalg.yield"]} in %3#2 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%13, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    %14 = transform.get_producer_of_operand %13[0] : (!transform.any_op) -> !transform.any_op
    %inputs_0, %outputs_1 = transform.iree.match.cast_compatible_dag_from_root %14 {
    ^bb0(%arg1: f32, %arg2: f32):
      %23 = arith.addf %arg1, %arg2 : f32
      %cst = arith.constant 0.000000e+00 : f32
      %24 = arith.maximumf %23, %cst : f32
      %cst_2 = arith.constant 6.000000e+00 : f32
      %25 = arith.minimumf %24, %cst_2 : f32
    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    %15 = transform.merge_handles deduplicate %inputs_0 : !transform.any_value
    transform.include @tilewright_count_values failures(propagate) (%15, %4) : (!transform.any_value, !transform.param<i64>) -> ()
    %16 = transform.get_operand %3#2[0] : (!transform.any_op) -> !transform.any_value
    %17 = transform.get_result %3#1[0] : (!transform.any_op) -> !transform.any_value
    transform.include @tilewright_same_value failures(propagate) (%16, %17) : (!transform.any_value, !transform.any_value) -> ()
    %18 = transform.param.constant #translation -> !transform.any_param
    transform.annotate %arg0 "translation_info" = %18 : !transform.any_op, !transform.any_param
    %19 = transform.param.constant #config -> !transform.any_param
    transform.annotate %3#0 "lowering_config" = %19 : !transform.any_op, !transform.any_param
    %20 = transform.param.constant #config1 -> !transform.any_param
    transform.annotate %3#1 "lowering_config" = %20 : !transform.any_op, !transform.any_param
    %21 = transform.param.constant #config -> !transform.any_param
    transform.annotate %3#2 "lowering_config" = %21 : !transform.any_op, !transform.any_param
    %22 = transform.param.constant "matmul_bias_clamp" -> !transform.any_param
    transform.annotate %arg0 "tilewright.tuned" = %22 : !transform.any_op, !transform.any_param
    transform.yield 
  }
  transform.named_sequence @__kernel_config(%arg0: !transform.any_op {transform.readonly}) -> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {
    %0 = transform.structured.match ops{["func.func"]} in %arg0 : (!transform.any_op) -> !transform.any_op
    %1 = transform.apply_registered_pass "iree-codegen-materialize-device-encoding" to %0 : (!transform.any_op) -> !transform.any_op
    %2 = transform.apply_registered_pass "iree-codegen-cpu-propagate-data-layout" to %1 : (!transform.any_op) -> !transform.any_op
    %3 = transform.apply_registered_pass "iree-codegen-rematerialize-parallel-ops" to %2 : (!transform.any_op) -> !transform.any_op
    %4 = transform.apply_registered_pass "iree-codegen-insert-batch-dim-for-batchless-conv" to %3 : (!transform.any_op) -> !transform.any_op
    %5 = transform.apply_registered_pass "iree-llvmcpu-expand-f16-op-to-f32" to %4 : (!transform.any_op) -> !transform.any_op
    %6 = transform.apply_registered_pass "iree-convert-accgemm-to-gemm" to %5 : (!transform.any_op) -> !transform.any_op
    %7 = transform.apply_registered_pass "iree-codegen-erase-hal-descriptor-type-from-memref" to %6 : (!transform.any_op) -> !transform.any_op
    %8 = transform.apply_registered_pass "iree-codegen-bufferize-dispatch-tensor-load-store" to %7 : (!transform.any_op) -> !transform.any_op
    %9 = transform.apply_registered_pass "iree-codegen-combine-result-layout-transformation" with options = {"scope" = "dispatch-reshape"} to %8 : (!transform.any_op) -> !transform.any_op
    transform.sequence %9 : !transform.any_op failures(suppress) {
    ^bb0(%arg1: !transform.any_op):
      include @tuned_0 failures(propagate) (%arg1) : (!transform.any_op) -> ()
    }
    transform.yield %9 : !transform.any_op
  }
}
