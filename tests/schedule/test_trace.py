"""A schedule as data: files, other shapes, what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nest_evaluator import evaluate

from tilewright import te
from tilewright.schedule.intrinsics import gemv


def matmul(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    return a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")


def scheduled(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    a, b, c = matmul(n)
    s = te.create_schedule(c)
    local = s.cache_write(c, "local")
    copy = s.cache_read(a, "shared", [local])
    tx = te.thread_axis((0, 4), "threadIdx.x")
    io, jo, ii, ji = s[c].tile(*c.op.axis, 4, 4)
    s[c].bind(ji, tx)
    s[local].compute_at(s[c], jo)
    s[local].set_scope("shared")
    ko, ki = s[local].split(local.op.reduce_axis[0], nparts=2)
    s[copy].compute_at(s[local], ko)
    s[copy].storage_align(copy.op.axis[0], 8, 1)
    s[copy].align_extent(copy.op.axis[1], 8)
    s[local].unroll(ki)
    s[c].pragma(io, "auto_unroll_max_step", 8)
    s[c].set_store_predicate(te.all(tx.var >= 0, te.logical_not(ii < 0)))
    return s, [a, b, c]


@pytest.mark.parametrize("name", ["schedule.json", "schedule.py"])
def test_files_and_another_shape(tmp_path: Path, name: str) -> None:
    s, tensors = scheduled(16)
    path = tmp_path / name
    s.trace().save(path)
    trace = te.Trace.load(path)
    assert trace == s.trace()
    same = list(matmul(16))
    assert str(te.lower(trace.apply(same[-1]), same)) == str(te.lower(s, tensors))
    a, b, c = matmul(12)
    other = trace.apply(c)
    assert other.trace() == trace
    x, y = (np.random.default_rng(i).random((12, 12), np.float32) for i in range(2))
    (result,) = evaluate(te.lower(other, [a, b, c]).program, [x, y], "random")
    np.testing.assert_allclose(result, x @ y, rtol=1e-5)


def test_groups_rfactor_intrinsics_and_prefetch_are_part_of_it() -> None:
    a, b = te.placeholder((8, 16), name="A"), te.placeholder((16, 16), name="B")
    k = te.reduce_axis(16, "k")
    d = te.compute((8, 16), lambda i, j: a[i, j] + 1.0, name="D")
    c = te.compute((8, 16), lambda i, j: te.sum(d[i, k] * b[j, k], axis=k), name="C")
    r = te.reduce_axis(16, "r")
    f = te.compute((8,), lambda i: te.sum(c[i, r], axis=r), name="F")
    s = te.create_schedule(f)
    intrinsic = gemv(16, 16)
    s[c].tensorize(c.op.axis[1], intrinsic)
    group = s.create_group(outputs=d, inputs=a)
    group.compute_at(s[c], c.op.axis[0])
    factored = s.rfactor(f, s[f].split(r, 4)[1], -1)
    s[factored].prefetch(c, factored.op.axis[0], 1)
    text = s.trace().to_python()
    assert f"te.intrinsic('{intrinsic.name}')" in text
    again = te.Trace.from_python(text).apply(f)
    assert str(te.lower(again, [a, b, f])) == str(te.lower(s, [a, b, f]))


def test_reading_python_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = f"def schedule(s):\n    open({str(target)!r}, 'w').close()\n"
    with pytest.raises(te.ScheduleError, match=r"not understood|no primitive"):
        te.Trace.from_python(text)
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is not one"),
        ("[]", "this is not one"),
        ('{"format": 9, "steps": []}', "format 9 is not known"),
        ('{"format": 1, "steps": [{"stage": "C"}]}', "this is not one"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(te.ScheduleError, match=message):
        te.Trace.from_json(text)


@pytest.mark.parametrize("text", ["def f(:", "x = 1", "def schedule(s):\n    return 1\n"])
def test_other_sources_are_refused(text: str) -> None:
    with pytest.raises(te.ScheduleError, match="schedule trace"):
        te.Trace.from_python(text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(te.ScheduleError, match="no file"):
        te.Trace.load(tmp_path / "absent.json")


def test_another_expression_is_refused_with_the_step() -> None:
    s, _ = scheduled(16)
    x = te.placeholder((4,), name="X")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="Y")
    with pytest.raises(te.ScheduleError, match=r"step 0 \(cache_write\): unknown stage 'C'"):
        s.trace().apply(y)
    steps = te.Trace.from_json(
        '{"format": 1, "steps": [{"primitive": "explode", "stage": "Y", "arguments": {}}]}'
    )
    with pytest.raises(te.ScheduleError, match="no primitive 'explode'"):
        steps.apply(y)


@pytest.mark.parametrize(
    "step",
    [
        '{"primitive": "split", "stage": "C", "arguments": {"axis": {"axis": 5}, "factor": 4}}',
        '{"primitive": "split", "stage": "C", "arguments": {"axis": {"axis": ["C", "x"]}}}',
        '{"primitive": "split", "stage": "C", "arguments": {"axis": {"result": [7, 0]}}}',
        '{"primitive": "reorder", "stage": "C", "arguments": {"args": 3}}',
        '{"primitive": ["split"], "stage": "C", "arguments": {}}',
        '{"primitive": "split", "stage": {"result": [0]}, "arguments": {}}',
        '{"primitive": "split", "stage": "C", "arguments": [[1]]}',
        '{"primitive": "set_store_predicate", "stage": "C", "arguments": {"args": [{"expr": []}]}}',
        "3",
    ],
)
def test_steps_that_nobody_recorded_are_said_to_be_wrong(step: str) -> None:
    a = te.placeholder((8,), name="A")
    c = te.compute((8,), lambda i: a[i] + 1.0, name="C")
    with pytest.raises(te.ScheduleError, match="schedule trace"):
        te.Trace.from_json(f'{{"format": 1, "steps": [{step}]}}').apply(c)


@pytest.mark.parametrize("text", ["def schedule(s):\n  x = " + "[" * 9000, "\0", "(" * 100_000])
def test_source_that_python_cannot_parse(text: str) -> None:
    with pytest.raises(te.ScheduleError, match="schedule trace"):
        te.Trace.from_python(text)
