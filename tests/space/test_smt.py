"""The compiler's constraints: domains, what follows from them, and z3's opinion."""

import numpy as np
import pytest
from recorded_gpu import NAMES, recorded

from tilewright.gpu import Assertion, ConstraintProgram, SmtKnob, SmtNode
from tilewright.space.gpu_smt import StatedPipeline
from tilewright.space.smt import ConstraintModel, Unbounded

STATED = [name for name in NAMES if recorded(name).template.programs]


def program(nodes, assertions, knobs=("a", "b")):
    return ConstraintProgram(
        "TileAndFuse",
        0,
        (96,),
        tuple(SmtKnob(k) for k in knobs),
        tuple(nodes),
        tuple(Assertion(n, "rule ({})", ()) for n in assertions),
    )


DIM, A, B = SmtNode("dim", value=0), SmtNode("variable", name="a"), SmtNode("variable", name="b")


def constant(value):
    return SmtNode("constant", value=value)


def test_domains_follow_from_divisibility():
    model = ConstraintModel(
        program(
            [
                DIM,
                A,
                B,
                constant(0),
                SmtNode("mod", (0, 1)),
                SmtNode("eq", (4, 3)),
                constant(8),
                SmtNode("ge", (1, 6)),
                SmtNode("mod", (1, 2)),
                SmtNode("eq", (8, 3)),
                constant(1),
                SmtNode("ge", (2, 10)),
            ],
            [5, 7, 9, 11],
        )
    )
    assert model.domains["a"].tolist() == [8, 12, 16, 24, 32, 48, 96]
    assert model.domains["b"].tolist() == [
        d for d in range(1, 97) if any(a % d == 0 for a in (8, 12, 16, 24, 32, 48, 96))
    ]


def test_a_variable_that_an_equation_gives_is_computed():
    model = ConstraintModel(
        program(
            [
                A,
                B,
                constant(4),
                SmtNode("mul", (1, 2)),
                SmtNode("eq", (0, 3)),
                constant(1),
                SmtNode("ge", (1, 5)),
                constant(10),
                SmtNode("le", (1, 7)),
            ],
            [4, 6, 8],
        )
    )
    assert model.computed == ("a",)
    assert model.domains["b"].tolist() == list(range(1, 11))
    assert model.compute("a", {"b": np.array([1, 3])}).tolist() == [4, 12]


def test_an_unbounded_knob_is_refused():
    nodes = [A, constant(1), SmtNode("ge", (0, 1))]
    with pytest.raises(Unbounded, match="'a'"):
        ConstraintModel(program(nodes, [2], ("a",)))


@pytest.mark.parametrize(
    ("x", "y", "quotient", "rest"), [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -3, 1), (5, 0, 0, 5)]
)
def test_division_is_that_of_smtlib(x, y, quotient, rest):
    nodes = [constant(x), constant(y), SmtNode("div", (0, 1)), SmtNode("mod", (0, 1))]
    model = ConstraintModel(program(nodes, [], ()))
    assert int(model.evaluate(2, {})) == quotient
    assert int(model.evaluate(3, {})) == rest


def test_programs_survive_json():
    for name in STATED:
        for one in recorded(name).template.programs:
            assert ConstraintProgram.from_json(one.to_json()) == one


def members(name):
    return [m for m in recorded(name).space.members.values() if isinstance(m, StatedPipeline)]


def holds_all(member, assignment):
    """Every assertion on one assignment, number by number."""
    values = {n: np.int64(v) for n, v in assignment.items()}
    return all(bool(member.model.holds(a, values)) for a in member.program.assertions)


@pytest.mark.parametrize("name", STATED)
def test_samples_satisfy_every_assertion(name):
    for member in members(name):
        for configuration in member.space.sample(np.random.default_rng(0), 64):
            assignment = member.assignment(dict(configuration.items))
            assert holds_all(member, assignment), (configuration, assignment)


@pytest.mark.parametrize("name", STATED)
def test_every_intrinsic_on_offer_is_sampled(name):
    for member in members(name):
        drawn = member.space.sample(np.random.default_rng(0), 64)
        for knob in member.program.knobs:
            if len(knob.options) > 1 and knob.name in {k.name for k in member.space.knobs}:
                allowed = {knob.options[i] for i in member.model.domains[knob.name]}
                assert {c.values[knob.name] for c in drawn} == allowed


def test_the_space_is_exactly_the_valid_set():
    """Against all combinations of the knobs' values."""
    (member,) = members("attention_f16_gfx942")
    knobs = member.space.knobs
    axes = np.meshgrid(*(np.arange(k.cardinality) for k in knobs), indexing="ij")
    columns = {k.name: k.column(axis.ravel()) for k, axis in zip(knobs, axes, strict=True)}
    count = axes[0].size
    rules = np.ones(count, dtype=bool)
    for constraint in member.space.constraints:
        rules &= constraint.mask([columns[name] for name in constraint.knobs])
    values = member.values(member.free, [columns[name] for name in member.free])
    stated = np.ones(count, dtype=bool)
    for assertion in member.program.assertions:
        stated &= member.model.holds(assertion, values)
    # What is rejected though the compiler's constraints hold, our own rules reject.
    assert not (rules & ~stated).any()
    assert member.space.size_estimate(np.random.default_rng(0)).points == rules.sum() > 0


@pytest.mark.parametrize("name", ["matmul_f16_sm_80", "matmul_f16_gfx942", "conv_f16_gfx942"])
def test_z3_agrees(name):
    """What is sampled satisfies the compiler's own SMT-LIB form; what an assertion rejects does
    not."""
    z3 = pytest.importorskip("z3")
    rng = np.random.default_rng(1)
    for member in members(name):
        solver = z3.Solver()
        solver.from_string(recorded(name).smtlib[member.program.ordinal])

        def satisfiable(assignment, solver=solver):
            solver.push()
            solver.add([z3.Int(knob) == value for knob, value in assignment.items()])
            answer = solver.check()
            solver.pop()
            return answer == z3.sat

        for configuration in member.space.sample(rng, 5):
            assert satisfiable(member.assignment(dict(configuration.items)))
        wrong = 0
        while wrong < 5:
            values = {k.name: k.sample(rng) for k in member.space.knobs}
            assignment = member.assignment(values)
            if not holds_all(member, assignment):
                wrong += 1
                assert not satisfiable(assignment)


def test_reasons_have_the_numbers():
    (member, _) = members("matmul_f16_sm_80")
    values = dict(member.space.default.items)
    values["sg_0"] = 16
    reasons = [str(v) for v in member.space.violations(type(member.space.default).of(values))]
    assert any("wg_0" in reason and "16" in reason for reason in reasons)
