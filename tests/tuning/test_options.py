"""Texts of options become values, or errors that name the option, the text, what is allowed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.search.interface import DEFAULT_STRATEGY
from tilewright.tuning.config_file import ConfigFile, DispatchRestrictions
from tilewright.tuning.effort import EFFORTS
from tilewright.tuning.goals import read_goals
from tilewright.tuning.options import TuneOptions, option_table
from tilewright.tuning.parse import (
    ParameterFile,
    parse_count,
    parse_duration,
    parse_parameters,
)
from tilewright.tuning.variants import DEFAULT_VARIANT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45", 45),
        ("0.5", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1H 30M".replace(" ", ""), 5400),
        ("1h2m3s", 3723),
        ("1.5h", 5400),
        ("2d", 172800),
        (" 5s ", 5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-5", "10x", "m", "30m1h", "1m1m", "1e9", "nan", "inf", "1h 30m", "٣s", "1,5h",
     "9" * 400, ".5", "5.", "ten"],
)  # fmt: skip
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UserError) as info:
        parse_duration(text, "--older-than")
    assert f"--older-than: '{text}'" in str(info.value)
    assert "1h30m" in str(info.value)


def test_counts() -> None:
    assert parse_count(" 16 ", "--max-trials") == 16
    assert parse_count("0", "--seed", least=0) == 0
    for text in ("0", "-1", "1.0", "", "x", "1_0", "٣", "9" * 5000):
        with pytest.raises(UserError, match=r"--max-trials: .* at least 1"):
            parse_count(text, "--max-trials")


def test_parameters(tmp_path: Path) -> None:
    file = tmp_path / "w=1.IRPA"
    file.write_bytes(b"x")
    assert parse_parameters(f"model={file}") == ParameterFile("model", file)
    assert parse_parameters(f"={file}") == ParameterFile("", file)
    (tmp_path / "d.gguf").mkdir()
    for text, words in [
        (str(tmp_path / "x.irpa"), "must be SCOPE=FILE"),
        ("model=", "must be SCOPE=FILE"),
        ("model=x.safetensor", "unknown kind of file '.safetensor'; did you mean '.safetensors'"),
        ("model=x", "allowed: .irpa, .gguf, .safetensors"),
        (f"model={tmp_path}/none.irpa", "cannot read the file"),
        (f"model={tmp_path}/d.gguf", "cannot read the file"),
        ("model=a\0.irpa", "cannot read the file"),
    ]:
        with pytest.raises(UserError) as info:
            parse_parameters(text)
        assert f"--parameters: '{text}'" in str(info.value)
        assert words in str(info.value)


def test_efforts_rise() -> None:
    assert list(EFFORTS) == ["quick", "standard", "thorough"]
    for low, high in (("quick", "standard"), ("standard", "thorough")):
        for name in ("trials_per_dispatch", "max_trials", "finalists", "confirm_rounds",
                     "tuned_variants", "company", "program_rounds"):  # fmt: skip
            assert getattr(EFFORTS[low], name) < getattr(EFFORTS[high], name), name
        assert EFFORTS[low].min_share > EFFORTS[high].min_share
    for effort in EFFORTS.values():
        # The first variant is what everything is compared with.
        assert effort.variants is None or effort.variants[0] == "default"
        assert effort.company <= effort.finalists <= effort.trials_per_dispatch


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"effort": "thorogh"}, "--effort: unknown effort 'thorogh'; did you mean 'thorough'?"),
        ({"max_trials": 0}, "--max-trials: 0"),
        ({"max_trials": True}, "--max-trials: True"),
        ({"threads": -1}, "--threads: -1"),
        ({"seed": -1}, "--seed: -1"),
        ({"seed": 1.5}, "--seed: 1.5"),
        ({"time_limit_s": 0.0}, "--time-limit"),
        ({"time_limit_s": float("nan")}, "--time-limit"),
        ({"only": "a("}, "--only: 'a(' is not a regular expression"),
        ({"cluster": "farm"}, "--cluster: 'farm' is no cluster"),
        ({"iree_flags": ("O3",)}, "--iree-flag: 'O3' is not a flag"),
    ],
)
def test_wrong_values_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as info:
        TuneOptions(**values)  # type: ignore[arg-type]
    assert words in str(info.value)


def test_a_configuration_file_fills_in_what_was_not_given() -> None:
    config = ConfigFile(Path("a.cfg"), tuner="RandomTuner", n_trial=16)
    filled = TuneOptions().with_config(config)
    assert (filled.strategy_name, filled.trial_limit) == ("random", 16)
    given = TuneOptions(strategy="grid", max_trials=7).with_config(config)
    assert (given.strategy_name, given.trial_limit) == ("grid", 7)
    neither = TuneOptions(effort="quick").with_config(ConfigFile(Path("a.cfg")))
    assert (neither.strategy_name, neither.trial_limit) == (
        DEFAULT_STRATEGY,
        EFFORTS["quick"].max_trials,
    )


def test_the_help_names_the_strategy_that_is_the_default() -> None:
    (spec,) = (spec for spec in option_table() if spec.name == "strategy")
    assert f"default: {DEFAULT_STRATEGY}" in spec.help


def test_only() -> None:
    assert TuneOptions().selects("anything")
    assert TuneOptions(only="mat.*512").selects("main_matmul_512x4")
    assert not TuneOptions(only="^mat").selects("main_matmul_512x4")


SAME_RUN: dict[str, object] = {
    "max_trials": 9,
    "time_limit_s": 5.0,
    "db": Path("x.db"),
    "resume": True,
    "fresh": True,
    "keep_candidates": Path("k"),
    "events": Path("e.jsonl"),
    "stop_at": read_goals("2x", "--stop-at"),
    "output": Path("elsewhere"),
    "device": "cuda://0",
    "runner": "dir:there",
    "cluster": "local:2",
    "cluster_certs": Path("certs"),
    "compile_only": True,
    "dry_run": True,
    "verbose": True,
    "json": True,
    "config": ConfigFile(Path("a.cfg")),
}
OTHER_RUN: dict[str, object] = {
    "target": "cpu:znver4",
    "effort": "quick",
    "strategy": "grid",
    "seed": 1,
    "function": "f",
    "inputs": ("3xf32",),
    "parameters": (ParameterFile("s", Path("a.irpa")),),
    "iree_flags": ("--x",),
    "variants": (DEFAULT_VARIANT,),
    "only": "x",
    "kernels": "only",
    "accuracy": "relaxed",
    "iree_bin": Path("tools"),
    "start_spec": ("a.mlir",),
    "keep_start": True,
    "library": "own",
    "no_verify": True,
    "threads": 1,
    "strategy_options": ("pool=64",),
    "config": ConfigFile(Path("a.cfg"), restrictions={"tile_m": (8,)}),
}


def test_every_option_is_put_to_the_test_of_the_digest() -> None:
    assert {f.name for f in dataclasses.fields(TuneOptions)} == SAME_RUN.keys() | OTHER_RUN.keys()


@pytest.mark.parametrize("name", SAME_RUN)
def test_options_that_a_resumed_run_may_change(name: str) -> None:
    assert TuneOptions(**{name: SAME_RUN[name]}).digest() == TuneOptions().digest()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHER_RUN)
def test_options_that_make_another_run(name: str) -> None:
    assert TuneOptions(**{name: OTHER_RUN[name]}).digest() != TuneOptions().digest()  # type: ignore[arg-type]


def test_the_digest_is_of_what_is_meant_not_of_how_it_is_said(tmp_path: Path) -> None:
    assert TuneOptions(strategy=DEFAULT_STRATEGY).digest() == TuneOptions().digest()
    tuner, strategy = TuneOptions(strategy="RandomTuner"), TuneOptions(strategy="random")
    assert tuner.digest() == strategy.digest()
    configs = [
        ConfigFile(Path(name), n_trial=4, dispatch_restrictions=(DispatchRestrictions("m", {}),))
        for name in ("a.cfg", "b.cfg")
    ]
    digests = {TuneOptions().with_config(c).digest() for c in configs}
    assert len(digests) == 1

    def grid(*settings: str) -> str:
        return TuneOptions(strategy="grid", strategy_options=settings).digest()

    assert grid("steps=12") == grid("steps=3", "steps=12.0") != grid()
    assert grid("steps=0") == grid()
    file = tmp_path / "w.irpa"
    file.write_bytes(b"1")
    options = TuneOptions(parameters=(ParameterFile("s", file),))
    again = TuneOptions(parameters=(ParameterFile("s", tmp_path / "x" / ".." / "w.irpa"),))
    (tmp_path / "x").mkdir()
    before = options.digest()
    assert again.digest() == before
    file.write_bytes(b"22")
    assert options.digest() != before


def test_the_table_has_every_option_of_the_command() -> None:
    flags = {spec.flag for spec in option_table()}
    assert flags == {
        "--target", "--effort", "--max-trials", "--time-limit", "--strategy",
        "--strategy-option", "--seed",
        "--function", "--input", "--parameters", "--iree-flag", "--variants", "--kernels",
        "--accuracy", "--only",
        "--threads", "--config", "--db", "--resume", "--fresh", "--keep-candidates", "--output",
        "--device", "--runner", "--cluster", "--cluster-certs", "--compile-only", "--iree-bin",
        "--no-verify", "--dry-run",
        "--verbose", "--json",
        "--events",
        "--stop-at", "--start-spec", "--keep-start", "--library",
    }  # fmt: skip
    for spec in option_table():
        default = getattr(TuneOptions(), spec.name)
        assert spec.help
        assert (spec.metavar == "") == (default is False)
        assert spec.multiple == (default == ())


def test_options_can_be_written_down(tmp_path: Path) -> None:
    options = TuneOptions(**(SAME_RUN | OTHER_RUN))  # type: ignore[arg-type]
    data = json.loads(json.dumps(options.to_json()))
    assert data["parameters"] == ["s=a.irpa"]
    assert data["variants"] == ["default"]
    assert data["config"] == "a.cfg"
    assert data.keys() == {f.name for f in dataclasses.fields(TuneOptions)}


@pytest.mark.parametrize(
    ("strategy", "setting", "message"),
    [
        ("grid", "steps", r"--strategy-option 'steps': write it as NAME=VALUE"),
        ("grid", "step=3", r"strategy 'grid': unknown option 'step'; did you mean 'steps'\?"),
        ("grid", "steps=many", r"strategy 'grid': option steps = 'many' \(allowed: an integer"),
        ("XGBoostTuner", "plan=1", r"strategy 'xgboost': unknown option 'plan'"),
    ],
)
def test_wrong_options_of_a_strategy(strategy: str, setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TuneOptions(strategy=strategy, strategy_options=(setting,)).check_strategy()


def test_a_word_that_is_no_choice_is_told_with_those_that_are() -> None:
    with pytest.raises(UserError, match=r"--kernels: 'onn' .* did you mean 'on'\? .*on, only, off"):
        TuneOptions(kernels="onn")
