"""Trials of other shapes in the database, as what a search can learn from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from played_run import played_task

import dispatch_corpus as corpus
from tilewright.search.surrogate import CovarianceKernel
from tilewright.search.transfer import Transfer, ranges
from tilewright.space.generators import KERNEL_MEMBER, dispatch_space
from tilewright.space.knobs import TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import UnionSpace
from tilewright.store import Database, RunRecord, TaskKey
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.experience import KernelLessons, experience
from tilewright.tuning.task import DispatchTask

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


PIPELINE, SKETCH, OTHER = "Pipeline", f"{KERNEL_MEMBER}rows", f"{KERNEL_MEMBER}loops"


def kernel_task(
    store: Database, folder: Path, name: str, rows: int, *members: str
) -> tuple[DispatchTask, list[Configuration]]:
    """A task with these members, each of one knob whose best value is half of its range, and all
    its configurations, tried."""
    sizes = tuple(1 << power for power in range(rows.bit_length()))
    knob = TileKnob("rows", sizes, limit=rows)
    spaces = [SearchSpace(m, [knob], [], Configuration.of({"rows": 1})) for m in members]
    space = UnionSpace("dispatch", spaces)
    task = replace(played_task(folder, name, 1e-3), restricted=space)
    task.store_id = store.task_id(task.key, 1e-3, None)
    everything = [one for one in space.ordered(range(space.order_size)) if one is not None]
    for one in everything:
        off = abs(math.log2(int(str(one["rows"]))) - math.log2(rows) / 2)
        task.trials.append(Trial(one, Status.OK, time_s=rows * 1e-6 * 2.0**off))
    return task, everything


def test_kernels_of_one_sketch_teach_each_other_across_shapes(
    store: Database, tmp_path: Path
) -> None:
    run = store.begin_run(RunRecord("p.mlir", "d", "cpu:host", "3.13.0", options_digest="o"))
    small, _ = kernel_task(store, tmp_path, "small", 256, PIPELINE, SKETCH)
    large, everything = kernel_task(store, tmp_path, "large", 4096, PIPELINE, SKETCH)
    strange, _ = kernel_task(store, tmp_path, "strange", 4096, PIPELINE, OTHER)
    lessons = KernelLessons(store, run, [small, large, strange])
    (taught,) = lessons.learn(large)
    names = large.restricted.descriptor_names
    described = large.restricted.describe_many(everything)
    transfer = Transfer([taught], names, ranges(described), CovarianceKernel(0.5, 0.5), False)
    expected = transfer.correction(described)
    best = everything[int(np.argmin(expected))]
    assert 32 <= int(str(best["rows"])) <= 128, "half of the range, not the value that was best"


def test_what_a_run_taught_is_there_in_the_next_for_the_same_target_alone(
    store: Database, tmp_path: Path
) -> None:
    first = store.begin_run(RunRecord("p.mlir", "d", "cpu:host", "3.13.0", options_digest="o"))
    small, _ = kernel_task(store, tmp_path, "small", 256, PIPELINE, SKETCH)
    few, _ = kernel_task(store, tmp_path, "few", 256, SKETCH)
    few.trials = few.trials[:3]
    KernelLessons(store, first, [small, few]).keep()
    second = store.begin_run(RunRecord("p.mlir", "d", "cpu:host", "3.13.0", options_digest="o"))
    large, _ = kernel_task(store, tmp_path, "large", 4096, SKETCH)
    large.trials.clear()
    (taught,) = KernelLessons(store, second, [large]).learn(large)
    assert len(taught.times) == len(small.trials)
    assert KernelLessons(store, first, [large]).learn(large) == (), "of its own run it has them all"
    elsewhere = replace(large, key=replace(large.key, target="cpu:znver9"))
    assert KernelLessons(store, second, [elsewhere]).learn(elsewhere) == ()
