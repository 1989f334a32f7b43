"""The stages of a tuning run: what they ask of workers, and what they make of the answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tilewright.measure.jobs import Result, WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.tiling import CompilationInfo, Translation
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.candidate_trial import NOT_VERIFIED, CandidateTester, Reference
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.stages import (
    CandidateMeasurer,
    CompiledCandidate,
    DispatchCompiler,
    FastestFirst,
    OpeningFirst,
)
from tilewright.tuning.task import MAX_REPEATS, DispatchTask, repeats_for
from tilewright.tuning.worker_tasks import compile_candidate
from tilewright.workload import Workload

FAILURES = [
    WorkerFailure("timeout", "took more than 30 s"),
    WorkerFailure("crashed", "the worker died of SIGSEGV", "SIGSEGV"),
    WorkerFailure("error", "large vector sizes", error_type="CompileError"),
    WorkerFailure("error", "axis 'i' has no such part", error_type="ScheduleError"),
]


def config(i):
    return Configuration.of({"tile": i})


@dataclass
class Task:
    """As much of a DispatchTask as the stages use."""

    folder: Path
    flags: tuple = ()
    name: str = "main_dispatch_0"
    dispatch = ExtractedDispatch("main_dispatch_0_exe", "main_dispatch_0", 1, Path("alone.mlir"))
    request = DispatchTask.request
    variant: str = "default"
    repeats: int = 4
    rotations: int = 1
    trials: list = field(default_factory=list)

    def kernel(self, configuration):
        return None

    def lower(self, configuration):
        return CompilationInfo(Translation(f"P{configuration['tile']}"), ())


class Pool:
    """Answers every job, by the pipeline that it asks for, with a digest or a failure."""

    def __init__(self, failures=None):
        self.failures = failures or {}
        self.jobs = []

    def run(self, jobs):
        self.jobs += jobs
        for job in jobs:
            name = job.request.configuration.translation.pipeline
            failure = self.failures.get(name)
            yield Result(job, failure or f"digest {name}", 0.25)


class TestCompiler:
    def test_asks_workers_for_the_lowered_configuration(self, tmp_path):
        pool = Pool()
        compiler = DispatchCompiler(Task(tmp_path, ("--flag",)), pool)
        made = compiler.compile([config(3), config(5)])
        assert [c.configuration for c in made] == [config(3), config(5)]
        assert [(c.status, c.digest, c.seconds) for c in made] == [
            (Status.OK, "digest P3", 0.25),
            (Status.OK, "digest P5", 0.25),
        ]
        request = pool.jobs[0].request
        assert pool.jobs[0].task is compile_candidate
        assert (request.executable, request.entry) == ("main_dispatch_0_exe", "main_dispatch_0")
        assert (request.repeats, request.flags) == (4, ("--flag",))
        assert request.keep is None
        assert made[0].artifact == request.vmfb
        assert request.vmfb.parent == tmp_path

    @pytest.mark.parametrize(
        ("failure", "status"),
        [
            (FAILURES[0], Status.COMPILE_TIMEOUT),
            (FAILURES[1], Status.CRASHED),
            (FAILURES[2], Status.COMPILE_ERROR),
            (FAILURES[3], Status.INVALID),
        ],
    )
    def test_failures_are_statuses(self, tmp_path, failure, status):
        compiler = DispatchCompiler(Task(tmp_path), Pool({"P1": failure}))
        bad, good = compiler.compile([config(1), config(2)])
        assert (bad.status, bad.message, bad.digest) == (status, failure.message, "")
        assert bad.artifact is None
        assert good.status is Status.OK

    def test_a_program_written_for_another_of_the_batch_is_found(self, tmp_path):
        class Twins(Pool):
            def run(self, jobs):
                """All become one program; a worker that is done sooner writes the second's."""
                jobs[1].request.vmfb.write_bytes(b"program")
                return [Result(job, "digest", 0.25) for job in jobs]

        compiler = DispatchCompiler(Task(tmp_path), Twins())
        first, second = compiler.compile([config(1), config(2)])
        assert first.artifact == second.artifact
        assert first.artifact.read_bytes() == b"program"

    def test_candidates_are_numbered_as_trials_are(self, tmp_path):
        task, pool = Task(tmp_path), Pool()
        compiler = DispatchCompiler(task, pool)
        for start in (0, 2):
            compiler.compile([config(start), config(start + 1)])
            task.trials += [None, None]
        resumed = DispatchCompiler(task, pool)
        resumed.compile([config(9)])
        names = [job.request.vmfb.stem for job in pool.jobs]
        assert names == [f"candidate_{i:05d}" for i in range(1, 6)]

    def test_candidates_are_kept_with_the_command_that_compiles_them(self, tmp_path):
        pool = Pool()
        keep = tmp_path / "kept"
        DispatchCompiler(Task(tmp_path, ("--a", "--b")), pool, keep).compile([config(1)])
        path = pool.jobs[0].request.keep
        assert path == keep / "default" / "main_dispatch_0" / "candidate_00001.mlir"
        assert path.with_suffix(".txt").read_text() == (
            "iree-compile candidate_00001.mlir --compile-from=executable-configurations --a --b "
            "-o candidate_00001.vmfb\n"
        )


