"""Whole programs before the search: which are measured, and which are gone on from."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_programs import PlayedRun

from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, Contender
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.variant_phase import choose_variants
from tilewright.tuning.variants import DEFAULT_VARIANT, Variant

NAMES = ("default", "o3", "mine")
VARIANTS = (DEFAULT_VARIANT, Variant("o3", ("--o3",)), Variant("mine", ("--mine",)))


@pytest.fixture
def run(tmp_path: Path) -> PlayedRun:
    return PlayedRun(tmp_path, effort="standard", variants=VARIANTS)


def start(run: PlayedRun, variant: Variant, seconds: float) -> Company:
    """A program with a kernel, as a variant."""
    build = Build(f"{variant.name}_start", variant, preprocessing=run.context.work)
    run.seconds[build.name] = seconds
    default = variant is DEFAULT_VARIANT
    prepared = run.prepared if default else PreparedVariant(variant, ())
    return Company(prepared, run.programs.build(build), {"a": "k"})


def chosen(run: PlayedRun, *starts: Company, tasks: int = 8) -> list[Contender]:
    for number in range(tasks):
        run.task(str(number))
    run.context.begin("digest", "run")
    return choose_variants(run.programs, run.outcome, run.prepared, starts)


def names(found: list[Contender]) -> list[str]:
    return [one.name for one in found]


def test_without_starts_the_fastest_variants_are_gone_on_from(run: PlayedRun) -> None:
    run.seconds |= {"default": 1.0, "o3": 0.9, "mine": 0.5}
    found = chosen(run)
    assert names(found) == ["mine"]
    assert run.outcome.variants == {"default": 1000.0, "o3": 900.0, "mine": 500.0}
    assert [one.name for one in run.outcome.companies] == ["mine"]


def test_the_best_start_is_gone_on_from_and_the_best_of_each_kind_is_kept(run: PlayedRun) -> None:
    run.seconds |= {"default": 1.0, "o3": 0.6, "mine": 0.5}
    first = start(run, DEFAULT_VARIANT, 0.3)
    other = start(run, VARIANTS[2], 0.2)
    assert names(chosen(run, first, other)) == ["mine with kernels"]
    assert run.outcome.variants["default with kernels"] == pytest.approx(300.0)
    assert [one.name for one in run.outcome.companies] == ["mine with kernels", "mine"]


def test_a_second_start_is_gone_on_from_only_when_it_is_close(run: PlayedRun) -> None:
    starts = start(run, DEFAULT_VARIANT, 0.205), start(run, VARIANTS[2], 0.2)
    assert names(chosen(run, *starts)) == ["mine with kernels", "default with kernels"]


@pytest.mark.parametrize(("sites", "searched"), [("abcdefgh", 1), ("abcdxyzw", 2)])
def test_of_two_starts_with_the_same_sites_one_is_gone_on_from(
    run: PlayedRun, sites: str, searched: int
) -> None:
    starts = start(run, DEFAULT_VARIANT, 0.205), start(run, VARIANTS[2], 0.2)
    for number, (own, other) in enumerate(zip("abcdefgh", sites, strict=True)):
        task: Any = run.task(str(number))
        task.site, task.share = SimpleNamespace(digest=own), 0.1
        twin: Any = copy.copy(task)
        twin.site = SimpleNamespace(digest=other)
        starts[1].prepared.tasks.append(twin)
    assert len(chosen(run, *starts, tasks=0)) == searched


def test_a_variant_that_beats_the_starts_is_gone_on_from_first(run: PlayedRun) -> None:
    run.seconds |= {"default": 1.0, "o3": 0.28, "mine": 0.8}
    assert names(chosen(run, start(run, DEFAULT_VARIANT, 0.3))) == ["o3", "default with kernels"]


def test_a_small_programs_slower_variants_could_still_win(run: PlayedRun) -> None:
    run.seconds |= {"default": 0.5, "o3": 0.34, "mine": 0.36}
    found = chosen(run, start(run, DEFAULT_VARIANT, 0.3), tasks=1)
    # The plain default has the same tasks as the start of its layout.
    assert names(found) == ["default with kernels", "o3"]


def test_a_variant_that_gains_nothing_is_not_searched_beside_a_start(run: PlayedRun) -> None:
    run.seconds |= {"default": 0.34, "o3": 0.33, "mine": 0.31}
    found = chosen(run, start(run, DEFAULT_VARIANT, 0.3), tasks=1)
    assert names(found) == ["default with kernels", "mine"]


def test_a_start_far_behind_is_left(run: PlayedRun) -> None:
    run.seconds |= {"default": 1.0, "o3": 0.2}
    run.prepared.sites = ("a site",)  # type: ignore[assignment]
    assert names(chosen(run, start(run, VARIANTS[2], 0.9))) == ["o3", "default"]


def test_variants_have_a_third_of_the_time(run: PlayedRun) -> None:
    run.context.target = replace(run.context.target, cores=1)
    run.context.deadlines = Deadlines(90.0, time.monotonic() - 31.0)
    run.programs.seconds_each = 10.0
    # What is most promising is always measured, the rest in the time that there is.
    chosen(run)
    assert list(run.outcome.variants) == ["default", "o3"]
    assert "no time for the variants mine (--time-limit)" in run.notes


@pytest.mark.parametrize(("passed_s", "left"), [(60.0, ["mine"]), (70.0, ["o3", "mine"])])
def test_not_even_the_most_promising_is_compiled_where_the_run_could_not_end_in_time(
    run: PlayedRun, passed_s: float, left: list[str]
) -> None:
    run.context.target = replace(run.context.target, cores=1)
    run.context.deadlines = Deadlines(90.0, time.monotonic() - passed_s)
    # A compile is expected to take 15 s, and what comes after it 10.
    run.programs.seconds_each = 10.0
    chosen(run)
    assert [one for one in ("o3", "mine") if one not in run.outcome.variants] == left
    assert f"no time for the variants {', '.join(left)} (--time-limit)" in run.notes


def test_beside_starts_no_variant_has_more_than_that(run: PlayedRun) -> None:
    run.context.deadlines = Deadlines(90.0, time.monotonic() - 31.0)
    run.programs.seconds_each = 10.0
    assert names(chosen(run, start(run, DEFAULT_VARIANT, 0.3))) == ["default with kernels"]
    assert "no time for the variants o3, mine (--time-limit)" in run.notes


def test_beside_starts_that_are_slower_than_the_program_the_most_promising_is(
    run: PlayedRun,
) -> None:
    run.context.target = replace(run.context.target, cores=1)
    run.context.deadlines = Deadlines(90.0, time.monotonic() - 31.0)
    run.programs.seconds_each = 10.0
    run.seconds |= {"default": 1.0, "o3": 0.5}
    assert names(chosen(run, start(run, VARIANTS[2], 3.0))) == ["o3"]
    assert "no time for the variants mine (--time-limit)" in run.notes


@pytest.mark.parametrize(
    ("seconds", "look_s", "times"), [(0.5, 30, 1), (0.25, 30, 2), (0.25, 0, 1)]
)
def test_what_leaves_all_others_far_behind_or_takes_long_is_compared_once(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch, seconds: float, look_s: float, times: int
) -> None:
    compared: list[int] = []

    def counted(vmfbs: Sequence[str], inputs: object, **how: object) -> object:
        compared.append(len(vmfbs))
        return type(run).compare_interleaved(run, vmfbs, inputs, **how)

    monkeypatch.setattr(run, "compare_interleaved", counted)
    monkeypatch.setattr("tilewright.tuning.variant_phase._FIRST_LOOK_S", look_s)
    run.seconds |= {"default": 1.0, "o3": 0.8, "mine": seconds}
    chosen(run, start(run, DEFAULT_VARIANT, 0.2))
    assert compared == [4, 3][:times], "the default, and what is close to the fastest"


def test_what_fails_or_is_nothing_new_is_told(run: PlayedRun) -> None:
    run.fails["o3"] = "it hangs"
    run.wrong.add("mine")
    assert names(chosen(run)) == ["default"]
    assert run.outcome.variants["o3"] == "it hangs"
    assert "is wrong" in str(run.outcome.variants["mine"])


def test_when_the_search_should_be_over_no_variant_is_measured(run: PlayedRun) -> None:
    run.context.deadlines = Deadlines(90.0, time.monotonic() - 91.0)
    run.programs.seconds_each = 10.0
    assert names(chosen(run, start(run, DEFAULT_VARIANT, 0.3))) == ["default with kernels"]
    assert list(run.outcome.variants) == ["default", "default with kernels"]
