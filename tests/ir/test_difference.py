"""A dispatch alone is compared with the program's: every change of code is seen, no other is."""

import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.difference import difference
from tilewright.ir.template import executables

TYPE = "tensor<8x16xf32>"
PROGRAM = """
#layout = #hal.pipeline.layout<constants = 4, bindings = [
  #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>,
  #hal.pipeline.binding<storage_buffer>]>
#wide = #iree_cpu.lowering_config<vector_common_parallel = [1, 16]>
#info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>
hal.executable private @one {
  hal.executable.variant public @cpu target(<"llvm-cpu", "embedded-elf-x86_64", {cpu = "znver4"}>) {
    hal.executable.export public @entry ordinal(0) layout(#layout)
    builtin.module {
      func.func @entry() attributes {translation_info = #info} {
        %c0 = arith.constant 0 : index
        %two = arith.constant 2.0 : f32
        %word = hal.interface.constant.load layout(#layout) ordinal(0) : i32
        %given = arith.bitcast %word : i32 to f32
        %x = hal.interface.binding.subspan layout(#layout) binding(0) alignment(64) offset(%c0)
          : memref<8x16xf32>
        %y = hal.interface.binding.subspan layout(#layout) binding(1) alignment(64) offset(%c0)
          : memref<8x16xf32>
        %a = iree_codegen.load_from_buffer %x : memref<8x16xf32> -> tensor<8x16xf32>
        %e = tensor.empty() : tensor<8x16xf32>
        %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>,
                                              affine_map<(i, j) -> (i, j)>],
                             iterator_types = ["parallel", "parallel"], lowering_config = #wide}
            ins(%a : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) {
        ^bb0(%p: f32, %q: f32):
          %s = arith.mulf %p, %two : f32
          %t = arith.addf %s, %given : f32
          linalg.yield %t : f32
        } -> tensor<8x16xf32>
        iree_codegen.store_to_buffer %r, %y : tensor<8x16xf32> into memref<8x16xf32>
        return
      }
    }
  }
}
"""

SAME = {
    "names": [("@entry", "@entry_of_another_name")],
    "which binding a buffer is": [("binding(0)", "binding(2)")],
    "where a buffer begins": [
        ("%c0 = arith.constant 0 : index", "%c0 = arith.constant 128 : index")
    ],
    "a word of another ordinal": [("ordinal(0) : i32", "ordinal(3) : i32")],
    "the mark for tuners": [
        (
            "lowering_config = #wide",
            "lowering_config = #wide, root_op = #iree_codegen.root_op<set = 0>",
        )
    ],
    "a buffer in the middle of another": [
        ("%x : memref<8x16xf32> ->", "%x : memref<8x16xf32, strided<[16, 1], offset: ?>> ->"),
        (
            "binding(0) alignment(64) offset(%c0)\n          : memref<8x16xf32>",
            "binding(0) alignment(64) offset(%c0) : memref<8x16xf32, strided<[16, 1], offset: ?>>",
        ),
    ],
    "order of what is known": [
        ("        %two = arith.constant 2.0 : f32\n", ""),
        (
            "        %e = tensor.empty",
            "        %two = arith.constant 2.0 : f32\n        %e = tensor.empty",
        ),
    ],
}
DIFFERENT = {
    "the configuration": ([("[1, 16]", "[1, 8]")], "lowering_config"),
    "the pipeline": ([("<DoubleTilingExpert>", "<Default>")], "translation_info"),
    "an attribute that only one has": (
        [('@entry() attributes {', '@entry() attributes {noted = "here", ')],
        "noted = nothing where the program has \"here\"",
    ),
    "the target": ([('"znver4"', '"znver3"')], "target"),
    "a map": ([("-> (i, j)>,\n", "-> (i, 15 - j)>,\n")], "indexing_maps"),
    "a constant": ([("constant 2.0", "constant 3.0")], "mulf"),
    "an op": ([("arith.addf", "arith.subf")], "addf where the program has arith.subf"),
    "an operand": ([("addf %s, %given", "addf %given, %s")], "addf"),
    "another value": ([("mulf %p, %two", "mulf %q, %two")], "another value"),
    "a number that is known": (
        [("addf %s, %given", "addf %s, %two")],
        "a number where the program has a constant",
    ),
    "an op more": (
        [("linalg.yield %t", "%u = math.exp %t : f32\n          linalg.yield %u")],
        "linalg.yield where the program has math.exp",
    ),
    "strides": (
        [
            ("%x : memref<8x16xf32> ->", "%x : memref<8x16xf32, strided<[32, 1]>> ->"),
            (
                "binding(0) alignment(64) offset(%c0)\n          : memref<8x16xf32>",
                "binding(0) alignment(64) offset(%c0) : memref<8x16xf32, strided<[32, 1]>>",
            ),
        ],
        "load_from_buffer",
    ),
    "one buffer for two": ([("%r, %y :", "%r, %x :")], "another value"),
}  # fmt: skip


def compared(changes, **options):
    context = corpus.session().context
    other = PROGRAM
    for before, after in changes:
        assert before in other
        other = other.replace(before, after)
    modules = [ir.Module.parse(text, context) for text in (PROGRAM, other)]
    one, two = (executables(module)["one"] for module in modules)
    found = difference(one, two, **options)
    assert bool(found) == bool(difference(two, one, **options))
    return found


@pytest.mark.parametrize("name", SAME)
def test_what_the_host_decides_is_no_difference(name):
    assert compared(SAME[name]) == ""


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_code_is_a_difference(name):
    changes, said = DIFFERENT[name]
    found = compared(changes)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_body_alone(name):
    changes, _ = DIFFERENT[name]
    own = name in ("the configuration", "the pipeline")
    assert (compared(changes, configuration=False) == "") == own
