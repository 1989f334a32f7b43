"""Attributes for which the bindings have no class."""

import pytest
from iree.compiler import ir
from iree.compiler.dialects import iree_codegen, iree_gpu

from tilewright.ir.gpu_constraints import option_name, pipeline_name
from tilewright.ir.walk import parameters

DEVICE = (
    '#hal.device.target<"local", [#hal.executable.target<"llvm-cpu", "elf", '
    '{cpu = "a>b"}>]> : !hal.device'
)


@pytest.fixture(autouse=True)
def context():
    with ir.Context() as context:
        yield context


def test_parameters_one_after_another():
    name, targets = parameters(ir.Attribute.parse(DEVICE), "#hal.device.target", "[]")
    assert name.value == "local"
    backend, form, entries = parameters(targets[0], "#hal.executable.target", "[]")
    assert (backend.value, form.value, entries["cpu"].value) == ("llvm-cpu", "elf", "a>b")


def test_named_parameters():
    text = "#iree_codegen.lowering_config<tile_sizes = [[1, 2]]>"
    found = parameters(ir.Attribute.parse(text), "#iree_codegen.lowering_config", "{}")
    assert [int(size.value) for size in found["tile_sizes"][0]] == [1, 2]


def test_another_attribute_has_none():
    assert parameters(ir.Attribute.parse("true"), "#hal.device.target", "[]") is None
    assert parameters(ir.Attribute.parse(DEVICE), "#hal.device", "[]") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("#iree_gpu.pipeline<TileAndFuse>", "TileAndFuse"),
        ("#iree_gpu.spirv_pipeline<BaseVectorize>", "BaseVectorize"),
        ("#iree_cpu.pipeline<DoubleTilingExpert>", ""),
        ("#iree_codegen.transform_dialect_codegen", ""),
    ],
)
def test_pipelines_of_gpus_have_names(text, name):
    info = f"#iree_codegen.translation_info<pipeline = {text}>"
    pipeline = iree_codegen.TranslationInfoAttr(ir.Attribute.parse(info)).pass_pipeline
    assert pipeline_name(pipeline) == name


def test_options_are_called_by_their_intrinsics():
    matrix = iree_gpu.MMAAttr.get(iree_gpu.MMAIntrinsic.MFMA_F32_16x16x16_F16)
    virtual = iree_gpu.VirtualMMAAttr.get(iree_gpu.VirtualMMAIntrinsic.VMFMA_F32_16x16x32_F16)
    assert option_name(matrix) == "MFMA_F32_16x16x16_F16"
    assert option_name(virtual) == "VMFMA_F32_16x16x32_F16"
    assert option_name(ir.Attribute.parse("true")) == "true"
