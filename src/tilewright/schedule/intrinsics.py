"""Intrinsics for `tensorize` that come with the language (products of small elements from
`dot_products` and `matrix_products`, of f32 in parts from `split_products` and `split_operands`);
declare your own with :func:`tilewright.schedule.intrinsic.decl_tensor_intrin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import gpu, vector

from tilewright.schedule import functions
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.dot_products import bf16_dot, byte_dot, byte_value, word_dot
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import as_expr, cast
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.matrix_products import bf16_matrix, byte_matrix
from tilewright.schedule.split_operands import split_pairs, split_rows
from tilewright.schedule.split_products import split_matrix
from tilewright.schedule.tensor import compute, placeholder, reduce_axis
from tilewright.schedule.types import bits

__all__ = [
    "bf16_dot",
    "bf16_matrix",
    "byte_dot",
    "byte_matrix",
    "byte_value",
    "gemv",
    "outer_product",
    "split_matrix",
    "split_pairs",
    "split_rows",
    "transpose",
    "wmma",
    "word_dot",
]

Views: TypeAlias = Sequence[BufferView]


# -- a matrix times a vector, the sums in vector registers -----------------------------------------


def gemv(m: int, k: int, dtype: str = "f32") -> TensorIntrinsic:
    """`c[i] += sum over k of a[k] * b[i, k]`, for i below m, of any element type and target.

        s[C].tensorize(yi, te.intrinsics.gemv(16, 64))

    Each row is added up in as many sums as a vector register has elements, which are then added:
    another order than one after the other.

    Args:
        m, k: rows, and the length of each.
        dtype: the element type of all three.

    Returns:
        The intrinsic.
    """
    a = placeholder((k,), dtype, name="a")
    b = placeholder((m, k), dtype, name="b")
    axis = reduce_axis(k, "k")
    c = compute(
        (m,), lambda i: functions.sum(as_expr(a[axis]) * as_expr(b[i, axis]), axis=axis), name="c"
    )

    def emit(builder: IntrinsicBuilder, phase: str, inputs: Views, outputs: Views) -> None:
        (out,) = outputs
        zero = builder.constant(0, dtype)
        if phase == "reset":

            def clear(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                out.store(zero, row)
                return []

            builder.loop(m, 1, [], clear)
            return
        left, right = inputs
        lanes = max(1, min(builder.machine.widths.register * 8 // bits(dtype), k))
        if left.strides[-1] != 1 or right.strides[-1] != 1 or builder.machine.is_gpu:
            lanes = 1
        whole = k // lanes * lanes

        def row_sum(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            def step(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                wide = lanes if lanes > 1 else 0
                x, y = left.load(at, lanes=wide), right.load(row, at, lanes=wide)
                return [builder.add(sums[0], builder.multiply(x, y, dtype), dtype)]

            start = builder.constant(0, dtype, lanes if lanes > 1 else 0)
            (total,) = builder.loop(whole, lanes, [start], step)
            if lanes > 1:
                kind = scalars.parsed_attribute("#vector.kind<add>")
                total = vector.ReductionOp(scalars.element(dtype), kind, total).result
            for at in range(whole, k):
                product = builder.multiply(left.load(at), right.load(row, at), dtype)
                total = builder.add(total, product, dtype)
            if phase == UPDATE:
                total = builder.add(out.load(row), total, dtype)
            out.store(total, row)
            return []

        builder.loop(m, 1, [], row_sum)

    return decl_tensor_intrin(c.op, emit, name=f"gemv_{m}x{k}_{dtype}")


# -- matrix products by the subgroups of a GPU (wmma, cooperative matrices) ------------------------

_SIDE = 16


def wmma(
    k: int = _SIDE,
    dtype: str = "f16",
    accumulator: str = "f32",
    *,
    b_columns: bool = False,
) -> TensorIntrinsic:
    """`C[16, 16] += A[16, k] B[k, 16]` by all threads of a subgroup together, on CUDA and Vulkan
    devices with matrix units.

    `threadIdx.x` must be one subgroup (32 threads), bound to an axis of another stage, such as the
    one that fills shared memory: every thread takes part in every tile. On CPUs it is loops.

    Args:
        k: a multiple of 16: the accumulators stay in registers over it.
        dtype, accumulator: element types of the operands (f16) and of the sums (f32, f16).
        b_columns: B is read as `B[16, k]`.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers and types.

        s[C].tensorize(ii, te.intrinsics.wmma(64))
    """
    if dtype != "f16" or accumulator not in ("f32", "f16"):
        raise ScheduleError(
            f"wmma: {dtype} added up in {accumulator} (allowed: f16 in f32, f16 in f16)"
        )
    if k < 1 or k % _SIDE:
        raise ScheduleError(f"wmma: k={k} is no multiple of {_SIDE}")
    a = placeholder((_SIDE, k), dtype, name="a")
    b = placeholder((_SIDE, k) if b_columns else (k, _SIDE), dtype, name="b")
    axis = reduce_axis(k, "k")
    c = compute(
        (_SIDE, _SIDE),
        lambda i, j: functions.sum(
            cast(accumulator, a[i, axis])
            * cast(accumulator, b[j, axis] if b_columns else b[axis, j]),
            axis=axis,
        ),
        name="c",
    )
    name = f"wmma_{k}_{dtype}_{accumulator}{'_columns' if b_columns else ''}"

    def emit(builder: IntrinsicBuilder, phase: str, inputs: Views, outputs: Views) -> None:
        _check_subgroup(builder, name)
        (out,) = outputs
        sums = _matrix(accumulator, "COp")
        if phase == UPDATE:
            total = _load_matrix(out, sums, out.at(0, 0), False)
        else:
            zero = builder.constant(0.0, accumulator)
            total = gpu.SubgroupMmaConstantMatrixOp(sums, zero).result
        if phase != "reset":
            left, right = inputs

            def step(at: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
                place = right.at(0, at) if b_columns else right.at(at, 0)
                x = _load_matrix(left, _matrix(dtype, "AOp"), left.at(0, at), False)
                y = _load_matrix(right, _matrix(dtype, "BOp"), place, b_columns)
                return [gpu.SubgroupMmaComputeOp(x, y, carried[0]).result]

            (total,) = builder.loop(k, _SIDE, [total], step)
        gpu.SubgroupMmaStoreMatrixOp(total, out.flat, [out.at(0, 0)], out.strides[-2])

    return decl_tensor_intrin(c.op, emit, name=name, collective=True)


def _matrix(dtype: str, operand: str) -> ir.Type:
    return scalars.parsed_type(f'!gpu.mma_matrix<{_SIDE}x{_SIDE}x{dtype}, "{operand}">')


def _load_matrix(view: BufferView, type_: ir.Type, place: ir.Value, transposed: bool) -> ir.Value:
    return gpu.SubgroupMmaLoadMatrixOp(
        type_, view.flat, [place], view.strides[-2], transpose=transposed or None
    ).result


def _check_subgroup(builder: IntrinsicBuilder, name: str) -> None:
    machine = builder.machine
    if machine.backend not in ("cuda", "vulkan"):
        raise builder.unsupported(name, "subgroup matrix operations (cuda, vulkan)")
    threads = builder.block.get("threadIdx.x", 1)
    if threads % machine.subgroup:
        raise ScheduleError(
            f"tensorize: intrinsic '{name}' is run by {machine.subgroup} threads together; "
            f"threadIdx.x has {threads}; bind an axis of {machine.subgroup} to it, for instance "
            "of the stage that fills shared memory"
        )


# -- a tile of accumulators, one outer product a step ----------------------------------------------

# What has vector registers and an instruction that multiplies and adds.
_FEATURES = ("fma", "avx512f", "neon")


def outer_product(
    m: int, n: int, k: int, dtype: str = "f32", *, a_rows: bool = False
) -> TensorIntrinsic:
    """A tile `C[m, n] += sum over k of A[k, m] * B[k, n]` whose accumulators stay in registers,
    for processors with AVX2, AVX-512 or Neon.

    m rows of n elements must fit the registers: 6 x 16 (AVX2), 8 x 32 (AVX-512) and 8 x 8 (Neon)
    are good for f32.

    Args:
        m, n: the tile.
        k: the length of the panels.
        dtype: `f32` or `f64`.
        a_rows: A is read as `A[m, k]`, which is slower unless k is short.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other types; where code is written, for a tile that the registers do
            not hold.

        s[C].tensorize(ii, te.intrinsics.outer_product(8, 32, 256))
    """
    if dtype not in ("f32", "f64"):
        raise ScheduleError(f"outer_product: element type {dtype} (allowed: f32, f64)")
    a = placeholder((m, k) if a_rows else (k, m), dtype, name="a")
    b = placeholder((k, n), dtype, name="b")
    axis = reduce_axis(k, "k")
    c = compute(
        (m, n),
        lambda i, j: functions.sum(
            as_expr(a[i, axis] if a_rows else a[axis, i]) * as_expr(b[axis, j]), axis=axis
        ),
        name="c",
    )
    name = f"outer_product_{m}x{n}x{k}_{dtype}{'_rows' if a_rows else ''}"

    def emit(builder: IntrinsicBuilder, phase: str, inputs: Views, outputs: Views) -> None:
        _check_registers(builder, name, m, n, dtype)
        (out,) = outputs
        zero = builder.constant(0.0, dtype, n)
        if phase == "reset":
            for row in range(m):
                out.store(zero, row, 0)
            return
        left, right = inputs
        start = [out.load(row, 0, lanes=n) if phase == UPDATE else zero for row in range(m)]

        def step(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            line = right.load(at, 0, lanes=n)
            column = [left.load(row, at) if a_rows else left.load(at, row) for row in range(m)]
            return [
                vector.FMAOp(builder.splat(one, n), line, total).result
                for one, total in zip(column, sums, strict=True)
            ]

        for row, total in enumerate(builder.loop(k, 1, start, step)):
            out.store(total, row, 0)

    return decl_tensor_intrin(c.op, emit, name=name)


# -- transposes in registers -----------------------------------------------------------------------

# Elements of 32 bits in the parts of a vector within which processors shuffle fast.
_PART = 4


def transpose(lanes: int, dtype: str = "f32", between: int = 0) -> TensorIntrinsic:
    """`C[i, j] = A[j, i]` of a square tile, each row a vector: loads, shuffles, stores.

    Four rows at a time are interleaved within parts of 128 bits, then whole parts change places.

    Args:
        lanes: rows and columns, a power of two from 4 on.
        dtype: `f32` or `i32`.
        between: dimensions of A between the two, of which the tile has one element.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for others.

        s[C].tensorize(ji, te.intrinsics.transpose(8))
    """
    if lanes < _PART or lanes & (lanes - 1) or dtype not in ("f32", "i32"):
        raise ScheduleError(
            f"transpose: {lanes} lanes of {dtype} (allowed: powers of two from {_PART} on, of f32 "
            "or i32)"
        )
    single = [0] * between
    a = placeholder((lanes, *(1 for _ in single), lanes), dtype, name="a")
    c = compute((lanes, lanes), lambda i, j: a(j, *single, i), name="c")
    parts = lanes // _PART

    def emit(builder: IntrinsicBuilder, phase: str, inputs: Views, outputs: Views) -> None:
        rows = [inputs[0].load(row, *single, 0, lanes=lanes) for row in range(lanes)]
        for first in range(0, lanes, _PART):
            rows[first : first + _PART] = _interleaved(rows[first : first + _PART], lanes)
        # Now row 4 q + c has, in its part p, column 4 p + c of the rows from 4 q on.
        for column in range(_PART):
            mine = [rows[_PART * q + column] for q in range(parts)]
            for p, vector_ in enumerate(_parts_exchanged(mine, lanes)):
                outputs[0].store(vector_, _PART * p + column, 0)

    return decl_tensor_intrin(c.op, emit, name=f"transpose_{lanes}_{dtype}_{between}")


def _shuffled(a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
    return vector.ShuffleOp(a, b, list(lanes)).result


def _interleaved(rows: list[ir.Value], lanes: int) -> list[ir.Value]:
    """Four rows transposed within each part."""

    def both(a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
        """In each part: places of a, and from 4 on of b."""
        starts = range(0, lanes, _PART)
        picked = [s + p if p < _PART else lanes + s + p - _PART for s in starts for p in places]
        return _shuffled(a, b, picked)

    low, high = (0, 4, 1, 5), (2, 6, 3, 7)
    first, second, third, fourth = rows
    upper = [both(first, second, low), both(first, second, high)]
    lower = [both(third, fourth, low), both(third, fourth, high)]
    return [
        both(u, v, places)
        for u, v in zip(upper, lower, strict=True)
        for places in ((0, 1, 4, 5), (2, 3, 6, 7))
    ]


def _parts_exchanged(rows: list[ir.Value], lanes: int) -> list[ir.Value]:
    """Row p made of the p-th parts of all rows."""
    step = len(rows) // 2
    while step:
        for low in (r for r in range(len(rows)) if not r & step):
            high = low + step
            own = range(lanes)
            upper = [i if not (i // _PART) & step else lanes + i - step * _PART for i in own]
            lower = [lanes + i if (i // _PART) & step else i + step * _PART for i in own]
            a, b = rows[low], rows[high]
            rows[low], rows[high] = _shuffled(a, b, upper), _shuffled(a, b, lower)
        step //= 2
    return rows


def _check_registers(builder: IntrinsicBuilder, name: str, m: int, n: int, dtype: str) -> None:
    machine = builder.machine
    if machine.is_gpu or not machine.features & frozenset(_FEATURES):
        raise builder.unsupported(name, "AVX2, AVX-512 or Neon")
    lanes = machine.widths.register * 8 // bits(dtype)
    used = m * -(-n // lanes)
    if used > machine.registers - 2:
        raise ScheduleError(
            f"tensorize: intrinsic '{name}' needs {used} accumulators; {machine.name} has "
            f"{machine.registers} vector registers of {lanes} elements, two of which are for the "
            "operands; use a smaller tile"
        )
