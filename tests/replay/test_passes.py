"""Further passes over a recording: the second fastest counts, what was disturbed is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.replay.record import Passes
from tilewright.store import Database, RunRecord
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.stages import CompiledCandidate


def config(i: int) -> Configuration:
    return Configuration.of({"tile": i})


def ok(i: int, binary: str, *samples: float) -> Trial:
    return Trial(config(i), Status.OK, samples[0], samples, binary=binary)


@dataclass
class Compiler:
    """Makes the programs `a`, `b`, … of tiles 0, 1, …, in a folder."""

    folder: Path
    compiled: list[Configuration] = field(default_factory=list)

    def compile(self, configurations: list[Configuration]) -> list[CompiledCandidate]:
        self.compiled += configurations
        made = []
        for one in configurations:
            digest = "abcdea"[int(one.values["tile"])]  # type: ignore[call-overload]
            path = self.folder / f"{digest}.{len(self.compiled)}.vmfb"
            path.write_text(digest)
            made.append(CompiledCandidate(one, Status.OK, path, digest))
        return made


@dataclass
class Bench:
    """Gives each program its time; one that is not there fails."""

    times: dict[str, float]
    timed: list[str] = field(default_factory=list)

    def time(self, path: str, *_: Any, **__: Any) -> Measurement | WorkerFailure:
        digest = Path(path).read_text()
        self.timed.append(digest)
        if digest not in self.times:
            return WorkerFailure("crashed", "gone")
        return Measurement((self.times[digest],) * 3)


@dataclass
class Task:
    inputs: str = "inputs"
    repeats: int = 1


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Database.open(tmp_path / "passes.db") as opened:
        yield opened


def passes(store: Database, folder: Path, bench: Bench, **more: Any) -> Passes:
    run = store.begin_run(RunRecord("p.mlir", "digest", "cpu", "3.13"))
    return Passes(
        store,
        more.pop("run", run),
        Task(),  # type: ignore[arg-type]
        Compiler(folder),  # type: ignore[arg-type]
        bench,  # type: ignore[arg-type]
        TimingPolicy(),
        0,
        **more,
    )


def test_every_program_once_in_each_pass(store: Database, tmp_path: Path) -> None:
    bench = Bench({"a": 1.0, "b": 2.0})
    trials = {
        t.configuration: t
        for t in (
            ok(0, "a", 1.5),
            ok(1, "b", 2.0),
            ok(5, "a", 1.5),  # another configuration with the program of the first
            Trial(config(3), Status.COMPILE_ERROR),
        )
    }
    made = passes(store, tmp_path, bench)
    assert made.measure(trials, 2)
    assert sorted(bench.timed) == ["a", "b"]
    found = made.combined(trials, 2)
    assert [found[config(i)].time_s for i in (0, 1, 5)] == [1.5, 2.0, 1.5]
    assert found[config(3)] == trials[config(3)]


def test_samples_of_a_disturbed_pass_are_left_out(store: Database, tmp_path: Path) -> None:
    bench = Bench({"a": 1.0})
    made = passes(store, tmp_path, bench)
    trials = {config(0): ok(0, "a", 3.0, 3.1)}
    made.measure(trials, 2)
    bench.times["a"] = 1.05
    made.measure(trials, 3)
    found = made.combined(trials, 3)[config(0)]
    assert found.time_s == 1.05
    assert found.samples == (1.0,) * 3 + (1.05,) * 3
    assert made.combined(trials, 1)[config(0)].time_s == pytest.approx(3.025)


def test_what_was_measured_before_a_stop_is_not_measured_again(
    store: Database, tmp_path: Path
) -> None:
    bench = Bench({"a": 5.0, "b": 6.0, "c": 7.0})
    trials = {config(i): ok(i, "abc"[i], 1.0) for i in range(3)}
    first = passes(store, tmp_path, bench, stop=lambda: len(bench.timed) == 2)
    assert not first.measure(trials, 2)
    assert len(bench.timed) == 2
    second = passes(store, tmp_path, bench, run=first.run_id)
    assert second.measure(trials, 2)
    assert sorted(bench.timed) == ["a", "b", "c"]
    assert [second.combined(trials, 2)[config(i)].time_s for i in range(3)] == [5.0, 6.0, 7.0]


def test_a_pass_that_fails_leaves_the_trial_as_it_was(store: Database, tmp_path: Path) -> None:
    made = passes(store, tmp_path, Bench({}))
    trials = {config(0): ok(0, "a", 3.0)}
    assert made.measure(trials, 2)
    assert made.combined(trials, 2) == trials


def test_a_program_that_compiles_to_another_is_not_mixed_in(
    store: Database, tmp_path: Path
) -> None:
    bench = Bench({"a": 1.0, "b": 1.0})
    made = passes(store, tmp_path, bench)
    trials = {config(1): ok(1, "a", 3.0)}  # tile 1 compiles to b now
    assert made.measure(trials, 2)
    assert bench.timed == []


def test_equal_programs_are_kept_once(store: Database, tmp_path: Path) -> None:
    programs = passes(store, tmp_path, Bench({}))
    paths = [tmp_path / f"{i}.vmfb" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_text("x")
        programs.keep(CompiledCandidate(config(i), Status.OK, path, "ab"[i == 2]))
    programs.keep(CompiledCandidate(config(9), Status.COMPILE_ERROR))
    assert [path.exists() for path in paths] == [True, False, True]
    assert set(programs.paths) == {"a", "b"}
