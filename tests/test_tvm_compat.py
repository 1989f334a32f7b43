"""`import tvm` of programs: the tutorial's names, building and timing, and what there is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.tvm_compat import main, target_name

ADDITION = """
import numpy as np
import tvm
import tvm.testing
from tvm import te

n = 64
A = te.placeholder((n,), name="A")
B = te.placeholder((n,), name="B", dtype="float32")
C = te.compute(A.shape, lambda i: A[i] + B[i], name="C")
s = te.create_schedule(C.op)
outer, inner = s[C].split(C.op.axis[0], factor=16)
s[C].vectorize(inner)
add = tvm.build(s, [A, B, C], "llvm", name="add")
dev = tvm.device("llvm", 0)
a = tvm.nd.array(np.random.uniform(size=n).astype("float32"), dev)
b = tvm.nd.array(np.random.uniform(size=n).astype("float32"), dev)
c = tvm.nd.empty((n,), "float32", dev)
add(a, b, c)
tvm.testing.assert_allclose(c.numpy(), a.numpy() + b.asnumpy())
time = add.time_evaluator(add.entry_name, dev, number=3)(a, b, c)
assert 0 < time.median <= max(time.results)
assert time.mean > 0
print(tvm.lower(s, [A, B, C], simple_mode=True))
"""


def written(folder: Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(text)
    return str(file)


def test_a_program_builds_runs_and_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([written(tmp_path, ADDITION)]) == 0
    assert "for i.inner in vectorized(16):" in capsys.readouterr().out
    assert "tvm" not in sys.modules


def test_unrolled_loops_are_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = """
import tvm
A = tvm.te.placeholder((8, 3), name="A")
C = tvm.te.compute((7, 3), lambda i, j: A[i, j] + 1.0, name="C")
s = tvm.te.create_schedule(C.op)
outer, inner = s[C].split(C.op.axis[0], factor=4)
s[C].unroll(inner)
s[C].pragma(C.op.axis[1], "unroll")
s[C].pragma(outer, "keep", "this")
print(tvm.lower(s, [A, C]))
"""
    assert main([written(tmp_path, program)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "  for i.outer in range(2):  # pragma keep='this' (no effect)"
    assert shown[2:5] == [f"    C[i.outer*4, {j}] = A[i.outer*4, {j}] + 1.0" for j in range(3)]
    # Only the last iteration of the unrolled loop can pass the end.
    assert len(shown) == 2 + 12 + 1
    assert shown[11] == "    if likely(i.outer*4 + 3 < 7):"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import tvm\n\ntvm.te.placeholder((tvm.te.var('n'),))", ":3: error: .*positive integers"),
        ("from tvm import relay", ":1: error: .*'relay'.*docs/tvm.md"),
        ("import tvm.topi", ":1: error: .*'tvm.topi'.*docs/tvm.md"),
        ("import tvm\ntvm.te.scan", ":2: error: .*no attribute 'scan'"),
        ("import tvm\ntvm.tir.call_packed", ":2: error: .*no attribute 'call_packed'"),
    ],
)
def test_what_there_is_not_is_one_line(
    text: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([written(tmp_path, text)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(message, line)


def test_errors_of_the_program_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        main([written(tmp_path, "import tvm\n1 / 0")])
    with pytest.raises(ImportError):
        main([written(tmp_path, "import nothing_of_this_name")])


def test_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert main(["nowhere.py"]) == 1
    assert "error: no file 'nowhere.py'" in capsys.readouterr().err


def test_targets_by_their_names() -> None:
    assert target_name(None) == "cpu"
    assert target_name("llvm") == "cpu"
    assert target_name("llvm -mcpu=znver3") == "cpu:znver3"
    assert target_name("cuda -arch=sm_90") == "cuda:sm_90"
    assert target_name("rocm") == "rocm:gfx942"
    assert target_name("cuda:sm_86") == "cuda:sm_86"
    with pytest.raises(UserError, match=r"option '-mattr=\+avx2' \(allowed: -mcpu=, -arch=\)"):
        target_name("llvm -mcpu=znver3 -mattr=+avx2")
