"""What the runtime may use where it lies, and what is copied."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.measure.device_options import (
    DeviceOptions,
    Parameters,
    as_batch,
    batch_processes_allowed,
)
from tilewright.measure.runtime import Device
from tilewright.tuned import TunedProgram, check_results, usable
from tilewright.tuning.outputs import VMFB
from tuned_samples import HOST, matmul


def aligned(count: int, offset: int = 0) -> np.ndarray:
    space = np.zeros(4 * count + 128, np.uint8)
    begin = -space.ctypes.data % 64 + offset
    return space[begin : begin + 4 * count].view(np.float32)


def test_memory_that_lies_well_is_used() -> None:
    array = aligned(16)
    found, copied = usable(array)
    assert found is array
    assert not copied


def test_memory_that_may_not_be_written_is_used_too() -> None:
    array = aligned(16)
    array[:] = range(16)
    array.flags.writeable = False
    found, copied = usable(array)
    assert found.ctypes.data == array.ctypes.data
    assert not copied
    del array
    assert list(found.view(np.float32)) == list(range(16))


def test_a_view_keeps_the_runtimes_memory() -> None:
    """A view of a result alone, whose memory later results would else be given."""
    device = Device(DeviceOptions.cpu(1))
    views = [
        device.download(device.upload(np.full(65536, number, np.float32)), copy=False)[1:]
        for number in range(64)
    ]
    assert all((view == number).all() for number, view in enumerate(views))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_result_may_outlive_its_device(cores: int, tmp_path: Path) -> None:
    """Until the process ends: in a process of its own, which a fault would end."""
    (tmp_path / "p.vmfb").write_bytes(CompilerSession(HOST).compile(matmul(m=512)))
    code = f"""
import numpy as np
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.runtime import Device
device = Device(DeviceOptions.cpu({cores}), shared=False)
program = device.load({str(tmp_path / "p.vmfb")!r}, Parameters(()), {{}})
ones = [device.upload(np.ones((rows, 64), np.float32)) for rows in (512, 64)]
found = program.bind("main", ones)().get_variant(0)
kept = device.download(found.deref(device.bindings.HalBufferView), copy=False)
del found, program, ones, device
assert kept.base is not None
assert (kept == 64).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.returncode


@pytest.mark.parametrize("odd", [aligned(16, 4), aligned(32)[::2], aligned(16).reshape(4, 4).T])
def test_other_memory_is_copied(odd: np.ndarray) -> None:
    odd[...] = 3
    found, copied = usable(odd)
    assert copied
    assert found.ctypes.data % 64 == 0
    np.testing.assert_array_equal(found, odd)


def test_an_array_without_elements_is_not_copied() -> None:
    assert not usable(np.zeros((0, 3), np.float32))[1]


def loaded(mlir: str, folder: Path) -> TunedProgram:
    """A program's `main` as one that was tuned."""
    (folder / VMFB).write_bytes(CompilerSession(HOST).compile(mlir))
    program = TunedProgram.__new__(TunedProgram)
    program._device = Device(DeviceOptions.cpu(1), shared=False)
    program.folder, program._archives, program._copies = folder, Parameters(()), {}
    program.function = "main"
    program.reload({})
    program._batch = True
    return program


def called(mlir: str, folder: Path, *arguments: np.ndarray) -> list[np.ndarray]:
    """The results of a program's `main`, called as one that was tuned."""
    given = [(one, one.shape, one.dtype) for one in arguments]
    return loaded(mlir, folder).call(given)


def test_copies_of_arguments_last_as_long_as_the_call(tmp_path: Path) -> None:
    """That of an argument would else be memory that the next one is copied to."""
    kind = "tensor<4096xf32>"
    mlir = f"""
func.func @main(%a: {kind}, %b: {kind}, %c: {kind}) -> {kind} {{
  %d = arith.subf %a, %b : {kind}
  %e = arith.subf %d, %c : {kind}
  return %e : {kind}
}}
"""
    odd = [aligned(4096, 4) for _ in range(3)]
    for number, array in zip((100.0, 20.0, 3.0), odd, strict=True):
        array[:] = number
    (found,) = called(mlir, tmp_path, *odd)
    np.testing.assert_array_equal(found, np.full(4096, 77, np.float32))


ANY_SIZE = """
#map = affine_map<(d0) -> (d0)>
func.func @main(%a: tensor<?xf32>, %b: f32) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %size = tensor.dim %a, %c0 : tensor<?xf32>
  %empty = tensor.empty(%size) : tensor<?xf32>
  %c = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]}
      ins(%a : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%one: f32, %old: f32):
    %d = arith.mulf %one, %b : f32
    linalg.yield %d : f32
  } -> tensor<?xf32>
  return %c : tensor<?xf32>
}
"""


@pytest.mark.parametrize("count", [96, 80_000])
def test_calls_use_what_they_are_given(count: int, tmp_path: Path) -> None:
    """Whatever the calls before were given, of which copies keep their place."""
    program, results = loaded(ANY_SIZE, tmp_path), []
    sizes = [count, count, count - 1, count]
    for number, (size, offset) in enumerate(zip(sizes, [4, 4, 4, 0], strict=True)):
        array = aligned(size, offset)
        array[:] = number + 1
        results.append(program(array, 2.0))
        array[:] = -1
    for number, (found, size) in enumerate(zip(results, sizes, strict=True)):
        np.testing.assert_array_equal(found, np.full(size, 2 * (number + 1), np.float32))


