"""A program in TVM's words for each of the 21 primitives, in the form that a GPU wants: a grid of
blocks and threads, with memory that the threads of a block share.

Each leaves a schedule `s`, its `args`, and `want`, which computes the outputs with NumPy.
"""

from __future__ import annotations

BEGINNING = """
import tvm
from tvm import te

n, t = 32, 16
bx, tx = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
A = te.placeholder((n, n), name="A")
B = te.placeholder((n, n), name="B")
k = te.reduce_axis((0, n), name="k")
S = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="S")


def grid(stage, axis):
    outer, inner = s[stage].split(axis, factor=t)
    s[stage].bind(outer, bx)
    s[stage].bind(inner, tx)
    return inner


def together(stage):
    outer, inner = s[stage].split(s[stage].fuse(*s[stage].op.axis), factor=t)
    s[stage].bind(inner, tx)


def want(a, *others):
    return a.sum(1)


args = [A, S]
"""

ROWS = """
s = te.create_schedule(S.op)
AA = s.cache_read(A, "shared", [S])
thread = grid(S, S.op.axis[0])
ko, ki = s[S].split(k, factor=t)
s[AA].compute_at(s[S], ko)
"""

SUMS = """
X = te.placeholder((n * t,), name="X")
k = te.reduce_axis((0, n * t), name="k")
Z = te.compute((1,), lambda i: te.sum(X[k], axis=k), name="Z")
args = [X, Z]
s = te.create_schedule(Z.op)
ko, ki = s[Z].split(Z.op.reduce_axis[0], factor=t)


def want(x):
    return x.sum(keepdims=True)
"""

