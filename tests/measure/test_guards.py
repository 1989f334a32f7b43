"""Guards behind results, of every type that a kernel may have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.argument import element_type_of
from tilewright.measure.guards import GUARD_ELEMENTS, WroteOutside, guard_value, without_guards
from tilewright.measure.jobs import WorkerFailure
from tilewright.trial import Status


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
def test_a_guard_that_is_whole_is_taken_off(dtype: type) -> None:
    values = np.arange(6).astype(dtype)
    guard = np.full(GUARD_ELEMENTS, guard_value(element_type_of(np.dtype(dtype)))).astype(dtype)
    (found,) = without_guards([np.concatenate([values, guard])], [(2, 3)])
    assert np.array_equal(found, values.reshape(2, 3))


def test_what_is_written_behind_a_result_is_said() -> None:
    written = np.full(4 + GUARD_ELEMENTS, guard_value("f32")).astype("f")
    written[[9, 12]] = 0.0
    with pytest.raises(WroteOutside, match=r"result 0: 2 elements behind its 4 .* first at 9"):
        without_guards([written], [(4,)])
    failure = WorkerFailure("error", "", error_type="WroteOutside")
    assert failure.run_status is Status.WRONG_RESULT
