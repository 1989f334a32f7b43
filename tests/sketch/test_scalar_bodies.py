"""Scalar operations: each as an expression, against the reference, at awkward values too."""

from __future__ import annotations

import numpy as np
import pytest
from expression_evaluator import evaluate_expression
from reference_support import parsed

from tilewright.ir.reference import evaluate
from tilewright.sketch.translate import translate_function
from tilewright.sketch.untranslatable import Untranslatable

FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 0.49999997, 1e-3, 7.0, -7.25]
)
SPECIAL = np.array([np.nan, np.inf, -np.inf])


def run(lines: str, result: str, values: list[np.ndarray], types: list[str]) -> None:
    """Compare `%r` of a body over %x, %y, ... with the reference.

    `result` is its element type; one value, and one type, for each argument.
    """
    names = "xyz"[: len(types)]
    n = len(values[0])
    vector = [f"tensor<{n}x{t}>" for t in types]
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(types) + 1))
    arguments = ", ".join(f"%{a}s: {t}" for a, t in zip(names, vector, strict=True))
    inside = ", ".join(f"%{a}: {t}" for a, t in zip(names, types, strict=True))
    passed = ", ".join(f"%{a}s" for a in names)
    source = f"""
func.func @main({arguments}) -> tensor<{n}x{result}> {{
  %e = tensor.empty() : tensor<{n}x{result}>
  %o = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins({passed} : {", ".join(vector)}) outs(%e : tensor<{n}x{result}>) {{
  ^bb0({inside}, %out: {result}):
    {lines}
    linalg.yield %r : {result}
  }} -> tensor<{n}x{result}>
  return %o : tensor<{n}x{result}>
}}"""
    with parsed(source) as module:
        inputs, outputs = translate_function(module, "main")
        (found,) = evaluate_expression(inputs, outputs, values)
        (wanted,) = evaluate(module, "main", values)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=1e-9, atol=1e-12
    )


def pairs(values: np.ndarray) -> list[np.ndarray]:
    return [a.ravel() for a in np.meshgrid(values, values)]


ONE_FLOAT = (
    *("arith.negf", "math.absf", "math.atan", "math.cbrt", "math.ceil", "math.cos", "math.erf"),
    *("math.exp", "math.exp2", "math.expm1", "math.floor", "math.round", "math.roundeven"),
    *("math.asinh", "math.sin", "math.sinh", "math.cosh", "math.tanh", "math.trunc"),
)


@pytest.mark.parametrize("name", ONE_FLOAT)
def test_functions_of_a_float(name: str) -> None:
    run(f"%r = {name} %x : f32", "f32", [FLOATS.astype("f")], ["f32"])


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_kinds_of_floats(name: str) -> None:
    values = np.concatenate([FLOATS, SPECIAL]).astype("f")
    run(f"%r = math.{name} %x : f32", "i1", [values], ["f32"])


