"""Kernels that no trial timed: for which tasks, and which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_run import played_context, played_task, played_variant

from tilewright.store import Database
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import guesses
from tilewright.tuning.context import RunContext
from tilewright.tuning.guesses import guess_kernels, guessable
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.task import DispatchTask

CONFIGURED, KERNEL, OTHER = (Configuration.of({"tile": one}) for one in (1, 2, 3))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    with Database.open(tmp_path / "t.db") as store:
        yield played_context(tmp_path, store)[0]


def task_with_site(
    folder: Path, name: str, default_s: float | None = None, kind: str = "contraction"
) -> DispatchTask:
    """A task whose configurations are kernels but for the compiler's own."""
    task: Any = played_task(folder, name, default_s)
    task.workload = replace(task.workload, kind=kind)
    task.site = SimpleNamespace(digest=name)
    task.space.kernel = lambda one: None if one == CONFIGURED else "a kernel"
    return task


def variant_of(*tasks: DispatchTask) -> PreparedVariant:
    """Those that were measured are its tasks."""
    made = played_variant(*(task for task in tasks if task.default_s is not None))
    made.untimed += [task for task in tasks if task.default_s is None]
    return made


def test_kernels_are_guessed_for_what_has_no_trial_and_gains_most_first(
    tmp_path: Path, context: RunContext
) -> None:
    each_s = played_task(tmp_path, "each").guessed_s
    names = {"slow": 900 * each_s, "as fast": each_s, "tried": 9 * each_s}
    slow, fast, tried = (task_with_site(tmp_path, *one) for one in names.items())
    unknown = task_with_site(tmp_path, "unknown", kind="convolution")
    tried.trials.append(Trial(KERNEL, Status.WRONG_RESULT))
    plain = played_task(tmp_path, "no site", 9 * each_s)
    reused = task_with_site(tmp_path, "reused", 9 * each_s)
    reused.reused_trials = 20
    prepared = variant_of(unknown, slow, fast, tried, plain, reused)
    assert [one for one, _ in guessable(context, prepared)] == [slow, unknown]
    plain.default_s = whole_s = 1e5 * each_s
    context.deadlines.took("running the program by default", whole_s)
    (found,) = guessable(context, prepared)
    assert found == (slow, pytest.approx(898.5 * each_s / whole_s)), "the other is next to nothing"


def test_what_was_not_timed_takes_what_the_others_leave(
    tmp_path: Path, context: RunContext
) -> None:
    task = task_with_site(tmp_path, "unknown", kind="convolution")
    other = played_task(tmp_path, "no site", 80 * task.guessed_s)
    context.deadlines.took("running the program by default", 100 * task.guessed_s)
    ((_, gain),) = guessable(context, variant_of(task, other))
    assert gain == pytest.approx(18.5 / 100)


def test_what_was_not_timed_is_as_slow_as_others_of_its_kind(
    tmp_path: Path, context: RunContext
) -> None:
    task, alike = (task_with_site(tmp_path, name, kind="convolution") for name in ("a", "b"))
    alike.default_s = 40 * alike.guessed_s
    context.deadlines.took("running the program by default", 50 * task.guessed_s)
    gains = [(one.name, gain) for one, gain in guessable(context, variant_of(task, alike))]
    assert gains == [(name, pytest.approx(38.5 / 50)) for name in ("b", "a")]


def test_what_kernels_are_guessed_to_take_is_learned_from_those_that_were_tried(
    tmp_path: Path, context: RunContext
) -> None:
    each_s = played_task(tmp_path, "each").guessed_s
    tried, task = (task_with_site(tmp_path, name, 9 * each_s) for name in ("tried", "task"))
    task.count = 4
    prepared = variant_of(tried, task)
    assert guessable(context, prepared)[0][0] is task, "it runs four times"
    tried.trials.append(Trial(KERNEL, Status.OK, time_s=8.5 * each_s))
    assert guessable(context, prepared) == [], "kernels are hardly faster than the compiler's code"


def test_what_does_not_compile_needs_a_kernel_before_all_others(
    tmp_path: Path, context: RunContext
) -> None:
    each_s = played_task(tmp_path, "each").guessed_s
    slow = task_with_site(tmp_path, "slow", 900 * each_s)
    stuck, without = (task_with_site(tmp_path, name) for name in ("stuck", "without"))
    for task in (slow, stuck):
        site: Any = SimpleNamespace(digest=task.name, site=SimpleNamespace(dispatches=[task.name]))
        task.site = site
    stuck.uncompilable = True
    prepared = variant_of(slow, stuck)
    context.deadlines.took("running the program by default", 1000 * each_s)
    gains = guessable(context, prepared)
    assert [task for task, _ in gains] == [stuck, slow]
    assert gains[0][1] == pytest.approx(998.5 / 1000), "without it there is no program"
    assert [prepared.needs_kernel(task) for task in (stuck, slow)] == [True, False]
    assert not prepared.is_stuck
    without.site, without.uncompilable = None, True
    prepared.untimed.append(without)
    assert prepared.is_stuck


def test_the_first_kernel_is_taken_and_the_user_is_told(
    tmp_path: Path, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, none = (task_with_site(tmp_path, name) for name in ("some", "none"))
    given = {"some": [CONFIGURED, KERNEL, OTHER], "none": [CONFIGURED]}
    monkeypatch.setattr(guesses, "openings", lambda _, task, __: given[task.name])
    prepared = variant_of(some, none)
    found = guess_kernels(context, prepared, prepared.untimed)
    assert found == {some.identity: (KERNEL, pytest.approx(1.5 * some.guessed_s))}
    assert any("1 kernel of default may be taken as guessed" in note for note in context.notes)
    assert guess_kernels(context, prepared, [none]) == {}
