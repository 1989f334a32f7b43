"""Intrinsics that are calls of functions from elsewhere: C, LLVM's IR, objects, MLIR."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import te

ADDS = """
int gemv_update(float *c, const float *a, const float *b, int m, int l, int stride) {
  for (int i = 0; i < m; ++i)
    for (int k = 0; k < l; ++k) c[i] += a[k] * b[i * stride + k];
  return 0;
}
"""
STORES = """
extern "C" int gemv_update(float *c, float *a, float *b, int m, int l, int stride) {
  for (int i = 0; i < m; ++i) {
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += a[k] * b[i * stride + k];
    c[i] = sum;
  }
  return 0;
}
"""
RESETS = """
int gemv_reset(float *c, int m) {
  for (int i = 0; i < m; ++i) c[i] = 0;
  return 0;
}
"""
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no compiler of C")


def intrinsic(m: int, length: int, phases: bool = False, **buffer: Any) -> te.TensorIntrinsic:
    """A product of rows with a vector, by calls."""
    a, b = te.placeholder((length,), name="a"), te.placeholder((m, length), name="b")
    k = te.reduce_axis((0, length), name="k")
    c = te.compute((m,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    rows = te.decl_buffer(b.shape, b.dtype, "B", **{"strides": [te.var("s1"), 1], **buffer})

    def calls(ins: Any, outs: Any) -> Any:
        (x, y), (z,) = ins, outs
        update = te.call_extern(
            "int32",
            "gemv_update",
            z.access_ptr("rw"),
            *(p.access_ptr("r") for p in (x, y)),
            *(m, length, y.strides[0]),
        )
        if phases:
            return None, te.call_extern("int32", "gemv_reset", z.access_ptr("w"), m), update
        ib = te.ir_builder.create()
        ib.emit(update)
        return ib.get()

    return te.decl_tensor_intrin(c.op, calls, name="gemv_calls", binds={b: rows})


def product(
    length: int = 24, part: int = 24, lead: int = 0, **more: Any
) -> tuple[te.Schedule, Any, list[Any]]:
    """`A @ B.T` with the intrinsic for 8 columns and `part` of the length."""
    A, B = te.placeholder((6, length), name="A"), te.placeholder((16, length + lead), name="B")
    k = te.reduce_axis(length, "k")
    C = te.compute((6, 16), lambda i, j: te.sum(A[i, k] * B[j, k + lead], axis=k), name="C")
    s = te.create_schedule(C)
    i, j = C.op.axis
    jo, ji = s[C].split(j, 8)
    ko, ki = s[C].split(k, part)
    s[C].reorder(i, jo, ko, ji, ki)
    s[C].tensorize(ji, intrinsic(8, part, **more))
    return s, C, [A, B, C]


def verified(s: te.Schedule, tensors: list[Any], lead: int = 0) -> te.Function:
    made = te.build(s, tensors, threads=1)
    made.verify(lambda a, b: a @ b[:, lead:].T)
    return made


@needs_cc
@pytest.mark.parametrize("source", [ADDS, STORES], ids=["adds", "stores"])
def test_c_that_adds_and_c_that_stores(source: str) -> None:
    s, C, tensors = product(lead=3)
    s[C].pragma(C.op.axis[0], "import_c", source)
    shown = str(te.lower(s, tensors))
    assert (
        "gemv_update(C[i, j.outer*8:+8], A[i, 0:+24], B[j.outer*8:+8, 3:+24], 8, 24, 27)" in shown
    )
    verified(s, tensors, lead=3)


@needs_cc
def test_parts_of_a_reduction_are_started_and_updated() -> None:
    s, C, tensors = product(length=48, part=12, phases=True)
    s[C].pragma(C.op.axis[0], "import_c", ADDS + RESETS)
    shown = str(te.lower(s, tensors))
    assert shown.index("gemv_reset(C[i, j.outer*8:+8], 8)") < shown.index("gemv_update(")
    verified(s, tensors)
    # The functions travel with the trace.
    again = te.Trace.from_json(s.trace().to_json()).apply(C)
    verified(again, tensors)


@needs_cc
def test_an_object_and_blocks_of_the_call_in_parallel(tmp_path: Path) -> None:
    (tmp_path / "gemv.c").write_text(ADDS)
    run = ["cc", "-O2", "-fPIC", "-c", str(tmp_path / "gemv.c"), "-o", str(tmp_path / "gemv.o")]
    subprocess.run(run, check=True)
    s, C, tensors = product()
    s[C].parallel(C.op.axis[0])
    s[C].pragma(C.op.axis[0], "import_object", str(tmp_path / "gemv.o"))
    verified(s, tensors)


@needs_cc
@pytest.mark.parametrize("length", [24, 8192, 1 << 18])
def test_a_pointer_to_memory_of_a_workgroup_is_to_its_first_element(length: int) -> None:
    """Of long rows a copy is too large for the stack: what is allocated for a workgroup then begins
    at any address, and the memory in it where a cache line does. Of longer ones it is too large for
    the cache: each workgroup has a part of memory that is handed to the kernel."""
    s, C, tensors = product(length=length, part=length)
    copy = s.cache_read(tensors[1], "local", [C])
    s[copy].compute_at(s[C], s[C].leaf_iter_vars[1])
    s[C].parallel(C.op.axis[0])
    s[C].pragma(C.op.axis[0], "import_c", ADDS)
    rng = np.random.default_rng(0)
    # Sums of these are exact.
    a, b = (rng.integers(-2, 3, (rows, length)).astype("f4") for rows in (6, 16))
    np.testing.assert_array_equal(te.build(s, tensors, threads=1)(a, b), a @ b.T)


def test_llvm_ir_is_linked_as_bitcode() -> None:
    if not shutil.which("llvm-as"):
        pytest.skip("no llvm-as")
    a, b = te.placeholder((1,), name="a"), te.placeholder((1,), name="b")
    c = te.compute((1,), lambda i: a[i] + b[i], name="c")

    def calls(ins: Any, outs: Any) -> Any:
        return te.call_extern("float32", "sum_of_two", *(p.access_ptr() for p in (*outs, *ins)))

    A, B = te.placeholder((8,), name="A"), te.placeholder((8,), name="B")
    C = te.compute((8,), lambda i: A[i] + B[i], name="C")
    s = te.create_schedule(C)
    outer, inner = s[C].split(C.op.axis[0], 1)
    s[C].tensorize(inner, te.decl_tensor_intrin(c.op, calls, name="sum_of_two"))
    # Typed pointers, as LLVM 14 and older have them; newer ones read `ptr` alone.
    typed = (
        "LLVM version 14"
        in subprocess.run(
            ["llvm-as", "--version"], capture_output=True, text=True, check=True
        ).stdout
    )
    pointer = "float*" if typed else "ptr"
    text = f"""
    define float @sum_of_two({pointer} %c, {pointer} %a, {pointer} %b) {{
      %x = load float, {pointer} %a
      %y = load float, {pointer} %b
      %z = fadd float %x, %y
      store float %z, {pointer} %c
      ret float %z
    }}
    """
    s[C].pragma(outer, "import_llvm", text)
    te.build(s, [A, B, C], threads=1).verify(lambda a, b: a + b)


def _strides() -> Any:
    te.lower(*_of(product(strides=[32, 1])))


def _offset() -> Any:
    te.lower(*_of(product(lead=3, offset_factor=4)))


def _of(made: tuple[te.Schedule, Any, list[Any]]) -> tuple[te.Schedule, list[Any]]:
    return made[0], made[2]


def _importing(kind: str, text: str) -> Callable[[], Any]:
    def misuse() -> Any:
        s, C, tensors = product()
        s[C].pragma(C.op.axis[0], kind, text)
        te.build(s, tensors, threads=1)

    return misuse


def _function(parameters: str, body: str = "return") -> str:
    return f"func.func @gemv_update({parameters}) {{ {body} }}"


MISUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "strides": (_strides, r"buffer 'B' has strides \[32, 1\], the region of 'B' \[24, 1\]"),
    "offset": (_offset, "begins at multiples of 4 elements"),
    "nothing": (lambda: te.build(*_of(product())), "'gemv_update' is called on cpu.*no code"),
    "bad c": (_importing("import_c", "int f( {"), "import_c: .*error"),
    "no object": (_importing("import_object", "nowhere.o"), "no file 'nowhere.o'"),
    "bad mlir": (_importing("import_mlir", "func.func"), "import_mlir: "),
    "few arguments": (_importing("import_mlir", _function("%m: i32")), "takes 1 arguments.* 6"),
    "other types": (
        _importing("import_mlir", _function(", ".join(f"%a{n}: f64" for n in range(6)))),
        "0: it takes f64, is given a region",
    ),
    "mask": (lambda: te.decl_buffer((4,)).access_ptr("x"), "mask 'x'"),
    "ranks": (lambda: te.decl_buffer((4,), strides=[1, 1]), "strides .* of a shape of 1 dim"),
    "whole buffer": (lambda: te.call_extern("int32", "f", te.decl_buffer((4,))), "access_ptr"),
    "no call": (lambda: te.ir_builder.create().emit(3), "3 is no call"),
    "phases without code": (
        lambda: te.lower(*_of(product(length=48, part=12))),
        "takes the phase 'update'",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str) -> None:
    misuse, message = MISUSES[name]
    with pytest.raises(te.ScheduleError, match=message):
        misuse()


def test_code_for_cpus_is_refused_for_a_gpu() -> None:
    s, C, tensors = product()
    s[C].pragma(C.op.axis[0], "import_c", ADDS)
    with pytest.raises(te.ScheduleError, match=r"give it by the pragma import_mlir$"):
        te.build(s, tensors, target="cuda:sm_80")
