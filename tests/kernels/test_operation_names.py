"""Names of operations, and back."""

from __future__ import annotations

import itertools

import pytest

from tilewright.errors import UserError
from tilewright.kernels.kinds import KINDS, parse_operation
from tilewright.kernels.operation import ElementTypes, Operation, OperationKind, make_operation

F16 = ElementTypes("f16", "f16")


def operations(kind: OperationKind) -> list[Operation]:
    """Every variant, element type and layout of a kind, in its predefined shapes."""
    return [
        make_operation(kind, shape, types, layout, variant)
        for shape, layout, variant in itertools.product(kind.shapes, kind.layouts, kind.variants)
        for types in kind.types(variant)
    ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_operation_is_what_its_name_says(kind: OperationKind) -> None:
    names = set()
    assert operations(kind)
    for operation in operations(kind):
        name = operation.name
        assert parse_operation(name) == operation
        assert parse_operation(name).name == name
        names.add(name)
    assert len(names) == len(operations(kind)), "two operations of one name"


def test_names_of_the_first_dispatch_profiler() -> None:
    matmul = make_operation(KINDS["matmul"], {"m": 768, "n": 512, "k": 1024}, F16, "tt", "")
    assert matmul.name == "matmul_768x512x1024_f16t_f16t_f16t"
    int8 = ElementTypes("i8", "i32")
    transposed = make_operation(KINDS["matmul"], {"m": 8, "n": 4, "k": 2}, int8, "nt", "")
    assert transposed.name == "matmul_8x4x2_i8n_i8t_i32t"


def test_sizes_that_are_no_extents_have_a_word_before_them() -> None:
    image = {"batch": 1, "h": 56, "w": 28, "ci": 64, "co": 32, "sh": 2, "sw": 1, "ph": 1}
    types = ElementTypes("f32", "f32")
    name = make_operation(KINDS["conv2d"], image, types, "tt", "nhwc_hwcf").name
    assert name == "conv2d_nhwc_hwcf_1x56x28x64x32_k3x3_s2x1_d1x1_p1x0_f32t_f32t_f32t"
    split = {"m": 8, "n": 4, "k": 6, "slices": 3}
    name = make_operation(KINDS["matmul_splitk"], split, types, "tt", "").name
    assert name == "matmul_splitk_8x4x6_splitk3_f32t_f32t_f32t"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "matmul",
        "matmull_8x8x8_f32t_f32t_f32t",
        "matmul_8x8_f32t_f32t_f32t",
        "matmul_8x8x8x8_f32t_f32t_f32t",
        "matmul_8x8x8_f32t_f32t",
        "matmul_8x8x8_f32t_f16t_f32t",
        "matmul_8x8x8_f32t_f32t_f32n",
        "matmul_8x8x8_f32t_f32t_f64t",
        "matmul_0x8x8_f32t_f32t_f32t",
        "matmul_splitk_8x8x8_splitk3_f32t_f32t_f32t",
        "softmax_8x8_i8t_i32t",
        "conv2d_nhwc_1x8x8x8x8_k3x3_s1x1_d1x1_p0x0_f32t_f32t_f32t",
        "conv2d_nhwc_hwcf_1x8x8x8x8_k9x3_s1x1_d1x1_p0x0_f32t_f32t_f32t",
        "elementwise_relu_8x8_f32t_f32t_f32t",
        "elementwise_add_gelu_8x8_i8t_i8t_i32t",
        "matmul_8x8x8_f32t_f32t_f32t_tile_config_default",
        "matmul_8x8x8_f32t_f32t_f32t\n",
    ],
)
def test_other_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(UserError) as error:
        parse_operation(name)
    assert "internal" not in str(error.value)
