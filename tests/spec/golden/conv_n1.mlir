#config = #iree_cpu.lowering_config<vector_common_parallel = [1, 1, 1, 16]>
#config1 = #iree_cpu.lowering_config<distribution = [1, 1, 7, 8, 0, 0, 0], vector_common_parallel = [1, 1, 7, 8, 0, 0, 0], vector_reduction = [0, 0, 0, 0, 1, 1, 4]>
#map = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>
#map1 = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>
#map2 = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>
#translation = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<ConvTileAndDecomposeExpert>>
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
    %2 = transform.param.constant 2 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_ops failures(propagate) (%1, %2) : (!transform.any_op, !transform.param<i64>) -> ()
    transform.include @tilewright_unconfigured failures(propagate) (%arg0) : (!transform.any_op) -> ()
    %3:2 = transform.split_handle %1 : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.include @tilewright_count_operands failures(propagate) (%3#0, %2) : (!transform.any_op, !transform.param<i64>) -> ()
    %4 = transform.structured.match ops{["linalg.fill"]} attributes {} filter_result_type = tensor<1x7x7x16xf32> filter_operand_types = [f32, tensor<1x7x7x16xf32>] in %3#0 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%4, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    %5 = transform.get_producer_of_operand %3#0[0] : (!transform.any_op) -> !transform.any_op
    %inputs, %outputs = transform.iree.match.cast_compatible_dag_from_root %5 {
      %cst = arith.constant 0.000000e+00 : f32
    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    %6 = transform.param.constant 3 : i64 -> !transform.param<i64>
    transform.include @tilewright_count_operands failures(propagate) (%3#1, %6) : (!transform.any_op, !transform.param<i64>) -> ()
    %7 = transform.structured.match ops{["linalg.generic"]} attributes {indexing_maps = [#map, #map1, #map2], iterator_types = [#linalg.iterator_type<parallel>, #linalg.iterator_type<parallel>, #linalg.iterator_type<parallel>, #linalg.iterator_type<parallel>, #linalg.iterator_type<reduction>, #linalg.iterator_type<reduction>, #linalg.iterator_type<reduction>]} filter_result_type = tensor<1x7x7x16xf32> filter_operand_types = [tensor<1x9x9x8xf32>, tensor<3x3x8x16xf32>, tensor<1x7x7x16xf32>] in %3#1 : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_count_ops failures(propagate) (%7, %0) : (!transform.any_op, !transform.param<i64>) -> ()
    transform.iree.match.regions %3#1 : !transform.any_op {
    ^bb0(%arg1: tensor<1x9x9x8xf32>, %arg2: tensor<3x3x8x16xf32>, %arg3: tensor<1x7x7x16xf32>):
      %14 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%arg1, %arg2 : tensor<1x9x9x8xf32>, tensor<3x3x8x16xf32>) outs(%arg3 : tensor<1x7x7x16xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %15 = arith.mulf %in, %in_0 : f32
        %16 = arith.addf %out, %15 : f32
        linalg.yield %16 : f32
      } -> tensor<1x7x7x16xf32>
    }
    %8 = transform.get_operand %3#1[2] : (!transform.any_op) -> !transform.any_value
    %9 = transform.get_result %3#0[0] : (!transform.any_op) -> !transform.any_value
    transform.include @tilewright_same_value failures(propagate) (%8, %9) : (!transform.any_value, !transform.any_value) -> ()
    %10 = transform.param.constant #translation -> !transform.any_param
    transform.annotate %arg0 "translation_info" = %10 : !transform.any_op, !transform.any_param
    %11 = transform.param.constant #config -> !transform.any_param
    transform.annotate %3#0 "lowering_config" = %11 : !transform.any_op, !transform.any_param
    %12 = transform.param.constant #config1 -> !transform.any_param
    transform.annotate %3#1 "lowering_config" = %12 : !transform.any_op, !transform.any_param
    %13 = transform.param.constant "conv_n1" -> !transform.any_param
    transform.annotate %arg0 "tilewright.tuned" = %13 : !transform.any_op, !transform.any_param
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
