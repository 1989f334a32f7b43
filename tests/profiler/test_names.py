"""Names of configurations and dispatches, and back."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.gpu import GpuTiles
from tilewright.profiler.names import (
    DEFAULT,
    NamedGpuTiling,
    NamedTiling,
    format_configuration,
    format_dispatch,
    parse_configuration,
    parse_dispatch,
)
from tilewright.tiling import LEVELS, PEELING, Tiling, Translation


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


def test_names_of_the_first_profiler_are_read() -> None:
    name = "tile_config_128x128_32x5_tensorcore_mmasync"
    named = NamedGpuTiling((128, 128), (32,), 5, "tensorcore", "mmasync")
    assert parse_configuration(name) == named
    assert format_configuration(named) == name
    assert (named.tiles, named.classes) == ("128x128_32x5", "tensorcore_mmasync")
    operation, found = parse_dispatch(f"matmul_3456x1024x2048_f16t_f16t_f16t_{name}")
    assert (operation.name, found) == ("matmul_3456x1024x2048_f16t_f16t_f16t", named)


def test_every_configuration_of_a_gpu_is_what_its_name_says() -> None:
    values = {
        "mma_idx": "NV_MMA_SYNC_F32_16x8x16_F16",
        "red_2": 2,
        "reduce_bank_conflicts": True,
        "reorder_workgroups": "none",
        "sg_0": 4,
        "wg_0": 128,
        "wg_1": 64,
    }
    tiles = GpuTiles((128, 64), (32,), 2, "NV_MMA_SYNC_F32_16x8x16_F16")
    named = NamedGpuTiling.of(tiles, "TileAndFuse", values)
    name = format_configuration(named)
    assert name == (
        "tile_config_128x64_32x2_tensorcore_mmasync_TileAndFuse_F32-16x8x16-F16_"
        "reduce-bank-conflicts_sg-0.4"
    )
    assert parse_configuration(name) == named
    rows = NamedGpuTiling.of(GpuTiles((384,)), "TileAndFuse.thread", {"thread_p": 8})
    assert format_configuration(rows) == "tile_config_384_0x1_simt_TileAndFuse.thread_thread-p.8"
    assert parse_configuration(format_configuration(rows)) == rows


def test_a_short_name_stands_for_configurations_with_its_tiles() -> None:
    tiles = GpuTiles((1, 128, 64), (32,), 2, "MFMA_F32_16x16x16_F16")
    whole = NamedGpuTiling.of(tiles, "TileAndFuse", {"sg_0": 4})
    assert whole.classes == "matrixcore_mfma"
    for name, fits in (
        ("tile_config_128x64_32x2_matrixcore_mfma", True),
        ("tile_config_1x128x64_32x5_matrixcore_mfma_TileAndFuse", True),
        ("tile_config_128x64_32x2_matrixcore_mfma_VectorDistribute", False),
        ("tile_config_128x64_64x2_matrixcore_mfma", False),
        ("tile_config_2x128x64_32x2_matrixcore_mfma", False),
        ("tile_config_128x64_32x2_tensorcore_mmasync", False),
    ):
        named = parse_configuration(name)
        assert isinstance(named, NamedGpuTiling)
        assert named.names(tiles, whole) == fits, name


@pytest.mark.parametrize(
    "name",
    [
        "tile_config_128x128_32x5_matrixcore_mmasync",
        "tile_config_128x128_32_simt",
        "tile_config_128x128_32x5_tensorcore",
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
    assert format_dispatch(computed.name, format_configuration(tiled)) == name
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
