"""Arguments of the wrong kind: a ScheduleError every time, never a traceback of our own."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest
from test_primitive_docs import METHODS, start

from tilewright import te


def legal(x: dict[str, Any], s: te.Schedule) -> dict[str, dict[str, Any]]:
    """Arguments with which each primitive does something, by name of the parameter."""
    axis, reduction = s[x["C"]].op.axis[0], x["k"]
    return {
        "split": {"parent": axis, "factor": 4},
        "fuse": {"args": axis},
        "reorder": {"args": axis},
        "tile": {"x_parent": axis, "y_parent": reduction, "x_factor": 2, "y_factor": 2},
        "unroll": {"var": axis},
        "vectorize": {"var": axis},
        "parallel": {"var": axis},
        "bind": {"ivar": axis, "thread_ivar": te.thread_axis("threadIdx.x")},
        "compute_at": {"parent": s[x["C"]], "scope": axis},
        "compute_inline": {},
        "compute_root": {},
        "set_scope": {"scope": "local"},
        "storage_align": {"axis": axis, "factor": 8, "offset": 1},
        "align_extent": {"axis": axis, "factor": 8},
        "pragma": {"var": axis, "pragma_type": "unroll", "pragma_value": None},
        "prefetch": {"tensor": x["A"], "var": axis, "offset": 1},
        "tensorize": {"var": axis, "tensor_intrin": None},
        "set_store_predicate": {"predicate": axis.equal(0)},
        "cache_read": {"tensor": x["A"], "scope": "shared", "readers": [x["C"]]},
        "cache_write": {"tensor": x["C"], "scope": "local"},
        "rfactor": {"tensor": x["C"], "axis": reduction, "factor_axis": 0},
        "create_group": {"outputs": x["C"], "inputs": x["A"], "include_inputs": False},
    }


def junk(x: dict[str, Any]) -> list[Any]:
    foreign = te.compute((4,), lambda i: i, name="foreign")
    own = [x["B"], x["E"].op.axis[0], foreign, foreign.op.axis[0], te.thread_axis("vthread")]
    return [None, -1, 0, 2.5, "x", [], (), object(), te.const(1.0), te.var("v"), *own]


def test_all_primitives_are_here() -> None:
    x = start()
    assert set(legal(x, te.create_schedule(x["C"]))) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_junk_is_refused_or_taken_but_never_falls_over(name: str) -> None:
    parameters = list(inspect.signature(METHODS[name]).parameters)[1:]
    for parameter in parameters or [""]:
        for position in range(len(junk(start()))):
            x = start()
            s = te.create_schedule(x["C"])
            arguments = legal(x, s)[name]
            if parameter:
                arguments[parameter] = junk(x)[position]
            owner = (
                s if name in ("cache_read", "cache_write", "rfactor", "create_group") else s[x["C"]]
            )
            given = [arguments.pop("args")] if "args" in arguments else []
            with contextlib.suppress(te.ScheduleError):
                getattr(owner, name)(*given, **arguments)
                te.lower(s, [x["A"], x["B"], x["C"]])


def test_too_many_and_unknown_arguments() -> None:
    x = start()
    s = te.create_schedule(x["C"])
    with pytest.raises(te.ScheduleError, match="arguments: parent, factor, nparts"):
        s[x["C"]].split(x["C"].op.axis[0], size=4)
    with pytest.raises(te.ScheduleError, match="unroll of 'C'"):
        s[x["C"]].unroll(1, 2, 3)
