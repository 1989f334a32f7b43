"""Which tasks of a variant get which choice: kernels for several dispatches against their parts."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.trial import Configuration
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.task import DispatchTask

# Of a kernel's time: what it may take longer than its parts for both to count as equal.
_EVEN = 0.005
# Seconds that each dispatch costs a program beside its own time where several workers share it: who
# is done first sleeps, and is woken for the next. Copies of 11 us each took 50 in a program.
_HANDED_OUT_S = 15e-6

Choices = dict[str, Configuration]
"""What is chosen, by the identities of the tasks; a task that is not there stays the compiler's."""

Found = Mapping[str, tuple[Configuration, float]]
"""The best that is known of tasks, by their identities, with the seconds of one execution."""


def best_known(
    prepared: PreparedVariant, part: float = 1.0
) -> dict[str, tuple[Configuration, float]]:
    """What trials found of the tasks of a variant.

    Args:
        prepared: the variant; the defaults of its tasks were measured.
        part: of the default's time, below which something is better than it.

    Returns:
        As `Found`.
    """
    found = {}
    for task in prepared.tasks:
        best = task.best
        if best is None or best.time_s is None or task.default_s is None:
            continue
        if best.time_s < part * task.default_s:
            found[task.identity] = (best.configuration, best.time_s)
    return found


def settle(prepared: PreparedVariant, found: Found) -> Choices:
    """What to choose by the times of tasks alone.

    A kernel for several dispatches is chosen where it takes less time than they do, each with the
    best that is known of it, or as much, and with several workers somewhat more: one dispatch is
    less to wait for than several. Those that save most come first, and none takes what another has.
    A part of it keeps its own choice only where it runs elsewhere as well.

    Args:
        prepared: the variant.
        found: of its tasks, faster than the compiler's own choice.

    Returns:
        The choices.
    """
    chosen, _ = _settled(prepared, found)
    return chosen


def expected_s(prepared: PreparedVariant, found: Found) -> float:
    """Seconds of the tasks of a variant in one run of its program, with what would be chosen.

    Args:
        prepared: the variant.
        found: as for `settle`.

    Returns:
        The sum of their times, each alone; what is no task does not count.
    """
    chosen, left = _settled(prepared, found)
    seconds = 0.0
    for task in prepared.tasks:
        if task.is_chain:
            if task.identity in chosen:
                seconds += task.count * found[task.identity][1]
        else:
            own = task.own_s
            seconds += left[task.identity] * found.get(task.identity, (None, own))[1]
    return seconds


def _settled(prepared: PreparedVariant, found: Found) -> tuple[Choices, dict[str, int]]:
    """The choices, and how often each dispatch runs beside the kernels for several."""
    # How often each dispatch still runs once the kernels that are chosen have taken its place.
    left = {task.identity: task.count for task in prepared.choosable if not task.is_chain}
    savings: list[tuple[float, DispatchTask, dict[str, int]]] = []
    for task in prepared.choosable:
        if task.is_chain and task.identity in found:
            runs = _runs(prepared, task)
            saved = _without(prepared, task, runs, found) - task.count * found[task.identity][1]
            assert task.site is not None
            if task.site.target.cores > 1:
                saved += _HANDED_OUT_S * max(0, sum(runs.values()) - task.count)
            savings.append((saved, task, runs))
    chosen: Choices = {}
    taken: set[str] = set()
    # What a dispatch's own kernel with padding saves is in what the others' are compared with.
    savings.sort(
        key=lambda one: (one[1].site is not None and one[1].site.is_padded_dispatch, -one[0])
    )
    for saved, task, runs in savings:
        assert task.site is not None
        own = set(task.site.site.dispatches).difference(*(t.names for t in _tasks(prepared, runs)))
        if (
            saved < -_EVEN * task.count * found[task.identity][1]
            or own & taken
            or any(left[part] < runs[part] for part in runs)
        ):
            continue
        chosen[task.identity] = found[task.identity][0]
        taken |= own
        for part, count in runs.items():
            left[part] -= count
    for key, count in left.items():
        if count > 0 and key in found:
            chosen[key] = found[key][0]
    return chosen, left


def _tasks(prepared: PreparedVariant, keys: Mapping[str, int]) -> list[DispatchTask]:
    return [task for task in prepared.choosable if task.identity in keys]


def _runs(prepared: PreparedVariant, chain: DispatchTask) -> dict[str, int]:
    """How often one run of the program runs each of a chain's parts for it."""
    assert chain.site is not None
    site = chain.site.site
    runs = dict(zip(site.dispatches, site.all_runs, strict=True))
    return {
        part.identity: sum(runs.get(name, 0) for name in part.names)
        for part in prepared.parts_of(chain)
    }


def _without(
    prepared: PreparedVariant, chain: DispatchTask, runs: Mapping[str, int], found: Found
) -> float:
    """Seconds that a chain takes in one run of the program without a kernel for all of it."""
    assert chain.site is not None
    alone = chain.site.is_one_dispatch
    now, default = 0.0, 0.0
    for part in _tasks(prepared, runs):
        own = part.own_s
        best = found.get(part.identity)
        # The kernel of a dispatch is for one of the sites that it computes.
        other = alone and best is not None and part.kernel(best[0]) is not None
        seconds = own if best is None or other else best[1]
        if chain.site.pads and not alone and (padded := prepared.padded(part)) is not None:
            seconds += prepared.padding_s(part)
            own += prepared.padding_s(part)
            seconds = min(seconds, found.get(padded.identity, (None, seconds))[1])
        default += runs[part.identity] * own
        now += runs[part.identity] * seconds
    # What is no task of its own takes what the parts leave of the whole.
    return now + max(0.0, chain.count * chain.own_s - default)
