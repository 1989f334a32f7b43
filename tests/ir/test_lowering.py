"""Reading configurations from attributes, and writing them."""

import pytest
from iree.compiler import ir

from tilewright.ir.lowering import (
    UnreadableConfiguration,
    read_tiling,
    read_translation,
    write_configuration,
)
from tilewright.tiling import LEVELS, PEELING, CompilationInfo, Tiling, Translation


@pytest.fixture(scope="module")
def context():
    with ir.Context() as context, ir.Location.unknown():
        context.load_all_available_dialects()
        yield context


def test_every_level_survives(context):
    every = Tiling.of({level: (i + 1, 0) for i, level in enumerate(LEVELS)})
    assert read_tiling(ir.Attribute.parse(every.to_attribute())) == every


def test_distribution_without_tiles_survives(context):
    text = "#iree_cpu.lowering_config<distribution = [0], vector_reduction = [4]>"
    assert str(ir.Attribute.parse(read_tiling(ir.Attribute.parse(text)).to_attribute())) == text


@pytest.mark.parametrize("options", [(), (PEELING,)])
def test_translations_survive(context, options):
    own = Translation("DoubleTilingExpert", options)
    assert read_translation(ir.Attribute.parse(own.to_attribute())) == own


@pytest.mark.parametrize(
    "text",
    [
        "#iree_cpu.lowering_config<vector_common_parallel = [[4], 8]>",  # scalable
        "#iree_gpu.lowering_config<{workgroup = [1]}>",
        "#iree_cpu.lowering_config<later_level = [4]>",
        "unit",
    ],
)
def test_tilings_that_are_not_modelled(context, text):
    with pytest.raises(UnreadableConfiguration):
        read_tiling(ir.Attribute.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "#iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<TileAndFuse>>",
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>, {later = 4 : i64}>",
    ],
)
def test_translations_that_are_not_modelled(context, text):
    with pytest.raises(UnreadableConfiguration):
        read_translation(ir.Attribute.parse(text))


class TestWriting:
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
        # The operations live as long as the module.
        return module, function, list(function.regions[0].blocks[0].operations)[:2]

    def test_what_was_there_is_replaced(self, function):
        _module, target, ops = function
        tiling = Tiling.of({"distribution": (4,)})
        write_configuration(
            target.operation,
            [op.operation for op in ops],
            CompilationInfo(Translation("Default"), ((1, tiling),)),
        )
        assert "lowering_config" not in ops[0].attributes
        assert read_tiling(ops[1].attributes["lowering_config"]) == tiling
        assert read_translation(target.attributes["translation_info"]) == Translation("Default")

    @pytest.mark.parametrize("index", [-1, 2])
    def test_ops_that_are_not_there(self, function, index):
        _module, target, ops = function
        configuration = CompilationInfo(Translation("Default"), ((index, Tiling()),))
        with pytest.raises(UnreadableConfiguration, match="2 compute ops"):
            write_configuration(target.operation, [op.operation for op in ops], configuration)
        assert "translation_info" not in target.attributes
        assert "lowering_config" in ops[0].attributes
