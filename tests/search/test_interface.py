import sys
from importlib.abc import MetaPathFinder

import pytest
from synthetic import tiny

from tilewright.errors import UnknownNameError, UserError
from tilewright.search import (
    DEFAULT_STRATEGY,
    Option,
    Strategy,
    check_strategy,
    create_strategy,
    find_strategy,
    parse_assignments,
    parse_options,
    register,
    strategies,
)


def test_what_there_is():
    assert {
        "auto",
        "genetic",
        "grid",
        "guided",
        "random",
        "xgboost",
    } <= set(strategies())
    assert DEFAULT_STRATEGY == "auto"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("GridSearchTuner", "grid"),
        ("GridTuner", "grid"),
        ("RandomTuner", "random"),
        ("GATuner", "genetic"),
        ("XGBoostTuner", "xgboost"),
    ],
)
def test_old_names(alias, name):
    assert find_strategy(alias) is strategies()[name]
    assert create_strategy(alias, tiny(), 0).name == name


@pytest.mark.parametrize(("name", "package"), [("xgboost", "xgboost")])
def test_a_missing_library(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for make in (lambda: create_strategy(name, tiny(), 0), lambda: check_strategy(name)):
        with pytest.raises(UserError) as caught:
            make()
        text = str(caught.value)
        assert f"strategy '{name}' needs the package {package}" in text
        assert "run: pip install xgboost" in text
        assert "\n" not in text


def test_a_library_that_does_not_load(monkeypatch):
    class Broken(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "xgboost":
                raise OSError("libgomp.so.1: cannot open\nshared object file")

    monkeypatch.delitem(sys.modules, "xgboost", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(UserError, match=r"cannot be loaded \(libgomp.so.1: cannot open shared"):
        create_strategy("xgboost", tiny(), 0)


def test_only_the_strategies_that_need_a_library_ask_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for name, strategy in strategies().items():
        if not strategy.libraries:
            assert create_strategy(name, tiny(), 0).ask(3)


def test_checking_without_making():
    check_strategy("GridTuner", {"steps": "12"})
    with pytest.raises(UserError, match=r"strategy 'grid': option steps = 'x'"):
        check_strategy("grid", {"steps": "x"})


def test_unknown_name():
    with pytest.raises(UnknownNameError) as caught:
        create_strategy("randm", tiny(), 0)
    assert "did you mean 'random'" in str(caught.value)
    assert f"allowed: {', '.join(strategies())}" in str(caught.value)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register("random")(Strategy)
    with pytest.raises(ValueError, match="registered already"):
        register("RandomTuner")(Strategy)


class TestOptions:
    TABLE = (
        Option("share", 0.5, "a share", 0, 1),
        Option("size", 10, "a size", low=1),
        Option("fast", True, "a switch"),
        Option("mode", "a", "a mode", choices=("a", "b")),
    )

    def test_defaults_and_text(self):
        assert parse_options(self.TABLE, {}) == {
            "share": 0.5,
            "size": 10,
            "fast": True,
            "mode": "a",
        }
        given = {"share": "0.25", "size": "7", "fast": "off", "mode": "b"}
        assert parse_options(self.TABLE, given) == {
            "share": 0.25,
            "size": 7,
            "fast": False,
            "mode": "b",
        }

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"share": "2"}, "option share = '2' .*a number from 0 to 1"),
            ({"share": "nan"}, "share"),
            ({"share": True}, "share"),
            ({"size": "1.5"}, "an integer from 1"),
            ({"size": "inf"}, "an integer from 1"),
            ({"size": "x"}, "an integer from 1"),
            ({"size": None}, "an integer from 1"),
            ({"fast": "maybe"}, "true, false"),
            ({"mode": "c"}, "allowed: a, b"),
            ({"sise": 1}, "unknown option 'sise'; did you mean 'size'"),
        ],
    )
    def test_errors(self, given, message):
        with pytest.raises(UserError, match=message):
            parse_options(self.TABLE, given, "strategy 'x'")

    def test_strategy_errors_name_the_strategy(self):
        with pytest.raises(UserError, match=r"strategy 'grid': unknown option 'step'.*steps"):
            create_strategy("grid", tiny(), 0, {"step": "3"})
        with pytest.raises(UserError, match=r"strategy 'random': unknown option .*by_pipeline"):
            create_strategy("random", tiny(), 0, {"step": "3"})
        with pytest.raises(UserError, match=r"plan_siz'; did you mean 'plan_size'"):
            create_strategy("XGBoostTuner", tiny(), 0, {"plan_siz": "3"})
        with pytest.raises(UserError, match="takes no options"):
            parse_options((), {"step": 3}, "strategy 'x'")
        with pytest.raises(UserError, match="strategy 'grid': option steps = '-1'"):
            create_strategy("grid", tiny(), 0, {"steps": "-1"})

    def test_assignments(self):
        assert parse_assignments(["a=1", "b = x=y", "a=2"]) == {"a": "2", "b": "x=y"}
        with pytest.raises(UserError, match="NAME=VALUE"):
            parse_assignments(["steps"])

    def test_every_option_is_described(self):
        for strategy in strategies().values():
            assert strategy.summary
            for option in strategy.options_table:
                assert option.help
                assert option.allowed()
                assert option.parse(option.default) == option.default
