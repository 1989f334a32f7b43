"""Guards behind results, of every type that a kernel may have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.ir.guards import GUARD_BYTE, GUARD_ELEMENTS, WroteOutside, without_guards
from tilewright.measure.jobs import WorkerFailure
from tilewright.trial import Status


def guard(dtype: type) -> NDArray[Any]:
    return np.full(GUARD_ELEMENTS * np.dtype(dtype).itemsize, GUARD_BYTE, np.uint8).view(dtype)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, np.bool_]
)
def test_a_guard_that_is_whole_is_taken_off(dtype: type) -> None:
    values = np.arange(6).astype(dtype)
    (found,) = without_guards([np.concatenate([values, guard(dtype)])], [(2, 3)])
    assert np.array_equal(found, values.reshape(2, 3))


def test_what_is_written_behind_a_result_is_said() -> None:
    written = np.concatenate([np.zeros(4, np.float32), guard(np.float32)])
    written[[9, 12]] = 0.0
    with pytest.raises(WroteOutside, match=r"result 0: 2 elements behind its 4 .* first at 9"):
        without_guards([written], [(4,)])
    failure = WorkerFailure("error", "", error_type="WroteOutside")
    assert failure.run_status is Status.WRONG_RESULT
