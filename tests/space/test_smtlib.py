"""Spaces as SMT-LIB: z3 and the space agree on what is a member."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_made import convolution, matmul, row_sum
from recorded_gpu import recorded

from tilewright.space import BoolKnob, ChoiceKnob, Constraint, SearchSpace, TileKnob
from tilewright.space.constraints import declared, product_at_most
from tilewright.space.knobs import knob_term
from tilewright.space.smtlib import configuration_of, number_of, to_smtlib
from tilewright.space.terms import either, where
from tilewright.trial import Configuration

RECORDED = (
    "matmul_f16_sm_80",
    "matmul_f16_gfx942",
    "conv_f16_gfx942",
    "attention_f16_gfx942",
    "batch_matmul_f16_gfx942",
    "matmul_f32_sm_80",
    "attention_f32_sm_80",
    "row_sum_sm_80",
    "matmul_f32_ampere",
    "matmul_f16_ampere",
)


def spaces() -> list[Any]:
    made = {
        "matmul": matmul(1024, 768, 512),
        "odd matmul": matmul(97, 51, 33),
        "convolution": convolution(56, 64, 64),
        "row sum": row_sum(512, 4096),
        **{name: recorded(name).space for name in RECORDED},
    }
    return [
        pytest.param(member.space, id=f"{name} {member.name}")
        for name, space in made.items()
        for member in space.members.values()
        if member.space.knobs
    ]


def toy() -> SearchSpace:
    tile, order = TileKnob("tile", (1, 2, 4, 8)), ChoiceKnob("order", ("none", "m", "a|b"))
    peel = BoolKnob("peel")
    t, o, p = map(knob_term, (tile, order, peel))
    rule = declared(
        "peeled tiles are small",
        ("tile", "order", "peel"),
        either(~p, t <= where(o == "m", 2, 4)),
        lambda tile, order, peel: f"{tile} with {order}",
    )
    default = Configuration.of({"tile": 1, "order": "none", "peel": False})
    return SearchSpace("toy", (tile, order, peel), (rule,), default)


@pytest.mark.parametrize("space", spaces())
def test_z3_agrees_with_the_space(space: SearchSpace) -> None:
    z3 = pytest.importorskip("z3")
    asserted = z3.And(*z3.parse_smt2_string(to_smtlib(space)))
    rng = np.random.default_rng(0)
    members = space.sample(rng, 8)
    anything = [Configuration.of({k.name: k.sample(rng) for k in space.knobs}) for _ in range(24)]
    near = [n for m in members[:4] for n in _varied(space, m, rng)]
    seen = []
    for configuration in (*members, *anything, *near, space.default):
        numbers = [
            (z3.Int(k.name), z3.IntVal(number_of(k, configuration[k.name]))) for k in space.knobs
        ]
        verdict = z3.simplify(z3.substitute(asserted, *numbers))
        assert z3.is_true(verdict) or z3.is_false(verdict)
        assert z3.is_true(verdict) is space.contains(configuration), configuration
        seen.append(z3.is_true(verdict))
    assert any(seen)
    assert all(seen[: len(members)])


def _varied(space: SearchSpace, member: Configuration, rng: np.random.Generator) -> list[Any]:
    """A member with another value of each knob in turn; many of them break one rule."""
    return [
        Configuration.of({**dict(member.items), knob.name: knob.sample(rng)})
        for knob in space.knobs
        if knob.effect
    ]


def test_a_model_is_a_configuration_and_all_of_them_are_the_space() -> None:
    z3 = pytest.importorskip("z3")
    space, solver = toy(), z3.Solver()
    solver.from_string(to_smtlib(space))
    symbols = [z3.Int(knob.name) for knob in space.knobs]
    found = set()
    while solver.check() == z3.sat:
        model = solver.model()
        numbers = {str(s): model.eval(s, model_completion=True).as_long() for s in symbols}
        found.add(configuration_of(space, numbers))
        solver.add(z3.Or(*(s != numbers[str(s)] for s in symbols)))
    every = space.ordered(range(space.order_size))
    assert found == {one for one in every if one is not None}


def test_names_and_options_are_written() -> None:
    text = to_smtlib(toy())
    assert "; 0 = none, 1 = m, 2 = a|b" in text
    assert "(assert (or (= |tile| 1) (= |tile| 2) (= |tile| 4) (= |tile| 8)))" in text
    assert "(<= 0 |order| 2)" in text
    assert ":named |rule: peeled tiles are small|" in text


def test_a_number_that_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="knob 'tile' has no value for 3"):
        configuration_of(toy(), {"tile": 3, "order": 0, "peel": 0})


def test_a_rule_that_is_a_function_is_named() -> None:
    tile = TileKnob("tile", (1, 2, 4))
    rules = (
        Constraint("even", ("tile",), lambda t: t % 2 == 0, str),
        product_at_most("small", ["tile"], 4),
    )
    space = SearchSpace("s", (tile,), rules, Configuration.of({"tile": 2}))
    with pytest.raises(ValueError, match="'even' of its constraints cannot be written"):
        to_smtlib(space)
