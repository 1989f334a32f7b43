"""Names of configurations and dispatches, and back."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.profiler.names import (
    DEFAULT,
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