PROGRAMS: dict[str, str] = {
    "cache_read": ROWS + "together(AA)",
    "cache_write": """
s = te.create_schedule(S.op)
own = s.cache_write(S, "local")
AA = s.cache_read(A, "shared", [own])
thread = grid(S, S.op.axis[0])
s[own].compute_at(s[S], thread)
ko, ki = s[own].split(own.op.reduce_axis[0], factor=t)
s[AA].compute_at(s[own], ko)
together(AA)
""",
    "set_scope": """
D = te.compute((n, n), lambda i, j: A[i, j] * B[i, j], name="D")
S = te.compute((n,), lambda i: te.sum(D[i, k], axis=k), name="S")
s = te.create_schedule(S.op)
grid(S, S.op.axis[0])
ko, ki = s[S].split(k, factor=t)
s[D].compute_at(s[S], ko)
s[D].set_scope("shared")
together(D)
args, want = [A, B, S], lambda a, b: (a * b).sum(1)
""",
    "storage_align": ROWS + "s[AA].storage_align(AA.op.axis[0], 32, 1)\ntogether(AA)",
    "compute_at": SUMS
    + """
part = s.rfactor(Z, ki)
s[Z].bind(s[Z].op.reduce_axis[0], tx)
s[part].compute_at(s[Z], s[Z].op.reduce_axis[0])
""",
    "compute_inline": """
W = te.placeholder((3, 3), name="W")
P = te.compute(
    (n + 2, n + 2),
    lambda y, x: te.if_then_else(
        te.all(y >= 1, y <= n, x >= 1, x <= n), A[y - 1, x - 1], te.const(0, "float32")
    ),
    name="P",
)
p, q = te.reduce_axis((0, 3), name="p"), te.reduce_axis((0, 3), name="q")
C = te.compute((n, n), lambda y, x: te.sum(P[y + p, x + q] * W[p, q], axis=[p, q]), name="C")
s = te.create_schedule(C.op)
s[P].compute_inline()
WW = s.cache_read(W, "shared", [C])
row, column = C.op.axis
s[C].bind(row, bx)
outer, inner = s[C].split(column, factor=t)
s[C].reorder(inner, outer)
s[C].bind(inner, tx)
s[WW].compute_at(s[C], row)
together(WW)
args = [A, W, C]


def want(a, w):
    import numpy as np

    padded = np.pad(a, 1)
    return sum(w[p, q] * padded[p : p + n, q : q + n] for p in range(3) for q in range(3))
""",
    "compute_root": """
D = te.compute((n, n), lambda i, j: A[i, j] + B[i, j], name="D")
S = te.compute((n,), lambda i: te.sum(D[i, k], axis=k), name="S")
s = te.create_schedule(S.op)
DD = s.cache_read(D, "shared", [S])
thread = grid(S, S.op.axis[0])
ko, ki = s[S].split(k, factor=t)
s[DD].compute_at(s[S], ko)
together(DD)
s[D].compute_at(s[DD], s[DD].leaf_iter_vars[0])
s[D].compute_root()
grid(D, D.op.axis[0])
args, want = [A, B, S], lambda a, b: (a + b).sum(1)
""",
    "fuse": """
C = te.compute((n, n), lambda i, j: A[j, i] + B[i, j], name="C")
s = te.create_schedule(C.op)
AA = s.cache_read(A, "shared", [C])
io, jo, ii, ji = s[C].tile(*C.op.axis, t, t)
block = s[C].fuse(io, jo)
s[C].bind(block, bx)
s[C].bind(ji, tx)
s[AA].compute_at(s[C], block)
together(AA)
args, want = [A, B, C], lambda a, b: a.T + b
""",
    "split": ROWS
    + """
outer, inner = s[AA].split(AA.op.axis[1], nparts=t)
s[AA].reorder(outer, inner)
s[AA].bind(outer, tx)
""",
    "reorder": """
C = te.compute((n, n), lambda i, j: A[j, i] * B[i, j], name="C")
s = te.create_schedule(C.op)
AA = s.cache_read(A, "shared", [C])
io, ii = s[C].split(C.op.axis[0], factor=t)
jo, ji = s[C].split(C.op.axis[1], factor=t)
s[C].reorder(io, jo, ji, ii)
s[C].bind(io, bx)
s[C].bind(ji, tx)
s[AA].compute_at(s[C], jo)
together(AA)
args, want = [A, B, C], lambda a, b: a.T * b
""",
    "tile": """
C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
s = te.create_schedule(C.op)
AA, BB = (s.cache_read(tensor, "shared", [C]) for tensor in (A, B))
own = s.cache_write(C, "local")
by = te.thread_axis("blockIdx.y")
io, jo, ii, ji = s[C].tile(*C.op.axis, t, t)
s[C].bind(io, by)
s[C].bind(jo, bx)
s[C].bind(ji, tx)
s[own].compute_at(s[C], ji)
ko, ki = s[own].split(own.op.reduce_axis[0], factor=t)
s[own].reorder(ko, ki, *own.op.axis)
for copy in (AA, BB):
    s[copy].compute_at(s[own], ko)
    together(copy)
args, want = [A, B, C], lambda a, b: a @ b
""",
    "unroll": ROWS + "together(AA)\ns[S].unroll(ki)",
    "vectorize": """
C = te.compute((n, n), lambda i, j: A[i, j] + B[n - 1 - i, j], name="C")
s = te.create_schedule(C.op)
AA = s.cache_read(A, "shared", [C])
row, column = C.op.axis
outer, inner = s[C].split(column, factor=2)
s[C].vectorize(inner)
s[C].bind(row, bx)
s[C].bind(outer, tx)
s[AA].compute_at(s[C], row)
together(AA)
args, want = [A, B, C], lambda a, b: a + b[::-1]
""",
    "bind": SUMS + "s[Z].bind(ko, bx)\ns[Z].bind(ki, tx)",
    "parallel": ROWS + "together(AA)\ns[S].parallel(ko)",
    "pragma": ROWS
    + """
together(AA)
s[S].pragma(ko, "auto_unroll_max_step", t)
s[S].pragma(ki, "loop_partition_hint", 1)
""",
    "prefetch": ROWS + "together(AA)\ns[AA].prefetch(A, s[AA].leaf_iter_vars[0], 1)",
    "tensorize": """
C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
a = te.placeholder((n,), name="a")
b = te.placeholder((2, n), name="b")
r = te.reduce_axis((0, n), name="r")
c = te.compute((2,), lambda i: te.sum(a[r] * b[i, r], axis=r), name="c")
rows = tvm.tir.decl_buffer(b.shape, b.dtype, name="rows", strides=[te.var("pitch"), 1])


def calls(ins, outs):
    ib = tvm.tir.ir_builder.create()
    pointers = [outs[0].access_ptr("w"), *(x.access_ptr("r") for x in ins)]
    ib.emit(tvm.tir.call_extern("int32", "gemv_update", *pointers, 2, n, ins[1].strides[0]))
    return ib.get()


intrin = te.decl_tensor_intrin(c.op, calls, binds={b: rows})
s = te.create_schedule(C.op)
AA = s.cache_read(A, "shared", [C])
row, column = C.op.axis
jo, ji = s[C].split(column, factor=2)
s[C].bind(row, bx)
s[C].bind(jo, tx)
s[C].tensorize(ji, intrin)
s[AA].compute_at(s[C], row)
together(AA)
line, part = "memref<32xf32, strided<[1], offset: ?>>", "memref<2xf32, strided<[1], offset: ?>>"
block = "memref<2x32xf32, strided<[32, 1], offset: ?>>"
s[C].pragma(
    row,
    "import_mlir",
    f'''
    func.func @gemv_update(%c: {part}, %a: {line}, %b: {block}, %m: index, %l: index, %s: i32) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      scf.for %i = %c0 to %m step %c1 {{
        scf.for %j = %c0 to %l step %c1 {{
          %x = memref.load %a[%j] : {line}
          %y = memref.load %b[%i, %j] : {block}
          %z = memref.load %c[%i] : {part}
          %p = arith.mulf %x, %y : f32
          %q = arith.addf %z, %p : f32
          memref.store %q, %c[%i] : {part}
        }}
      }}
      return
    }}
    ''',
)
args, want = [A, B, C], lambda a, b: a @ b.T
""",
    "rfactor": SUMS
    + """
part = s.rfactor(Z, ki)
s[part].bind(part.op.axis[0], tx)
PP = s.cache_read(part, "shared", [Z])
s[Z].bind(s[Z].op.reduce_axis[0], tx)
s[PP].compute_at(s[Z], s[Z].op.axis[0])
s[PP].bind(PP.op.axis[0], tx)
""",
    "set_store_predicate": SUMS
    + """
part = s.rfactor(Z, ki)
s[Z].bind(s[Z].op.reduce_axis[0], tx)
s[part].compute_at(s[Z], s[Z].op.reduce_axis[0])
s[Z].set_store_predicate(tx.var.equal(0))
""",
    "create_group": """
D = te.compute((n, n), lambda i, j: A[i, j] + B[i, j], name="D")
E = te.compute((n, n), lambda i, j: D[i, j] + B[i, j], name="E")
F = te.compute((n,), lambda i: te.sum(E[i, k], axis=k), name="F")
s = te.create_schedule(F.op)
thread = grid(F, F.op.axis[0])
ko, ki = s[F].split(k, factor=t)
g = s.create_group(outputs=E, inputs=[A, B], include_inputs=True)
g.compute_at(s[F], ko)
for stage in (D, E):
    s[stage].set_scope("shared")
    together(stage)
args, want = [A, B, F], lambda a, b: (a + 2 * b).sum(1)
""",
}
