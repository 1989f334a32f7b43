"""Repetitions by a clock of their own: how many iterations, and what one takes."""

from tilewright.measure.repetition import Repetition, repeat


class Clocks:
    """A call that takes `seconds`, by the wall and twice that of the processors."""

    def __init__(self, seconds: float, first: float | None = None) -> None:
        self.now = 0.0
        self.calls = 0
        self.seconds = seconds
        self.first = first

    def call(self) -> None:
        self.now += self.first if self.first is not None and self.calls == 0 else self.seconds
        self.calls += 1

    def repeat(self, **options) -> Repetition:
        return repeat(self.call, clock=lambda: self.now, cpu_clock=lambda: 2 * self.now, **options)


def test_iterations_are_found_that_last_long_enough():
    clocks = Clocks(0.003)
    done = clocks.repeat(iterations=None, min_time_s=0.5)
    assert done.iterations * 0.003 >= 0.5
    assert abs(done.real_s - 0.003) < 1e-9
    assert abs(done.cpu_s - 0.006) < 1e-9
    assert clocks.calls < 4 * done.iterations, "finding them takes no more than the time itself"


def test_a_slow_call_runs_once_beside_the_first():
    clocks = Clocks(7.0)
    assert clocks.repeat(iterations=None, min_time_s=0.5).iterations == 1
    assert clocks.calls == 2


def test_the_first_call_is_not_counted():
    done = Clocks(0.25, first=90.0).repeat(iterations=None, min_time_s=0.5)
    assert abs(done.real_s - 0.25) < 1e-9


def test_a_given_number_of_iterations_is_kept_and_a_batch_is_one_iteration():
    clocks = Clocks(0.001)
    done = clocks.repeat(iterations=3, min_time_s=100.0, batch=5)
    assert (done.iterations, clocks.calls) == (3, 15)
    assert abs(done.real_s - 0.005) < 1e-12


def test_a_clock_that_stands_still_ends():
    calls = []
    done = repeat(
        lambda: calls.append(1),
        iterations=None,
        min_time_s=1e-9,
        clock=iter(range(1000)).__next__,
        cpu_clock=lambda: 0.0,
    )
    assert done.iterations == 1
    assert done.cpu_s == 0.0
