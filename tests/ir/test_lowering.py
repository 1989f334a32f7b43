"""Reading configurations from attributes."""

import pytest
from iree.compiler import ir

from tilewright.ir.lowering import (
    UnreadableConfiguration,
    read_tiling,
    read_translation,
)
from tilewright.tiling import LEVELS, PEELING, Tiling, Translation


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