@dataclass
class Verdict:
    ok: bool

    def __str__(self):
        return "output 0 differs at [1, 2]"


class Bench:
    """Answers with what it is given, and notes what it is asked."""

    round_size = 1

    def __init__(self, time, verify=None):
        self.answers = {"time": time, "verify": verify}
        self.asked = []

    def time(self, path, inputs, **more):
        self.asked.append(("time", path, more))
        return self.answers["time"]

    def verify(self, request, **more):
        self.asked.append(("verify", request.vmfb, request))
        return self.answers["verify"]


def measure(tmp_path, bench, best_s=None, **more):
    tester = CandidateTester(bench, Reference("inputs", "expected", ("f32",), 128), 4, 60.0)
    measurer = CandidateMeasurer(tester, TimingPolicy(), **more)
    return measurer.measure(
        CompiledCandidate(config(1), Status.OK, "x.vmfb", "digest", "", 0.5), best_s
    )


GOOD = Measurement((1e-3, 3e-3, 2e-3), executions_per_sample=4)


class TestMeasurer:
    def test_a_good_candidate(self, tmp_path):
        bench = Bench(GOOD, [Verdict(True)])
        trial = measure(tmp_path, bench, best_s=5e-3)
        assert trial.ok
        assert trial.time_s == GOOD.time_s
        assert trial.samples == GOOD.samples
        assert trial.binary == "digest"
        assert trial.phase_s["compile"] == 0.5
        assert trial.phase_s["measure"] == pytest.approx(6e-3 * 4)
        (_, path, asked), _ = bench.asked
        assert (path, asked["repeats"], asked["best_s"]) == ("x.vmfb", 4, 5e-3)

    def test_what_is_not_verified_is_timed_and_says_so(self, tmp_path):
        bench = Bench(GOOD)
        tester = CandidateTester(bench, Reference("inputs", None, method=NOT_VERIFIED), 4, 60.0)
        compiled = CompiledCandidate(config(1), Status.OK, "x.vmfb", "digest", "", 0.5)
        trial = CandidateMeasurer(tester, TimingPolicy()).measure(compiled, None)
        assert (trial.status, trial.time_s) == (Status.OK, GOOD.time_s)
        assert trial.message == "not verified"
        assert [what for what, *_ in bench.asked] == ["time"]

    def test_a_wrong_result_has_no_time(self, tmp_path):
        trial = measure(tmp_path, Bench(GOOD, [Verdict(True), Verdict(False)]))
        assert (trial.status, trial.time_s) == (Status.WRONG_RESULT, None)
        assert trial.message == "output 0 differs at [1, 2]"
        assert trial.binary == "digest"

    @pytest.mark.parametrize(("right", "status"), [(True, Status.OK), (False, Status.WRONG_RESULT)])
    def test_one_dropped_early_is_checked_all_the_same(self, tmp_path, right, status):
        bench = Bench(Measurement((0.9,), dropped=True), [Verdict(right)])
        trial = measure(tmp_path, bench, best_s=1e-3)
        assert trial.status is status
        assert trial.time_s == (0.9 if right else None)
        assert ("dropped early" in trial.message) == right

    @pytest.mark.parametrize(("best_s", "checked"), [(0.01, False), (0.2, False), (0.5, True)])
    def test_one_too_slow_to_be_called_again_is_not_checked_and_not_ok(
        self, tmp_path, best_s, checked
    ):
        bench = Bench(Measurement((4.0,), dropped=True), [Verdict(True)])
        trial = measure(tmp_path, bench, best_s=best_s)
        assert ("verify" in [kind for kind, *_ in bench.asked]) == checked
        assert trial.ok == checked
        if not checked:
            assert (trial.status, trial.time_s) == (Status.RUN_TIMEOUT, None)
            assert trial.message == f"4000 ms, {4 / best_s:.2f}x the best's time: not checked"

    @pytest.mark.parametrize("where", ["time", "verify"])
    @pytest.mark.parametrize(
        ("failure", "status"),
        [
            (FAILURES[0], Status.RUN_TIMEOUT),
            (FAILURES[1], Status.CRASHED),
            (FAILURES[2], Status.RUN_ERROR),
        ],
    )
    def test_failures_are_statuses(self, tmp_path, where, failure, status):
        bench = Bench(failure) if where == "time" else Bench(GOOD, failure)
        trial = measure(tmp_path, bench)
        assert (trial.status, trial.message, trial.time_s) == (status, failure.message, None)
        assert trial.binary == "digest"


