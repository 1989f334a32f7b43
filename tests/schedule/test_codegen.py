"""What loop nests become: numbers, vectors, registers, memory. Many stages share one compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir

from tilewright import te
from tilewright.schedule.codegen.machine import machine_for
from tilewright.schedule.codegen.module import context, emit_kernels, module_for
from tilewright.schedule.expr import Var, binary, index
from tilewright.schedule.lower import Lowered
from tilewright.schedule.nest import (
    VECTORIZED,
    Buffer,
    For,
    If,
    Kernel,
    Load,
    LoopProgram,
    Stmt,
    Store,
    flat,
)
from tilewright.target import parse_target

# The functions of one float.
FLOAT_FUNCTIONS = (
    "exp",
    "exp2",
    "log",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "sqrt",
    "rsqrt",
    "tanh",
    "tan",
    "sin",
    "cos",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
)

_ERF = np.vectorize(__import__("math").erf, otypes=[float])
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _ERF,
    "round": np.round,
}


def _axis(s: te.Schedule, t: te.Tensor) -> Any:
    return s[t].op.axis


def test_vectors_of_any_extent_and_any_access() -> None:
    n = 101
    A = te.placeholder((n,), "f32", name="A")
    M = te.placeholder((37, 19), "f32", name="M")
    plain = te.compute((n,), lambda i: A[i] + 1.0, name="plain")
    tail = te.compute((n,), lambda i: A[i] + 2.0, name="tail")
    parts = te.compute((n,), lambda i: A[i] + 3.0, name="parts")
    strided = te.compute((n,), lambda i: A[i] + 4.0, name="strided")
    reversed_ = te.compute(
        (n,), lambda i: A[n - 1 - i] + A[i // 3] + A[(i * 7) % n], name="reversed"
    )
    gathered = te.compute((19, 37), lambda i, j: M[j, i] * 2.0, name="gathered")
    scattered = te.compute((19, 37), lambda i, j: M[j, i] * 3.0, name="scattered")
    padded = te.compute(
        (39, 21),
        lambda i, j: te.if_then_else(te.all(i >= 1, i < 38, j >= 1, j < 20), M[i - 1, j - 1], 0.0),
        name="padded",
    )
    gathered_part = te.compute(
        (19, 37),
        lambda i, j: te.if_then_else(j * 7 % 40 < 37, M[j * 7 % 40, i], 0.0),
        name="gathered_part",
    )
    scattered_tail = te.compute((19, 37), lambda i, j: M[j, i] * 7.0, name="scattered_tail")
    outs = [plain, tail, parts, strided, reversed_, gathered, scattered, padded]
    outs += [gathered_part, scattered_tail]
    s = te.create_schedule(outs)
    s[plain].vectorize(_axis(s, plain)[0])
    s[tail].vectorize(s[tail].split(_axis(s, tail)[0], 16)[1])
    outer, inner = s[parts].split(_axis(s, parts)[0], nparts=7)
    s[parts].unroll(outer)
    s[parts].vectorize(inner)
    outer, inner = s[strided].split(_axis(s, strided)[0], 5)
    s[strided].vectorize(s[strided].split(outer, 3)[1])
    s[reversed_].vectorize(_axis(s, reversed_)[0])
    s[gathered].vectorize(_axis(s, gathered)[1])
    i, j = _axis(s, scattered)
    s[scattered].reorder(j, i)
    s[scattered].vectorize(i)
    s[padded].vectorize(_axis(s, padded)[1])
    s[gathered_part].vectorize(_axis(s, gathered_part)[1])
    i, j = _axis(s, scattered_tail)
    outer, inner = s[scattered_tail].split(i, 16)
    s[scattered_tail].reorder(j, outer, inner)
    s[scattered_tail].vectorize(inner)
    f = te.build(s, [A, M, *outs], threads=1)
    index = np.arange(n)
    turns = index[:37] * 7 % 40
    f.verify(
        lambda a, m: (
            a + 1,
            a + 2,
            a + 3,
            a + 4,
            a[::-1] + a[index // 3] + a[index * 7 % n],
            m.T * 2,
            m.T * 3,
            np.pad(m, 1),
            np.where(turns < 37, m[np.minimum(turns, 36)].T, 0),
            m.T * 7,
        )
    )
    text = str(f.lowered.mlir())
    for op in ("vector.from_elements", "vector.insert", "vector.maskedload", "vector.create_mask"):
        assert op in text
    # The compiler makes branches of these, one for each lane.
    assert "vector.gather" not in text
    assert "vector.scatter" not in text


@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize("size", [3, 16, 29, 32])
def test_lanes_behind_an_end_have_the_last_element(size: int, dtype: str) -> None:
    A = te.placeholder((3, size), dtype, name="A")
    B = te.compute((3, 64), lambda i, j: A[i, te.minimum(j, size - 1)], name="B")
    s = te.create_schedule([B])
    s[B].vectorize(s[B].split(s[B].op.axis[1], 16)[1])
    f = te.build(s, [A, B], threads=1)
    f.verify(lambda a: (a[:, np.minimum(np.arange(64), size - 1)],))
    assert "vector.from_elements" not in str(f.lowered.mlir())


def test_an_end_that_no_lane_comes_to_is_not_read() -> None:
    A = te.placeholder((64,), "f32", name="A")
    far = 1 << 33
    B = te.compute((3, 64), lambda i, j: A[te.minimum(j, i * far)], name="B")
    s = te.create_schedule([B])
    s[B].vectorize(s[B].split(s[B].op.axis[1], 16)[1])
    f = te.build(s, [A, B], threads=1)
    f.verify(lambda a: (np.stack([np.full(64, a[0]), a, a]),))
    assert "vector.maskedload" in str(f.lowered.mlir())


def test_lanes_that_are_near_in_memory_are_taken_out_of_whole_vectors() -> None:
    # The last element that is read is the last one that there is.
    sizes = [(step, lanes) for step in (2, 3, 4, 5) for lanes in (2, 8, 24)]
    inputs = [te.placeholder((k * (n - 1) + 1,), "f32", name=f"a{k}x{n}") for k, n in sizes]
    outs = [
        te.compute((n,), lambda i, a=a, k=k: a[i * k] + 1.0, name=f"b{k}x{n}")
        for a, (k, n) in zip(inputs, sizes, strict=True)
    ]
    s = te.create_schedule([out.op for out in outs])
    for out in outs:
        s[out].vectorize(_axis(s, out)[0])
    f = te.build(s, [*inputs, *outs])
    arrays = [np.arange(a.shape[0], dtype=np.float32) for a in inputs]
    for (step, _), x, found in zip(sizes, arrays, f(*arrays), strict=True):
        np.testing.assert_array_equal(found, x[::step] + 1)
    text = str(f.lowered.mlir())
    assert "vector.shuffle" in text
    near = te.create_schedule(outs[0].op)
    near[outs[0]].vectorize(_axis(near, outs[0])[0])
    assert "vector.from_elements" not in str(te.lower(near, [inputs[0], outs[0]]).mlir())


def test_vectors_at_places_that_are_read_from_memory() -> None:
    """The place is the same for all lanes, or another one in each."""
    P = te.placeholder((13,), "i64", name="P")
    T = te.placeholder((29, 13), "f32", name="T")
    rows = te.compute((13, 13), lambda i, j: T[P[i], j] + 1.0, name="rows")
    columns = te.compute((29, 13), lambda i, j: T[i, P[j]], name="columns")
    s = te.create_schedule([rows, columns])
    for tensor in (rows, columns):
        s[tensor].vectorize(s[tensor].split(_axis(s, tensor)[1], 8)[1])
    f = te.build(s, [P, T, rows, columns], threads=1)
    p = np.random.default_rng(0).permutation(13)
    t = np.random.default_rng(1).standard_normal((29, 13)).astype("f")
    found = f(p, t)
    assert np.array_equal(found[0], t[p] + 1)
    assert np.array_equal(found[1], t[:, p])


def _matmul(dtype: str, accumulator: str, name: str) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    A = te.placeholder((33, 17), dtype, name=f"A_{name}")
    B = te.placeholder((17, 29), dtype, name=f"B_{name}")
    k = te.reduce_axis(17, "k")
    C = te.compute(
        (33, 29),
        lambda i, j: te.sum(A[i, k].astype(accumulator) * B[k, j].astype(accumulator), axis=k),
        name=f"C_{name}",
    )
    return A, B, C


def test_every_element_type() -> None:
    types = ("f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64")
    inputs: list[te.Tensor] = []
    outs: list[te.Tensor] = []
    for dtype in types:
        accumulator = "f32" if dtype in ("f16", "bf16") else dtype
        A, B, C = _matmul(dtype, accumulator, dtype)
        inputs += [A, B]
        outs.append(C)
    flags = te.placeholder((45,), "bool", name="flags")
    numbers = te.placeholder((45,), "f32", name="numbers")
    both = te.compute((45,), lambda i: te.all(flags[i], numbers[i] > 0.0), name="both")
    chosen = te.compute(
        (45,), lambda i: te.select(flags[i], numbers[i], -numbers[i]).astype("i32"), name="chosen"
    )
    s = te.create_schedule([*outs, both, chosen])
    for C in outs:
        i, j = _axis(s, C)
        s[C].reorder(i, s[C].op.reduce_axis[0], j)
        s[C].vectorize(j)
    s[both].vectorize(_axis(s, both)[0])
    s[chosen].vectorize(_axis(s, chosen)[0])
    f = te.build(s, [*inputs, flags, numbers, *outs, both, chosen], threads=1)

    def reference(*arrays: Any) -> tuple[Any, ...]:
        products = [arrays[2 * n] @ arrays[2 * n + 1] for n in range(len(types))]
        mask, values = arrays[-2:]
        return (*products, mask & (values > 0), np.where(mask, values, -values).astype("i4"))

    f.verify(reference)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_floats_of_two_bytes_are_rounded_after_each_operation(dtype: Any) -> None:
    """In vectors of 64, of whose maxima of f16 IREE's passes crash."""
    name = "bf16" if dtype is ml_dtypes.bfloat16 else "f16"
    A, B = (te.placeholder((128,), name, name=n) for n in "AB")
    operations = {
        "sum": (lambda a, b: a + b, np.add),
        "difference": (lambda a, b: a - b, np.subtract),
        "product": (lambda a, b: a * b, np.multiply),
        "quotient": (lambda a, b: a / b, np.divide),
        "larger": (te.maximum, np.maximum),
        "smaller": (te.minimum, np.minimum),
        "chosen": (lambda a, b: te.select(a > b, a, -b), lambda a, b: np.where(a > b, a, -b)),
    }
    outs = [
        te.compute((128,), lambda i, f=f: f(A[i], B[i]), name=n) for n, (f, _) in operations.items()
    ]
    s = te.create_schedule(outs)
    for out in outs:
        s[out].vectorize(s[out].split(_axis(s, out)[0], 64)[1])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(128).astype(dtype) for _ in range(2))
    found = te.build(s, [A, B, *outs], threads=1)(a, b)
    for one, (_, wanted) in zip(found, operations.values(), strict=True):
        np.testing.assert_array_equal(one.astype("f4"), wanted(a, b).astype("f4"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("f32", 5e-6),
        ("f64", 4e-15),
        pytest.param("f16", 1e-3, marks=pytest.mark.slow),
        pytest.param("bf16", 8e-3, marks=pytest.mark.slow),
    ],
)
def test_functions(dtype: str, tolerance: float) -> None:
    n = 19
    A = te.placeholder((n,), dtype, name="A")

    def table(name: str) -> te.Tensor:
        """A row for each function; unrolled, each row is one function alone."""

        def body(row: Any, i: Any) -> Any:
            value = te.power(A[i], A[i])
            for number, function in enumerate(FLOAT_FUNCTIONS):
                value = te.select(row.equal(number), getattr(te, function)(A[i]), value)
            return value

        return te.compute((len(FLOAT_FUNCTIONS) + 1, n), body, name=name)

    scalars, vectors = table("scalars"), table("vectors")
    s = te.create_schedule([scalars, vectors])
    for out in (scalars, vectors):
        s[out].unroll(_axis(s, out)[0])
    s[vectors].vectorize(_axis(s, vectors)[1])
    f = te.build(s, [A, scalars, vectors], threads=1)
    numpy_type = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(dtype.replace("f", "float"))
    a = np.linspace(0.02, 0.98, n).astype(numpy_type)
    exact = a.astype(np.float64)
    for results in f(a):
        *rows, powers = results.astype(np.float64)
        for name, row in zip(FLOAT_FUNCTIONS, rows, strict=True):
            expected = _FUNCTIONS.get(name, getattr(np, name, None))(exact)
            error = np.abs(row - expected) / np.maximum(np.abs(expected), 0.01)
            assert error.max() < tolerance, name
        assert np.allclose(powers, exact**exact, rtol=tolerance)


