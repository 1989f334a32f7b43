"""Attributes as trees: what MLIR reads in a text and in the tree printed again is the same.

`attribute_texts.txt` has every attribute that IREE's own tests write, in each of its forms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.attributes import (
    ATTRIBUTE,
    BODY,
    BRACES,
    TYPED,
    UNIT,
    AttributeSyntaxError,
    attribute,
    attribute_in_braces,
    is_attribute,
    items_of,
    named_value,
    parameters_of,
    parse_attribute,
    parse_type,
    print_attribute,
    quoted,
    unquoted,
    value_of,
)

TEXTS = (Path(__file__).parent / "attribute_texts.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    from tilewright.ir.session import CompilerSession

    session = CompilerSession()
    yield session.context
    session.close()


def test_every_attribute_is_the_same_after_a_round_trip(context: Any) -> None:
    from iree.compiler import ir

    different = []
    with context:
        for text in TEXTS:
            here = ir.Attribute.parse(text)
            # As it is written in a file, and as the compiler prints it.
            for form in (text, str(here)):
                tree = json.loads(json.dumps(parse_attribute(form)))
                again = ir.Attribute.parse(print_attribute(tree))
                if again != ir.Attribute.parse(form):
                    different.append(form)
        # Nothing in a context may outlive it.
        del here, again
    assert not different
    assert len(TEXTS) > 150


def test_what_configures_dispatches_is_there() -> None:
    names = {text.partition("<")[0] for text in TEXTS}
    assert {
        "#iree_codegen.compilation_info",
        "#iree_codegen.lowering_config",
        "#iree_codegen.translation_info",
        "#iree_cpu.lowering_config",
        "#iree_cpu.pipeline",
        "#iree_gpu.data_tiled_mma_layout",
        "#iree_gpu.lowering_config",
        "#iree_gpu.mma_layout",
        "#iree_gpu.pipeline",
        "#iree_gpu.pipeline_options",
        "#iree_gpu.scaled_mma_layout",
        "#iree_gpu.spirv_pipeline",
        "#iree_gpu.target",
        "#iree_gpu.virtual_mma_layout",
    } <= names


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("true", True),
        ("-3", -3),
        ("3 : i64", 3),
        ("3 : i32", {TYPED: [3, "i32"]}),
        ('"a, \\"b\\""', '"a, \\"b\\""'),
        ("[1, [2], a|b]", [1, [2], "a|b"]),
        ('{x, y = 1, "z-1" = f32}', {"x": UNIT, "y": 1, "z-1": "f32"}),
        ("affine_map<(d0, d1) -> (d1)>", "affine_map<(d0, d1) -> (d1)>"),
        ("dense<1> : tensor<2xi64>", {TYPED: ["dense<1>", "tensor<2xi64>"]}),
        ("#a.none", {ATTRIBUTE: "#a.none"}),
        ("#a.named<x = 1, y = <z>>", {ATTRIBUTE: "#a.named", "x": 1, "y": attribute("", "z")}),
        ("#a.braced<{x = [1]}>", {ATTRIBUTE: "#a.braced", BODY: BRACES, "x": [1]}),
        ("#a.listed<8, 38>", attribute("#a.listed", 8, 38)),
        (
            "#a.mixed<p = #a.q<R> n = 2, {u}>",
            attribute(
                "#a.mixed",
                (named_value("p", attribute("#a.q", "R")), named_value("n", 2)),
                {"u": UNIT},
            ),
        ),
    ],
)
def test_trees(text: str, tree: Any) -> None:
    assert parse_attribute(text) == tree
    assert parse_attribute(print_attribute(tree)) == tree


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#a.b<1", "expected a value at position 6"),
        ("[1, ", "expected a value"),
        ("1 2", "expected the end at position 2"),
        ('"open', "a string does not end"),
        ("affine_map<(d0", "expected"),
        ("", "expected a value at position 0"),
    ],
)
def test_what_is_no_attribute_is_told(text: str, told: str) -> None:
    with pytest.raises(AttributeSyntaxError, match=told):
        parse_attribute(text)


def test_types_of_dialects_are_taken_apart() -> None:
    tensor = parse_type("!torch.vtensor<[2,?],si64>")
    assert is_attribute(tensor, "!torch.vtensor")
    assert items_of(tensor) == [[2, "?"], "si64"]
    assert items_of(parse_type("!stream.resource<constant>")) == ["constant"]
    assert parse_type("!hal.fence") == {ATTRIBUTE: "!hal.fence"}
    assert parse_type("tensor<2x?xf32>") == "tensor<2x?xf32>"


def test_a_key_can_be_an_attribute() -> None:
    tree = attribute_in_braces("#a.objects", {'#b.target<"x">': [attribute("#c.object", 1)]})
    text = '#a.objects<{#b.target<"x"> = [#c.object<1>]}>'
    assert print_attribute(tree) == text
    assert parse_attribute(text) == tree


def test_what_is_asked_of_a_tree() -> None:
    typed = parse_attribute('#d.target<"local", [#e.t<"x">]> : !hal.device')
    plain = value_of(typed)
    assert is_attribute(plain, "#d.target")
    assert not is_attribute(typed, "#d.target")
    assert [unquoted(one) for one in items_of(plain) if isinstance(one, str)] == ["local"]
    assert parameters_of(parse_attribute("#a.b<{x = 1}>")) == {"x": 1}
    assert parameters_of([1]) == {}
    assert items_of(3) == []
    assert unquoted(quoted('a"b\\')) == 'a"b\\'
