"""The configuration file of the system before: every key, every rule, every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.tuning.config_file import ConfigFile, read_config

TUNERS = ("XGBoostTuner", "GridSearchTuner", "RandomTuner", "GATuner")
KNOBS = ("distribution_m", "Peel")

WHOLE = """\
[Env]
iree_bin = tools
input_file = matmul.mlir
output_file = matmul.csv
[SearchSpace]
tile_m = [64,128]
tile_n = [32,64]
tile_k = [32,64,128,256]
block_dim_x = [64]
block_dim_y = [2]
block_dim_z = [1]
pipeline_depth = [2]
[SearchStrategy]
tuner = XGBoostTuner
n_trial = 16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: it has a program and a directory with tools."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matmul.mlir").write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "iree-compile").write_text("")
    return tmp_path


def read(text: str, name: str = "a.cfg", need_input: bool = True) -> ConfigFile:
    Path(name).write_text(text, encoding="utf-8")
    return read_config(name, known_tuners=TUNERS, known_knobs=KNOBS, need_input=need_input)


def error(text: str) -> str:
    with pytest.raises(UserError) as info:
        read(text)
    message = str(info.value)
    assert "\n" not in message
    assert "\0" not in message
    assert message.startswith("a.cfg")
    return message


def cut(value: str) -> str:
    return value if len(value) <= 80 else value[:79] + "…"


def test_the_whole_file(folder: Path) -> None:
    config = read(WHOLE)
    assert config == ConfigFile(
        path=Path("a.cfg"),
        input_file=folder / "matmul.mlir",
        output_file=folder / "matmul.csv",
        iree_bin=folder / "tools",
        restrictions={
            "tile_m": (64, 128),
            "tile_n": (32, 64),
            "tile_k": (32, 64, 128, 256),
            "block_dim_x": (64,),
            "block_dim_y": (2,),
            "block_dim_z": (1,),
            "pipeline_depth": (2,),
        },
        tuner="XGBoostTuner",
        n_trial=16,
    )
    assert config.restricts


@pytest.mark.parametrize("leave_out", range(len(WHOLE.splitlines())))
def test_every_key_may_be_absent(folder: Path, leave_out: int) -> None:
    lines = WHOLE.splitlines()
    if lines[leave_out].startswith("["):
        return
    del lines[leave_out]
    assert read("\n".join(lines)).warnings == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "[Env]\n", "[SearchSpace]\n[SearchStrategy]"])
def test_sections_may_be_absent(folder: Path, text: str) -> None:
    assert read(text) == ConfigFile(path=Path("a.cfg"))


def test_a_key_repeated_with_the_same_value_is_a_warning(folder: Path) -> None:
    text = (
        "[SearchSpace]\ntile_m = [64,128]\nTILE_M : [64, 128]\ntile_m=[64,128]\n"
        "[SearchStrategy]\nn_trial = 5\n[SearchSpace]\ntile_n = [8]\ntile_m = [64,\n 128]\n"
    )
    config = read(text)
    assert config.restrictions == {"tile_m": (64, 128), "tile_n": (8,)}
    assert len(config.warnings) == 3
    for warning in config.warnings:
        assert "a.cfg: [SearchSpace] tile_m is given more than once" in warning
        assert "\n" not in warning


@pytest.mark.parametrize(
    "text",
    [
        "[SearchSpace]\ntile_m = [64]\ntile_m = [32]\n",
        "[SearchSpace]\ntile_m = [64]\n[SearchSpace]\ntile_m = [32]\n",
        "[SearchSpace]\ntile_m = [64]\ntile_m = [64]\ntile_m = [32]\n",
    ],
)
def test_a_key_repeated_with_another_value_is_an_error(folder: Path, text: str) -> None:
    assert "[SearchSpace] tile_m = [32]: contradicts '[64]'" in error(text)


