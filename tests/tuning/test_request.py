"""Texts and values of users become the options of a run; a configuration file fills in the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.request import knob_names, make_request


def config(folder: Path, text: str) -> Path:
    path = folder / "auto-scheduler.cfg"
    path.write_text(text)
    return path


def test_texts_are_read_as_on_the_command_line() -> None:
    request = make_request(
        "m.mlir",
        {
            "max_trials": "12",
            "seed": "3",
            "threads": "2",
            "time_limit_s": "1h",
            "variants": "default,data-tiling",
            "db": "~/t.db",
            "output": "out",
            "effort": None,
            "iree_flags": ("--a", "--b"),
        },
    )
    options = request.options
    assert (options.max_trials, options.seed, options.threads) == (12, 3, 2)
    assert options.time_limit_s == 3600
    assert [v.name for v in options.variants or ()] == ["default", "data-tiling"]
    assert options.db == Path.home() / "t.db"
    assert options.output == Path("out")
    assert options.iree_flags == ("--a", "--b")
    assert options.effort == TuneOptions().effort


def test_the_program_may_come_from_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").touch()
    path = config(tmp_path, "[Env]\ninput_file = m.mlir\n")
    assert make_request(None, {"config": path}).program == tmp_path / "m.mlir"
    assert make_request("other.mlir", {"config": path}).program == Path("other.mlir")


def test_a_program_given_needs_none_in_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, "[Env]\ninput_file = nowhere.mlir\n")
    assert make_request("m.mlir", {"config": path}).program == Path("m.mlir")
    with pytest.raises(UserError, match=r"input_file = nowhere\.mlir: there is no such file"):
        make_request(None, {"config": path})


def test_no_program_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PROGRAM is missing"):
        make_request(None, {})
    with pytest.raises(UserError, match=r"name it with input_file in .*auto-scheduler\.cfg"):
        make_request(None, {"config": config(tmp_path, "[Env]\n")})


def test_the_file_of_the_working_directory_is_found_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.mlir").touch()
    config(tmp_path, "[Env]\ninput_file = m.mlir\n[SearchStrategy]\nn_trial = 7\n")
    monkeypatch.chdir(tmp_path)
    found = make_request(None, {})
    assert (found.program.name, found.options.max_trials) == ("m.mlir", 7)
    assert found.notes == ("auto-scheduler.cfg: found in the working directory",)
    other = make_request("other.mlir", {})
    assert other.options.max_trials is None, "it is for who gives nothing else"
    assert "auto-scheduler.cfg is not read" in other.notes[0]
    named = make_request(None, {"config": "auto-scheduler.cfg"})
    assert (named.options.max_trials, named.notes) == (7, ())


def test_what_is_given_comes_before_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, "[SearchStrategy]\ntuner = RandomTuner\nn_trial = 7\n")
    options = make_request("m.mlir", {"config": path, "max_trials": "3"}).options
    assert options.max_trials == 3
    assert options.strategy == "RandomTuner"


@pytest.mark.parametrize("loop", ["m", "n", "k", "b", "oh", "ow", "oc", "kh", "kw", "ic", "m0"])
def test_knobs_of_every_space_can_be_named(tmp_path: Path, loop: str) -> None:
    name = f"distribution_{loop}"
    assert name in knob_names()
    path = config(tmp_path, f"[SearchSpace]\n{name} = [8, 16]\n")
    options = make_request("m.mlir", {"config": path}).options
    assert options.config is not None
    assert options.config.restrictions == {name: (8, 16)}


def test_an_unknown_knob_gets_the_nearest_and_no_page_of_names(tmp_path: Path) -> None:
    path = config(tmp_path, "[SearchSpace]\nvector_reductoin_k = [8]\n")
    with pytest.raises(UserError) as info:
        make_request("m.mlir", {"config": path})
    text = str(info.value)
    assert f"{path}: [SearchSpace]: unknown key 'vector_reductoin_k'" in text
    assert "did you mean 'vector_reduction_k'?" in text
    assert "tile_m" in text
    assert "vector_inner_parallel" in text
    assert len(text) < 700


def test_another_unknown_key_still_lists_all_that_is_allowed(tmp_path: Path) -> None:
    path = config(tmp_path, "[SearchStrategy]\ntunre = RandomTuner\n")
    with pytest.raises(UserError, match=r"did you mean 'tuner'\? \(allowed: n_trial, tuner\)"):
        make_request("m.mlir", {"config": path})


@pytest.mark.parametrize("tuner", ["RandomTuner", "XGBoostTuner", "GATuner", "random", "grid"])
def test_tuners_by_either_name(tmp_path: Path, tuner: str) -> None:
    path = config(tmp_path, f"[SearchStrategy]\ntuner = {tuner}\n")
    assert make_request("m.mlir", {"config": path}).options.strategy == tuner


@pytest.mark.parametrize(
    "given", [{"plan_size": 64, "epsilon": 0.1}, ["plan_size=64", "epsilon=0.1"]]
)
def test_options_of_the_strategy(given: object) -> None:
    request = make_request("m.mlir", {"strategy": "xgboost", "strategy_options": given})
    assert request.options.strategy_settings == {"plan_size": "64", "epsilon": "0.1"}
    one = make_request("m.mlir", {"strategy_options": "steps=3"}).options
    assert one.strategy_options == ("steps=3",)


def test_a_tuner_that_does_not_exist(tmp_path: Path) -> None:
    path = config(tmp_path, "[SearchStrategy]\ntuner = RandomTunner\n")
    with pytest.raises(UserError) as info:
        make_request("m.mlir", {"config": path})
    assert f"{path}: [SearchStrategy] tuner: unknown tuner 'RandomTunner'" in str(info.value)
    assert "did you mean 'RandomTuner'?" in str(info.value)
    assert "xgboost" in str(info.value)
