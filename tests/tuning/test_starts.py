"""Starts: what is tried of each site before the search, in the time that there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_run import played_context, played_task, played_variant

from tilewright.errors import TRACEBACK, UserError
from tilewright.store import Database
from tilewright.tuning import starts
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.events import ProgramMeasured
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.stages import DispatchCompiler
from tilewright.tuning.starts import (
    StartPlan,
    _batch,
    _left_s,
    _planned,
    _try_group,
    _try_openings,
    _with_guesses,
    make_starts,
    plan_starts,
)
from tilewright.tuning.variants import CHANNELS_LAST, DEFAULT_VARIANT, Variant


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "t.db") as opened:
        yield opened


def test_no_more_is_compiled_at_once_than_there_is_time_to_try(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store)
    assert context.target.cores == 2
    assert _batch(context, 0) == 16, "without a limit"
    context.deadlines = Deadlines(400.0, 0.0, lambda: 290.0)
    assert _batch(context, 0) == 4, "while it is not known what one takes"
    context.deadlines.took("trying a candidate", 8.0, 4)
    assert _batch(context, 0) == 5, "ten seconds are left to the search"
    context.deadlines.took("trying a candidate", 900.0, 1)
    assert _batch(context, 0) == 2, "one for each core"


class Layout(str):
    """One that has been read, by its name."""

    def __new__(cls, name: str, stuck: bool = False) -> Layout:
        made = super().__new__(cls, name)
        made.is_stuck = stuck
        return made

    is_stuck: bool


@pytest.mark.parametrize(
    ("layouts", "clock_s", "read"),
    [
        ([CHANNELS_LAST, DEFAULT_VARIANT], 44.0, ["channels-last"]),
        ([CHANNELS_LAST, DEFAULT_VARIANT], 46.0, []),  # time is short
        ([DEFAULT_VARIANT, CHANNELS_LAST], 44.0, []),  # it has been read
        ([], 44.0, []),
    ],
)
@pytest.mark.parametrize("compiles", [True, False])
def test_the_layout_that_starts_begin_with_is_read_ahead(
    layouts: list[Variant],
    clock_s: float,
    read: list[str],
    compiles: bool,
    tmp_path: Path,
    store: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, _ = played_context(tmp_path, store)
    context.options = replace(context.options, time_limit_s=100.0)
    context.deadlines = Deadlines(100.0, 0.0, lambda: clock_s)
    context.deadlines.took("finding the dispatches of the untuned program", 5.0)
    context.deadlines.took("reading the dispatches", 10.0)
    asked: list[str] = []

    def reading(_: Any, layout: Variant) -> Any:
        asked.append(layout.name)
        if not compiles:
            raise UserError("it does not compile")
        return PreparedVariant(layout, (), [])

    monkeypatch.setattr(starts, "start_layouts", lambda *_: layouts)
    monkeypatch.setattr(starts, "_read", reading)
    plan = plan_starts(context, played_variant())
    assert plan.layouts == layouts
    assert asked == read
    found = [plan.ahead.variant.name] if plan.ahead is not None else []
    assert found == (read if compiles else [])
    assert plan.problem == ("it does not compile" if read and not compiles else "")


def test_measuring_what_is_compiled_ends_where_the_time_is_over(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = played_context(tmp_path, store)
    now = [0.0]
    context.deadlines = Deadlines(100.0, 0.0, lambda: now[0])
    context.run_id = 0
    monkeypatch.setattr(starts, "observer", lambda *_: None)

    class Loop:
        def __init__(self) -> None:
            compiler = SimpleNamespace(compile=lambda given: given)
            self.stages, self.tried = SimpleNamespace(compiler=compiler), 0
            self.stop = lambda: False

        def try_all(self, given: list[Any]) -> None:
            while self.tried < len(given) and not self.stop():
                self.tried += 1
                now[0] += 30.0

    group: Any = [(None, Loop(), [1, 2]), (None, Loop(), [3, 4, 5])]
    _try_group(context, group, 0)
    assert [loop.tried for _, loop, _ in group] == [2, 2], "the limit passes at the fourth"


def test_a_start_ends_while_its_program_can_be_made_and_proven(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store)
    now = [0.0]
    context.deadlines = limits = Deadlines(100.0, 0.0, lambda: now[0])
    limits.took("compiling the program", 10.0)
    limits.took("comparing programs", 3.0)
    # Kernels are put in sequence: 0.15 of compiling them, until that is known. What proves the
    # program is compiled beside it.
    assert _left_s(context) == pytest.approx(100.0 - 13.0 - 1.95 - 3.0 - 2.0)
    limits.took("trying a candidate", 6.0, 10)
    many = _left_s(context, 40)
    assert many == pytest.approx(100.0 - 20.2 - 3.03 - 3.0 - 2.0), "longer with many kernels"
    limits.took("compiling the program with kernels", 40.0)
    assert _left_s(context) == _left_s(context, 40) == 49.0
    limits.took("putting kernels in sequence", 5.0)
    assert _left_s(context) == 50.0
    limits.took("running the program by default", 2.0)
    assert _left_s(context) == 39.0, "each of seven rounds runs the default"
    limits.took("reading the dispatches", 20.0)
    assert _left_s(context) == 32.0, "what is told is of each dispatch"
    context.rounds = True
    assert _left_s(context) == 23.0, "beside it another is compiled for what rounding does"
    target, context.target = context.target, replace(context.target, cores=1)
    assert _left_s(context) == 17.0, "or after it"
    context.rounds = False
    assert _left_s(context) == 27.0, "one core compiles what proves it afterwards"
    context.target, context.rounds = target, False
    now[0] = 50.0
    assert _left_s(context) == 0.0
    limits.took("trying a candidate", 1.0)
    assert _batch(context, 0) == 2, "one for each core"
    context.deadlines = Deadlines(None, 0.0)
    assert _left_s(context) is None


def test_code_that_kernels_take_the_place_of_is_not_expected_again(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store)
    context.deadlines = limits = Deadlines(200.0, 0.0, lambda: 0.0)
    limits.took("compiling the program", 30.0)
    limits.took("comparing programs", 3.0)
    late = _left_s(context)
    limits.took("reading the dispatches", 4.0)
    early = _left_s(context)
    assert late is not None
    assert early is not None
    # 1.3 times as long with kernels, and 0.15 of that for their sequences; what is told is of each
    # dispatch that was read.
    saved = 1.3 * 1.15 * (30.0 - 10.0) - 0.35 * 4.0
    assert early == pytest.approx(late + saved), "most of the 30 s is code of a few dispatches"


def test_what_is_no_code_yet_says_what_kernels_leave(tmp_path: Path, store: Database) -> None:
    context, _ = played_context(tmp_path, store)
    context.deadlines = limits = Deadlines(200.0, 0.0, lambda: 0.0)
    limits.took("compiling the program", 30.0)
    limits.took("reading the dispatches", 20.0)
    late = _left_s(context)
    limits.took("finding the dispatches", 4.0)
    early = _left_s(context)
    assert late is not None
    assert early is not None
    assert early == pytest.approx(late + 1.3 * 1.15 * 20.0), (
        "finding them is all of the compiler but the code"
    )


@pytest.mark.parametrize(
    ("limit_s", "slow", "each_s", "wanted"),
    [
        (None, 50.0, 300.0, ["a0", "a1", "b0", "b1", "b2", "c0"]),
        (900.0, 10.0, 0.1, ["a0", "a1", "b0", "b1", "b2", "c0"]),
        (900.0, 50.0, 0.1, ["a0", "b0", "c0", "a1", "b1", "b2"]),
        # Six take longer than there is.
        (900.0, 10.0, 300.0, ["a0", "b0", "c0", "a1", "b1", "b2"]),
    ],
)
def test_where_time_is_short_or_any_kernel_a_gain_every_task_is_begun_before_any_goes_on(
    tmp_path: Path,
    store: Database,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float | None,
    slow: float,
    each_s: float,
    wanted: list[str],
) -> None:
    context, _ = played_context(tmp_path, store)
    context.deadlines = Deadlines(limit_s, 0.0, lambda: 0.0)
    context.deadlines.took(starts.TRYING, each_s)
    tried: list[str] = []
    sizes = {"a": 2, "b": 3, "c": 1}

    class Stage:
        def compile(self, given: list[Any]) -> list[Any]:
            return [SimpleNamespace(configuration=one) for one in given]

    class Loop:
        def __init__(self, name: str) -> None:
            self.name, self.own = name, Stage()
            self.stages: Any = SimpleNamespace(compiler=self.own)

        def try_all(self, given: list[str]) -> None:
            assert len(self.stages.compiler.compile(given)) == len(given), "what was compiled"
            tried.extend(given)

    loops = {name: Loop(name) for name in sizes}
    monkeypatch.setattr(starts, "reuse_result", lambda *_: False)
    monkeypatch.setattr(starts, "task_loop", lambda _, __, task: loops[task.name])
    monkeypatch.setattr(
        starts, "openings", lambda _, task, __: [f"{task.name}{i}" for i in range(sizes[task.name])]
    )
    monkeypatch.setattr(starts, "observer", lambda *_: None)
    monkeypatch.setattr(store, "put_state", lambda *_: None)
    stages: Any = None
    tasks = [played_task(tmp_path, name) for name in sizes]
    guessed_s = sum(task.guessed_s for task in tasks)
    context.deadlines.took("running the program by default", slow * guessed_s)
    _try_openings(context, stages, played_variant(*tasks), None, 0)
    assert tried == wanted
    assert all(loop.stages.compiler is loop.own for loop in loops.values()), "for the search"


@pytest.mark.parametrize(("given_s", "kept_s"), [(1.0, 8.0), (60.0, 60.0)])
def test_what_a_sketch_begins_with_has_time_to_compile(
    tmp_path: Path,
    store: Database,
    monkeypatch: pytest.MonkeyPatch,
    given_s: float,
    kept_s: float,
) -> None:
    context, _ = played_context(tmp_path, store)
    task = played_task(tmp_path, "a")
    compiler = DispatchCompiler(task, context.compilers, timeout_s=given_s)
    loop = SimpleNamespace(stages=SimpleNamespace(compiler=compiler))
    seen: list[float] = []
    monkeypatch.setattr(starts, "reuse_result", lambda *_: False)
    monkeypatch.setattr(starts, "task_loop", lambda *_: loop)
    monkeypatch.setattr(starts, "openings", lambda *_: [])
    monkeypatch.setattr(starts, "_try_group", lambda *_: seen.append(compiler.timeout_s))
    monkeypatch.setattr(store, "put_state", lambda *_: None)
    stages: Any = None
    _try_openings(context, stages, played_variant(task), None, 0)
    assert seen == [kept_s]


def test_a_program_is_to_have_the_kernels_that_there_is_time_for_and_those_that_gain_much(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = played_context(tmp_path, store)
    tasks = [SimpleNamespace(is_chain=one == 4) for one in range(5)]
    gains = list(zip(tasks, [0.5, 0.1, 0.005, 0.001, 0.9], strict=True))
    monkeypatch.setattr(starts, "guessable", lambda *_: gains)
    left: list[float | None] = [None]
    monkeypatch.setattr(starts, "_left_s", lambda *_: left[0])
    assert _planned(context, played_variant()) == 4, "a chain stands for some of them"
    context.deadlines.took("trying a candidate", 1.0)
    for left[0], planned in {9.0: 4, 1.0: 3, 0.0: 2}.items():
        assert _planned(context, played_variant()) == planned


class Played:
    """Programs with kernels: those with guesses fail where that is asked for."""

    def __init__(self, context: Any, fail: bool = False) -> None:
        self.context, self.fail = context, fail
        self.built: list[tuple[str, dict[str, Any]]] = []

    def build(self, _: Any, prepared: Any, rivals: Any, stem: str) -> list[Any]:
        self.built += [(stem, one) for one in rivals]
        return [] if self.fail else [SimpleNamespace(choices=rivals[0])]


@pytest.mark.parametrize("fail", [False, True])
def test_what_was_not_tried_has_a_kernel_by_guess_where_time_is_short(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    context, _ = played_context(tmp_path, store)
    names = ("a", "b", "chain", "c")
    tried, guessed, chain, late = (played_task(tmp_path, name, 1e-3) for name in names)
    chain.site = SimpleNamespace(digest="chain", site=SimpleNamespace(dispatches=["e"]))
    chain.template = None
    prepared = played_variant(tried, guessed, late)
    programs: Any = Played(context, fail)
    asked: list[list[str]] = []

    def guess(_: Any, __: Any, tasks: Any) -> Any:
        asked.append([task.name for task in tasks])
        return {task.identity: ("guess", 1e-4) for task in tasks}

    monkeypatch.setattr(
        starts, "guessable", lambda *_: [(guessed, 0.002), (chain, 0.002), (late, 0.001)]
    )
    monkeypatch.setattr(starts, "guess_kernels", guess)
    monkeypatch.setattr(starts, "build_companies", programs.build)
    found: Any = {tried.identity: ("tried", 1e-4)}
    assert _with_guesses(programs, prepared, found, None) == [], "without a limit"
    assert (asked, prepared.guesses) == ([], {})
    made = _with_guesses(programs, prepared, found, 2)
    assert asked == [["b", "chain"]]
    choices = {tried.identity: "tried", guessed.identity: "guess"}
    assert programs.built == [("start_with_guesses", choices)]
    assert [one.choices for one in made] == ([] if fail else [choices])
    assert prepared.guesses == ({} if fail else {guessed.identity: ("guess", 1e-4)})
    late.uncompilable = True
    _with_guesses(programs, prepared, found, None)
    assert asked[1:] == [["c"]], "what does not compile needs one, without a limit as well"
    context.request_stop()
    assert _with_guesses(programs, prepared, found, 2) == [], "the user waits for the end"


@pytest.mark.parametrize(("clock_s", "begun"), [(10.0, ["channels-last"]), (75.0, ["default"])])
def test_what_has_been_read_has_kernels_where_there_is_no_time_for_another_layout(
    clock_s: float,
    begun: list[str],
    tmp_path: Path,
    store: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, _ = played_context(tmp_path, store)
    context.options = replace(context.options, time_limit_s=100.0)
    context.deadlines = Deadlines(100.0, 0.0, lambda: clock_s)
    context.deadlines.took("reading the dispatches", 20.0)
    asked: list[str] = []

    def prepare(_: Any, __: Any, ___: Any, layout: Variant) -> None:
        asked.append(layout.name)

    monkeypatch.setattr(starts, "_prepare", prepare)
    programs: Any = SimpleNamespace(context=context)
    stages: Any = None
    plan = StartPlan([CHANNELS_LAST, DEFAULT_VARIANT])
    make_starts(programs, stages, stages, played_variant(), plan)
    assert asked[:1] == begun


def test_a_layout_that_does_not_compile_is_read_once_and_told(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, events = played_context(tmp_path, store)
    asked: list[str] = []
    monkeypatch.setattr(starts, "_prepare", lambda *given: asked.append(given[-1].name))
    programs: Any = SimpleNamespace(context=context)
    outcome: Any = SimpleNamespace(variants={})
    stages: Any = None
    plan = StartPlan([CHANNELS_LAST, DEFAULT_VARIANT], problem="it crashed")
    make_starts(programs, stages, outcome, played_variant(), plan)
    assert asked == ["default"]
    assert outcome.variants == {"channels-last": "it crashed"}
    assert [event.error for event in events if isinstance(event, ProgramMeasured)] == ["it crashed"]


def test_a_layout_that_the_user_did_not_name_is_not_begun(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = played_context(tmp_path, store)
    context.options = replace(context.options, time_limit_s=100.0)
    context.deadlines = Deadlines(100.0, 0.0, lambda: 75.0)
    context.deadlines.took("reading the dispatches", 20.0)
    asked: list[str] = []
    monkeypatch.setattr(starts, "_prepare", lambda *given: asked.append(given[-1].name))
    programs: Any = SimpleNamespace(context=context)
    stages: Any = None
    make_starts(programs, stages, stages, played_variant(), StartPlan([CHANNELS_LAST]))
    assert asked == ["channels-last"]


def test_a_fault_in_one_layout_does_not_cost_the_others(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = played_context(tmp_path, store)
    monkeypatch.delenv(TRACEBACK)

    def start(_: Any, __: Any, ___: Any, prepared: Any, ____: int) -> Any:
        if prepared == "channels-last":
            raise ZeroDivisionError("no lanes")
        return f"{prepared} with kernels"

    monkeypatch.setattr(starts, "_prepare", lambda *given: Layout(given[-1].name))
    monkeypatch.setattr(starts, "_start", start)
    programs: Any = SimpleNamespace(context=context)
    stages: Any = None
    plan = StartPlan([CHANNELS_LAST, DEFAULT_VARIANT])
    made: Any = make_starts(programs, stages, stages, played_variant(), plan)
    assert made == ["default with kernels"]
    (note,) = context.notes
    assert note.startswith("making a program with kernels of channels-last ended before its end")
    assert "ZeroDivisionError: no lanes at test_starts.py:" in note


def test_a_layout_in_which_nothing_can_take_the_place_of_what_does_not_compile_is_left_out(
    tmp_path: Path, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = played_context(tmp_path, store)
    monkeypatch.setattr(starts, "_prepare", lambda *given: Layout(given[-1].name, stuck=True))
    programs: Any = SimpleNamespace(context=context)
    outcome: Any = SimpleNamespace(variants={})
    stages: Any = None
    assert (
        make_starts(programs, stages, outcome, played_variant(), StartPlan([CHANNELS_LAST])) == []
    )
    assert outcome.variants == {
        "channels-last with kernels": "a dispatch does not compile, and there is no kernel for it"
    }
