"""Host code of kernels: it calls them as the compiler's would, also with guards."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

from tilewright import te
from tilewright.ir.calling_host import CallingHost, sizes_of
from tilewright.ir.generated_code import FunctionCode, generated
from tilewright.ir.guards import GUARD_BYTE, GUARD_ELEMENTS
from tilewright.ir.kernel_calls import KernelCall, KernelCalls, ResultType
from tilewright.ir.kernel_host import HostWriter
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


def program(rows: int = 4, columns: int = 8) -> LoopProgram:
    """Two kernels that could run at once, and one that needs both: 2a + (b + 1)."""
    shape = rows, columns
    a, b = (te.placeholder(shape, "f32", name=name) for name in "ab")
    twice = te.compute(shape, lambda i, j: a[i, j] * 2.0, name="twice")
    more = te.compute(shape, lambda i, j: b[i, j] + 1.0, name="more")
    both = te.compute(shape, lambda i, j: twice[i, j] + more[i, j], name="both")
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


def binaries_of(
    session: CompilerSession, folder: Path, calls: KernelCalls, loops: LoopProgram
) -> dict[str, FunctionCode]:
    """The code of the calls' kernels."""
    probe = ir.Module.parse(PROBE, session.context)
    session.run(probe.operation, None, "flow")
    module, kernels = executables_for(loops, TARGET, executable_target(probe))
    assert [kernel.name for kernel in kernels] == list(calls.kernels)
    (binaries,) = generated(session, [module]).compiled(session, folder)
    return binaries


def finished(session: CompilerSession, folder: Path, calls: KernelCalls) -> bytes:
    """The program with its kernels in it."""
    binaries = binaries_of(session, folder, calls, program())
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


def larger(rows: int, columns: int) -> KernelCalls:
    """The calls for arrays of another size; what is between kernels has sizes of its own."""
    bytes_ = 4 * rows * columns
    return replace(
        CALLS,
        inputs=(bytes_,) * 2,
        results=(ResultType("f32", 4, (rows, columns)),),
        between=(bytes_, bytes_ + 4),
    )


def test_one_host_serves_all_calls_of_a_form(session: CompilerSession, tmp_path: Path) -> None:
    """What one is given does not stay for the next: neither code nor sizes."""
    repeated = [replace(larger(*shape), repeats=2) for shape in ((4, 8), (3, 5), (17, 33), (4, 8))]
    form = repeated[0].form()
    assert {calls.form() for calls in repeated} == {form}
    shared = SplicedHost(session, HostWriter(session).write(form), form.kernels, sizes_of(form))
    for calls in repeated:
        rows, columns = calls.results[0].shape
        binaries = binaries_of(session, tmp_path, calls, program(rows, columns))
        vmfb = CallingHost(shared, calls).finish(binaries)
        a = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        for name in ("main", "bench"):
            assert np.array_equal(run(vmfb, name, a, a + 5), 3 * a + 6)
        guarded = run(vmfb, "guarded", a, a + 5)
        assert guarded.shape == (a.size + GUARD_ELEMENTS,)
        assert np.array_equal(guarded[: a.size].reshape(a.shape), 3 * a + 6)
        assert set(guarded[a.size :].tobytes()) == {GUARD_BYTE}
        # No size of the form is left.
        left = constants(shared, calls, binaries)
        stand_ins = {*sizes_of(form)} - {*sizes_of(calls)}
        assert not left & {ir.IntegerAttr.get(i64(session), size) for size in stand_ins}


def i64(session: CompilerSession) -> ir.Type:
    return ir.IntegerType.get_signless(64, session.context)


def constants(
    shared: SplicedHost, calls: KernelCalls, binaries: dict[str, FunctionCode]
) -> set[ir.Attribute]:
    """The constants of 64 bits in the host code of calls, which is gone when they are known."""
    made = CallingHost(shared, calls).with_code(binaries)
    return {op.attributes["value"] for op in walk(made) if op.name == "vm.const.i64"}


def random_calls(draw: random.Random) -> KernelCalls:
    """Calls of any sizes that there are, many of which are equal."""
    some = (1, 4, 64, 68, 256, 1000, 4096, 1 << 33)
    inputs = tuple(draw.choice(some) for _ in range(draw.randint(1, 3)))
    between = tuple(draw.choice(some) for _ in range(draw.randint(0, 4)))
    results = tuple(
        ResultType(
            "f32",
            draw.choice((1, 4, 8)),
            tuple(draw.choice((1, 3, 257, 1024)) for _ in range(draw.randint(0, 5))),
            draw.choice((None, 0)),
        )
        for _ in range(draw.randint(1, 2))
    )
    return KernelCalls(inputs, results, between, (KernelCall("one", (0,), (len(inputs),)),))


def test_sizes_of_a_form_stand_for_one_size_each() -> None:
    """Whatever sizes of calls are equal, those of their form say which is which."""
    draw = random.Random(0)
    for _ in range(500):
        calls = random_calls(draw)
        form = calls.form()
        assert form == form.form()
        stands_for: dict[int, int] = {}
        for size, of_calls in zip(sizes_of(form), sizes_of(calls), strict=True):
            assert stands_for.setdefault(size, of_calls) == of_calls
            # No number that host code has for other reasons.
            assert size == of_calls or size >= 257


def test_results_of_very_many_dimensions_are_a_form_of_their_own() -> None:
    many = replace(CALLS, results=(ResultType("f32", 4, (2,) * 9),))
    assert many.form() is many
    more = replace(CALLS, results=(ResultType("f32", 4, (2,) * 5),) * 4)
    assert more.form() is more


def test_calls_of_other_forms() -> None:
    """What is more than a size or a name tells forms apart."""
    others = [
        replace(CALLS, repeats=2),
        replace(CALLS, rotations=2),
        replace(CALLS, between=(128,) * 3),
        replace(CALLS, inputs=(128,) * 3),
        replace(CALLS, calls=CALLS.calls[:2]),
        replace(CALLS, results=(ResultType("i32", 4, (4, 8)),)),
        replace(CALLS, results=(ResultType("f32", 4, (4, 8), 0),)),
        replace(CALLS, results=(ResultType("f32", 4, (4, 8, 1)),)),
    ]
    forms = [calls.form() for calls in (CALLS, *others)]
    assert len(set(forms)) == len(forms)
    renamed = [replace(call, kernel=f"other_{call.kernel}") for call in CALLS.calls]
    assert replace(CALLS, calls=tuple(renamed)).form() == CALLS.form()


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
