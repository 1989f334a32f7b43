"""What a configuration file leaves of spaces of dispatches, and what of it does nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recorded_gpu import Recorded, recorded

from tilewright.errors import UserError
from tilewright.gpu import GpuCompilationInfo
from tilewright.space.interface import Space
from tilewright.space.union import MEMBER_KNOB
from tilewright.tuning.config_file import ConfigFile, read_config
from tilewright.tuning.restriction import FileRestrictions

# The search space of the original's example.
EXAMPLE = """
tile_m = [64,128]
tile_n = [32,64]
tile_k = [32,64,128,256]
block_dim_x = [64]
block_dim_y = [2]
block_dim_z = [1]
pipeline_depth = [2]
"""


def config(folder: Path, keys: str, more: str = "") -> ConfigFile:
    path = folder / "old.cfg"
    path.write_text(f"[SearchSpace]\n{keys}\n{more}")
    return read_config(path, known_tuners=(), known_knobs=("wg_0",))


def restrict(one: Recorded, made: FileRestrictions, name: str = "matmul_0") -> Space:
    return made.restrict(name, one.space, one.workload, one.target)


def lowered(one: Recorded, space: Space) -> list[tuple[dict[str, object], GpuCompilationInfo]]:
    drawn = space.sample(np.random.default_rng(0), 64)
    assert drawn
    return [(dict(c.items), one.space.lower(c)) for c in drawn]  # type: ignore[misc]


def test_the_originals_search_space_without_matrix_units(tmp_path: Path) -> None:
    one = recorded("matmul_f32_sm_80")
    m, n, k = (dim.size for dim in one.workload.dims)
    made = FileRestrictions(config(tmp_path, EXAMPLE))
    for values, info in lowered(one, restrict(one, made)):
        assert values["workgroup_m"] in (64, 128)
        assert values["workgroup_n"] in (32, 64)
        assert values["reduction_k"] in (32, 64, 128, 256)
        assert info.workgroup_size == (128, 1, 1), "64 times 2 threads, in one dimension"
    made.check()
    (depth,) = [note for note in made.notes if "pipeline_depth" in note]
    assert depth.startswith(f"{tmp_path}/old.cfg: [SearchSpace] pipeline_depth has no effect on ")
    assert "no pipeline with copies in flight" in depth
    assert min(m, n) >= 64
    assert k >= 64


def test_the_originals_search_space_with_matrix_units(tmp_path: Path) -> None:
    """`tile_k` is in elements also where a pipeline counts steps in intrinsics."""
    one = recorded("matmul_f16_sm_80")
    found: dict[str, set[int]] = {}
    for values, info in lowered(one, restrict(one, FileRestrictions(config(tmp_path, EXAMPLE)))):
        assert values["wg_0"] in (64, 128)
        assert values["wg_1"] in (32, 64)
        assert info.workgroup_size == (128, 1, 1)
        step = values["red_2"]
        assert isinstance(step, int)
        found.setdefault(str(values[MEMBER_KNOB]), set()).add(step)
    depth = 16  # of mma.sync for f16
    assert {step * depth for step in found["TileAndFuse"]} <= {32, 64, 128, 256}
    assert found["VectorDistribute"] <= {32, 64, 128, 256}
    assert 64 in found["VectorDistribute"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("tile_m = [64]\nblock_dim_x = [7]", r"\[SearchSpace\] block_dim_x = \[7\] leaves no"),
        ("block_dim_x = [8]\nblock_dim_y = [3]", r"\[SearchSpace\] block_dim_y = \[3\] leaves no"),
        ("wg_0 = [64]\ntile_m = [128]", r"\[SearchSpace\] tile_m = \[128\] leaves no"),
    ],
)
def test_what_leaves_nothing_is_named(tmp_path: Path, keys: str, said: str) -> None:
    made = FileRestrictions(config(tmp_path, keys))
    restrict(recorded("matmul_f16_sm_80"), made)
    with pytest.raises(UserError, match=rf"old\.cfg: {said} configuration of matmul_0: "):
        made.check()


def test_what_leaves_nothing_of_one_dispatch_is_told_where_it_is_met_by_another(
    tmp_path: Path,
) -> None:
    made = FileRestrictions(config(tmp_path, "tile_m = [64]\nblock_dim_x = [64]"))
    rows = recorded("row_sum_sm_80")
    assert restrict(rows, made, "row_sum_1").size_estimate(np.random.default_rng(0)).points > 1
    restrict(recorded("matmul_f16_sm_80"), made)
    made.check()
    assert any("tile_m has no effect on row_sum_1: it has no loop m" in one for one in made.notes)


def test_a_section_for_a_dispatch_is_named_as_such(tmp_path: Path) -> None:
    made = FileRestrictions(config(tmp_path, "tile_m = [64]", "[SearchSpace.mul]\ntile_m = [7]\n"))
    restrict(recorded("matmul_f16_sm_80"), made)
    with pytest.raises(UserError, match=r"\[SearchSpace\.mul\] tile_m = \[7\] leaves no"):
        made.check()


def test_threads_in_other_dimensions_alone_do_nothing(tmp_path: Path) -> None:
    one = recorded("matmul_f32_sm_80")
    made = FileRestrictions(config(tmp_path, "block_dim_y = [2]"))
    assert restrict(one, made) is one.space.space
    (note,) = made.notes
    assert "block_dim_y has no effect on matmul_0: its workgroups have one dimension" in note


def test_the_depth_is_a_knob_where_iree_prefetches(tmp_path: Path) -> None:
    one = recorded("matmul_f16_gfx942")
    made = FileRestrictions(config(tmp_path, "pipeline_depth = [3]"))
    stages = {values["prefetch_num_stages"] for values, _ in lowered(one, restrict(one, made))}
    assert stages == {3}
    assert made.notes == []


def test_threads_in_two_dimensions_are_held_one_by_one(tmp_path: Path) -> None:
    one = recorded("matmul_f32_ampere")
    keys = "block_dim_x = [8,16]\nblock_dim_y = [4]\nblock_dim_z = [1]"
    space = restrict(one, FileRestrictions(config(tmp_path, keys)))
    sizes = {info.workgroup_size for _, info in lowered(one, space)}
    assert sizes == {(8, 4, 1), (16, 4, 1)}


def test_values_that_no_configuration_has_are_told(tmp_path: Path) -> None:
    one = recorded("matmul_f16_sm_80")
    made = FileRestrictions(config(tmp_path, "tile_m = [64]\ntile_k = [32, 24]"))
    restrict(one, made)
    (note,) = [note for note in made.notes if "tile_k" in note]
    assert "[SearchSpace] tile_k = 24 has no effect on matmul_0: " in note
    one = recorded("matmul_f32_sm_80")
    made = FileRestrictions(config(tmp_path, "tile_m = [64, 4096]"))
    assert {values["workgroup_m"] for values, _ in lowered(one, restrict(one, made))} == {64}
    (note,) = made.notes
    assert "tile_m = 4096 has no effect on matmul_0: it does not fit its loop of" in note


def test_dispatches_share_a_sentence(tmp_path: Path) -> None:
    made = FileRestrictions(config(tmp_path, "pipeline_depth = [2]"))
    for number in range(5):
        restrict(recorded("matmul_f32_sm_80"), made, f"matmul_{number}")
    (note,) = made.notes
    assert "has no effect on matmul_0, matmul_1, matmul_2 and 2 more: " in note


def test_without_a_file_there_is_nothing_to_say() -> None:
    one = recorded("matmul_f32_sm_80")
    made = FileRestrictions()
    assert restrict(one, made) is one.space.space
    made.check()
    assert made.notes == []
