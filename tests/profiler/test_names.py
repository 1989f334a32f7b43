"""Names of operations, configurations and dispatches, and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.profiler.kinds import KINDS
from tilewright.profiler.names import (
    DEFAULT,
    NamedTiling,
    format_configuration,
    format_dispatch,
    format_operation,
    parse_configuration,
    parse_dispatch,
    parse_operation,
)
from tilewright.profiler.operation import ElementTypes, Operation, OperationKind, make_operation
from tilewright.tiling import LEVELS, PEELING, Tiling, Translation

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
    for operation in operations(kind):
        name = format_operation(operation)
        assert parse_operation(name) == operation
        assert format_operation(parse_operation(name)) == name
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


def random_configuration(rng: np.random.Generator) -> NamedTiling:
    loops = int(rng.integers(1, 8))
    levels = {
        level: tuple(int(v) for v in rng.integers(0, 200, loops))
        for level in LEVELS
        if rng.random() < 0.6
    }
    options = [PEELING, "a_new_option"]
    chosen = tuple(o for o in options if rng.random() < 0.5)
    pipelines = ("DoubleTilingExpert", "Mmt4dTilingExpert", "Default")
    pipeline = pipelines[int(rng.integers(len(pipelines)))]
    return NamedTiling(Tiling.of(levels), Translation(pipeline, chosen))


def test_every_configuration_is_what_its_name_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        configuration = random_configuration(rng)
        name = format_configuration(configuration)
        assert parse_configuration(name) == configuration, name


def test_a_configuration_can_be_read_by_people() -> None:
    tiling = Tiling.of(
        {
            "distribution": (64, 128, 0),
            "vector_common_parallel": (8, 32, 0),
            "vector_reduction": (0, 0, 4),
        }
    )
    translation = Translation("DoubleTilingExpert", (PEELING,))
    name = format_configuration(NamedTiling(tiling, translation))
    assert name == "tile_config_64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel"
    assert format_configuration(None) == DEFAULT == "tile_config_default"
    assert parse_configuration(DEFAULT) is None


@pytest.mark.parametrize(
    "name",
    [
        "default",
        "tile_config_",
        "tile_config_64x128",
        "tile_config_64x128_DoubleTilingExpert_fast",
        "tile_config_64x128_vp8_DoubleTilingExpert",
        "tile_config_zz8x8_DoubleTilingExpert",
        "64x128_DoubleTilingExpert",
    ],
)
def test_other_configurations_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="names no configuration"):
        parse_configuration(name)


def test_a_dispatch_is_both() -> None:
    operation = "matmul_8x4x2_f32t_f32n_f32t"
    configuration = "tile_config_4x4x0_vr0x0x2_DoubleTilingExpert_peel"
    name = format_dispatch(operation, configuration)
    computed, tiled = parse_dispatch(name)
    assert (computed.kind.name, dict(computed.dims)) == ("matmul", {"m": 8, "n": 4, "k": 2})
    assert (computed.types.name, computed.layout) == ("f32", "tn")
    assert tiled is not None
    assert dict(tiled.tiling.levels) == {"distribution": (4, 4, 0), "vector_reduction": (0, 0, 2)}
    assert tiled.translation == Translation("DoubleTilingExpert", (PEELING,))
    assert format_dispatch(format_operation(computed), format_configuration(tiled)) == name
    assert parse_dispatch(f"{operation}_{DEFAULT}") == (computed, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("matmul_8x4x2_f32t_f32t_f32t", "names no dispatch"),
        ("matmul_8x4_f32t_f32t_f32t_tile_config_default", "names no operation"),
        ("matmul_8x4x2_f32t_f32t_f32t_tile_config_4x", "names no configuration"),
    ],
)
def test_other_dispatches_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_dispatch(name)
