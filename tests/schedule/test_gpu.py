"""GPU schedules: compiled for three kinds of devices, run on the CPU, where threads are loops."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.build import _compiled

CUDA, ROCM, VULKAN = "cuda:sm_80", "rocm:gfx942", "vulkan:ampere"


def tiled_matmul(n: int = 64, side: int = 32, own: int = 2) -> tuple[te.Schedule, list[Any]]:
    """Tiles of side x side by threads that hold own x own sums each, operands in shared memory."""
    A = te.placeholder((n, n), "f32", name="A")
    B = te.placeholder((n, n), "f32", name="B")
    k = te.reduce_axis(n, "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C)
    shared = [s.cache_read(t, "shared", [C]) for t in (A, B)]
    sums = s.cache_write(C, "local")
    tx, ty = te.thread_axis("threadIdx.x"), te.thread_axis("threadIdx.y")
    threads = side // own
    io, jo, ii, ji = s[C].tile(*s[C].op.axis, side, side)
    it, iv = s[C].split(ii, own)
    jt, jv = s[C].split(ji, own)
    s[C].reorder(io, jo, it, jt, iv, jv)
    for axis, tag in ((io, "blockIdx.y"), (jo, "blockIdx.x")):
        s[C].bind(axis, te.thread_axis(tag))
    s[C].bind(it, ty)
    s[C].bind(jt, tx)
    s[sums].compute_at(s[C], jt)
    ko, ki = s[sums].split(s[sums].op.reduce_axis[0], 8)
    a, b = s[sums].op.axis
    s[sums].reorder(ko, ki, a, b)
    s[sums].unroll(a)
    s[sums].unroll(b)
    for stage in shared:
        s[stage].compute_at(s[sums], ko)
        fused = s[stage].fuse(*s[stage].op.axis)
        rest, x = s[stage].split(fused, threads)
        _, y = s[stage].split(rest, threads)
        s[stage].bind(x, tx)
        s[stage].bind(y, ty)
    return s, [A, B, C]


def spirv(binary: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The instructions of the SPIR-V modules in some bytes: opcode and operands."""
    magic = struct.pack("<I", 0x07230203)
    start = binary.find(magic)
    while start >= 0:
        end = binary.find(magic, start + 4)
        words = binary[start : end if end > 0 else len(binary)]
        words = words[: len(words) // 4 * 4]
        code = struct.unpack(f"<{len(words) // 4}I", words)
        at = 5
        while at < len(code) and code[at] >> 16:
            yield code[at] & 0xFFFF, code[at + 1 : at + (code[at] >> 16)]
            at += code[at] >> 16
        start = end


def spirv_of(s: te.Schedule, tensors: list[Any]) -> list[tuple[int, tuple[int, ...]]]:
    lowered = te.lower(s, tensors)
    return list(spirv(_compiled(lowered, te.build(lowered, target=VULKAN).target)))


def test_a_gpu_schedule_computes_the_same_on_the_cpu() -> None:
    s, tensors = tiled_matmul()
    te.build(s, tensors, target="cpu", threads=1).verify(lambda a, b: a @ b)


def test_cuda_has_shared_memory_barriers_and_threads() -> None:
    s, tensors = tiled_matmul()
    ptx = te.build(s, tensors, target=CUDA).assembly()
    assert ptx.count("bar.sync") == 2
    assert ".shared" in ptx
    assert "ld.shared" in ptx
    assert "st.shared" in ptx
    assert ".maxntid 16, 16" in ptx or ".reqntid 16, 16" in ptx
    assert "fma.rn.f32" in ptx
    # The sums are registers.
    assert "st.local" not in ptx


def test_rocm_has_shared_memory_and_barriers() -> None:
    s, tensors = tiled_matmul()
    code = te.build(s, tensors, target=ROCM).assembly()
    # LLVM writes the first iteration of the loop out.
    assert code.count("\ts_barrier") in (2, 4)
    assert "ds_read" in code
    assert "ds_write" in code
    assert "scratch_store" not in code


def test_vulkan_has_shared_memory_barriers_and_threads() -> None:
    found = spirv_of(*tiled_matmul())
    barrier, variable, execution_mode = 224, 59, 16
    workgroup, local_size = 4, 17
    assert sum(op == barrier for op, _ in found) == 2
    assert sum(op == variable and args[2] == workgroup for op, args in found) == 2
    (size,) = (args[2:5] for op, args in found if op == execution_mode and args[1] == local_size)
    assert size == (16, 16, 1)


def row_sums(threads: int) -> tuple[te.Schedule, list[Any]]:
    A = te.placeholder((20, 4 * threads), "f32", name="A")
    k = te.reduce_axis(4 * threads, "k")
    B = te.compute((20,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B)
    _, inner = s[B].split(s[B].op.reduce_axis[0], threads)
    s[B].bind(inner, te.thread_axis("threadIdx.x"))
    s[B].bind(s[B].op.axis[0], te.thread_axis("blockIdx.x"))
    return s, [A, B]


@pytest.mark.parametrize("target", [CUDA, ROCM, VULKAN])
def test_a_reduction_over_threads_compiles(target: str) -> None:
    s, tensors = row_sums(128)
    te.build(s, tensors, target=target)


def test_a_reduction_over_threads_on_the_cpu() -> None:
    s, tensors = row_sums(24)
    te.build(s, tensors, threads=1).verify(lambda a: a.sum(1))


@pytest.mark.parametrize("target", [CUDA, ROCM, VULKAN])
def test_vectors_tails_and_narrow_types_compile(target: str) -> None:
    A = te.placeholder((61, 101), "f16", name="A")
    M = te.placeholder((101,), "bool", name="M")
    C = te.compute(
        (61, 101),
        lambda i, j: te.select(M[j], te.tanh(A[i, j].astype("f32")), te.const(0, "f32")),
        name="C",
    )
    s = te.create_schedule(C)
    i, j = s[C].op.axis
    outer, inner = s[C].split(j, 4)
    s[C].vectorize(inner)
    s[C].bind(i, te.thread_axis("blockIdx.x"))
    s[C].bind(outer, te.thread_axis("threadIdx.x"))
    f = te.build(s, [A, M, C], target=target)
    assert f.vmfb


def test_aligned_vectors_are_loaded_at_once() -> None:
    A = te.placeholder((64, 128), "f32", name="A")
    C = te.compute((64, 128), lambda i, j: A[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    i, j = s[C].op.axis
    outer, inner = s[C].split(j, 4)
    s[C].vectorize(inner)
    s[C].bind(i, te.thread_axis("blockIdx.x"))
    s[C].bind(outer, te.thread_axis("threadIdx.x"))
    ptx = te.build(s, [A, C], target=CUDA).assembly()
    assert "ld.global.nc.v4" in ptx or "ld.global.v4" in ptx
    assert "st.global.v4" in ptx


def matrix_units(n: int = 64) -> tuple[te.Schedule, list[Any]]:
    A = te.placeholder((n, n), "f16", name="A")
    B = te.placeholder((n, n), "f16", name="B")
    k = te.reduce_axis(n, "k")
    C = te.compute(
        (n, n),
        lambda i, j: te.sum(A[i, k].astype("f32") * B[k, j].astype("f32"), axis=k),
        name="C",
    )
    s = te.create_schedule(C)
    shared = s.cache_read(A, "shared", [C])
    io, jo, ii, ji = s[C].tile(*s[C].op.axis, 16, 16)
    s[C].reorder(io, jo, ii, ji, s[C].op.reduce_axis[0])
    s[C].bind(io, te.thread_axis("blockIdx.y"))
    s[C].bind(jo, te.thread_axis("blockIdx.x"))
    s[shared].compute_at(s[C], jo)
    _, lane = s[shared].split(s[shared].fuse(*s[shared].op.axis), 32)
    s[shared].bind(lane, te.thread_axis("threadIdx.x"))
    s[C].tensorize(ii, te.intrinsics.wmma(n))
    return s, [A, B, C]


def test_subgroup_matrices() -> None:
    s, tensors = matrix_units()
    ptx = te.build(s, tensors, target=CUDA).assembly()
    assert "wmma.mma.sync" in ptx
    assert ptx.count("bar.sync") == 1
    cooperative_matrix = 4456
    assert any(op == cooperative_matrix for op, _ in spirv_of(s, tensors))
    te.build(s, tensors, target="cpu", threads=1).verify(lambda a, b: a @ b)
    with pytest.raises(te.ScheduleError, match=r"wmma.*rocm:gfx942"):
        te.build(s, tensors, target=ROCM)


def test_limits_are_refused_with_the_numbers() -> None:
    s, tensors = tiled_matmul(n=128, side=128, own=2)
    te.lower(s, tensors)
    with pytest.raises(te.ScheduleError, match=r"4096 threads.*allowed: 1024"):
        te.build(s, tensors, target=CUDA)

    A = te.placeholder((256, 256), "f32", name="A")
    C = te.compute((256, 256), lambda i, j: A[j, i] + 1.0, name="C")
    s = te.create_schedule(C)
    whole = s.cache_read(A, "shared", [C])
    s[C].bind(s[C].op.axis[0], te.thread_axis("threadIdx.x"))
    s[whole].compute_at(s[C], s[C].op.axis[0])
    te.lower(s, [A, C])
    with pytest.raises(te.ScheduleError, match=r"bytes of shared memory; allowed: 65536"):
        te.build(s, [A, C], target=ROCM)


def test_a_device_that_is_not_there_is_named() -> None:
    s, tensors = row_sums(32)
    f = te.build(s, tensors, target=CUDA)
    try:
        import iree.runtime

        iree.runtime.get_device("cuda")
    except (RuntimeError, ValueError):
        with pytest.raises(te.BuildError.__mro__[1], match="cuda"):
            f(np.zeros((20, 128), "f4"))