def test_unknown_names_get_the_nearest_match(folder: Path) -> None:
    message = error("[SearchSpace]\ntile_mm = [64]\n")
    assert "[SearchSpace]: unknown key 'tile_mm'; did you mean 'tile_m'?" in message
    assert "block_dim_x" in message
    assert "did you mean 'Peel'" in error("[SearchSpace]\npeal = [1]\n")
    assert "did you mean 'n_trial'" in error("[SearchStrategy]\nn_trials = 3\n")
    assert "did you mean 'input_file'" in error("[Env]\ninput_fle = x\n")
    assert "did you mean 'SearchSpace'" in error("[SearchSpaces]\ntile_m = [64]\n")
    assert "unknown section 'DEFAULT'" in error("[DEFAULT]\ntile_m = [64]\n")
    message = error("[SearchStrategy]\ntuner = XGBostTuner\n")
    assert "[SearchStrategy] tuner: unknown tuner 'XGBostTuner'" in message
    assert "did you mean 'XGBoostTuner'?" in message
    assert "GATuner" in message
    assert "unknown key 'tile_m'" in error("[Env]\ntile_m = [64]\n")


@pytest.mark.parametrize(
    "value",
    ["64", "64,128", "[64", "[]", "[a]", '["64"]', "[1.5]", "[true]", "[[1]]", "{}", "", "[0]",
     "[64, -1]", "null", "[1e3]", "[64;128]", "[" * 5000],
)  # fmt: skip
def test_values_that_are_no_list_of_positive_integers(folder: Path, value: str) -> None:
    message = error(f"[SearchSpace]\ntile_k = {value}\n")
    assert (
        f"a.cfg: [SearchSpace] tile_k = {cut(value)}: must be a list of positive integers"
        in message
    )


def test_other_knobs_may_be_zero(folder: Path) -> None:
    assert read("[SearchSpace]\npeel = [0, 1]").restrictions == {"Peel": (0, 1)}
    assert "non-negative" in error("[SearchSpace]\npeel = [-1]")


def test_comments_and_spaces(folder: Path) -> None:
    text = (
        "\ufeff; top\n[SearchSpace]\ntile_m = [ 1 , 2 ]  # why\n# no\n"
        "[SearchStrategy]\n n_trial=3 ;x"
    )
    config = read(text)
    assert (config.restrictions, config.n_trial) == ({"tile_m": (1, 2)}, 3)


def test_a_value_listed_twice_is_a_warning(folder: Path) -> None:
    config = read("[SearchSpace]\ntile_m = [8, 4, 8]")
    assert config.restrictions == {"tile_m": (8, 4)}
    assert "more than once: [8, 4, 8]" in config.warnings[0]


@pytest.mark.parametrize("value", ["[2]", "[1, 2]", "[64]"])
def test_block_dim_z_is_one(folder: Path, value: str) -> None:
    assert f"[SearchSpace] block_dim_z = {value}: must be [1]" in error(
        f"[SearchSpace]\nblock_dim_z = {value}"
    )


def test_the_product_of_block_dimensions(folder: Path) -> None:
    assert read("[SearchSpace]\nblock_dim_x = [64, 256]\nblock_dim_y = [4]").restrictions
    message = error("[SearchSpace]\nblock_dim_x = [64, 512]\nblock_dim_y = [1, 4]")
    assert "block_dim_x = 512, block_dim_y = 4: the product" in message
    assert "2048" in message
    assert "1024" in message
    assert "block_dim_x = 1025" in error("[SearchSpace]\nblock_dim_x = [1025]")
    # What a dispatch gets from both sections counts.
    message = error("[SearchSpace]\nblock_dim_x = [512]\n[SearchSpace.mm]\nblock_dim_y = [4]")
    assert "[SearchSpace.mm] block_dim_x = 512, block_dim_y = 4" in message


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "many", "", "1_0", "٣", "9" * 5000])
def test_n_trial_is_a_positive_integer(folder: Path, value: str) -> None:
    message = error(f"[SearchStrategy]\nn_trial = {value}")
    assert f"[SearchStrategy] n_trial = {cut(value)}: must be a positive integer" in message


