"""The stages of a session: sorted by what they do, replaced, left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_run import played_context, played_task, played_variant

from tilewright.errors import UserError
from tilewright.store import Database, RunRecord
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import reuse
from tilewright.tuning.confirm import Confirmed
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import Event, PhaseStarted
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.result import TuneResult
from tilewright.tuning.search_phase import search
from tilewright.tuning.session import TuningSession
from tilewright.tuning.session_stages import (
    ALL_STAGES,
    CompileCandidates,
    ConfirmFinalists,
    MeasureCandidates,
    SessionStages,
)
from tilewright.tuning.stages import CandidateMeasurer, CompiledCandidate, DispatchCompiler
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import DEFAULT_VARIANT
from tuned_samples import matmul


class OneStage:
    """A client's single stage: it compiles and measures, by the built-in ones, and counts."""

    def __init__(self) -> None:
        self.compiled: list[Configuration] = []
        self.measured: list[Configuration] = []

    def compiler(self, context: RunContext, task: DispatchTask) -> Any:
        inner = CompileCandidates().compiler(context, task)
        stage = self

        class Compiler:
            def compile(self, given: Sequence[Configuration]) -> list[CompiledCandidate]:
                stage.compiled += given
                return inner.compile(given)

        return Compiler()

    def measurer(self, context: RunContext, task: DispatchTask) -> Any:
        inner = MeasureCandidates().measurer(context, task)
        stage = self

        class Measurer:
            def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
                stage.measured.append(compiled.configuration)
                trial = inner.measure(compiled, best_s)
                # So fast that the whole program decides.
                return replace(trial, time_s=1e-9) if trial.ok else trial

        return Measurer()


class TestSorting:
    def test_by_their_methods_in_any_order(self) -> None:
        made = SessionStages.of(ALL_STAGES[::-1])
        assert isinstance(made.compiling, CompileCandidates)
        assert isinstance(made.measuring, MeasureCandidates)
        assert isinstance(made.confirming, ConfirmFinalists)
        assert made.runs
        assert made.searches

    def test_one_class_can_be_two_stages(self) -> None:
        one = OneStage()
        assert SessionStages.of([one]) == SessionStages(compiling=one, measuring=one)

    def test_what_runs_nothing_needs_no_device(self) -> None:
        assert not SessionStages.of([CompileCandidates()]).runs
        assert SessionStages.of([ConfirmFinalists()]).runs

    @pytest.mark.parametrize(
        ("stages", "told"),
        [
            ([], "there is none; a session needs at least one"),
            ([CompileCandidates(), OneStage()], "CompileCandidates and OneStage are all for comp"),
            (["compile"], "'compile' is no stage; give it a method compiler, measurer or confirm"),
        ],
    )
    def test_mistakes(self, stages: Any, told: str) -> None:
        with pytest.raises(UserError, match=told):
            SessionStages.of(stages)


class TestSearching:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Iterator[tuple[RunContext, DispatchTask]]:
        with Database.open(tmp_path / "t.db") as store:
            context, _ = played_context(tmp_path, store, max_trials=5)
            context.run_id = store.begin_run(
                RunRecord("p", "digest", context.target.key, context.compiler_version)
            )
            yield context, played_task(tmp_path, "a", 1e-3, 0.9, sizes=40)

    def test_the_built_in_stages_are_those_of_every_search(
        self, run: tuple[RunContext, DispatchTask]
    ) -> None:
        context, task = run
        assert isinstance(CompileCandidates().compiler(context, task), DispatchCompiler)
        assert CompileCandidates(7.0).compiler(context, task).timeout_s == 7.0  # type: ignore[attr-defined]
        assert isinstance(MeasureCandidates().measurer(context, task), CandidateMeasurer)

    def test_without_a_measure_stage_candidates_have_no_time(
        self, run: tuple[RunContext, DispatchTask]
    ) -> None:
        context, task = run
        stages = SessionStages(compiling=CompileCandidates(), confirming=ConfirmFinalists())
        search(context, stages, [played_variant(task)], [1e-3])
        assert len(task.trials) == 5
        assert {(t.status, t.time_s) for t in task.trials} == {(Status.OK, None)}
        assert context.benchmark.timed == []  # type: ignore[attr-defined]

    def test_without_a_compile_stage_nothing_is_tried(
        self, run: tuple[RunContext, DispatchTask]
    ) -> None:
        context, task = run
        search(context, SessionStages.of(ALL_STAGES[1:]), [played_variant(task)], [1e-3])
        assert task.trials == []
        assert context.compilers.jobs == []  # type: ignore[attr-defined]


def options(folder: Path) -> TuneOptions:
    return TuneOptions(
        effort="quick",
        max_trials=2,
        strategy="random",
        kernels="off",
        variants=(DEFAULT_VARIANT,),
        db=folder / "tilewright.db",
        output=folder / "out",
    )


@pytest.fixture(scope="module")
def of_one_stage(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, OneStage, list[str]]:
    """A whole session whose only stage is a client's: its folder, result and phases."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "p.mlir").write_text(matmul(48, 64, 80))
    stage, events = OneStage(), list[Event]()
    session = TuningSession(folder / "p.mlir", options(folder), events.append, [stage])
    result = session.run()
    return folder, result, stage, [e.name for e in events if isinstance(e, PhaseStarted)]


def test_a_session_of_one_stage(of_one_stage: tuple[Path, Any, OneStage, list[str]]) -> None:
    _, result, stage, phases = of_one_stage
    assert isinstance(result, TuneResult)
    assert result.trials_total == len(stage.compiled) == len(stage.measured) == 2
    assert "search" in phases
    assert "confirm" not in phases
    # What was measured alone is tried in the whole program, which decides.
    assert "company" in phases
    assert (result.output / "program.vmfb").exists()


def test_a_confirm_stage_alone_has_what_earlier_runs_found(
    of_one_stage: tuple[Path, Any, OneStage, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, stage, _ = of_one_stage
    # On a busy machine four microseconds may take twice as long as in the run before.
    monkeypatch.setattr(reuse, "_SAME_DEFAULT", 1e3)

    class Own:
        seen: list[Trial] = []  # noqa: RUF012

        def confirm(
            self, context: RunContext, tasks: Sequence[DispatchTask], variants: int
        ) -> list[Confirmed]:
            self.seen += [trial for task in tasks for trial in task.trials]
            return ConfirmFinalists().confirm(context, tasks, variants)

    own = Own()
    result = TuningSession(folder / "p.mlir", options(folder), stages=[own]).run()
    assert isinstance(result, TuneResult)
    assert len(own.seen) == 1, result.notes
    (trial,) = own.seen
    assert trial.configuration in stage.measured
    assert trial.origin.startswith("run ")
    assert result.trials_total == 0
