"""Which tasks get which choice: what a kernel for several dispatches is compared with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.site import Site
from tilewright.target import parse_target
from tilewright.trial import Configuration
from tilewright.tuning.choices import expected_s, settle
from tilewright.tuning.kernel_sites import TunableSite
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.variants import DEFAULT_VARIANT

ONE, OTHER = Configuration.of({"knob": 1}), Configuration.of({"knob": 2})


def variant(*tasks: SimpleNamespace) -> PreparedVariant:
    return PreparedVariant(DEFAULT_VARIANT, (), list(tasks))


def dispatch(name: str, seconds: float, count: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        identity=name,
        names=[name],
        count=count,
        default_s=seconds,
        own_s=seconds,
        is_chain=False,
        site=None,
        kernel=lambda configuration: configuration,
    )


def chain(
    name: str, seconds: float, count: int = 1, pads: bool = False, cores: int = 1, **runs: int
) -> SimpleNamespace:
    """A site of several dispatches; `runs`: how often each of them runs for it."""
    site = Site(name, tuple(runs), count, Path(), (), (), None, runs=tuple(runs.values()))
    made = dispatch(name, seconds, count)
    made.is_chain = True
    alone = len(site.dispatches) == 1
    made.site = SimpleNamespace(
        site=site,
        pads=pads,
        is_one_dispatch=alone,
        is_padded_dispatch=pads and alone,
        target=parse_target("cpu", cores),
    )
    return made


def test_a_task_keeps_what_is_best_for_it() -> None:
    prepared = variant(dispatch("a", 1.0), dispatch("b", 1.0))
    assert settle(prepared, {"a": (ONE, 0.5)}) == {"a": ONE}
    assert settle(prepared, {}) == {}


def test_a_kernel_for_several_must_beat_the_best_of_its_parts() -> None:
    prepared = variant(dispatch("a", 1.0), dispatch("b", 1.0), chain("c", 2.0, a=1, b=1))
    assert prepared.parts_of(prepared.tasks[2]) == prepared.tasks[:2]
    parts = {"a": (ONE, 0.3), "b": (ONE, 0.3)}
    assert settle(prepared, parts | {"c": (OTHER, 0.5)}) == {"c": OTHER}
    assert settle(prepared, parts | {"c": (OTHER, 0.7)}) == {"a": ONE, "b": ONE}


@pytest.mark.parametrize(("cores", "taken"), [(1, {"a": ONE, "b": ONE}), (2, {"c": OTHER})])
def test_a_dispatch_more_costs_what_waking_workers_does(
    cores: int, taken: dict[str, Configuration]
) -> None:
    prepared = variant(
        dispatch("a", 8e-6), dispatch("b", 3e-4), chain("c", 3.08e-4, cores=cores, a=1, b=1)
    )
    found = {"a": (ONE, 5e-6), "b": (ONE, 2.44e-4), "c": (OTHER, 2.59e-4)}
    assert settle(prepared, found) == taken


def test_what_is_no_task_takes_what_the_others_leave() -> None:
    prepared = variant(dispatch("a", 1.0), chain("c", 2.0, a=1, unread=1))
    assert settle(prepared, {"a": (ONE, 0.3), "c": (OTHER, 1.2)}) == {"c": OTHER}
    assert settle(prepared, {"a": (ONE, 0.3), "c": (OTHER, 1.4)}) == {"a": ONE}


def test_a_part_that_runs_elsewhere_too_keeps_its_choice() -> None:
    prepared = variant(dispatch("a", 1.0, count=3), chain("c", 1.0, a=2, count=2))
    found = {"a": (ONE, 0.9), "c": (OTHER, 0.5)}
    assert settle(prepared, found) == {"a": ONE, "c": OTHER}


def test_a_kernel_that_pads_is_compared_with_what_pads_too() -> None:
    # The dispatch is handed its data padded: alone it is faster than a kernel that pads itself.
    prepared = variant(dispatch("a", 1.0), chain("p", 1.8, pads=True, a=1))
    assert prepared.padding_s(prepared.tasks[0]) == pytest.approx(0.8)
    assert settle(prepared, {"p": (ONE, 1.2)}) == {"p": ONE}
    assert settle(prepared, {"a": (ONE, 0.3), "p": (ONE, 2.0)}) == {"a": ONE}


def test_what_pads_counts_for_a_kernel_of_several_that_needs_no_padding() -> None:
    padding, window = dispatch("a", 0.1), dispatch("b", 1.0)
    parts = (padding, window, chain("p", 0.4, pads=True, a=1))
    prepared = variant(*parts, chain("c", 1.4, pads=True, a=1, b=1))
    # 0.4 for filling and copying, and 0.8 for the window.
    assert settle(prepared, {"b": (ONE, 0.8), "c": (OTHER, 1.1)}) == {"c": OTHER}
    # By a kernel it takes 0.2.
    found = {"b": (ONE, 0.8), "c": (OTHER, 1.1), "p": (ONE, 0.2)}
    assert settle(prepared, found) == {"b": ONE, "p": ONE}


def test_what_a_padded_kernel_saves_does_not_hide_what_one_for_more_saves_beside_it() -> None:
    product, window = dispatch("a", 0.5), dispatch("b", 5.0)
    own, both = chain("p", 5.2, pads=True, b=1), chain("c", 5.7, pads=True, a=1, b=1)
    prepared = variant(product, window, own, both)
    # Over the compiler's window the padded kernel saves more than both together save over it.
    found = {"a": (ONE, 0.3), "p": (ONE, 0.4)}
    assert settle(prepared, found | {"c": (OTHER, 0.6)}) == {"c": OTHER}
    assert settle(prepared, found | {"c": (OTHER, 0.8)}) == {"a": ONE, "p": ONE}


def test_a_dispatch_that_computes_another_site_keeps_both_kernels() -> None:
    prepared = variant(dispatch("a", 1.0, count=2), chain("other", 1.0, a=1))
    found = {"a": (ONE, 0.5), "other": (OTHER, 0.6)}
    assert settle(prepared, found) == {"a": ONE, "other": OTHER}


@pytest.mark.parametrize("better", ["c", "d"])
def test_of_two_that_take_the_same_dispatch_the_one_that_saves_more_is_taken(better: str) -> None:
    parts = [dispatch(name, 1.0) for name in "abe"]
    prepared = variant(*parts, chain("c", 2.0, a=1, b=1), chain("d", 2.0, b=1, e=1))
    found = {"c": (ONE, 1.0), "d": (ONE, 1.0), better: (OTHER, 0.5)}
    assert settle(prepared, found) == {better: OTHER}


@pytest.mark.parametrize(("seconds", "taken"), [(0.6, "c"), (0.61, "a")])
def test_a_kernel_for_several_is_taken_at_equal_times(seconds: float, taken: str) -> None:
    prepared = variant(dispatch("a", 1.0), dispatch("b", 1.0), chain("c", 2.0, a=1, b=1))
    parts = {"a": (ONE, 0.3), "b": (ONE, 0.3)}
    assert taken in settle(prepared, parts | {"c": (OTHER, seconds)})


def test_the_time_that_choices_let_expect() -> None:
    prepared = variant(
        dispatch("a", 1.0, count=3), dispatch("b", 4.0), chain("c", 1.0, a=2, count=2)
    )
    assert expected_s(prepared, {}) == pytest.approx(7.0)
    assert expected_s(prepared, {"a": (ONE, 0.5)}) == pytest.approx(5.5)
    # Two of the three runs of `a` are the kernel's.
    found = {"a": (ONE, 0.9), "c": (OTHER, 0.5)}
    assert expected_s(prepared, found) == pytest.approx(0.9 + 4.0 + 2 * 0.5)
    assert expected_s(prepared, found | {"c": (OTHER, 3.0)}) == pytest.approx(3 * 0.9 + 4.0)


@pytest.mark.parametrize(
    ("runs", "count", "alone"), [((1, 1), 2, True), ((2, 2), 2, False), ((3,), 3, True)]
)
def test_a_site_that_one_dispatch_or_another_computes_is_one_dispatch(
    runs: tuple[int, ...], count: int, alone: bool
) -> None:
    names = tuple(f"d{number}" for number in range(len(runs)))
    site = Site("s", names, count, Path("s.mlir"), (), (), None, runs=runs)
    expression: Any = None
    tunable = TunableSite(site, expression, parse_target("cpu"), "digest", pads=True)
    assert tunable.is_one_dispatch is alone
    assert tunable.is_padded_dispatch is alone


def test_what_was_not_timed_can_be_chosen_too() -> None:
    prepared = variant(dispatch("a", 1.0))
    unknown: Any = dispatch("b", 1.0)
    unknown.default_s = None
    prepared.untimed += [unknown, chain("c", 2.0, a=1, b=1)]  # type: ignore[list-item]
    parts = {"a": (ONE, 0.3), "b": (ONE, 0.3)}
    assert settle(prepared, parts) == {"a": ONE, "b": ONE}
    assert settle(prepared, parts | {"c": (OTHER, 0.5)}) == {"c": OTHER}
    padded = chain("d", 1.0, pads=True, b=1)
    prepared.untimed += [padded]  # type: ignore[list-item]
    assert settle(prepared, {"d": (OTHER, 0.5)}) == {"d": OTHER}, "by what is assumed of its part"
