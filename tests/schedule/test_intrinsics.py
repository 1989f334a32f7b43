"""Tensorize with the intrinsics that come with the language, and with one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.codegen.machine import host_features


def outer_product_matmul(
    n: int = 64, rows: int = 4, columns: int = 16, depth: int = 16, dtype: str = "f32"
) -> tuple[te.Schedule, list[Any]]:
    A = te.placeholder((n, n), dtype, name="A")
    B = te.placeholder((n, n), dtype, name="B")
    k = te.reduce_axis(n, "k")
    left = te.compute((n // rows, n, rows), lambda p, r, c: A[p * rows + c, r], name="left")
    right = te.compute(
        (n // columns, n, columns), lambda p, r, c: B[r, p * columns + c], name="right"
    )
    C = te.compute(
        (n, n),
        lambda i, j: te.sum(
            left[i // rows, k, i % rows] * right[j // columns, k, j % columns], axis=k
        ),
        name="C",
    )
    s = te.create_schedule(C)
    i, j = s[C].op.axis
    io, ii = s[C].split(i, rows)
    jo, ji = s[C].split(j, columns)
    ko, ki = s[C].split(s[C].op.reduce_axis[0], depth)
    s[C].reorder(jo, io, ko, ii, ji, ki)
    s[C].tensorize(ii, te.intrinsics.outer_product(rows, columns, depth, dtype))
    return s, [A, B, C]


def dot_matmul(
    lanes: int, m: int, k: int, dtype: str = "i8", sums: str = "i32", size: int = 4
) -> tuple[te.Schedule, list[Any]]:
    """24 x 32 elements times 32 x (3 lanes), packed for dot products of `size`."""
    A = te.placeholder((24, 32), "i16" if dtype == "i8" and size == 2 else dtype, name="A")
    B = te.placeholder((3, 32 // size, lanes, size), dtype, name="B")
    g, e = te.reduce_axis(32 // size, "g"), te.reduce_axis(size, "e")
    C = te.compute(
        (3, 24, lanes),
        lambda x, i, j: te.sum(
            A[i, g * size + e].astype(sums) * B[x, g, j, e].astype(sums), axis=[g, e]
        ),
        name="C",
    )
    s = te.create_schedule(C)
    x, i, j = s[C].op.axis
    g, e = s[C].op.reduce_axis
    go, gi = s[C].split(g, k // size)
    io, ii = s[C].split(i, m)
    inner = [ii] if m > 1 else []
    if k > size:
        s[C].reorder(io, x, go, *inner, j, gi, e)
    else:
        s[C].reorder(io, x, go, gi, *inner, j, e)
    names = {("i8", 4): "byte_dot", ("i8", 2): "word_dot", ("bf16", 2): "bf16_dot"}
    intrinsic = getattr(te.intrinsics, names[dtype, size])
    s[C].tensorize(ii if m > 1 else j, intrinsic(lanes, k, m))
    return s, [A, B, C]


def _bytes_product(a: Any, b: Any) -> Any:
    return np.einsum("ige,xgje->xij", a.reshape(24, 8, 4).astype("i4"), b.astype("i4"))


def test_outer_product_in_every_instruction_set() -> None:
    s, tensors = outer_product_matmul()
    for target, register in (("cpu:znver4", "zmm"), ("cpu:haswell", "ymm")):
        code = te.build(s, tensors, target=target).assembly()
        assert "vfmadd231ps" in code
        assert register in code
    with pytest.raises(te.ScheduleError, match=r"AVX2, AVX-512 or Neon, which cpu:x86-64 does not"):
        te.build(s, tensors, target="cpu:x86-64")
    s, tensors = outer_product_matmul(rows=16, columns=64)
    with pytest.raises(te.ScheduleError, match=r"128 accumulators; cpu:haswell has 16 vector"):
        te.build(s, tensors, target="cpu:haswell")


@pytest.mark.skipif(
    not host_features() & {"fma", "avx512f", "neon"}, reason="no multiply-add instruction here"
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_outer_product_computes(dtype: str) -> None:
    s, tensors = outer_product_matmul(dtype=dtype, columns=8)
    te.build(s, tensors, threads=1).verify(lambda a, b: a @ b)


@pytest.mark.parametrize(("lanes", "m", "k"), [(16, 1, 4), (16, 4, 32), (8, 2, 8)])
def test_byte_dot_uses_the_instruction(lanes: int, m: int, k: int) -> None:
    s, tensors = dot_matmul(lanes, m, k)
    assert "vpdpbusd" in te.build(s, tensors, target="cpu:znver4").assembly()
    if "avx512vnni" in host_features():
        f = te.build(s, tensors, threads=1)
        f.verify(_bytes_product)
        # The extremes, where adding 128 or saturating would show.
        a = np.full((24, 32), -128, "i1")
        b = np.full((3, 8, lanes, 4), -128, "i1")
        assert np.array_equal(f(a, b), _bytes_product(a, b))


@pytest.mark.parametrize(
    ("zero", "unsigned"), [(-128, False), (5, False), (127, False), (0, True), (255, True)]
)
def test_byte_dot_of_numbers_less_what_stands_for_0(zero: int, unsigned: bool) -> None:
    lanes, m, k = 16, 4, 32
    a, b = te.placeholder((24, k), "i8", name="a"), te.placeholder((8, lanes, 4), "i8", name="b")
    g, e = te.reduce_axis(8, "g"), te.reduce_axis(4, "e")
    value = te.intrinsics.byte_value
    c = te.compute(
        (24, lanes),
        lambda i, j: te.sum(
            value(a[i, g * 4 + e].astype("i32"), zero, unsigned) * b[g, j, e].astype("i32"),
            axis=[g, e],
        ),
        name="c",
    )
    s = te.create_schedule(c)
    i, j = c.op.axis
    io, ii = s[c].split(i, m)
    s[c].reorder(io, ii, j, g, e)
    s[c].tensorize(ii, te.intrinsics.byte_dot(lanes, k, m, zero, unsigned))
    code = te.build(s, [a, b, c], target="cpu:znver4").assembly()
    # What stands for 0 takes no instruction where it is the 0 of what the processor takes.
    assert code.count("vpdpbusd") == m + (zero + 128 * (not unsigned) != 0)
    if "avx512vnni" in host_features():
        rng = np.random.default_rng(0)
        x, y = (rng.integers(-128, 128, t.shape).astype("i1") for t in (a, b))
        numbers = (x.astype("i4") & 255 if unsigned else x.astype("i4")) - zero
        wanted = np.einsum("ige,gje->ij", numbers.reshape(24, 8, 4), y.astype("i4"))
        assert np.array_equal(te.build(s, [a, b, c], threads=1)(x, y), wanted)


@pytest.mark.parametrize(("zero", "unsigned"), [(128, False), (-1, True)])
def test_byte_dot_takes_bytes_for_0(zero: int, unsigned: bool) -> None:
    with pytest.raises(te.ScheduleError, match=f"a zero point of {zero}"):
        te.intrinsics.byte_dot(16, 4, 1, zero, unsigned)


def test_byte_dot_needs_the_extension() -> None:
    s, tensors = dot_matmul(16, 1, 4)
    with pytest.raises(te.ScheduleError, match=r"byte dot products.*cpu:haswell"):
        te.build(s, tensors, target="cpu:haswell")


@pytest.mark.parametrize(
    ("lanes", "target", "register"),
    [
        (8, "cpu:haswell", "ymm"),
        (16, "cpu:haswell", "ymm"),
        (16, "cpu:skylake-avx512", "zmm"),
        (32, "cpu:skylake-avx512", "zmm"),
    ],
)
@pytest.mark.parametrize(("m", "k"), [pytest.param(1, 2, marks=pytest.mark.slow), (4, 32)])
def test_word_dot_uses_the_instruction(
    lanes: int, target: str, register: str, m: int, k: int
) -> None:
    s, tensors = dot_matmul(lanes, m, k, size=2)
    code = te.build(s, tensors, target=target).assembly()
    (used,) = {line.split("%")[-1][:3] for line in code.splitlines() if "vpmaddwd" in line}
    assert used == register
    vectors = lanes // (8 if register == "ymm" else 16)
    assert code.count("vpmaddwd") == m * vectors, "two vectors of sums are two instructions"
    if {"ymm": "avx2", "zmm": "avx512bw"}[register] in host_features():
        f = te.build(s, tensors, threads=1)
        rng = np.random.default_rng(0)
        a = rng.integers(-255, 256, (24, 32)).astype("i2")
        b = rng.integers(-128, 128, (3, 16, lanes, 2)).astype("i1")
        for x, y in ((a, b), (np.full_like(a, -(2**15)), np.full_like(b, -128))):
            wanted = np.einsum("ige,xgje->xij", x.reshape(24, 16, 2).astype("i4"), y.astype("i4"))
            assert np.array_equal(f(x, y), wanted)


def test_word_dot_needs_the_extension() -> None:
    s, tensors = dot_matmul(8, 1, 2, size=2)
    with pytest.raises(te.ScheduleError, match=r"dot products of 16 bits.*cpu:x86-64"):
        te.build(s, tensors, target="cpu:x86-64")
    with pytest.raises(te.ScheduleError, match="word_dot: 4 lanes"):
        te.intrinsics.word_dot(4)


def test_two_vectors_of_byte_dots() -> None:
    s, tensors = dot_matmul(32, 4, 32)
    code = te.build(s, tensors, target="cpu:znver4").assembly()
    assert code.count("vpdpbusd") == 10, "two for each row, and two for what 128 adds"
    if "avx512vnni" in host_features():
        te.build(s, tensors, threads=1).verify(_bytes_product)


@pytest.mark.parametrize(("lanes", "m", "k"), [(16, 1, 2), (16, 4, 32), (8, 2, 8)])
def test_bf16_dot_uses_the_instruction(lanes: int, m: int, k: int) -> None:
    s, tensors = dot_matmul(lanes, m, k, "bf16", "f32", 2)
    assert "vdpbf16ps" in te.build(s, tensors, target="cpu:znver4").assembly()
    if "avx512bf16" in host_features():
        te.build(s, tensors, threads=1).verify(
            lambda a, b: np.einsum("ige,xgje->xij", a.reshape(24, 16, 2), b)
        )


def test_bf16_dot_needs_the_extension() -> None:
    s, tensors = dot_matmul(16, 1, 2, "bf16", "f32", 2)
    with pytest.raises(te.ScheduleError, match=r"bf16 dot products.*cpu:haswell"):
        te.build(s, tensors, target="cpu:haswell")


def gemv_matmul(n: int, m: int, k: int, factor: int, dtype: str) -> tuple[te.Schedule, list[Any]]:
    A = te.placeholder((n, k), dtype, name="A")
    B = te.placeholder((m, k), dtype, name="B")
    axis = te.reduce_axis(k, "k")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, axis] * B[j, axis], axis=axis), name="C")
    s = te.create_schedule(C)
    i, j = s[C].op.axis
    outer, inner = s[C].split(j, factor)
    s[C].reorder(i, outer, inner, s[C].op.reduce_axis[0])
    s[C].tensorize(inner, te.intrinsics.gemv(factor, k, dtype))
    return s, [A, B, C]


@pytest.mark.parametrize(("k", "dtype"), [(64, "f32"), (37, "f32"), (64, "i32"), (5, "f64")])
def test_gemv_of_any_length_and_type(k: int, dtype: str) -> None:
    s, tensors = gemv_matmul(12, 48, k, 16, dtype)
    te.build(s, tensors, threads=1).verify(lambda a, b: a @ b.T)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("between", [0, 1])
def test_squares_are_transposed(lanes: int, between: int) -> None:
    shape = (3, 2 * lanes, *([5] * between), 4 * lanes)
    A = te.placeholder(shape, "f32", name="A")
    if between:
        C = te.compute((3, 5, 4 * lanes, 2 * lanes), lambda a, b, i, j: A[a, j, b, i], name="C")
    else:
        C = te.compute((3, 4 * lanes, 2 * lanes), lambda a, i, j: A[a, j, i], name="C")
    s = te.create_schedule(C)
    _, _, rows, _ = s[C].tile(*C.op.axis[-2:], lanes, lanes)
    s[C].tensorize(rows, te.intrinsics.transpose(lanes, between=between))
    order = (0, 2, 3, 1) if between else (0, 2, 1)
    te.build(s, [A, C], threads=1).verify(lambda a: a.transpose(order))


def test_the_pattern_must_match() -> None:
    A = te.placeholder((32, 16), "f32", name="A")
    B = te.placeholder((32, 16), "f32", name="B")
    k = te.reduce_axis(16, "k")
    C = te.compute((32, 32), lambda i, j: te.max(A[i, k] * B[j, k], axis=k), name="C")
    s = te.create_schedule(C)
    _, inner = s[C].split(s[C].op.axis[1], 16)
    s[C].tensorize(inner, te.intrinsics.gemv(16, 16))
    with pytest.raises(te.ScheduleError, match="gemv_16x16_f32"):
        te.lower(s, [A, B, C])


def test_an_intrinsic_of_ones_own() -> None:
    """The tutorial's: a pattern, and the operations that it becomes."""

    def twice_plus_one(lanes: int) -> Any:
        a = te.placeholder((lanes,), "f32", name="a")
        c = te.compute((lanes,), lambda i: a[i] * 2.0 + 1.0, name="c")

        def emit(builder: Any, phase: str, inputs: Any, outputs: Any) -> None:
            from iree.compiler.dialects import vector

            assert phase == "body"
            value = inputs[0].load(0, lanes=lanes)
            two = builder.constant(2.0, "f32", lanes)
            one = builder.constant(1.0, "f32", lanes)
            outputs[0].store(vector.FMAOp(value, two, one).result, 0)

        return te.decl_tensor_intrin(c.op, emit, name="twice_plus_one")

    A = te.placeholder((6, 32), "f32", name="A")
    C = te.compute((6, 32), lambda i, j: A[i, j] * 2.0 + 1.0, name="C")
    s = te.create_schedule(C)
    _, inner = s[C].split(s[C].op.axis[1], 8)
    s[C].tensorize(inner, twice_plus_one(8))
    f = te.build(s, [A, C], threads=1)
    assert "vector.fma" in str(f.lowered.mlir())
    f.verify(lambda a: a * 2 + 1)


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(te.ScheduleError, match="byte_dot: 5 lanes"):
        te.intrinsics.byte_dot(5)
    with pytest.raises(te.ScheduleError, match="k=6"):
        te.intrinsics.byte_dot(16, 6)
    with pytest.raises(te.ScheduleError, match="wmma: k=20"):
        te.intrinsics.wmma(20)
    with pytest.raises(te.ScheduleError, match="outer_product: element type i8"):
        te.intrinsics.outer_product(4, 4, 4, "i8")
    with pytest.raises(te.ScheduleError, match="transpose: 6 lanes of f32"):
        te.intrinsics.transpose(6)
