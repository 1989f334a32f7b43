"""Host code of kernels: it calls them as the compiler's would, also with guards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

from tilewright import te
from tilewright.ir.generated_code import generated
from tilewright.ir.guards import GUARD_BYTE, GUARD_ELEMENTS
from tilewright.ir.kernel_host import HostWriter, KernelCall, KernelCalls, ResultType
from tilewright.ir.session import CompilerSession
from tilewright.ir.splice import SplicedHost
from tilewright.ir.target_info import executable_target
from tilewright.ir.walk import string_attribute, walk
from tilewright.schedule.build_tasks import SCHEDULE_FLAGS
from tilewright.schedule.codegen import executables_for, module_for
from tilewright.schedule.nest import LoopProgram
from tilewright.target import parse_target

TARGET = parse_target("cpu", 1)
PROBE = "func.func @main(%a: tensor<1xi8>) -> tensor<1xi8> { return %a : tensor<1xi8> }"
RECORDED = ("dispatch", "execution_barrier", "fill_buffer", "finalize")


@pytest.fixture(scope="module")
def session() -> CompilerSession:
    return CompilerSession((*TARGET.flags, *SCHEDULE_FLAGS))


def program() -> LoopProgram:
    """Two kernels that could run at once, and one that needs both: 2a + (b + 1)."""
    a, b = (te.placeholder((4, 8), "f32", name=name) for name in "ab")
    twice = te.compute((4, 8), lambda i, j: a[i, j] * 2.0, name="twice")
    more = te.compute((4, 8), lambda i, j: b[i, j] + 1.0, name="more")
    both = te.compute((4, 8), lambda i, j: twice[i, j] + more[i, j], name="both")
    return te.lower(te.create_schedule(both.op), [a, b, both]).program


CALLS = KernelCalls(
    (128, 128),
    (ResultType("f32", 4, (4, 8)),),
    (128, 128),
    (
        KernelCall("kernel_0", (0,), (3,)),
        KernelCall("kernel_1", (1,), (4,)),
        KernelCall("kernel_2", (3, 4), (2,)),
    ),
)


def of_function(module: ir.Operation, name: str) -> list[tuple[str, list[str]]]:
    """What the command buffer that a function of this name records has in it."""
    (function,) = (
        op
        for op in walk(module, lambda op: op.name != "util.func")
        if op.name == "util.func" and string_attribute(op, "sym_name") == name
    )
    return [
        (op.name, sorted(str(op.attributes[key]) for key in op.attributes))
        for op in walk(function)
        if op.name.removeprefix("hal.command_buffer.") in RECORDED
    ]


def test_commands_are_those_of_the_compiler(session: CompilerSession) -> None:
    """Kernels that do not touch each other's data run at once, others wait."""
    whole = ir.Module.parse(str(module_for(program(), TARGET)), session.context)
    session.run(whole.operation, None, "hal")
    expected = of_function(whole.operation, "__main_memoize_apply")
    assert [name.rpartition(".")[2] for name, _ in expected] == [
        "dispatch",
        "dispatch",
        "execution_barrier",
        "dispatch",
        "execution_barrier",
        "finalize",
    ]
    made = HostWriter(session).write(CALLS)
    assert of_function(made, "record_main") == expected


def finished(session: CompilerSession, folder: Path, calls: KernelCalls) -> bytes:
    """The program with its kernels in it."""
    probe = ir.Module.parse(PROBE, session.context)
    session.run(probe.operation, None, "flow")
    module, kernels = executables_for(program(), TARGET, executable_target(probe))
    assert [kernel.name for kernel in kernels] == [call.kernel for call in calls.calls]
    (binaries,) = generated(session, [module]).compiled(session, folder)
    host = SplicedHost(session, HostWriter(session).write(calls), list(binaries))
    return host.finish(binaries)


def run(vmfb: bytes, name: str, *inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Calls a function that returns one array of f32."""
    instance, device = rt.VmInstance(), rt.get_device("local-sync")
    module = rt.VmModule.copy_buffer(instance, vmfb)
    context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])
    given, taken = rt.VmVariantList(len(inputs)), rt.VmVariantList(1)
    for array in inputs:
        given.push_ref(rt.asdevicearray(device, array)._buffer_view)
    context.invoke(module.lookup_function(name), given, taken)
    view = taken.get_as_object(0, rt.HalBufferView)
    return np.asarray(rt.DeviceArray(device, view).to_host(), np.float32)


A, B = (np.arange(n, n + 32, dtype=np.float32).reshape(4, 8) for n in (0, 50))


def test_a_program_of_several_kernels(session: CompilerSession, tmp_path: Path) -> None:
    vmfb = finished(session, tmp_path, replace(CALLS, repeats=3, rotations=2))
    assert np.array_equal(run(vmfb, "main", A, B), 2 * A + B + 1)
    # Two sets of inputs in turn, three times: the last result is of the first set.
    assert np.array_equal(run(vmfb, "bench", A, B, B, A), 2 * A + B + 1)
    guarded = run(vmfb, "guarded", A, B)
    assert guarded.shape == (32 + GUARD_ELEMENTS,)
    assert np.array_equal(guarded[:32].reshape(4, 8), 2 * A + B + 1)
    assert set(guarded[32:].tobytes()) == {GUARD_BYTE}


def test_every_set_of_inputs_is_used_once_at_least(
    session: CompilerSession, tmp_path: Path
) -> None:
    vmfb = finished(session, tmp_path, replace(CALLS, rotations=2))
    assert np.array_equal(run(vmfb, "bench", A, B, B, A), 2 * B + A + 1)


def test_who_waits_for_whom() -> None:
    first = KernelCall("a", (0,), (1,))
    assert KernelCall("b", (1,), (2,)).waits_for([first])
    assert KernelCall("b", (2,), (1,)).waits_for([first])
    assert KernelCall("b", (2,), (0,)).waits_for([first])
    assert not KernelCall("b", (0,), (2,)).waits_for([first])
    assert not KernelCall("b", (1,), (2,)).waits_for([])


def test_a_compiler_that_has_compiled_nothing_yet() -> None:
    fresh = CompilerSession((*TARGET.flags, *SCHEDULE_FLAGS))
    assert of_function(HostWriter(fresh).write(CALLS), "record_main")
