"""What the runtime may use where it lies, and what is copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.errors import UserError
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.runtime import Device
from tilewright.tuned import check_results, usable


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
        device.download(device.upload(np.full(4096, number, np.float32)), copy=False)[1:]
        for number in range(64)
    ]
    assert all((view == number).all() for number, view in enumerate(views))


@pytest.mark.parametrize("odd", [aligned(16, 4), aligned(32)[::2], aligned(16).reshape(4, 4).T])
def test_other_memory_is_copied(odd: np.ndarray) -> None:
    odd[...] = 3
    found, copied = usable(odd)
    assert copied
    assert found.ctypes.data % 64 == 0
    np.testing.assert_array_equal(found, odd)


def test_an_array_without_elements_is_not_copied() -> None:
    assert not usable(np.zeros((0, 3), np.float32))[1]


def test_results_that_are_not_the_frameworks_are_told(tmp_path: Path) -> None:
    one = np.ones(4, np.float32)
    check_results([one, one > 0], [one, one > 0], "PyTorch", tmp_path)
    with pytest.raises(UserError, match="result 2 of the compiled program is not PyTorch's"):
        check_results([one, one], [one, one + 1], "PyTorch", tmp_path)


def test_a_folder_that_is_no_result_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a result folder"):
        tilewright.load(tmp_path)
