"""The search over all tasks: trials shared out, kept, reused, stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_run import (
    WRONG,
    PlayedBenchmark,
    PlayedPool,
    played_context,
    played_task,
    played_variant,
)

from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.store import Database, RunRecord, TaskResult
from tilewright.trial import Configuration, Status
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.events import Note, TrialDone
from tilewright.tuning.goals import GoalWatch, read_goals
from tilewright.tuning.reuse import compare_keys
from tilewright.tuning.search_phase import _keep_for_the_end, search
from tilewright.tuning.session_stages import ALL_STAGES, SessionStages, compile_limit_s

HERE = MeasurementKey("a processor", "model 1", threads=2, compiler="3.13.0 some")
EVERY = SessionStages.of(ALL_STAGES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "t.db") as opened:
        yield opened


def began(store: Database, context: Any) -> int:
    """A run on the machine `HERE`, unless the context says otherwise."""
    context.measured_on = context.measured_on or HERE
    store.put_machine(context.measured_on.digest, context.measured_on.to_json())
    machine = context.measured_on.digest
    context.run_id = store.begin_run(
        RunRecord("p", "digest", context.target.key, context.compiler_version, machine=machine)
    )
    return context.run_id


def test_the_trials_go_where_the_time_is(tmp_path: Path, store: Database) -> None:
    context, events = played_context(tmp_path, store, max_trials=40)
    began(store, context)
    hot = played_task(tmp_path, "hot", 1e-2, 0.9, sizes=500)
    warm = played_task(tmp_path, "warm", 1e-3, 0.08, sizes=500)
    cold = played_task(tmp_path, "cold", 1e-5, 0.001, sizes=500)
    search(context, EVERY, [played_variant(hot, warm, cold)], [1.1e-2])
    assert len(hot.trials) > len(warm.trials) > 0
    assert cold.trials == []
    assert len(hot.trials) + len(warm.trials) == store.count_trials(context.run_id) == 40
    told = [e for e in events if isinstance(e, TrialDone)]
    assert [e.done for e in told] == list(range(1, 41))
    assert {e.limit for e in told} == {40}
    assert context.phase_s.keys() >= {"search.compile", "search.measure", "search.search"}


def test_where_every_dispatch_is_small_the_largest_is_searched(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=8)
    began(store, context)
    small = played_task(tmp_path, "small", 1e-5, 0.001, sizes=500)
    larger = played_task(tmp_path, "larger", 2e-5, 0.002, sizes=500)
    search(context, EVERY, [played_variant(small, larger)], [1e-2])
    assert (len(larger.trials), len(small.trials)) == (8, 0)


def test_the_search_ends_where_a_goal_is_reached(tmp_path: Path, store: Database) -> None:
    context, events = played_context(tmp_path, store, max_trials=60)
    began(store, context)
    task = played_task(tmp_path, "hot", 1e-2, 0.9, sizes=500)
    goals = GoalWatch(read_goals("1.2x", "--stop-at"), 1.1e-2)
    search(context, EVERY, [played_variant(task)], [1.1e-2], goals)
    assert 0 < len(task.trials) < 60
    assert task.best is not None
    assert task.best.time_s is not None
    assert task.best.time_s <= 1e-2 / 1.2
    (note,) = [e.text for e in events if isinstance(e, Note)]
    assert note.startswith("--stop-at 1.2x: about ")


def test_a_grid_covers_the_whole_space_with_the_trials_that_there_are(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=16, strategy="GridTuner")
    began(store, context)
    task = played_task(tmp_path, "a", 1e-3, 0.9, sizes=160)
    search(context, EVERY, [played_variant(task)], [1e-3])
    tried = sorted(int(dict(trial.configuration.items)["tile"]) for trial in task.trials)
    assert len(tried) == 16
    gaps = [b - a for a, b in itertools.pairwise(tried)]
    assert max(gaps) <= 2 * 160 // 15
    assert tried[-1] - tried[0] >= 130


@pytest.mark.parametrize(("found", "tasks"), [(0, 1), (1, 2), (7, 3), (None, 3)])
def test_confirming_has_the_time_of_what_there_is_to_confirm(
    tmp_path: Path, store: Database, found: int | None, tasks: int
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=12)
    began(store, context)
    context.deadlines = limits = Deadlines(200.0, 0.0, lambda: 0.0)
    played = [played_task(tmp_path, name, 1e-3, 0.3) for name in "abc"]
    count = None if found is None else lambda: found
    search(context, EVERY, [played_variant(*played)], [3e-3], unconfirmed=count)
    search_end, confirm_end = limits.end("search"), limits.end("confirm")
    assert search_end is not None
    assert confirm_end is not None
    # Each with two finalists, and what neither has taken yet.
    assert confirm_end - search_end == pytest.approx(2.5 * tasks)


def test_a_small_space_is_tried_once_and_no_more(tmp_path: Path, store: Database) -> None:
    context, _ = played_context(tmp_path, store, max_trials=40)
    began(store, context)
    task = played_task(tmp_path, "a", 1e-3, 0.9, sizes=6)
    search(context, EVERY, [played_variant(task)], [1e-3])
    tried = [t.configuration["tile"] for t in task.trials]
    assert sorted(tried) == [2, 3, 4, 5, 6], "the compiler's own choice is known already"


def test_what_fails_is_a_trial(tmp_path: Path, store: Database) -> None:
    crash, hang = WorkerFailure("crashed", "SIGSEGV"), WorkerFailure("timeout", "no answer")
    times: dict[str, Any] = {"00001": 1e-3, "00002": crash, "00003": hang, "00004": 1e-3}

    def time(path: str) -> Any:
        return times.get(path[-10:-5], 1e-3)

    def verify(path: str) -> Any:
        return [WRONG] if "00004" in path else []

    context, _ = played_context(
        tmp_path, store, PlayedBenchmark(time, verify), PlayedPool(), max_trials=5
    )
    began(store, context)
    task = played_task(tmp_path, "a", 1e-3, 0.9)
    search(context, EVERY, [played_variant(task)], [1e-3])
    assert [t.status for t in task.trials] == [
        Status.OK,
        Status.CRASHED,
        Status.RUN_TIMEOUT,
        Status.WRONG_RESULT,
        Status.OK,
    ]
    assert [t.ok for t in store.trials(context.run_id, task.store_id)] == [
        t.ok for t in task.trials
    ]


def test_a_run_that_goes_on_counts_what_was_done(tmp_path: Path, store: Database) -> None:
    for folder, limit in (("one", 10), ("two", 16)):
        (tmp_path / folder).mkdir()
        context, events = played_context(tmp_path / folder, store, max_trials=limit)
        context.run_id = began(store, context) if folder == "one" else 1
        task = played_task(tmp_path / folder, "a", 1e-3, 0.9, sizes=200)
        search(context, EVERY, [played_variant(task)], [1e-3])
    assert len(task.trials) == 16
    assert len({t.configuration for t in task.trials}) == 16
    assert [e.done for e in events if isinstance(e, TrialDone)] == list(range(11, 17))


@pytest.mark.parametrize(
    ("trials", "fresh", "default_s", "elsewhere", "reused"),
    [
        (50, False, 1.2e-3, None, True),
        (50, True, 1.2e-3, None, False),
        (2, False, 1.2e-3, None, False),
        (50, False, 1.6e-3, None, False),
        (50, False, 0.6e-3, None, False),
        (50, False, 1e-3, replace(HERE, stepping="model 2"), False),
        (50, False, 1e-3, replace(HERE, compiler="3.13.0 another"), False),
        (50, False, 1e-3, replace(HERE, threads=3), False),
    ],
)
def test_what_was_tuned_before_is_reused_where_nothing_differs(
    tmp_path: Path,
    store: Database,
    trials: int,
    fresh: bool,
    default_s: float,
    elsewhere: MeasurementKey | None,
    reused: bool,
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=12, fresh=fresh)
    task = played_task(tmp_path, "a", 1e-3, 0.9)
    prepared = played_variant(task)
    context.measured_on = elsewhere
    earlier = began(store, context)
    best = Configuration.of({"tile": 4})
    store.record_result(
        store.task_id(task.key),
        TaskResult(best, default_s, default_s / 2, 1.9, 2.1, "float64 NumPy", trials),
        earlier,
    )
    context.measured_on = HERE
    began(store, context)
    search(context, EVERY, [prepared], [1e-3])
    assert task.reused == reused
    if reused:
        (trial,) = task.trials
        assert (trial.configuration, trial.origin) == (best, f"run {earlier}")
        assert trial.time_s == pytest.approx(5e-4), "by the default's time of today"
        assert any("1.20 ms then; --fresh" in note for note in context.notes)
        return
    assert len(task.trials) == 12
    assert (task.trials[0].configuration == best) != fresh, "what is not taken over is tried first"
    far_off = not fresh and trials == 50 and default_s != 1e-3
    assert any("only a hint" in note for note in context.notes) == far_off


@pytest.mark.parametrize(
    ("then", "reused"),
    [
        ((2e-3, 2e-3, 1.9e-3), (True, True, True)),  # the machine is twice as fast
        ((0.5e-3, 0.6e-3, 1e-3), (True, True, True)),  # it is slower, one does not notice
        ((2e-3, 2e-3, 0.4e-3), (True, True, False)),  # one has changed the other way
        ((4e-3, 4e-3, 4e-3), (False, False, False)),  # too much for the same machine
        ((2e-3, 1e-3, 1e-3), (False, True, True)),  # one has changed alone
    ],
)
def test_results_hold_on_a_machine_that_all_of_a_program_finds_slower_or_faster(
    tmp_path: Path, store: Database, then: tuple[float, ...], reused: tuple[bool, ...]
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=12)
    tasks = [played_task(tmp_path, name, 1e-3, 0.3) for name in "abc"]
    context.measured_on = HERE
    earlier = began(store, context)
    best = Configuration.of({"tile": 4})
    for task, default_s in zip(tasks, then, strict=True):
        result = TaskResult(best, default_s, default_s / 2, 1.9, 2.1, "float64 NumPy", 50)
        store.record_result(store.task_id(task.key), result, earlier)
    began(store, context)
    search(context, EVERY, [played_variant(*tasks)], [1e-3])
    assert tuple(task.reused for task in tasks) == reused


def test_every_field_of_a_key_is_compared(tmp_path: Path, store: Database) -> None:
    context, _ = played_context(tmp_path, store)
    task = played_task(tmp_path, "a", 1e-3, 0.9)
    context.measured_on = replace(HERE, extensions=("avx2",), virtual=True)
    result = TaskResult(None, 1e-3, 1e-3, 1.0, 1.0)
    store.record_result(store.task_id(task.key), result, began(store, context))
    (known,) = store.results_of(task.key)
    compared = {one.field: one for one in compare_keys(known, task.key, HERE)}
    differing = {name: (one.recorded, one.now) for name, one in compared.items() if not one.equal}
    assert differing == {"extensions": ("avx2", "none"), "virtual": ("yes", "none")}
    unknown = compare_keys(replace(known, measured_on=None), task.key, HERE)
    assert {one.field for one in unknown if one.recorded == "not known"} == {
        name.replace("_", " ") for name in HERE.to_json()
    }


def test_a_stop_ends_the_search(tmp_path: Path, store: Database) -> None:
    context, _ = played_context(tmp_path, store, max_trials=100)
    began(store, context)
    task = played_task(tmp_path, "a", 1e-3, 0.9, sizes=500)
    seen: list[str] = []

    def time(path: str) -> float:
        seen.append(path)
        if len(seen) == 3:
            context.request_stop()
        return 1e-3

    context.benchmark = PlayedBenchmark(time)  # type: ignore[assignment]
    search(context, EVERY, [played_variant(task)], [1e-3])
    assert len(task.trials) == 3
    assert not list(task.folder.glob("*.vmfb"))


@pytest.mark.parametrize(("default_s", "limit_s"), [(0.01, 1.0), (2.0, 8.0), (100.0, 60.0)])
def test_a_candidate_may_take_some_times_as_long_to_compile_as_the_default(
    tmp_path: Path, default_s: float, limit_s: float
) -> None:
    task = played_task(tmp_path, "a")
    task.compile_s = default_s
    assert compile_limit_s(task) == limit_s


def test_a_search_begins_with_what_too_few_trials_of_an_earlier_run_found(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store, max_trials=12)
    task = played_task(tmp_path, "a", 1e-3, 0.9, sizes=500)
    best = Configuration.of({"tile": 321})
    result = TaskResult(best, 2e-3, 1e-3, 1.9, 2.1, "float64 NumPy", 2)
    store.record_result(store.task_id(task.key), result, began(store, context))
    began(store, context)
    search(context, EVERY, [played_variant(task)], [1e-3])
    assert not task.reused
    assert task.trials[0].configuration == best
    assert len(task.trials) == 12


@pytest.mark.parametrize(("tasks", "kept_s"), [(4, 10.0), (8, 15.0), (20, 30.0)])
def test_time_is_kept_for_the_best_of_each_task_and_more_where_it_is_little(
    tmp_path: Path, store: Database, tasks: int, kept_s: float
) -> None:
    context, _ = played_context(tmp_path, store, time_limit_s=100.0)
    _keep_for_the_end(context, 1, tasks, kernels=False)
    search_end, confirm_end = context.deadlines.end("search"), context.deadlines.end("confirm")
    assert search_end is not None
    assert confirm_end is not None
    assert confirm_end - search_end == pytest.approx(kept_s)
