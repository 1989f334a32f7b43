"""GPU targets: names, flags, messages."""

import pytest

from tilewright.errors import UnknownNameError, UserError
from tilewright.gpu_target import BACKENDS, GpuTarget, target_names
from tilewright.target import LIBRARY_FLAG, SPEC_FLAG
from tilewright.targets import parse_target


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("cuda:sm_86", ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_86")),
        ("cuda:ampere", ("--iree-hal-target-device=cuda", "--iree-cuda-target=ampere")),
        ("cuda", ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80")),
        ("rocm:gfx942", ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942")),
        ("vulkan:ampere", ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=ampere")),
        ("metal", ("--iree-hal-target-device=metal",)),
    ],
)
def test_flags(name, flags):
    target = parse_target(name)
    assert target.is_gpu
    assert target.flags == flags
    assert target.declaration == ""


def test_what_no_flag_selects_is_declared():
    target = parse_target("cuda:sm_90")
    assert target.flags == ()
    assert 'arch = "sm_90"' in target.declaration


def test_specs_go_where_the_backend_reads_them():
    assert parse_target("cpu").spec_flag == parse_target("rocm:gfx942").spec_flag == SPEC_FLAG
    for name in ("cuda:sm_80", "vulkan:ampere", "metal"):
        assert parse_target(name).spec_flag == LIBRARY_FLAG


@pytest.mark.parametrize("name", target_names())
def test_every_target_survives_json(name):
    target = parse_target(name)
    assert isinstance(target, GpuTarget)
    assert GpuTarget.from_json(target.to_json()) == target
    assert target.key.startswith(f"{target.backend}/")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:sm_81", ["cuda:sm_80", "did you mean"]),
        ("rocm:gfx943", ["rocm:gfx942"]),
        ("vulkan:amper", ["vulkan:ampere"]),
        ("gpu", ["cpu", "cuda:sm_80", "metal", "rocm:gfx942", "vulkan:ampere"]),
        ("cuda:", ["cuda:sm_80"]),
        ("metal:m1", ["metal"]),
    ],
)
def test_names_that_there_are_not(name, words):
    with pytest.raises((UserError, UnknownNameError)) as error:
        parse_target(name)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_targets_are_known_by_what_makes_code_differ():
    keys = [parse_target(name).key for name in ("cuda:sm_80", "cuda:sm_86", "rocm:gfx942", "metal")]
    assert len(set(keys)) == 4


def test_every_backend_has_a_default():
    for backend in BACKENDS.values():
        assert parse_target(backend.name).is_gpu
