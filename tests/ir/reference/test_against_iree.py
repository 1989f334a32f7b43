"""The interpreter against the compiler: the same programs, compiled and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from reference_programs import PROGRAMS
from reference_support import isolate_all, parsed, random_inputs, run_iree, to_flow

from tilewright.ir.reference import accuracy, evaluate
from tilewright.measure.verify import compare, is_float_type

# The CPU backend compiles im2col only where it made it itself.
COMPILED = sorted(PROGRAMS.keys() - {"im2col"})
# Every program has its turn in the slow tests; these are the kinds that NumPy alone checks least.
QUICK = (
    "argmax",
    "attention",
    "conv_bias_relu",
    "conv_grouped",
    "integers",
    "mathematics",
    "matmul_bf16_f32",
    "pack_padded",
    "quantised",
    "quantised_unsigned",
    "tensor_ops",
    "topk",
)
ISOLATED = ("conv_bias_relu", "matmul_i8_i32")
DATA_TILING = "--iree-opt-data-tiling"
# IREE's microkernel of mmt4d is wrong for tiles of 8x16 (docs/upstream); isolated dispatches carry
# it in the target that `to_flow` gave them.
FLAGS = {"mmt4d": ("--iree-llvmcpu-enable-ukernels=none",)}


def check(text: str, *flags: str) -> None:
    """Evaluate and run `main` on random data; every result must agree, and zeros must not."""
    with parsed(text) as module:
        inputs = random_inputs(module)
        expected = evaluate(module, "main", inputs)
        limits = accuracy(module, "main")
        types = _result_types(module)
    actual = run_iree(text, inputs, *flags)
    assert len(actual) == len(expected) > 0
    for got, want, type_ in zip(actual, expected, types, strict=True):
        if is_float_type(type_) and limits.working_type:
            type_ = limits.working_type
        adding = limits.accumulation_type or None
        result = compare(got, want, type_, limits.reduction_length, adding)
        assert result.ok, result
        assert not compare(np.zeros_like(got), want, type_, limits.reduction_length, adding).ok


def _result_types(module: Any) -> list[str]:
    for op in module.body.operations:
        if op.operation.name == "func.func":
            return [str(ir.RankedTensorType(t).element_type) for t in op.type.results]
    raise AssertionError("no function")


@pytest.mark.parametrize("name", QUICK)
def test_program(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("flags", [(), (DATA_TILING,)], ids=["default", "data-tiling"])
@pytest.mark.parametrize("name", ISOLATED)
def test_isolated_dispatches(name: str, flags: tuple[str, ...]) -> None:
    programs = isolate_all(to_flow(PROGRAMS[name], *flags))
    assert programs
    for program in programs:
        check(program)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(COMPILED) - set(QUICK)))
def test_every_program(name: str) -> None:
    check(PROGRAMS[name], *FLAGS.get(name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), (DATA_TILING,)], ids=["default", "data-tiling"])
@pytest.mark.parametrize("name", sorted(set(COMPILED) - set(ISOLATED)))
def test_every_isolated_dispatch(name: str, flags: tuple[str, ...]) -> None:
    programs = isolate_all(to_flow(PROGRAMS[name], *flags, *FLAGS.get(name, ())))
    assert programs
    for program in programs:
        check(program)


def test_data_tiling_puts_encodings_into_the_dispatch() -> None:
    """Otherwise the tests above would not cover what they are meant to."""
    (program,) = isolate_all(to_flow(PROGRAMS["matmul_f32"], DATA_TILING))
    with parsed(program) as module:
        names = set()
        module.operation.walk(lambda op: (names.add(op.name), ir.WalkResult.ADVANCE)[1])
    assert {"flow.tensor.encode", "iree_encoding.unset_encoding"} <= names
