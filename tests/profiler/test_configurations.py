"""Which configurations `--configs` asks for: by name, from files, for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.device_code import workgroup_sizes
from tilewright.errors import UserError
from tilewright.kernels import parse_operation
from tilewright.profiler import (
    CompileOptions,
    GeneratedFolder,
    GenerateOptions,
    ProfileOutcome,
    Selected,
    compile_dispatches,
    generate,
    parse_configs,
)
from tilewright.profiler.names import DEFAULT, NamedGpuTiling, parse_configuration
from tilewright.profiler.report import csv_row
from tilewright.target import parse_target
from tilewright.trial import Status

PRODUCT = "matmul_128x128x64_f16t_f16t_f32t"
BATCH = "batch_matmul_2x64x64x64_f16t_f16t_f32t"
NAMED = "tile_config_64x32_32x5_tensorcore_mmasync"


def make(folder: Path, target: str, configs: str, *names: str) -> tuple[list[Selected], list[str]]:
    """Generate operations; what is there, and the remarks."""
    options = GenerateOptions(parse_target(target), parse_configs(configs))
    done = generate(folder, [parse_operation(name) for name in names], options)
    found = [
        Selected(one, configuration)
        for one in GeneratedFolder(folder).operations()
        for configuration in one.dispatches
    ]
    return found, done.notes


def test_choices(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(f"# those of the paper\n{NAMED}, sample:3\n\ndefault  # and its own\n")
    choices = parse_configs(f"{file},best,{DEFAULT},{NAMED}")
    assert [(c.way, c.count, c.name) for c in choices] == [
        ("named", 0, NAMED),
        ("sample", 3, ""),
        ("default", 0, ""),
        ("best", 0, ""),
    ]
    with pytest.raises(UserError, match="'tile_config_64' names no configuration"):
        parse_configs("tile_config_64")
    file.write_text("sampel:3\n")
    with pytest.raises(UserError, match=r"mine\.txt: unknown choice of configurations"):
        parse_configs(str(file))


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Selected], list[str]]:
    """A product and a batch of them in configurations for CUDA, those by name compiled."""
    folder = tmp_path_factory.mktemp("cuda")
    configs = f"default,sample:2,{NAMED}"
    found, notes = make(folder, "cuda:sm_80", configs, PRODUCT, BATCH)
    named = [one for one in found if one.configuration == NAMED]
    options = CompileOptions(parse_target("cuda:sm_80"), timeout_s=300)
    assert compile_dispatches(GeneratedFolder(folder), named, options).failed == 0
    return found, notes


def test_samples_of_a_gpu_have_names_in_the_first_profilers_grammar(
    cuda: tuple[list[Selected], list[str]],
) -> None:
    for one in cuda[0]:
        if one.configuration in (DEFAULT, NAMED):
            continue
        named = parse_configuration(one.configuration)
        assert isinstance(named, NamedGpuTiling)
        assert named.classes == "tensorcore_mmasync"
        tuned = one.entry.tuned
        assert tuned is not None
        assert named.parallel[-2:] == tuple(
            value for knob, value in sorted(tuned.knobs.items()) if knob.startswith("wg_")
        )


def test_a_configuration_by_name_is_compiled_as_it_says(
    cuda: tuple[list[Selected], list[str]],
) -> None:
    named = [one for one in cuda[0] if one.configuration == NAMED]
    assert [one.folder.operation.kind.name for one in named] == ["batch_matmul", "matmul"]
    for one in named:
        assert one.folder.target == "cuda:sm_80"
        assert one.entry.tuned is not None
        asked = one.entry.tuned.configuration.workgroup_size
        assert asked in workgroup_sizes(one.vmfb.read_bytes())
        configured = one.configured.read_text()
        assert "prefetch_num_stages = 5" in configured
        assert "NV_MMA_SYNC" in configured
        assert "workgroup = [64, 32, 0]" in configured or "[1, 64, 32, 0]" in configured


def test_the_csv_has_tiles_and_classes(cuda: tuple[list[Selected], list[str]]) -> None:
    one = next(one for one in cuda[0] if one.configuration == NAMED)
    row = csv_row(ProfileOutcome(one, Status.OK), None, "")
    cells = ("Tile config", "Core class", "Instruction class", "Pipeline")
    assert [row[cell] for cell in cells] == ["64x32_32x5", "tensorcore", "mmasync", "TileAndFuse"]


def test_a_name_that_no_operation_has_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no operation has the configuration {NAMED}"):
        make(tmp_path, "cpu", NAMED, "matmul_16x16x16_f32t_f32t_f32t")


def test_a_folder_is_for_one_gpu(cuda: tuple[list[Selected], list[str]]) -> None:
    folder = cuda[0][0].folder.path.parents[3]
    with pytest.raises(UserError, match=r"was generated for cuda:sm_80, not for rocm:gfx942"):
        make(folder, "rocm:gfx942", "default", PRODUCT)


def test_a_configuration_of_a_cpu_by_name(tmp_path: Path) -> None:
    name = "tile_config_8x16x0_vp4x16x0_vr0x0x4_DoubleTilingExpert"
    found, _ = make(tmp_path, "cpu", name, "matmul_32x32x32_f32t_f32t_f32t")
    assert [one.configuration for one in found] == [name]
    options = CompileOptions(parse_target("cpu", 1))
    assert compile_dispatches(GeneratedFolder(tmp_path), found, options).failed == 0
    assert "distribution = [8, 16, 0]" in found[0].configured.read_text()
