"""Tasks of one site: searched once, and judged against the tasks of its dispatches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_run import played_task, played_variant

from tilewright.space.generators import KERNEL_MEMBER
from tilewright.space.knobs import TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.shared_sites import SharedSites, standings
from tilewright.tuning.stages import Exhausted
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import worth_searching

PIPELINE, SKETCH, OTHER = "Pipeline", f"{KERNEL_MEMBER}rows", f"{KERNEL_MEMBER}loops"


def member(name: str) -> SearchSpace:
    knob = TileKnob("tile", (1, 2, 4, 8), limit=8)
    return SearchSpace(name, [knob], [], Configuration.of({"tile": 1}))


def of(name: str, tile: int) -> Configuration:
    return Configuration.of({MEMBER_KNOB: name, "tile": tile})


def site_task(folder: Path, name: str, share: float, digest: str, *dispatches: str) -> DispatchTask:
    """A task with a pipeline and two sketches; of several dispatches it is a chain, without one."""
    task = played_task(folder, name, 1e-3, share)
    chain = len(dispatches) > 1
    names = [SKETCH, OTHER] if chain else [PIPELINE, SKETCH, OTHER]
    default = of(PIPELINE, 1)
    space = UnionSpace("dispatch", [member(n) for n in names], default)
    made: Any = SimpleNamespace(
        space=space,
        members={} if chain else {PIPELINE: None},
        default=default,
        kernel=lambda one: one if str(one[MEMBER_KNOB]).startswith(KERNEL_MEMBER) else None,
    )
    one = SimpleNamespace(dispatches=dispatches)
    site: Any = SimpleNamespace(digest=digest, site=one, pads=False)
    template = None if chain else task.template
    data: Any = "data"
    return replace(task, space=made, restricted=space, site=site, data=data, template=template)


def tried(task: DispatchTask, name: str, time_s: float, tile: int = 1) -> Trial:
    trial = Trial(of(name, tile), Status.OK, time_s=time_s)
    task.trials.append(trial)
    return trial


def test_a_site_that_two_variants_have_is_searched_in_one(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    here = site_task(tmp_path / "one", "a", 0.3, "same", "a")
    there = site_task(tmp_path / "two", "a", 0.8, "same", "a")
    alone = site_task(tmp_path / "two", "b", 0.1, "other", "b")
    sites = SharedSites([played_variant(here), played_variant(there, alone)])
    assert all(sites.is_searched(one) for one in (here, there, alone))

    def members(task: DispatchTask) -> tuple[object, ...]:
        return task.restricted.knobs[0].values  # type: ignore[attr-defined,no-any-return]

    assert members(here) == (PIPELINE,)
    assert members(there) == members(alone) == (PIPELINE, SKETCH, OTHER)
    kernel, own = tried(there, SKETCH, 1e-4), tried(there, PIPELINE, 2e-4)
    failed = Trial(of(OTHER, 1), Status.CRASHED)
    sites.hand_over(there, [kernel, own, failed])
    assert [(t.configuration, t.time_s) for t in here.trials] == [(kernel.configuration, 1e-4)]
    assert alone.trials == []


def test_a_chain_gets_what_was_found_elsewhere_and_is_not_searched_again(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    first = site_task(tmp_path / "one", "c", 0.5, "same", "a", "b")
    second = site_task(tmp_path / "two", "c", 0.4, "same", "a", "b")
    sites = SharedSites([played_variant(first), played_variant(second)])
    assert sites.is_searched(first)
    assert not sites.is_searched(second)


def test_the_slower_of_a_chain_and_its_parts_counts_for_little(tmp_path: Path) -> None:
    chain = site_task(tmp_path, "c", 0.5, "chain", "a", "b")
    parts = [site_task(tmp_path, name, 0.2, name, name) for name in "ab"]
    elsewhere = site_task(tmp_path, "d", 0.2, "d", "d")
    prepared = played_variant(chain, *parts, elsewhere)
    assert standings(prepared) == [], "nothing has been tried"
    tried(chain, SKETCH, 4e-4)
    for part in parts:
        tried(part, SKETCH, 1e-4)
    weights = {task.name: weight for task, weight in standings(prepared)}
    assert weights == {"c": pytest.approx(1 / 8), "a": 1.0, "b": 1.0}
    tried(chain, SKETCH, 1e-4, tile=2)
    weights = {task.name: weight for task, weight in standings(prepared)}
    assert weights == {"c": 1.0, "a": pytest.approx(1 / 8), "b": pytest.approx(1 / 8)}
    parts[0].count = 5
    assert "a" not in {task.name for task, _ in standings(prepared)}, "it runs elsewhere, too"


def test_a_part_that_there_was_no_time_to_time_takes_what_is_assumed(tmp_path: Path) -> None:
    chain = site_task(tmp_path, "c", 0.5, "chain", "a", "b")
    timed, untimed = (site_task(tmp_path, name, 0.2, name, name) for name in "ab")
    untimed.default_s, untimed.assumed_s = None, 3e-4
    prepared = replace(played_variant(chain, timed), untimed=[untimed])
    tried(chain, SKETCH, 4e-4)
    tried(timed, SKETCH, 1e-4)
    weights = {task.name: weight for task, weight in standings(prepared)}
    assert weights == pytest.approx({"c": 1.0, "a": 1.0, "b": 1.0}), "together they take as long"
    untimed.assumed_s = 1e-4
    weights = {task.name: weight for task, weight in standings(prepared)}
    assert weights == pytest.approx({"c": 1 / 8, "a": 1.0, "b": 1.0})


@pytest.mark.parametrize(
    ("sketch_s", "other_s", "kept"),
    [
        (5e-4, 1e-3, (PIPELINE, SKETCH, OTHER)),
        (1e-4, 1e-3, (PIPELINE, SKETCH)),
        (1e-5, 2e-5, (SKETCH, OTHER)),
        (9e-3, 8e-3, (PIPELINE,)),
    ],
)
def test_members_that_are_far_behind_are_not_searched(
    tmp_path: Path, sketch_s: float, other_s: float, kept: tuple[str, ...]
) -> None:
    task = site_task(tmp_path, "a", 0.5, "a", "a")
    own = Trial(task.space.default, Status.OK, time_s=task.default_s)
    opening = [tried(task, SKETCH, sketch_s), tried(task, OTHER, other_s)]
    space = worth_searching(task, [own, *opening])
    assert space is not None
    assert space.knobs[0].values == kept  # type: ignore[attr-defined]


def test_a_sketch_whose_default_fails_is_searched(tmp_path: Path) -> None:
    task = site_task(tmp_path, "a", 0.5, "a", "a")
    own = Trial(task.space.default, Status.OK, time_s=task.default_s)
    failed = Trial(of(SKETCH, 1), Status.COMPILE_TIMEOUT)
    space = worth_searching(task, [own, failed, tried(task, OTHER, 5e-3)])
    assert space is not None
    assert space.knobs[0].values == (PIPELINE, SKETCH)  # type: ignore[attr-defined]


def test_pipelines_alone_that_are_far_behind_leave_nothing_to_search(tmp_path: Path) -> None:
    task = site_task(tmp_path, "a", 0.5, "a", "a")
    own = Trial(task.space.default, Status.OK, time_s=task.default_s)
    elsewhere = tried(task, SKETCH, 1e-5)
    task.restricted = task.restricted.restrict({MEMBER_KNOB: [PIPELINE]}).space
    assert worth_searching(task, [own, elsewhere]) is None
    near = worth_searching(task, [own, tried(task, SKETCH, 5e-3)])
    assert near is not None
    assert Exhausted().ask(8) == []
