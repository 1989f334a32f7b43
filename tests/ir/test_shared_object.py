"""Shared objects made of object files: the code that the compiler's own linker would give."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from iree.compiler import ir

from tilewright import te
from tilewright.ir.generated_code import GeneratedCode
from tilewright.ir.session import CompilerSession
from tilewright.ir.shared_object import NotLinkable, shared_object
from tilewright.ir.target_info import executable_target
from tilewright.schedule.build_tasks import SCHEDULE_FLAGS
from tilewright.schedule.codegen import executables_for
from tilewright.target import parse_target

TARGET = parse_target("cpu:znver3", 1)
PROBE = "func.func @main(%a: tensor<1xi8>) -> tensor<1xi8> { return %a : tensor<1xi8> }"
QUERY = "iree_hal_executable_library_query"


@pytest.fixture(scope="module")
def session() -> CompilerSession:
    return CompilerSession((*TARGET.flags, *SCHEDULE_FLAGS))


def generated(session: CompilerSession, expression: te.Tensor, *inputs: te.Tensor) -> GeneratedCode:
    """The code of an expression with its last axis in vectors."""
    probe = ir.Module.parse(PROBE, session.context)
    session.run(probe.operation, None, "flow")
    schedule = te.create_schedule(expression.op)
    schedule[expression].vectorize(schedule[expression].op.axis[-1])
    program = te.lower(schedule, [*inputs, expression]).program
    module, _ = executables_for(program, TARGET, executable_target(probe))
    session.run(module.operation, "executable-sources", "executable-targets", verify=False)
    return GeneratedCode.of(module)


def code(attribute: ir.Attribute) -> bytes:
    return bytes(np.array(ir.DenseElementsAttr(attribute)).astype(np.uint8))


def test_the_code_is_that_of_the_linker(session: CompilerSession, tmp_path: Path) -> None:
    a, b = te.placeholder((8, 64), "f32", name="a"), te.placeholder((8, 64), "f32", name="b")
    made = generated(session, te.compute((8, 64), lambda i, j: a[i, j] * b[i, j] + a[i, j]), a, b)
    quick = code(made.objects(session, tmp_path)["kernel_0"])
    whole = code(made.binaries(session)["kernel_0"])
    at = quick.index(b"\x55\x48\x89\xe5")  # push rbp; mov rbp, rsp
    end = quick.index(b"\xc3", at)
    assert end - at > 40
    assert quick[at : end + 1] in whole
    assert list(tmp_path.iterdir()) == []


def test_the_systems_loader_takes_it_too(session: CompilerSession, tmp_path: Path) -> None:
    a = te.placeholder((8, 64), "f32", name="a")
    made = generated(session, te.compute((8, 64), lambda i, j: a[i, j] * 3.0), a)
    file = tmp_path / "kernel.so"
    file.write_bytes(code(made.objects(session, tmp_path)["kernel_0"]))
    query = getattr(ctypes.CDLL(str(file)), QUERY)
    query.restype = ctypes.c_void_p
    # It gives a table for the one version that it has, which begins with a pointer to a header,
    # whose second word points to a name: all of them relocated.
    (table,) = filter(None, (query(version, None) for version in range(64)))
    header = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[0]
    assert ctypes.cast(header + 8, ctypes.POINTER(ctypes.c_char_p))[0] == b"kernel_0"


def test_what_calls_a_library_needs_a_linker(session: CompilerSession, tmp_path: Path) -> None:
    a = te.placeholder((4, 8), "f64", name="a")
    made = generated(session, te.compute((4, 8), lambda i, j: te.exp(a[i, j])), a)
    with pytest.raises(NotLinkable, match="'exp' is not in it"):
        made.objects(session, tmp_path)
    assert code(made.binaries(session)["kernel_0"])[:4] == b"\x7fELF"


def test_other_files_are_refused() -> None:
    with pytest.raises(NotLinkable, match="no object file of x86-64"):
        shared_object(b"\x7fELF\x02\x01\x01".ljust(64, b"\0"), "f", "g")