def test_an_array_that_is_given_again_is_used_as_it_is_by_then(tmp_path: Path) -> None:
    program, found = loaded(ANY_SIZE, tmp_path), []
    first, second = aligned(80_000, 0), aligned(80_000, 0)
    second[:] = 100
    for number, array in enumerate((first, first, second, first, first)):
        first[:] = number + 1
        found.append(float(program(array, 2.0)[-1]))
        assert program.copied == 0
    assert found == [2, 4, 200, 8, 10]
    # One that is gone is not taken for another, wherever that lies.
    for number in range(8):
        passing = aligned(80_000, 0)
        passing[:] = number
        assert program(passing, 2.0)[-1] == 2 * number
        del passing


@pytest.mark.parametrize("offset", [0, 4])
def test_an_array_alone_that_is_given_again_is_read_again(offset: int, tmp_path: Path) -> None:
    kind = "tensor<80000xf32>"
    mlir = (
        f"func.func @main(%a: {kind}) -> {kind} {{ %b = math.absf %a : {kind} return %b : {kind} }}"
    )
    program, array, other = loaded(mlir, tmp_path), aligned(80_000, offset), aligned(80_000, offset)
    other[:] = -100
    found = []
    for number in range(6):
        array[:] = -number
        found.append(program(other if number == 3 else array))
        assert program.copied == int(offset > 0)
    assert [float(one.max()) for one in found] == [0, 1, 2, 100, 4, 5]
    array.shape = (8, 10_000)
    with pytest.raises(UserError, match="the call failed"):
        program(array)
    array.shape = (80_000,)
    assert program(array)[0] == 5
    other_program = mlir.replace("math.absf %a", "arith.addf %a, %a")
    (tmp_path / VMFB).write_bytes(CompilerSession(HOST).compile(other_program))
    program.reload({})
    assert program(array)[0] == -10
    passing = None
    for number in range(8):
        del passing
        passing = aligned(80_000, offset)
        passing[:] = number
        assert program(passing)[-1] == 2 * number


def test_an_array_of_another_shape_by_now_is_not_the_last_calls(tmp_path: Path) -> None:
    program, array = loaded(ANY_SIZE, tmp_path), aligned(96, 0)
    array[:] = 1
    assert program(array, 2.0).shape == (96,)
    array.shape = (8, 12)
    with pytest.raises(UserError, match="the call failed"):
        program(array, 2.0)
    array.shape = (96,)
    assert program(array, 3.0).sum() == 288


def test_equal_numbers_that_differ_are_told_apart(tmp_path: Path) -> None:
    program, array = loaded(ANY_SIZE, tmp_path), aligned(16, 4)
    array[:] = 1
    signs = [np.signbit(program(array, zero)).all() for zero in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]


def test_an_argument_too_few_is_an_error_after_a_call_too(tmp_path: Path) -> None:
    program, array = loaded(ANY_SIZE, tmp_path), aligned(16, 4)
    program(array, 2.0)
    with pytest.raises(UserError, match="the call failed"):
        program(array)


@pytest.mark.parametrize("offset", [0, 4])
def test_an_argument_that_is_handed_back_has_memory_of_its_own(offset: int, tmp_path: Path) -> None:
    kind = "tensor<4096xf32>"
    mlir = f"func.func @main(%a: {kind}) -> {kind} {{ return %a : {kind} }}"
    array = aligned(4096, offset)
    array[:] = 5
    (found,) = called(mlir, tmp_path, array)
    array[:] = 6
    np.full(4096 + 16, 7, np.float32)  # where a copy was, if it is free
    np.testing.assert_array_equal(found, np.full(4096, 5, np.float32))


@pytest.mark.skipif(not batch_processes_allowed(), reason="no batch processes here")
def test_only_what_is_started_meanwhile_is_a_batch_process() -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(os.sched_getscheduler(0))

    def started() -> threading.Thread:
        thread = threading.Thread(target=look)
        thread.start()
        return thread

    before = os.sched_getscheduler(0)
    for batch in (True, False):
        thread = as_batch(batch, started)
        thread.join()
    assert seen == [os.SCHED_BATCH, before]
    assert os.sched_getscheduler(0) == before
    with pytest.raises(ValueError, match="inside"):
        as_batch(True, lambda: int("inside"))
    assert os.sched_getscheduler(0) == before


def test_results_that_are_not_the_frameworks_are_told(tmp_path: Path) -> None:
    one = np.ones(4, np.float32)
    check_results([one, one > 0], [one, one > 0], "PyTorch", tmp_path)
    with pytest.raises(UserError, match="result 2 of the compiled program is not PyTorch's"):
        check_results([one, one], [one, one + 1], "PyTorch", tmp_path)


def test_a_folder_that_is_no_result_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a result folder"):
        tilewright.load(tmp_path)
