import pytest
from synthetic import tiny

from tilewright.errors import UnknownNameError, UserError
from tilewright.search import (
    DEFAULT_STRATEGY,
    Option,
    Strategy,
    create_strategy,
    describe_strategies,
    find_strategy,
    parse_assignments,
    parse_options,
    register,
    strategies,
)


def test_what_there_is():
    assert list(strategies()) == ["grid", "guided", "random"]
    assert DEFAULT_STRATEGY == "guided"


@pytest.mark.parametrize(
    ("alias", "name"),
    [("GridSearchTuner", "grid"), ("GridTuner", "grid"), ("RandomTuner", "random")],
)
def test_old_names(alias, name):
    assert find_strategy(alias) is strategies()[name]
    assert create_strategy(alias, tiny(), 0).name == name


@pytest.mark.parametrize("name", ["XGBoostTuner", "GATuner"])
def test_names_still_to_come(name):
    with pytest.raises(UserError) as caught:
        find_strategy(name)
    text = str(caught.value)
    assert name in text
    assert "later release" in text
    assert "grid, guided, random" in text


def test_unknown_name():
    with pytest.raises(UnknownNameError) as caught:
        create_strategy("randm", tiny(), 0)
    assert "did you mean 'random'" in str(caught.value)
    assert "allowed: grid, guided, random" in str(caught.value)


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
        with pytest.raises(UserError, match="strategy 'random': takes no options"):
            create_strategy("random", tiny(), 0, {"step": "3"})
        with pytest.raises(UserError, match="strategy 'grid': option steps = '1'"):
            create_strategy("grid", tiny(), 0, {"steps": "1"})

    def test_assignments(self):
        assert parse_assignments(["a=1", "b = x=y", "a=2"]) == {"a": "2", "b": "x=y"}
        with pytest.raises(UserError, match="NAME=VALUE"):
            parse_assignments(["steps"])

    def test_every_option_is_described(self):
        text = describe_strategies()
        for name, strategy in strategies().items():
            assert name in text
            assert strategy.summary
            for option in strategy.options_table:
                assert option.help in text
                assert option.parse(option.default) == option.default
