"""Each kind's program computes what NumPy says: checked by the interpreter of IR, which shares
nothing with either."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import SMALL

from tilewright.ir.reference import evaluate, reduction_length
from tilewright.ir.session import CompilerSession
from tilewright.kernels.kinds import KINDS
from tilewright.kernels.operation import Operation, make_operation
from tilewright.kernels.worker_tasks import build_program
from tilewright.measure.inputs import random_array


def small_operations() -> list[Operation]:
    found = []
    for kind in KINDS.values():
        dims = {d.name: SMALL[d.name] for d in kind.dimensions}
        found += [
            make_operation(kind, dims, types, layout, variant)
            for variant in kind.variants
            for types in kind.types(variant)
            for layout in kind.layouts
        ]
    return found


OPERATIONS = small_operations()


@pytest.fixture(scope="module")
def session() -> CompilerSession:
    return CompilerSession()


def data(operation: Operation) -> list[np.ndarray]:
    return [random_array(kind, 1, i) for i, kind in enumerate(operation.arguments)]


def wide(operation: Operation, values: list[np.ndarray]) -> list[np.ndarray]:
    return [v.astype(np.int64 if operation.types.is_integer else np.float64) for v in values]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_program_and_reference_agree(session: CompilerSession, operation: Operation) -> None:
    module = build_program(operation, session.context)
    values = data(operation)
    expected = operation.kind.reference(operation, wide(operation, values))
    assert expected.shape == operation.result.shape
    (computed,) = evaluate(module, "main", values)
    if operation.types.is_integer:
        np.testing.assert_array_equal(computed, expected)
    else:
        # The interpreter rounds where the program casts; attention does so inside.
        coarse = operation.types.operand in ("f16", "bf16")
        np.testing.assert_allclose(computed, expected, rtol=0.02 if coarse else 1e-6, atol=1e-2
                                   if coarse else 1e-6)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS[:: len(OPERATIONS) // 40], ids=lambda o: o.name)
def test_sums_are_as_long_as_they_are_said_to_be(
    session: CompilerSession, operation: Operation
) -> None:
    module = build_program(operation, session.context)
    said = operation.kind.reduction_length(operation)
    found = reduction_length(module, "main")
    assert said == found


def test_references_tell_operands_apart() -> None:
    matmul = make_operation(
        KINDS["matmul"], {"m": 8, "n": 8, "k": 8}, KINDS["matmul"].types("")[0], "tt", ""
    )
    lhs, rhs = wide(matmul, data(matmul))
    right = matmul.kind.reference(matmul, [lhs, rhs])
    swapped = matmul.kind.reference(matmul, [rhs, lhs])
    assert np.abs(right - swapped).max() > 0.1


def test_flops_and_bytes() -> None:
    types = KINDS["matmul"].types("")
    dims = {"m": 3, "n": 5, "k": 7}
    plain = make_operation(KINDS["matmul"], dims, types[0], "tt", "")
    assert plain.flops == 2 * 3 * 5 * 7
    assert plain.bytes == 4 * (3 * 7 + 7 * 5 + 3 * 5)
    fused = make_operation(KINDS["matmul_bias_relu"], dims, types[-1], "tt", "")
    assert fused.flops == 3 * 5 * (2 * 7 + 2)
    assert fused.bytes == 3 * 7 + 7 * 5 + 4 * (5 + 3 * 5)