def test_integer_division_never_traps() -> None:
    A = te.placeholder((8,), "i32", name="A")
    B = te.placeholder((8,), "i32", name="B")
    quotient = te.compute((8,), lambda i: A[i] // B[i], name="quotient")
    rest = te.compute((8,), lambda i: A[i] % B[i], name="rest")
    s = te.create_schedule([quotient, rest])
    s[rest].vectorize(_axis(s, rest)[0])
    f = te.build(s, [A, B, quotient, rest], threads=1)
    a = np.array([7, -7, 7, -7, 0, 5, -(2**31), 9], "i4")
    b = np.array([2, 2, -2, -2, 3, 0, -1, -1], "i4")
    with np.errstate(all="ignore"):
        assert np.array_equal(f(a, b)[0], a // b)
        assert np.array_equal(f(a, b)[1], a % b)


@pytest.mark.parametrize("sign", [1, -1])
def test_indices_are_divided_whatever_their_sign(sign: int) -> None:
    """Those that cannot be negative without one."""
    A = te.placeholder((32,), "i32", name="A")
    divided = te.compute((16,), lambda i: A[(sign * i) // 3 + 9], name="divided")
    rest = te.compute((16,), lambda i: A[(sign * i) % 3 + te.minimum(i, 5)], name="rest")
    s = te.create_schedule([divided, rest])
    s[rest].vectorize(_axis(s, rest)[0])
    a, at = np.arange(100, 132, dtype="i4"), np.arange(16)
    found = te.build(s, [A, divided, rest], threads=1)(a)
    assert np.array_equal(found[0], a[(sign * at) // 3 + 9])
    assert np.array_equal(found[1], a[(sign * at) % 3 + np.minimum(at, 5)])
    text = str(module_for(te.lower(s, [A, divided, rest]).program, parse_target("cpu", 1)))
    with_sign, without = ("arith.floordivsi", "arith.remsi"), ("arith.divui", "arith.remui")
    assert all((name in text) == (sign < 0) for name in with_sign)
    assert all((name in text) == (sign > 0) for name in without)


def test_reductions_caches_and_threads() -> None:
    n = 67
    A = te.placeholder((n, n), "f32", name="A")
    B = te.placeholder((n, n), "f32", name="B")
    outs = []

    k1 = te.reduce_axis(n, "k")
    biggest = te.comm_reducer(
        lambda x, y: (
            te.select(x[1] >= y[1], x[0], y[0]),
            te.select(x[1] >= y[1], x[1], y[1]),
        ),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    where, value = te.compute(
        (n,), lambda i: biggest((te.cast("i32", k1), A[i, k1]), axis=k1), name="argmax"
    )
    outs += [where, value]

    k2 = te.reduce_axis(n, "k")
    product = te.compute((n, n), lambda i, j: te.sum(A[i, k2] * B[k2, j], axis=k2), name="product")
    k3 = te.reduce_axis(n, "k")
    total = te.compute((n,), lambda i: te.sum(A[i, k3], axis=k3), name="total")
    k4 = te.reduce_axis(64, "k")
    threads = te.compute((n,), lambda i: te.sum(A[i, k4], axis=k4), name="threads")
    first = te.compute((n,), lambda i: A[i, 3] * 2.0, name="first")
    uses = te.compute((n, 5), lambda i, j: first[i] + te.exp(A[i, j]), name="uses")
    outs += [product, total, threads, uses]

    s = te.create_schedule([where.op, product, total, threads, uses])
    s[where].vectorize(_axis(s, where)[0])

    cache = s.cache_write(product, "local")
    io, jo, ii, ji = s[product].tile(*_axis(s, product), 8, 16)
    s[cache].compute_at(s[product], jo)
    block = s.cache_read(A, "shared", [cache])
    ic, jc = _axis(s, cache)
    ko, ki = s[cache].split(s[cache].op.reduce_axis[0], 5)
    s[cache].reorder(ko, ki, ic, jc)
    s[cache].unroll(ic)
    s[cache].vectorize(jc)
    s[block].compute_at(s[cache], ko)
    s[block].storage_align(_axis(s, block)[0], 16, 3)
    s[product].vectorize(ji)
    s[product].unroll(ii)
    s[product].parallel(io)

    partial = s.rfactor(total, s[total].split(s[total].op.reduce_axis[0], 16)[1])
    s[partial].vectorize(_axis(s, partial)[0])
    s[partial].compute_at(s[total], _axis(s, total)[0])

    inner = s[threads].split(s[threads].op.reduce_axis[0], 16)[1]
    s[threads].bind(inner, te.thread_axis("threadIdx.x"))
    s[threads].bind(_axis(s, threads)[0], te.thread_axis("blockIdx.x"))

    i, j = _axis(s, uses)
    s[uses].reorder(j, i)
    s[first].compute_at(s[uses], j)
    s[uses].vectorize(i)

    f = te.build(s, [A, B, *outs], threads=1)
    f.verify(
        lambda a, b: (
            a.argmax(1).astype("i4"),
            a.max(1),
            a @ b,
            a.sum(1),
            a[:, :64].sum(1),
            2 * a[:, 3:4] + np.exp(a[:, :5]),
        )
    )


def _register_matmul(n: int, rows: int, columns: int) -> tuple[te.Schedule, list[te.Tensor]]:
    A = te.placeholder((n, n), "f32", name="A")
    B = te.placeholder((n, n), "f32", name="B")
    k = te.reduce_axis(n, "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C)
    io, jo, ii, ji = s[C].tile(*_axis(s, C), rows, columns)
    s[C].reorder(io, jo, s[C].op.reduce_axis[0], ii, ji)
    s[C].unroll(ii)
    s[C].vectorize(ji)
    return s, [A, B, C]


def test_accumulators_stay_in_registers() -> None:
    s, tensors = _register_matmul(64, 8, 32)
    code = _inner_loops(te.build(s, tensors, target="cpu:znver4").assembly())[0]
    # Eight rows of two registers, an instruction for each, and nothing goes to memory.
    assert sum("vfmadd" in line for line in code) == 16
    assert not any("rsp" in line or _stores(line) for line in code)


def test_sums_of_an_unrolled_reduction_are_stored_once() -> None:
    X = te.placeholder((14, 64), "f32", name="X")
    W = te.placeholder((3, 64), "f32", name="W")
    k = te.reduce_axis(3, "k")
    Y = te.compute((12, 64), lambda i, c: te.sum(X[i + k, c] * W[k, c], axis=k), name="Y")
    s = te.create_schedule(Y)
    i, c = s[Y].op.axis
    io, ii = s[Y].split(i, 4)
    s[Y].reorder(io, k, ii, c)
    s[Y].unroll(k)
    s[Y].unroll(ii)
    s[Y].vectorize(c)
    assembly = te.build(s, [X, W, Y], target="cpu:znver4").assembly()
    code = assembly.partition("Y_0:")[2].partition("retq")[0].splitlines()
    # Four rows of four registers: three products each, but one store.
    assert sum("vfmadd" in line for line in code) == 48
    assert sum(_stores(line) and "rsp" not in line for line in code) == 16
    te.build(s, [X, W, Y]).verify(lambda x, w: sum(x[k : k + 12] * w[k] for k in range(3)))


def _stores(line: str) -> bool:
    """Whether a line of assembly writes a vector to memory."""
    return "vmov" in line and line.endswith(")")


def _inner_loops(assembly: str) -> list[list[str]]:
    """The stretches from a label to a jump back to it that multiply and add, shortest first."""
    lines = assembly.splitlines()
    labels = {line.partition(":")[0]: n for n, line in enumerate(lines) if line.startswith(".L")}
    loops = []
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) == 2 and words[0].startswith("j") and labels.get(words[1], number) < number:
            body = lines[labels[words[1]] : number]
            if any("vfmadd231ps" in one for one in body):
                loops.append(body)
    return sorted(loops, key=len)


def test_checks_of_uneven_splits_are_not_in_the_inner_loops() -> None:
    s, tensors = _register_matmul(67, 8, 32)
    f = te.build(s, tensors, threads=1)
    f.verify(lambda a, b: a @ b)
    # One version of the tile without masks, whose accumulators are 16 registers.
    assert any(
        sum("vfmadd" in line for line in code) == 16
        and not any("{%k" in line or "rsp" in line or _stores(line) for line in code)
        for code in _inner_loops(te.build(s, tensors, target="cpu:znver4").assembly())
    )


def test_large_storage_within_a_kernel() -> None:
    """A stage that a workgroup computes for itself, larger than a worker's memory."""
    n = 509
    A = te.placeholder((n, n), "f32", name="A")
    twice = te.compute((n, n), lambda i, j: A[i, j] * 2.0, name="twice")
    C = te.compute((n, n), lambda i, j: twice[j, i] + 1.0, name="C")
    s = te.create_schedule(C)
    outer, _ = s[C].split(_axis(s, C)[0], 256)
    s[C].parallel(outer)
    s[twice].compute_at(s[C], outer)
    f = te.build(s, [A, C], threads=2)
    f.verify(lambda a: a.T * 2 + 1)


def test_unrolling_too_much_says_so() -> None:
    A = te.placeholder((200, 200), "f32", name="A")
    C = te.compute((200, 200), lambda i, j: A[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    for axis in _axis(s, C):
        s[C].unroll(axis)
    with pytest.raises(te.ScheduleError, match=r"40000 statements.*8192.*split"):
        te.lower(s, [A, C]).mlir()


def test_pragmas_unroll_and_vectorize() -> None:
    A = te.placeholder((16, 8), "f32", name="A")
    C = te.compute((16, 8), lambda i, j: A[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    i, j = _axis(s, C)
    s[C].pragma(i, "auto_unroll_max_step", 16)
    s[C].pragma(j, "vectorize")
    text = str(te.lower(s, [A, C]).mlir())
    assert "scf.for" not in text
    assert text.count("vector.store") == 16


@pytest.mark.parametrize(
    ("pragmas", "loops"),
    [
        ({"auto_unroll_max_step": 8}, 1),
        ({"auto_unroll_max_extent": 16}, 0),
        ({"auto_unroll_max_step": 128, "auto_unroll_max_depth": 1}, 1),
        ({"auto_unroll_max_step": 128, "unroll_explicit": False}, 2),
    ],
)
def test_limits_of_unrolling(pragmas: dict[str, Any], loops: int) -> None:
    A = te.placeholder((16, 8), "f32", name="A")
    C = te.compute((16, 8), lambda i, j: A[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    for name, value in pragmas.items():
        s[C].pragma(s[C].op.axis[0], name, value)
    assert str(te.lower(s, [A, C]).mlir()).count("scf.for") == loops


@pytest.mark.parametrize(("width", "lines"), [(64, 4), (63, 5), (33, 3), (1, 1)])
def test_prefetch_is_an_operation(width: int, lines: int) -> None:
    """One for each cache line, and one for the line that a row ends in if it begins anywhere."""
    A = te.placeholder((64, width), "f32", name="A")
    C = te.compute((64, width), lambda i, j: A[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    s[C].prefetch(A, s[C].op.axis[0], 1)
    assert str(te.lower(s, [A, C]).mlir()).count("memref.prefetch") == lines


def _built(body: Stmt, reads: list[Buffer], writes: list[Buffer]) -> Any:
    """A function of a nest written by hand."""
    kernel = Kernel("kernel", body, tuple(reads), tuple(writes), {}, {})
    arguments = (*reads, *writes)
    program = LoopProgram("main", arguments, tuple(reads), tuple(writes), (), (kernel,))
    return te.build(Lowered(program), threads=1)


def test_what_a_loop_writes_is_read_again() -> None:
    """Also where it was read before the loop, and is read in it before it is written."""
    total, before, seen = (Buffer(n, (s,), "i32") for n, s in (("T", 1), ("B", 1), ("S", 4)))
    k, zero = Var("k"), index(0)
    one = te.const(1, "i32")
    read = Load(total, (zero,))
    body = flat(
        Store(total, (zero,), one),
        Store(before, (zero,), read),
        For(k, 4, flat(Store(seen, (k,), read), Store(total, (zero,), read + one))),
    )
    last, first, values = _built(body, [], [total, before, seen])()
    assert (last.tolist(), first.tolist(), values.tolist()) == ([5], [1], [1, 2, 3, 4])


def test_conditions_and_single_elements_in_vectorized_loops() -> None:
    """One element that all lanes write has the value of the last of them that are wanted."""
    A = Buffer("A", (8,), "i32")
    outs = [Buffer(name, (size,), "i32") for name, size in (("L", 1), ("M", 1), ("C", 8))]
    i, zero = Var("i"), index(0)
    read = Load(A, (i,))
    single, masked, chosen = outs
    few, steep = binary("lt", i, index(5)), binary("lt", i * 3, index(13))
    loops = [
        Store(single, (zero,), read),
        If(few, Store(masked, (zero,), read)),
        If(steep, Store(chosen, (i,), read), Store(chosen, (i,), te.const(0, "i32") - read)),
    ]
    body = flat(*(For(i, 8, stmt, VECTORIZED) for stmt in loops))
    a = np.arange(1, 9, dtype="i4")
    last, wanted, both = _built(body, [A], outs)(a)
    assert (last.tolist(), wanted.tolist()) == ([8], [5])
    assert both.tolist() == [1, 2, 3, 4, 5, -6, -7, -8]


def test_a_reduction_in_lanes_is_cut_where_it_ends() -> None:
    n = 1000
    x = te.placeholder((4, n), "f32", name="x")
    k = te.reduce_axis(n, "k")
    y = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="y")
    s = te.create_schedule(y)
    _, lane = s[y].split(k, 16)
    partial = s.rfactor(y, lane, factor_axis=1)
    s[partial].reorder(*s[partial].op.reduce_axis, s[partial].op.axis[1])
    s[partial].vectorize(s[partial].op.axis[1])
    s[partial].compute_at(s[y], s[y].op.axis[0])
    code = str(te.lower(s, [x, y]).mlir())
    # What is behind the loop over whole vectors is a vector of its own.
    assert "mask" not in code
    assert code.count("scf.for") == 3
    te.build(s, [x, y], threads=1).verify(lambda a: a.sum(axis=1))


def test_each_workgroup_is_handed_out_by_itself() -> None:
    """Of as many that the runtime takes eight at once, seven of eight do nothing; of each of the
    others the number is that of its part, which has memory of its own."""
    A = te.placeholder((20, 3), "f32", name="A")
    own = te.compute((20, 3, 4096), lambda i, j, n: A[i, j] + 1.0, name="own")
    B = te.compute((20, 3), lambda i, j: own[i, j, 5 * j] * A[i, j], name="B")
    s = te.create_schedule(B)
    outer, inner = s[B].split(B.op.axis[0], 4)
    s[own].compute_at(s[B], inner)
    for loop in (outer, inner):
        s[B].parallel(loop)
    te.build(s, [A, B], threads=2).verify(lambda a: (a + 1.0) * a)
    for threads, expected in ((1, (4, 5, 1)), (2, (32, 5, 1)), (4, (4, 5, 1))):
        with context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
            (kernel,) = emit_kernels(
                te.lower(s, [A, B]).program, machine_for(parse_target("cpu", threads))
            )
        assert kernel.workgroups == expected


@pytest.mark.parametrize(
    ("sizes", "shared"),
    [((1,), (1,)), ((2,), (9,)), ((8,), (9,)), ((9,), (9,)), ((2, 3), (5, 2)), ((20,), (160,))],
)
def test_few_workgroups_are_followed_by_empty_ones_where_cores_share_them(
    sizes: tuple[int, ...], shared: tuple[int, ...]
) -> None:
    """So that no worker falls asleep before the next dispatch; the empty ones do nothing."""
    A = te.placeholder((*sizes, 40), "f32", name="A")
    B = te.compute(A.shape, lambda *at: A(*at) + 1.0, name="B")
    s = te.create_schedule(B)
    for loop in B.op.axis[:-1]:
        s[B].parallel(loop)
    te.build(s, [A, B], threads=2).verify(lambda a: a + 1.0)
    for threads in (1, 2):
        with context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
            (kernel,) = emit_kernels(
                te.lower(s, [A, B]).program, machine_for(parse_target("cpu", threads))
            )
        found = tuple(n for n in kernel.workgroups if n > 1) or (1,)
        plain = tuple(n for n in reversed(sizes) if n > 1) or (1,)
        assert found == (plain if threads == 1 else shared)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc"])
def test_rounding_is_one_instruction_where_there_is_one(name: str, dtype: str) -> None:
    """Halves to even, signs of zeros and what is no number as NumPy has them."""
    special = [0.5, 1.5, 2.5, -0.5, -1.5, -0.0, 0.3, -0.3, 1e30, math.inf, -math.inf, math.nan]
    values = np.array([*special, *np.linspace(-9, 9, 77)], np.dtype(dtype.replace("f", "float")))
    x = te.placeholder(values.shape, dtype, name="x")
    y = te.compute(values.shape, lambda i: getattr(te, name)(x[i]), name="y")
    s = te.create_schedule(y)
    s[y].vectorize(y.op.axis[0])
    wanted = {"round": np.rint}.get(name, getattr(np, name))(values)
    found = te.build(s, [x, y], threads=1)(values)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    made = te.lower(s, [x, y])
    lowered = {one: str(made.mlir(one)) for one in ("cpu:znver4", "cpu:x86-64")}
    assert "math." not in lowered["cpu:znver4"]
    assert "llvm.call_intrinsic" not in lowered["cpu:x86-64"], "it would call a library"


def test_what_is_quantised_again_and_again_is_emitted_in_proportion() -> None:
    """Each step has what it rounds in four places: 4 to the 20th power of them in all."""
    x = te.placeholder((64,), "f32", name="x")

    def steps(value: Any, times: int) -> Any:
        for _ in range(times):
            value = te.round(value * 0.7) + value * 0.5
            value = te.select(value > -8.0, value, te.const(-8.0, "f32"))
            value = te.select(value < 7.0, value, te.const(7.0, "f32"))
        return value

    lines = []
    for times in (5, 20):
        y = te.compute((64,), lambda i, times=times: steps(x[i], times), name="y")
        s = te.create_schedule(y)
        s[y].vectorize(y.op.axis[0])
        lines.append(str(te.lower(s, [x, y]).mlir()).count("\n"))
    assert lines[1] < 4 * lines[0] + 100
    values = np.linspace(-9, 9, 64, dtype="f")
    want = values.astype("f")
    for _ in range(20):
        want = np.rint(want * np.float32(0.7)) + want * np.float32(0.5)
        want = np.clip(want, np.float32(-8), np.float32(7))
    np.testing.assert_allclose(te.build(s, [x, y], threads=1)(values), want, atol=1e-5)
