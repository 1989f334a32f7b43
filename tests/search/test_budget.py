import pytest

from tilewright.search import BudgetTask, Patience, TrialAllocator
from tilewright.search.budget import Allocation


def drive(allocator, best, trials):
    """Give out trials; `best(task, n)` is the best time after n trials of a task."""
    left = trials
    order = []
    while (turn := allocator.next(left)) is not None:
        assert 1 <= turn.trials <= left
        order.append(turn.task)
        left -= turn.trials
        total = allocator.trials(turn.task) + turn.trials
        allocator.record(turn.task, turn.trials, best(turn.task, total))
    return order, trials - left


def stuck(task, n):
    return 1.0


class TestAllocator:
    def test_every_task_gets_its_minimum_largest_first(self):
        tasks = [
            BudgetTask("small", 0.01, 1.0),
            BudgetTask("large", 0.9, 1.0),
            BudgetTask("mid", 0.09, 1.0),
        ]
        order, _ = drive(TrialAllocator(tasks, batch=8, minimum=8), stuck, 24)
        assert order == ["large", "mid", "small"]

    def test_share_of_time_decides_between_equals(self):
        tasks = [BudgetTask("a", 0.8, 1.0), BudgetTask("b", 0.2, 1.0)]
        allocator = TrialAllocator(tasks, batch=8, minimum=8)
        drive(allocator, stuck, 400)
        assert allocator.trials("a") > 2 * allocator.trials("b") > 0

    def test_what_keeps_improving_gets_more(self):
        tasks = [BudgetTask("stuck", 0.5, 1.0), BudgetTask("falling", 0.5, 1.0)]
        allocator = TrialAllocator(tasks, batch=8, minimum=8)
        allocator.record("stuck", 32, 1.0)
        allocator.record("falling", 32, 0.6)
        assert allocator.gain("falling") > allocator.gain("stuck")

    def test_a_task_at_its_floor_gains_nothing(self):
        tasks = [BudgetTask("done", 0.9, 1.0, floor_s=0.5), BudgetTask("open", 0.1, 1.0)]
        allocator = TrialAllocator(tasks, batch=8, minimum=8, window=8)
        allocator.record("done", 32, 0.5)
        allocator.record("done", 32, 0.5)
        allocator.record("open", 32, 1.0)
        assert allocator.gain("done") == 0
        assert allocator.next(8).task == "open"

    def test_the_formula(self):
        allocator = TrialAllocator([BudgetTask("a", 0.5, 2.0)], alpha=0.25, window=16)
        allocator.record("a", 16, 1.8)
        allocator.record("a", 16, 1.2)
        slope, hope = (0.9 - 0.6) / 16, 0.6 / 32
        assert allocator.gain("a") == pytest.approx(0.5 * (0.25 * slope + 0.75 * hope))

    def test_caps_and_closing(self):
        tasks = [
            BudgetTask("tiny", 0.9, 1.0, cap=5),
            BudgetTask("closed", 0.05, 1.0),
            BudgetTask("rest", 0.05, 1.0),
        ]
        allocator = TrialAllocator(tasks, batch=8, minimum=16)
        allocator.close("closed")
        _, used = drive(allocator, stuck, 100)
        assert allocator.trials("tiny") == 5
        assert allocator.trials("closed") == 0
        assert used == 100
        allocator.close("rest")
        assert allocator.next(10) is None

    def test_patience_ends_the_run_early(self):
        tasks = [BudgetTask("a", 0.5, 1.0), BudgetTask("b", 0.5, 1.0)]
        allocator = TrialAllocator(tasks, batch=8, minimum=8, patience=24)
        _, used = drive(allocator, stuck, 10_000)
        assert used == 48

    def test_minimum_comes_before_patience(self):
        allocator = TrialAllocator([BudgetTask("a", 1.0, 1.0)], batch=4, minimum=20, patience=4)
        _, used = drive(allocator, stuck, 1000)
        assert used == 20

    def test_failures_only(self):
        tasks = [BudgetTask("broken", 0.6, 1.0), BudgetTask("fine", 0.4, 1.0)]
        allocator = TrialAllocator(tasks, batch=8, minimum=8, patience=32)

        def best(task, n):
            return None if task == "broken" else 1.0 / (1 + n / 40)

        drive(allocator, best, 300)
        assert allocator.trials("broken") == 32
        assert allocator.trials("fine") > 150

    def test_no_more_than_what_is_left(self):
        allocator = TrialAllocator([BudgetTask("a", 1.0, 1.0)], batch=16)
        assert allocator.next(3).trials == 3
        assert allocator.next(0) is None
        assert TrialAllocator([]).next(10) is None

    def test_worse_than_default_counts_as_default(self):
        allocator = TrialAllocator([BudgetTask("a", 1.0, 1.0)], window=8)
        allocator.record("a", 8, 5.0)
        allocator.record("a", 8, 5.0)
        assert allocator.gain("a") == pytest.approx(0.4 / 16)

    @pytest.mark.parametrize("task", [BudgetTask("a", -1, 1.0), BudgetTask("a", 0.5, 0.0)])
    def test_tasks_are_checked(self, task):
        with pytest.raises(ValueError, match="task 'a'"):
            TrialAllocator([task])


class TestPatience:
    def test_counts_trials_without_gain(self):
        patience = Patience(10, min_gain=0.05)
        patience.update(4, 1.0)
        patience.update(4, 0.97)
        assert not patience.exhausted
        patience.update(6, 0.96)
        assert patience.exhausted

    def test_slow_gains_add_up(self):
        patience = Patience(10, min_gain=0.05)
        for best in (1.0, 0.98, 0.96, 0.94, 0.92, 0.90, 0.88):
            patience.update(4, best)
            assert not patience.exhausted

    def test_failures_count(self):
        patience = Patience(10)
        patience.update(10, None)
        assert patience.exhausted


def test_a_task_that_comes_later_gets_its_minimum_first() -> None:
    allocator = TrialAllocator([BudgetTask("a", 0.9, 1.0)], batch=4, minimum=4)
    allocator.record("a", 8, 0.1)
    assert allocator.next(100).task == "a"
    allocator.add(BudgetTask("late", 0.05, 1.0))
    assert (allocator.next(100).task, allocator.next(100).trials) == ("late", 4)
    with pytest.raises(ValueError, match="two tasks"):
        allocator.add(BudgetTask("a", 0.1, 1.0))


def test_a_task_that_another_takes_the_place_of_waits() -> None:
    tasks = [BudgetTask("chain", 0.5, 1e-3), BudgetTask("part", 0.4, 1e-3)]
    allocator = TrialAllocator(tasks, batch=4, minimum=4)
    for task in tasks:
        allocator.record(task.name, 4, 1e-3)
    assert allocator.next(100) == Allocation("chain", 4)
    allocator.weigh("chain", 0.1)
    assert allocator.next(100) == Allocation("part", 4)
    allocator.weigh("chain", 1.0)
    assert allocator.next(100) == Allocation("chain", 4)
