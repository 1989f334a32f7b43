"""Signatures as compiled modules declare them."""

from __future__ import annotations

import pytest

from tilewright.argument import ArgumentType
from tilewright.ir.signature import UNKNOWN, read_signature


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (
            "sync func @main(%input0: tensor<4x8xf32>, %input1: i64) "
            "-> (%output0: tensor<?x8xf32>)",
            "(4x8xf32, i64) -> (?x8xf32)",
        ),
        ("sync func @nothing() -> ()", "() -> ()"),
        ("sync func @nothing()", "() -> ()"),
        (
            "async func @f$async(%input0: tensor<f32> {iree.abi.output = 0 : index}, "
            "%input1: !hal.buffer_view, %input2: index) -> (%output0: !util.list<?>)",
            "(f32, !hal.buffer_view, index) -> (!util.list<?>)",
        ),
        (
            'sync func @"odd (name, of) it"(%input0: tensor<2xcomplex<f32>>) -> (%o: tensor<i1>)',
            "(2xcomplex<f32>) -> (i1)",
        ),
        ("sync func @f(%input0: tensor<2x", "() -> ()"),
    ],
)
def test_declarations(declaration: str, expected: str) -> None:
    assert str(read_signature(declaration, "")) == expected


def test_a_tensor_of_rank_0_is_no_scalar() -> None:
    found = read_signature("sync func @f(%input0: tensor<f32>, %input1: f32) -> ()", "")
    assert found.inputs == (ArgumentType("f32", ()), ArgumentType("f32", None))


def test_a_type_that_does_not_parse_is_unknown() -> None:
    found = read_signature("sync func @f(%input0: tensor<4xnonsense>) -> ()", "")
    assert found.inputs == (ArgumentType(UNKNOWN, None),)


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        ("0v_v", "() -> ()"),
        ("0i_v", "(i32) -> ()"),
        ("0rIfF_rr", f"({UNKNOWN}, i64, f32, f64) -> ({UNKNOWN}, {UNKNOWN})"),
        ("", "() -> ()"),
    ],
)
def test_without_a_declaration_the_calling_convention_tells(convention: str, expected: str) -> None:
    assert str(read_signature("", convention)) == expected
