"""The package as a library: what it offers, and what importing it costs."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.tuning import session
from tilewright.tuning.events import Event, Note
from tilewright.tuning.options import TuneOptions

HEAVY = ("numpy", "iree", "ml_dtypes", "rich", "click", "sqlite3", "multiprocessing", "xgboost")


def loaded_after(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has after running the code."""
    code += f"; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = eval(done.stdout)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import tilewright",
        "import tilewright; dir(tilewright); tilewright.UserError",
        "from tilewright import Workload, Target, Trial, Status, Configuration, TuneResult",
    ],
)
def test_importing_is_light(code: str) -> None:
    assert loaded_after(code) == []


def test_every_public_name_is_there() -> None:
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
        assert name in dir(tilewright)
    assert tilewright.__version__
    assert set(tilewright.__all__) == set(tilewright._HOME)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tuen'"):
        tilewright.tuen  # noqa: B018
    with pytest.raises(ImportError):
        exec("from tilewright import tuen")


def test_tune_takes_every_option_as_a_keyword() -> None:
    parameters = inspect.signature(tilewright.tune).parameters
    fields = {f.name for f in dataclasses.fields(TuneOptions)}
    # `json` is about printing; a time limit is given with or without a unit; what only compiles, or
    # looks, has another result, and is a method of the session; events go to `on_event`.
    other = {"json", "time_limit_s", "compile_only", "dry_run", "events"}
    assert fields - other <= set(parameters)
    assert {"time_limit", "on_event"} <= set(parameters)
    for parameter in list(parameters.values())[1:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        field = next((f for f in dataclasses.fields(TuneOptions) if f.name == parameter.name), None)
        if field is not None and parameter.name != "strategy":
            assert parameter.default == field.default, parameter.name


class Recorded(Exception):
    """Ends a run before it begins, with what it was asked for."""


def test_tune_hands_its_options_to_the_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    class Session:
        def __init__(self, program: Path, options: TuneOptions, listener: object) -> None:
            asked.update(program=program, options=options, listener=listener)

        def run(self) -> None:
            raise Recorded

    monkeypatch.setattr(session, "TuningSession", Session)
    weights = tmp_path / "w.irpa"
    weights.touch()
    config = tmp_path / "scheduler.cfg"
    config.write_text(
        "[Env]\ninput_file = m.mlir\n[SearchSpace]\ntile_m = [8]\nblock_dim_x = [64]\n"
        "tile_m = [8]\n[SearchStrategy]\ntuner = RandomTuner\nn_trial = 7\n"
    )
    events: list[Event] = []
    with pytest.raises(Recorded):
        tilewright.tune(
            "m.mlir",
            time_limit="2m",
            parameters={"model": weights},
            variants=["default", "mine=--iree-opt-level=O3"],
            inputs=["4xf32=1"],
            config=config,
            output=tmp_path / "out",
            on_event=events.append,
        )
    options = asked["options"]
    assert asked["program"] == Path("m.mlir")
    assert options.time_limit_s == 120
    assert [str(p) for p in options.parameters] == [f"model={weights}"]
    assert [v.flags for v in options.variants] == [(), ("--iree-opt-level=O3",)]
    assert options.inputs == ("4xf32=1",)
    assert options.max_trials == 7
    assert options.strategy == "RandomTuner"
    assert options.config.restrictions == {"tile_m": (8,), "block_dim_x": (64,)}
    warnings = [e.text for e in events if isinstance(e, Note) and e.warning]
    assert any("tile_m is given more than once" in text for text in warnings)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"time_limit": "soon"}, "--time-limit: 'soon'"),
        ({"time_limit": -1}, "--time-limit: -1.0 s is not"),
        ({"max_trials": 0}, "--max-trials: 0 is not"),
        ({"max_trials": 2.5}, "--max-trials: 2.5 is not"),
        ({"seed": True}, "--seed: True is not"),
        ({"variants": ["nothing-known"]}, "unknown variant 'nothing-known'"),
        ({"parameters": {"model": "weights.bin"}}, "unknown kind of file '.bin'"),
        ({"effort": "all"}, "unknown effort 'all'"),
    ],
)
def test_a_mistake_is_a_user_error_with_the_options_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(tilewright.UserError) as info:
        tilewright.tune("m.mlir", **given)
    assert told in str(info.value)
