"""Trials of other shapes in the database, as what a search can learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dispatch_corpus as corpus
from tilewright.space.generators import dispatch_space
from tilewright.store import Database, RunRecord, TaskKey
from tilewright.trial import Status, Trial
from tilewright.tuning.experience import experience

MATMULS = ("matmul_f16_f16", "matmul_odd", "matmul_bias_relu")


def key_of(dispatch: corpus.Dispatch, compiler: str = "3.13.0") -> TaskKey:
    return TaskKey(dispatch.workload, "cpu", compiler)


def remember(store: Database, dispatch: corpus.Dispatch, count: int, ok: bool = True) -> int:
    """A run that tried so many configurations of a dispatch; its id."""
    space = dispatch_space(dispatch.template, dispatch.workload, corpus.TARGET)
    assert space is not None
    described = {"template": dispatch.template.to_json(), "target": corpus.TARGET.to_json()}
    task = store.task_id(key_of(dispatch), 1e-3, described)
    run = store.begin_run(RunRecord("p.mlir", dispatch.entry, "cpu", "3.13.0", options_digest="o"))
    configurations = dict.fromkeys(space.space.sample(np.random.default_rng(1), 2 * count))
    trials = [
        Trial(c, Status.OK, 1e-3 * (i + 1)) if ok else Trial(c, Status.CRASHED)
        for i, c in enumerate(list(configurations)[:count])
    ]
    store.record_trials(run, task, trials)
    return run


@pytest.fixture
def store(tmp_path: Path) -> Database:
    return Database.open(tmp_path / "x.db")


def test_trials_of_another_shape_of_the_kind(store: Database):
    mine, other = (corpus.last(name) for name in MATMULS[1:])
    remember(store, other, 30)
    remember(store, corpus.last("softmax"), 30)
    (found,) = experience(store, key_of(mine), mine.template.translation.pipeline)
    assert found.descriptors.shape == (30, len(found.names))
    assert sorted(found.times) == pytest.approx([1e-3 * (i + 1) for i in range(30)])
    space = dispatch_space(mine.template, mine.workload, corpus.TARGET)
    assert space is not None
    assert set(found.names) & set(space.space.descriptor_names) >= {"vector_m", "prior"}


def test_not_of_itself_nor_of_this_run_nor_of_another_compiler(store: Database):
    mine, other = (corpus.last(name) for name in MATMULS[1:])
    pipeline = mine.template.translation.pipeline
    remember(store, mine, 30)
    run = remember(store, other, 30)
    assert len(experience(store, key_of(mine), pipeline)) == 1
    assert experience(store, key_of(mine), pipeline, run) == ()
    assert experience(store, key_of(mine, "3.14.0"), pipeline) == ()
    assert experience(store, key_of(mine), "Mmt4dTilingExpert") == ()


def test_failures_and_a_handful_of_trials_teach_nothing(store: Database):
    mine, few, failed = (corpus.last(name) for name in reversed(MATMULS))
    remember(store, few, 5)
    remember(store, failed, 30, ok=False)
    assert experience(store, key_of(mine), mine.template.translation.pipeline) == ()


def test_what_another_version_wrote_is_passed_over(store: Database):
    mine, other = (corpus.last(name) for name in MATMULS[1:])
    remember(store, other, 30)
    store.task_id(key_of(other), None, {"template": {"ops": "?"}})
    assert experience(store, key_of(mine), mine.template.translation.pipeline) == ()
