"""Targets: names, limits, and what the compiler adds."""

import pytest

from tilewright import target as targets
from tilewright.errors import UnknownNameError, UserError
from tilewright.target import (
    BACKENDS,
    LIBRARY_FLAG,
    SPEC_FLAG,
    GpuTarget,
    parse_target,
    target_names,
    usable_cores,
)


def test_this_machine():
    target = parse_target("cpu")
    assert target.cpu == "host"
    assert target.cores == usable_cores() >= 1
    assert target.vector_bytes in (16, 32, 64)
    assert 0 < target.l1_bytes < target.l2_bytes
    assert "--iree-llvmcpu-target-cpu=host" in target.flags


def test_another_processor():
    target = parse_target("cpu:znver4", threads=3)
    assert (target.name, target.cpu, target.cores) == ("cpu:znver4", "znver4", 3)
    assert "--iree-llvmcpu-target-cpu=znver4" in target.flags


def test_targets_survive_json():
    target = parse_target("cpu:znver4", threads=3).with_vectors("znver4", "+avx2", 32)
    assert targets.Target.from_json(target.to_json()) == target
    assert targets.Target.from_json({**target.to_json(), "moon_phase": 1}) == target


@pytest.mark.parametrize("name", ["gpu", "CPU", "", "opencl:sm_80"])
def test_unknown_targets_are_named_with_those_there_are(name):
    with pytest.raises(UnknownNameError, match="cpu:NAME") as error:
        parse_target(name)
    assert "\n" not in str(error.value)


def test_a_target_without_its_processor():
    with pytest.raises(UserError, match="cpu:znver4"):
        parse_target("cpu:")


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_numbers_of_threads(threads):
    with pytest.raises(UserError, match="1 to 1024"):
        parse_target("cpu", threads)


def test_one_thread_runs_inline():
    assert parse_target("cpu", 1).device == "local-sync"
    assert parse_target("cpu", 2).device == "local-task"


def test_lanes_of_a_vector():
    target = parse_target("cpu").with_vectors("znver4", "", 64)
    assert [target.lanes(bits) for bits in (64, 32, 16, 8, 1)] == [8, 16, 32, 64, 64]
    assert target.lanes(1024) == 1


def test_what_the_compiler_says_of_the_processor():
    target = parse_target("cpu")
    wide = target.with_vectors("znver4", "+avx512f", 64)
    assert (wide.vector_registers, wide.max_vector_bytes) == (32, 32768)
    assert target.with_vectors("znver2", "+avx2", 32).vector_registers == 16
    assert target.with_vectors("neoverse-n1", "+neon", 16).vector_registers == 32


def test_results_are_comparable_only_on_the_same_processor_with_as_many_threads():
    target = parse_target("cpu", 2).with_vectors("znver4", "", 64)
    keys = {
        target.key,
        parse_target("cpu", 4).with_vectors("znver4", "", 64).key,
        parse_target("cpu", 2).with_vectors("znver4", "", 32).key,
        parse_target("cpu", 2).with_vectors("znver5", "", 64).key,
    }
    assert len(keys) == 4
    # A processor by its name or as this machine is the same processor.
    assert parse_target("cpu:znver4", 2).with_vectors("znver4", "", 64).key == target.key


def test_cache_sizes_are_read_and_nonsense_is_passed_over(tmp_path, monkeypatch):
    def cache(index, kind, level, size):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(f"{text}\n")

    cache(0, "Data", "1", "48K")
    cache(1, "Instruction", "1", "64K")
    cache(2, "Unified", "2", "2M")
    cache(3, "Unified", "nonsense", "1G")
    cache(4, "Unified", "4", "1G")
    cache(5, "Unified", "3", "")
    (tmp_path / "index6").mkdir()
    monkeypatch.setattr(targets, "Path", lambda _: tmp_path)
    targets.caches.cache_clear()
    try:
        assert targets.cache_sizes() == (48 << 10, 2 << 20, 16 << 20)
    finally:
        targets.caches.cache_clear()


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
