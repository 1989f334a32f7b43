"""Attributes for which the bindings have no class."""

import pytest
from iree.compiler import ir
from iree.compiler.dialects import iree_codegen, iree_gpu

from tilewright.attributes import attribute, items_of, unquoted, value_of
from tilewright.ir.gpu_constraints import option_name, pipeline_name
from tilewright.ir.walk import attribute_of, attribute_tree

DEVICE = (
    '#hal.device.target<"local", [#hal.executable.target<"llvm-cpu", "elf", '
    '{cpu = "a>b"}>]> : !hal.device'
)


@pytest.fixture(autouse=True)
def context():
    with ir.Context() as context:
        yield context


def test_an_attribute_is_read_and_made_again():
    device = ir.Attribute.parse(DEVICE)
    tree = attribute_tree(device)
    name, targets = items_of(value_of(tree))
    assert unquoted(name) == "local"
    backend, form, entries = items_of(targets[0])
    assert [unquoted(one) for one in (backend, form, entries["cpu"])] == ["llvm-cpu", "elf", "a>b"]
    assert attribute_of(tree) == device


def test_a_tree_that_is_no_attribute_is_told():
    with pytest.raises(ValueError, match=r"'#iree_gpu\.pipeline<Nothing>' is no attribute"):
        attribute_of(attribute("#iree_gpu.pipeline", "Nothing"))


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
