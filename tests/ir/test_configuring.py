"""Attributes that configure dispatches: put on them, taken off programs."""

import subprocess
import sys
from pathlib import Path

import pytest
from gpu_programs import attention
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.candidate import make_candidate
from tilewright.ir.configuring import DispatchAttributes, strip
from tilewright.ir.lowering import UnreadableConfiguration
from tilewright.ir.program import strip_program
from tilewright.ir.walk import walk
from tilewright.tiling import CompilationInfo, Tiling, Translation


@pytest.fixture
def context():
    with ir.Context() as context, ir.Location.unknown():
        context.load_all_available_dialects()
        yield context


class TestPutting:
    @pytest.fixture
    def function(self, context):
        module = ir.Module.parse(
            """func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
              %e = math.exp %a {lowering_config = "old"} : tensor<4xf32>
              %t = math.tanh %e {lowering_config = "old"} : tensor<4xf32>
              return %t : tensor<4xf32>
            }"""
        )
        (function,) = module.body.operations
        ops = list(function.regions[0].blocks[0].operations)[:2]
        # The operations live as long as the module.
        return module, function.operation, [op.operation for op in ops]

    def test_what_was_there_is_replaced(self, function):
        _module, target, ops = function
        tiling = Tiling.of({"distribution": (4,)})
        made = DispatchAttributes.of(
            target, CompilationInfo(Translation("Default"), ((1, tiling),))
        )
        made.put_on(target, ops)
        assert "lowering_config" not in ops[0].attributes
        assert DispatchAttributes.read(target, ops) == made
        assert made.ops == ((1, "lowering_config", ir.Attribute.parse(tiling.to_attribute())),)

    @pytest.mark.parametrize("index", [-1, 2])
    def test_ops_that_are_not_there(self, function, index):
        _module, target, ops = function
        configuration = CompilationInfo(Translation("Default"), ((index, Tiling()),))
        with pytest.raises(UnreadableConfiguration, match="2 compute ops"):
            DispatchAttributes.of(target, configuration).put_on(target, ops)
        assert "translation_info" not in target.attributes
        assert "lowering_config" in ops[0].attributes


TRANSLATION = "attributes {translation_info = #iree_codegen.translation_info<pipeline = %s>}"
LOWERING = "lowering_config = #iree_gpu.lowering_config<{workgroup = [1, 64, 0, 0, 64]}>"
# As IREE prints what it has configured for a GPU: attention, with the first of its products.
CONFIGURED_ATTENTION = (
    attention("f16")
    .replace("f16> {", "f16> " + TRANSLATION % "#iree_gpu.pipeline<VectorDistribute>" + " {", 1)
    .replace(
        "]>\n    ins",
        f"], decomposition_config = {{use_exp2 = true, qk_attrs = {{{LOWERING}}}}}>\n"
        f"    {{{LOWERING}, root_op = #iree_codegen.root_op<set = 0>}} ins",
    )
)
FINAL = f"func.func @g() {TRANSLATION % '#iree_codegen.no_pipeline'} {{ return }}"


def test_the_compilers_own_pass_takes_off_the_same(tmp_path):
    source, ours = tmp_path / "a.mlir", tmp_path / "ours.mlir"
    source.write_text(CONFIGURED_ATTENTION)
    text, removed = strip_program(source)
    ours.write_bytes(text)
    assert removed == {
        "translation_info": 1,
        "lowering_config": 1,
        "decomposition_config": 1,
        "root_op": 1,
    }
    assert b"use_exp2" in text
    tool = Path(sys.executable).parent / "iree-opt"
    theirs = subprocess.run(
        [tool, source, "--iree-codegen-strip-compilation-info"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plain = subprocess.run([tool, ours], capture_output=True, text=True, check=True).stdout
    # The pass leaves the compiler's mark, which hides nothing.
    assert theirs.replace(" {root_op = #iree_codegen.root_op<set = 0>}", "") == plain


def test_a_configured_program_is_freed_of_its_executables_configurations(tmp_path):
    """The configured form of a dispatch is what it was before, whatever it was configured by."""
    one = corpus.last("matmul_bias_relu")
    (tmp_path / "own").write_bytes(one.configured)
    other = make_candidate(
        one.configured,
        one.session.context,
        one.executable,
        one.entry,
        CompilationInfo(Translation("Default"), ()),
    )
    (tmp_path / "other").write_text(other.operation.get_asm())
    own, removed = strip_program(tmp_path / "own")
    assert removed["translation_info"] == 1
    assert removed["lowering_config"] >= 2
    assert strip_program(tmp_path / "other")[0] == own
    assert strip_program(tmp_path / "own")[1]
    (tmp_path / "again").write_bytes(own)
    assert strip_program(tmp_path / "again") == (own, {})


def test_code_that_is_final_says_so_afterwards(context):
    module = ir.Module.parse(FINAL)
    assert strip(module.operation, marks=True) == {}
    (function,) = (op for op in walk(module.operation) if op.name == "func.func")
    assert "translation_info" in function.attributes
