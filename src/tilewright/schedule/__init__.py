"""Tensor expressions, schedules of them, and their lowering to loops (user-facing: `te`).

The examples of the primitives start from these tensors:

    n = 1024
    A = te.placeholder((n, n), "f32", name="A")
    B = te.placeholder((n, n), "f32", name="B")
    k = te.reduce_axis(n, "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((n, n), lambda i, j: A[i, j] + B[i, j], name="D")
    E = te.compute((n, n), lambda i, j: D[i, j] * 2.0, name="E")
    r = te.reduce_axis(n, "r")
    S = te.compute((n,), lambda i: te.sum(A[i, r], axis=r), name="S")
"""
