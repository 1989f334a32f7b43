"""Spaces of dispatches on GPUs, from recorded configurations."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_gpu import NAMES, recorded

from tilewright.attributes import print_attribute
from tilewright.errors import UserError
from tilewright.gpu import GpuCompilationInfo, GpuTemplate
from tilewright.space.generators import dispatch_space
from tilewright.space.union import MEMBER_KNOB
from tilewright.trial import Configuration

RNG = np.random.default_rng


@pytest.mark.parametrize("name", NAMES)
def test_templates_survive_json(name):
    template = recorded(name).template
    assert GpuTemplate.from_json(template.to_json()) == template


@pytest.mark.parametrize("name", NAMES)
def test_attributes_are_written_as_they_were_read(name):
    """A tree of an attribute says all of it."""
    template = recorded(name).template
    for op, attribute, text in template.configuration.attributes:
        assert print_attribute(template.tree(op, attribute)) == text


@pytest.mark.parametrize("name", NAMES)
def test_the_compilers_own_choice_is_the_default_and_lowered_exactly(name):
    space = recorded(name).space
    assert space.space.contains(space.default)
    assert space.lower(space.default) == recorded(name).template.configuration


@pytest.mark.parametrize("name", NAMES)
def test_the_pipelines_own_space_writes_the_default_as_the_compiler_does(name):
    """Where the compiler's choice is a member, what it is made of gives it again."""
    one = recorded(name)
    member = one.space.members[one.space.own]
    made = member.configure(member.space.default)
    own = one.template.configuration
    assert made.workgroup_size == own.workgroup_size or np.prod(made.workgroup_size) == np.prod(
        own.workgroup_size
    )
    if made.ordinal < 0:
        assert {i: t for i, _, t in made.attributes} == {i: t for i, _, t in own.attributes}


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_many_and_lowered_differently(name):
    space = recorded(name).space
    points = space.space.size_estimate(RNG(0)).points
    drawn = dict.fromkeys(space.space.sample(RNG(0), 64))
    assert len(drawn) >= min(32, points // 2)
    lowered = [space.lower(c) for c in drawn]
    assert len(set(lowered)) == len(drawn)
    for configuration in lowered:
        assert isinstance(configuration, GpuCompilationInfo)
        assert 1 <= np.prod(configuration.workgroup_size) <= 1024
        assert GpuCompilationInfo.from_json(configuration.to_json()) == configuration
        assert configuration.describe(0)


@pytest.mark.parametrize("name", NAMES)
def test_steps_stay_inside(name):
    space = recorded(name).space.space
    begin = space.sample(RNG(3), 8)
    assert space.contains_many(space.step_many(begin, RNG(4))).all()


@pytest.mark.parametrize(
    "name", ["matmul_f16_sm_80", "matmul_f32_sm_80", "conv_f16_gfx942", "matmul_f32_ampere"]
)
def test_the_prior_prefers_some(name):
    space = recorded(name).space.space
    drawn = space.sample(RNG(5), 64)
    assert len(set(space.prior_many(drawn).tolist())) > 4


def test_a_user_can_hold_the_workgroup():
    space = recorded("matmul_f16_sm_80").space
    assert "workgroup_size_x" in space.restrictable
    held = space.restrict({"workgroup_size_x": [64]}).space
    drawn = held.sample(RNG(0), 32)
    assert drawn
    assert {space.lower(c).workgroup_size for c in drawn if c != space.default} == {(64, 1, 1)}


def test_a_workgroup_that_no_configuration_has():
    space = recorded("matmul_f16_sm_80").space
    with pytest.raises(UserError, match="workgroup_size_x"):
        space.restrict({"workgroup_size_x": [7]})


def test_a_workgroup_that_only_some_pipelines_have():
    space = recorded("conv_f16_gfx942").space
    made = space.restrict({"workgroup_size_x": [128], "workgroup_size_y": [1]})
    assert any("'VectorDistribute' is left out" in note for note in made.notes)
    drawn = made.space.sample(RNG(0), 16)
    assert {space.lower(c).workgroup_size for c in drawn} == {(128, 1, 1)}


def test_a_restricted_workgroup_can_be_restricted_further():
    space = recorded("matmul_f16_sm_80").space
    once = space.restrict({"workgroup_size_x": [64, 128]}).space
    twice = once.restrict({"workgroup_size_x": [128]}).space
    drawn = twice.sample(RNG(0), 16)
    assert {space.lower(c).workgroup_size for c in drawn} == {(128, 1, 1)}


def test_what_does_not_fit_into_shared_memory_is_told_in_bytes():
    space = recorded("matmul_f16_ampere").space
    member = space.members["CooperativeMatrixVectorize"]
    values = dict(member.space.default.items)
    values |= {"subgroups_m": 4, "tiles_m": 4, "subgroups_n": 4, "tiles_n": 4, "reduction_k": 128}
    reasons = {v.name: v.reason for v in member.space.violations(Configuration.of(values))}
    # Two steps of 256 rows and 256 columns, 128 deep, as large as elements of the result.
    assert f"{2 * (256 + 256) * 128 * 4} bytes of {32 << 10}" in reasons["shared memory"]


def test_an_intrinsic_is_chosen_by_its_name():
    space = recorded("matmul_f16_gfx942").space
    held = space.restrict({"mma_idx": ["MFMA_F32_32x32x8_F16"]}).space
    assert {c.values["mma_idx"] for c in held.sample(RNG(0), 16)} == {"MFMA_F32_32x32x8_F16"}
    with pytest.raises(UserError, match="MFMA_F32_16x16x16_F16"):
        space.restrict({"mma_idx": ["WGMMA"]})


def test_waves_are_a_knob_on_amd_alone():
    amd = {k.name for k in recorded("matmul_f16_gfx942").space.space.knobs}
    nvidia = {k.name for k in recorded("matmul_f16_sm_80").space.space.knobs}
    assert "waves_per_eu" in amd
    assert "waves_per_eu" not in nvidia
    assert {"reduce_bank_conflicts", "reorder_workgroups"} <= nvidia
    # The compiler takes the option for CUDA and makes the same code.
    assert "prefetch_num_stages" not in nvidia


def test_knobs_become_what_the_pipeline_reads():
    space = recorded("matmul_f16_gfx942").space
    values = dict(space.default.items)
    values |= {"waves_per_eu": 2, "reduce_bank_conflicts": False, "reorder_workgroups": "transpose"}
    values["prefetch_num_stages"] = 3
    made = space.lower(Configuration.of(values))
    assert made.settings == (("llvm_func_attrs", '{"amdgpu-waves-per-eu" = "2"}'),)
    stages = ("prefetch_num_stages", "3")
    assert made.options == (("no_reduce_shared_memory_bank_conflicts", "true"), stages)
    assert "workgroup_reordering_strategy" in dict(made.lowering)


def test_a_single_row_of_workgroups_is_not_transposed():
    space = recorded("matmul_f16_gfx942").space
    values = dict(space.default.items) | {"reorder_workgroups": "transpose", "wg_0": 256}
    reasons = [v.name for v in space.space.violations(Configuration.of(values))]
    assert "transposed workgroups are a grid" in reasons


def test_operands_of_attention_need_not_all_be_promoted():
    space = recorded("attention_f16_gfx942").space
    held = space.restrict({"promote_operands": ["1,2"]}).space
    drawn = [c for c in held.sample(RNG(0), 8) if c != space.default]
    assert drawn
    for one in drawn:
        assert dict(space.lower(one).lowering)["promote_operands"] == "[1, 2]"


def test_rows_of_a_promoted_product_have_several_threads():
    space = recorded("matmul_f32_ampere").space
    held = space.restrict({"pipeline": ["MatmulPromoteVectorize"]}).space
    assert all(int(c.values["threads_n"]) > 1 for c in held.sample(RNG(0), 64))


def test_waves_of_attention_have_room_in_shared_memory():
    space = recorded("attention_f16_gfx942").space
    held = space.restrict({"waves_per_eu": [4]}).space
    for one in held.sample(RNG(0), 32):
        values = one.values
        if "m_tile" in values:
            # Keys and values of a step alone, for each of the four workgroups.
            assert 4 * 2 * int(values["red_k2"]) * 64 <= 64 << 10


def test_workgroups_of_convolutions_are_not_transposed():
    assert "reorder_workgroups" in recorded("matmul_f16_gfx942").space.restrictable
    assert "reorder_workgroups" not in recorded("conv_f16_gfx942").space.restrictable


def test_pipelines_that_the_compiler_offers_are_all_there():
    space = recorded("conv_f16_gfx942").space
    choice = next(k for k in space.space.knobs if k.name == MEMBER_KNOB)
    assert {"TileAndFuse", "TileAndFuse.igemm"} <= set(choice.values)


@pytest.mark.parametrize("name", ["matmul_f16_gfx942", "conv_f16_gfx942"])
def test_sums_narrower_than_the_instructions_have_no_space(name):
    """IREE 3.13 compiles none of them, its own choice among them."""
    one = recorded(name)
    narrow = replace(one.workload, element_types=(*one.workload.element_types[:-1], "f16"))
    assert one.template.own.intrinsics[0].sums == one.workload.element_types[-1] == "f32"
    assert dispatch_space(one.template, narrow, one.target) is None


@pytest.mark.parametrize("name", ["conv_padded_f16_gfx942", "batch_matmul_padded_f32_gfx942"])
def test_tiles_that_do_not_divide_the_loops_are_padded(name):
    """All that is drawn says what it is padded to where something would be left over, and nothing
    else does."""
    one = recorded(name)
    drawn = one.space.space.sample(RNG(0), 32)
    padded = ["padding" in str(one.space.lower(c)) for c in drawn]
    assert any(padded)
    assert not all(padded) or name.startswith("conv")