def test_sections_for_one_dispatch(folder: Path) -> None:
    config = read(
        "[SearchSpace]\ntile_m = [64]\ntile_n = [32]\n"
        "[SearchSpace.matmul_[0-9]+]\ntile_m = [8]\n"
        "[SearchSpace._512$]\ntile_m = [16]\npipeline_depth = [3]\n"
    )
    assert config.restrictions_for("reduction_7") == {"tile_m": (64,), "tile_n": (32,)}
    assert config.restrictions_for("main_matmul_64") == {"tile_m": (8,), "tile_n": (32,)}
    assert config.restrictions_for("matmul_512") == {
        "tile_m": (16,),
        "tile_n": (32,),
        "pipeline_depth": (3,),
    }
    path = str(config.path)
    assert config.place("matmul_512", "tile_m") == f"{path}: [SearchSpace._512$] tile_m"
    assert config.place("matmul_64", "tile_m") == f"{path}: [SearchSpace.matmul_[0-9]+] tile_m"
    assert config.place("matmul_64", "tile_n") == f"{path}: [SearchSpace] tile_n"
    assert not read("[SearchSpace]\npipeline_depth = [2]").restricts, "nothing on a CPU"
    assert "'a(' is not a regular expression" in error("[SearchSpace.a(]\ntile_m = [8]")
    assert "regular expression is missing" in error("[SearchSpace.]\ntile_m = [8]")
    assert "[SearchSpace.x]: unknown key" in error("[SearchSpace.x]\ntile = [8]")


def test_paths_are_looked_for_here_and_beside_the_file(folder: Path) -> None:
    beside = folder / "configs"
    (beside / "tools").mkdir(parents=True)
    (beside / "m2.mlir").write_text("")
    text = "[Env]\ninput_file = {}\niree_bin = tools\noutput_file = out.csv"
    config = read(text.format("m2.mlir"), "configs/b.cfg")
    assert config.input_file == beside / "m2.mlir"
    assert config.iree_bin == folder / "tools"  # the one beside has no iree-compile in it
    assert config.output_file == folder / "out.csv"
    (beside / "matmul.mlir").write_text("")
    assert read(text.format("matmul.mlir"), "configs/b.cfg").input_file == folder / "matmul.mlir"
    absolute = read(text.format(beside / "m2.mlir"), "configs/b.cfg")
    assert absolute.input_file == beside / "m2.mlir"
    with pytest.raises(UserError) as info:
        read(text.format("m3.mlir"), "configs/b.cfg")
    for place in (folder / "m3.mlir", beside / "m3.mlir"):
        assert str(place) in str(info.value)
    assert "[Env] input_file = m3.mlir" in str(info.value)
    # The program came from the command line.
    assert read(text.format("m3.mlir"), need_input=False).input_file == folder / "m3.mlir"


def test_errors_of_paths(folder: Path) -> None:
    (folder / "empty").mkdir()
    for value in ("empty", "none", "matmul.mlir"):
        assert f"[Env] iree_bin = {value}: must be a directory that has iree-compile" in error(
            f"[Env]\niree_bin = {value}"
        )
    assert "there is no such file" in error("[Env]\ninput_file = empty")
    assert "there is no such file" in error("[Env]\ninput_file = ~nobody-at-all/x")
    assert "there is no such file" in error(f"[Env]\ninput_file = {'x' * 5000}")
    assert "is a directory" in error("[Env]\noutput_file = empty")
    assert "there is no directory" in error("[Env]\noutput_file = none/x.csv")
    assert read("[Env]\niree_bin =\ninput_file =\n") == ConfigFile(path=Path("a.cfg"))
    assert read("[Env]\noutput_file = 50%%d #1.csv\n").output_file == folder / "50%%d #1.csv"


def test_files_that_cannot_be_read(folder: Path) -> None:
    (folder / "latin").write_bytes("[Env]\n# gr\xf6\xdfe\n".encode("latin-1"))
    (folder / "nul").write_bytes(b"[Env]\n\0\n")
    for name, words in [
        ("none.cfg", "no such configuration file"),
        ("tools", "cannot read"),
        ("latin", "not UTF-8"),
        ("nul", "not a text file"),
        ("a\0b", "cannot read"),
    ]:
        with pytest.raises(UserError, match=words) as info:
            read_config(name, known_tuners=TUNERS)
        assert str(info.value).startswith(name)


def test_lines_that_are_no_keys(folder: Path) -> None:
    assert "line 1: 'tile_m = [64]' stands before any section" in error("tile_m = [64]\n")
    message = error("[SearchSpace]\ntile_m\n")
    assert "line 2: 'tile_m' is neither" in message
    assert "line 2" in error("[SearchSpace]\n= [3]\n")
