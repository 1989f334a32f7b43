"""The examples of public tutorials on TVM's primitives give the same loop structure here."""

from __future__ import annotations

from tilewright import te
from tilewright.schedule.intrinsics import gemv

N = 1024


def rows() -> tuple[te.Tensor, te.Tensor]:
    k = te.reduce_axis((0, N), name="k")
    a = te.placeholder((N, N), dtype="float32", name="A")
    return a, te.compute((N,), lambda i: te.sum(a[i, k], axis=k), name="B")


def lines(text: object) -> list[str]:
    return [line.strip() for line in str(text).splitlines()]


def test_cache_read_into_shared() -> None:
    a, b = rows()
    s = te.create_schedule(b.op)
    s.cache_read(a, "shared", [b])
    assert lines(te.lower(s, [a, b], simple_mode=True))[1:] == [
        "A.shared = allocate(f32[1024, 1024], scope=shared)",
        "for ax0 in range(1024):",
        "for ax1 in range(1024):",
        "A.shared[ax0, ax1] = A[ax0, ax1]",
        "for i in range(1024):",
        "B[i] = 0.0",
        "for k in range(1024):",
        "B[i] = B[i] + A.shared[i, k]",
    ]


def test_cache_write_into_local() -> None:
    a, b = rows()
    s = te.create_schedule(b.op)
    s.cache_write(b, "local")
    assert lines(te.lower(s, [a, b], simple_mode=True))[1:] == [
        "B.local = allocate(f32[1024], scope=local)",
        "for i.c in range(1024):",
        "B.local[i.c] = 0.0",
        "for k in range(1024):",
        "B.local[i.c] = B.local[i.c] + A[i.c, k]",
        "for i in range(1024):",
        "B[i] = B.local[i]",
    ]


def test_storage_align_makes_rows_of_1108() -> None:
    a, b = rows()
    s = te.create_schedule(b.op)
    copy = s.cache_read(a, "shared", [b])
    s[copy].storage_align(copy.op.axis[0], 100, 8)
    lowered = te.lower(s, [a, b])
    (buffer,) = lowered.program.temporaries
    assert buffer.layout == (1108, 1)
    assert "strides=[1108, 1]" in str(lowered)


def test_rfactor_compute_at_bind_of_a_sum() -> None:
    a, b = rows()
    s = te.create_schedule(b.op)
    _, ki = s[b].split(b.op.reduce_axis[0], 32)
    factored = s.rfactor(b, ki)
    tx = te.thread_axis("threadIdx.x")
    s[b].bind(s[b].op.reduce_axis[0], tx)
    s[factored].compute_at(s[b], s[b].op.reduce_axis[0])
    body = [
        "for threadIdx.x in thread(32):",
        "for i in range(1024):",
        "B.rf = allocate(f32[1, 1], scope=local)",
        "B.rf[0, 0] = 0.0",
        "for k.outer in range(32):",
        "B.rf[0, 0] = B.rf[0, 0] + A[i, k.outer*32 + threadIdx.x]",
        "B.total = allocate(f32[1], scope=local)",
        "B.total[0] = thread_sum(B.rf[0, 0], threads=[threadIdx.x])",
    ]
    assert lines(te.lower(s, [a, b]))[1:] == [*body, "B[i] = B.total[0]"]
    s[b].set_store_predicate(tx.var.equal(0))
    predicated = [*body, "if threadIdx.x == 0:", "B[i] = B.total[0]"]
    assert lines(te.lower(s, [a, b]))[1:] == predicated


def test_tile_of_a_matmul() -> None:
    k = te.reduce_axis((0, N), name="k")
    a, b = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    c = te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    s[c].tile(c.op.axis[0], c.op.axis[1], 32, 32)
    place = "C[i.outer*32 + i.inner, j.outer*32 + j.inner]"
    read = "A[i.outer*32 + i.inner, k]*B[k, j.outer*32 + j.inner]"
    assert lines(te.lower(s, [a, b, c]))[1:] == [
        "for i.outer in range(32):",
        "for j.outer in range(32):",
        "for i.inner in range(32):",
        "for j.inner in range(32):",
        f"{place} = 0.0",
        "for k in range(1024):",
        f"{place} = {place} + {read}",
    ]


def test_tensorized_gemv() -> None:
    n, m, length, factor = 1024, 512, 64, 16
    a, b = te.placeholder((n, length), name="A"), te.placeholder((m, length), name="B")
    k = te.reduce_axis((0, length), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    x, y = c.op.axis
    (z,) = c.op.reduce_axis
    yo, yi = s[c].split(y, factor=factor)
    s[c].reorder(x, yo, yi, z)
    intrinsic = gemv(factor, length)
    s[c].tensorize(yi, intrinsic)
    regions = "C[i, j.outer*16:+16], A[i, 0:+64], B[j.outer*16:+16, 0:+64]"
    assert lines(te.lower(s, [a, b, c]))[1:] == [
        "for i in range(1024):",
        "for j.outer in range(32):",
        f"{intrinsic.name}({regions})",
    ]


def test_a_group_computed_at_the_consumer() -> None:
    a, b = te.placeholder((N, N), name="A"), te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), name="k")
    d = te.compute((N, N), lambda i, j: a[i, j] + b[i, j], name="D")
    e = te.compute((N, N), lambda i, j: d[i, j] + b[i, j], name="E")
    f = te.compute((N,), lambda i: te.sum(e[i, k], axis=k), name="F")
    s = te.create_schedule(f.op)
    group = s.create_group(outputs=e, inputs=[a, b], include_inputs=True)
    group.compute_at(s[f], f.op.reduce_axis[0])
    assert lines(te.lower(s, [a, b, f]))[1:] == [
        "for i in range(1024):",
        "F[i] = 0.0",
        "for k in range(1024):",
        "D = allocate(f32[1, 1], scope=global)",
        "D[0, 0] = A[i, k] + B[i, k]",
        "E = allocate(f32[1, 1], scope=global)",
        "E[0, 0] = D[0, 0] + B[i, k]",
        "F[i] = F[i] + E[0, 0]",
    ]