@pytest.mark.parametrize(
    "name", ["arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "math.copysign"]
)
def test_functions_of_two_floats_where_one_may_be_no_number(name: str) -> None:
    values = pairs(np.concatenate([FLOATS[1:], SPECIAL[1:]]).astype("f"))
    run(f"%r = {name} %x, %y : f32", "f32", values, ["f32", "f32"])
    if name != "math.copysign":
        values = pairs(np.concatenate([FLOATS, SPECIAL]).astype("f"))
        run(f"%r = {name} %x, %y : f32", "f32", values, ["f32", "f32"])


@pytest.mark.parametrize(
    "predicate",
    [
        *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
        *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
    ],
)
def test_comparisons_of_floats(predicate: str) -> None:
    values = pairs(np.concatenate([FLOATS[:6], SPECIAL]).astype("f"))
    run(f"%r = arith.cmpf {predicate}, %x, %y : f32", "i1", values, ["f32", "f32"])


def test_a_choice_by_a_comparison_is_an_extreme_that_keeps_what_is_no_number() -> None:
    values = np.concatenate([FLOATS, SPECIAL]).astype("f")
    for predicate in ("ugt", "uge", "ult", "ule", "ogt", "olt"):
        lines = f"""%c = arith.constant 1.0 : f32
    %m = arith.cmpf {predicate}, %x, %c : f32
    %r = arith.select %m, %x, %c : f32"""
        run(lines, "f32", [values], ["f32"])


INTEGERS = {
    "i8": np.array([0, 1, -1, 2, 3, 5, 7, 100, 127, -127, -128, -100], np.int8),
    "i32": np.array([0, 1, -1, 2, 3, 31, 70000, 2**31 - 1, -(2**31), -70000], np.int32),
    "i64": np.array([0, 1, -1, 2, 3, 63, 2**40, 2**62, -(2**62), -(2**40)], np.int64),
}
ANY_WIDTH = (*("addi", "subi", "muli", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui"),)
QUOTIENTS = ("divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui", "ceildivui")


@pytest.mark.parametrize("type_", INTEGERS)
@pytest.mark.parametrize("name", ANY_WIDTH)
def test_integers(name: str, type_: str) -> None:
    values = pairs(INTEGERS[type_])
    run(f"%r = arith.{name} %x, %y : {type_}", type_, values, [type_, type_])


@pytest.mark.parametrize("type_", ["i8", "i32"])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_division_of_integers(name: str, type_: str) -> None:
    # Not by 0, and not the least number by -1: both have no meaning in the program.
    x, y = pairs(INTEGERS[type_])
    fine = (y != 0) & ((x != np.iinfo(x.dtype).min) | (y != -1))
    run(f"%r = arith.{name} %x, %y : {type_}", type_, [x[fine], y[fine]], [type_, type_])


@pytest.mark.parametrize("name", ["shli", "shrsi", "shrui"])
def test_shifts(name: str) -> None:
    values = [INTEGERS["i32"], np.arange(len(INTEGERS["i32"]), dtype=np.int32)]
    run(f"%r = arith.{name} %x, %y : i32", "i32", values, ["i32", "i32"])


@pytest.mark.parametrize("type_", [*INTEGERS, "i1"])
@pytest.mark.parametrize(
    "predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
)
def test_comparisons_of_integers(predicate: str, type_: str) -> None:
    values = pairs(INTEGERS.get(type_, np.array([False, True])))
    run(f"%r = arith.cmpi {predicate}, %x, %y : {type_}", "i1", values, [type_, type_])


@pytest.mark.parametrize(
    "name", ["addi", "subi", "xori", "muli", "andi", "ori", "maxsi", "minsi", "maxui", "minui"]
)
def test_truth_values(name: str) -> None:
    run(f"%r = arith.{name} %x, %y : i1", "i1", pairs(np.array([False, True])), ["i1", "i1"])


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("extsi", "i8", "i32"),
        ("extui", "i8", "i32"),
        ("extui", "i8", "i64"),
        ("extui", "i32", "i64"),
        ("extsi", "i1", "i32"),
        ("extui", "i1", "i8"),
        ("trunci", "i32", "i8"),
        ("trunci", "i32", "i1"),
        ("sitofp", "i8", "f32"),
        ("uitofp", "i8", "f32"),
        ("uitofp", "i32", "f64"),
        ("sitofp", "i1", "f32"),
        ("uitofp", "i1", "f32"),
    ],
)
def test_conversions_of_integers(name: str, source: str, target: str) -> None:
    values = INTEGERS.get(source, np.array([False, True]))
    run(f"%r = arith.{name} %x : {source} to {target}", target, [values], [source])


@pytest.mark.parametrize("target", ["i8", "i32", "i64"])
def test_floats_as_integers(target: str) -> None:
    run(f"%r = arith.fptosi %x : f32 to {target}", target, [FLOATS.astype("f")], ["f32"])
    positive = np.abs(FLOATS.astype("f")) * 30
    if target != "i64":
        run(f"%r = arith.fptoui %x : f32 to {target}", target, [positive], ["f32"])


@pytest.mark.parametrize("result", ["%r, %o1", "%o1, %r"])
@pytest.mark.parametrize("name", ["mulsi_extended", "mului_extended"])
def test_both_halves_of_a_product(name: str, result: str) -> None:
    values = pairs(INTEGERS["i32"])
    lines = f"{result} = arith.{name} %x, %y : i32"
    run(lines, "i32", values, ["i32", "i32"])


@pytest.mark.parametrize("result", [("%r, %c", "i32"), ("%s, %r", "i1")])
def test_a_sum_and_its_carry(result: tuple[str, str]) -> None:
    names, type_ = result
    values = pairs(INTEGERS["i32"])
    run(f"{names} = arith.addui_extended %x, %y : i32, i1", type_, values, ["i32", "i32"])


def test_branches_are_choices() -> None:
    lines = """%c = arith.constant 0.0 : f32
    %m = arith.cmpf ogt, %x, %c : f32
    %r = scf.if %m -> f32 {
      %l = math.log %x : f32
      scf.yield %l : f32
    } else {
      scf.yield %y : f32
    }"""
    values = [FLOATS.astype("f"), FLOATS[::-1].astype("f")]
    run(lines, "f32", values, ["f32", "f32"])


@pytest.mark.parametrize(
    ("lines", "type_", "reason"),
    [
        ("%r = arith.remf %x, %x : f32", "f32", "no such function in the schedule language"),
        ("%r = arith.divui %x, %x : i64", "i64", "unsigned arithmetic of i64"),
        ("%r = math.ctpop %x : i32", "i32", "no such function in the schedule language"),
    ],
)
def test_what_there_is_no_function_for_is_named(lines: str, type_: str, reason: str) -> None:
    value = np.ones(3, {"f32": "f4", "i64": "i8", "i32": "i4"}[type_])
    with pytest.raises(Untranslatable, match=reason) as refusal:
        run(lines, type_, [value], [type_])
    assert refusal.value.operation in lines
