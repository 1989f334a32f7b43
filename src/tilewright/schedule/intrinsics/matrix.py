"""Matrix products by the subgroups of a GPU (wmma, cooperative matrices)."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import gpu

from tilewright.schedule import reducers
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import cast
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.tensor import compute, placeholder, reduce_axis

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
        lambda i, j: reducers.sum(
            cast(accumulator, a[i, axis])
            * cast(accumulator, b[j, axis] if b_columns else b[axis, j]),
            axis=axis,
        ),
        name="c",
    )
    name = f"wmma_{k}_{dtype}_{accumulator}{'_columns' if b_columns else ''}"

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        _check(builder, name)
        (out,) = outputs
        sums = _matrix(accumulator, "COp")
        if phase == UPDATE:
            total = _load(out, sums, out.at(0, 0), False)
        else:
            zero = builder.constant(0.0, accumulator)
            total = gpu.SubgroupMmaConstantMatrixOp(sums, zero).result
        if phase != "reset":
            left, right = inputs

            def step(at: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
                place = right.at(0, at) if b_columns else right.at(at, 0)
                x = _load(left, _matrix(dtype, "AOp"), left.at(0, at), False)
                y = _load(right, _matrix(dtype, "BOp"), place, b_columns)
                return [gpu.SubgroupMmaComputeOp(x, y, carried[0]).result]

            (total,) = builder.loop(k, _SIDE, [total], step)
        gpu.SubgroupMmaStoreMatrixOp(total, out.flat, [out.at(0, 0)], out.strides[-2])

    return decl_tensor_intrin(c.op, emit, name=name, collective=True)


def _matrix(dtype: str, operand: str) -> ir.Type:
    return scalars.parsed_type(f'!gpu.mma_matrix<{_SIDE}x{_SIDE}x{dtype}, "{operand}">')


def _load(view: BufferView, type_: ir.Type, place: ir.Value, transposed: bool) -> ir.Value:
    return gpu.SubgroupMmaLoadMatrixOp(
        type_, view.flat, [place], view.strides[-2], transpose=transposed or None
    ).result


def _check(builder: IntrinsicBuilder, name: str) -> None:
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