class TestSelector:
    def trial(self, tile, time_s, binary="", status=Status.OK):
        return Trial(config(tile), status, time_s, binary=binary)

    def test_fastest_first_with_different_programs(self):
        trials = [
            self.trial(1, 3.0, "a"),
            self.trial(2, 1.0, "b"),
            self.trial(3, 1.5, "b"),
            self.trial(4, 2.0, "c"),
            self.trial(5, None, "d", Status.CRASHED),
        ]
        chosen = FastestFirst().select(trials, 3)
        assert [t.configuration["tile"] for t in chosen] == [2, 4, 1]
        assert len(FastestFirst().select(trials, 1)) == 1

    def test_trials_without_a_digest_are_all_different(self):
        trials = [self.trial(1, 1.0), self.trial(2, 2.0)]
        assert len(FastestFirst().select(trials, 5)) == 2

    def test_nothing_to_choose_from(self):
        assert FastestFirst().select([self.trial(1, None, "", Status.RUN_ERROR)], 3) == []


@pytest.mark.parametrize(
    ("flops", "size", "expected"), [(0, 0, MAX_REPEATS), (10**12, 0, 1), (0, 10**10, 1)]
)
def test_repeats_make_a_submission_long_enough_to_time(flops, size, expected):
    workload = Workload("contraction", (), (), (), "", flops=flops, bytes=size)
    assert repeats_for(workload, 2) == expected


def test_what_goes_on_after_an_opening_is_made_of_what_became_of_it() -> None:
    opening = [Configuration.of({"tile": tile}) for tile in (1, 2, 3)]
    made: list[list[Trial]] = []

    class Further:
        def __init__(self, told: Sequence[Trial]) -> None:
            made.append(list(told))

        def ask(self, n: int) -> list[Configuration]:
            return [Configuration.of({"tile": 10 + n})]

        def tell(self, trials: Sequence[Trial]) -> None:
            made[0] += trials

    source = OpeningFirst(opening, Further)
    assert source.ask(2) == opening[:2]
    assert source.ask(9) == opening[2:]
    assert source.ask(9) == [], "not before they have been tried"
    trials = [Trial(one, Status.OK, time_s=1.0) for one in opening]
    source.tell(trials)
    assert made == []
    assert source.ask(4) == [Configuration.of({"tile": 14})]
    assert made == [trials]
    source.tell(trials[:1])
    assert made == [[*trials, trials[0]]]
