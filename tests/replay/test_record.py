"""Recording a real space: measured as in tuning, resumable, never half a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.measure.timing import TimingPolicy
from tilewright.replay.arena import Arena
from tilewright.replay.record import RecordRequest, RecordSession
from tilewright.replay.recording import Recording, read_recording
from tilewright.store import Database, RunStatus
from tilewright.trial import Status
from tilewright.tuning.options import TuneOptions

PROGRAM = """func.func @main(%a: tensor<32x32xf32>, %b: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<32x32xf32>) -> tensor<32x32xf32>
  %r = linalg.matmul ins(%a, %b : tensor<32x32xf32>, tensor<32x32xf32>)
    outs(%f : tensor<32x32xf32>) -> tensor<32x32xf32>
  return %r : tensor<32x32xf32>
}
"""
DYNAMIC = """func.func @main(%a: tensor<?x32xf32>, %b: tensor<32x32xf32>) -> tensor<?x32xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %a, %c0 : tensor<?x32xf32>
  %e = tensor.empty(%n) : tensor<?x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x32xf32>) -> tensor<?x32xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x32xf32>, tensor<32x32xf32>)
    outs(%f : tensor<?x32xf32>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}
"""
KNOBS = {"vector_common_parallel_m": "2,4", "vector_reduction_k": "1,2,4"}
QUICK = TimingPolicy(min_samples=6, max_samples=6, max_s=0.05, drop_factor=None)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "matmul.mlir"
    path.write_text(PROGRAM)
    return path


def request(program: Path, folder: Path, **changes: object) -> RecordRequest:
    options = {"threads": 1, "db": folder / "record.db", **changes.pop("options", {})}  # type: ignore[dict-item]
    given = {"knobs": KNOBS, "passes": 2, **changes}
    return RecordRequest(program, TuneOptions(**options), folder / "space.npz", **given)  # type: ignore[arg-type]


def run(given: RecordRequest, **more: object) -> Recording | None:
    return RecordSession(given, timing=QUICK, **more).run()  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_recorded_space_can_be_searched(program: Path, tmp_path: Path) -> None:
    said: list[str] = []
    seen = []
    made = run(request(program, tmp_path), say=said.append, progress=seen.append)
    assert made is not None
    found = read_recording(tmp_path / "space.npz")
    assert found.configurations == made.configurations
    # The compiler's own values, 8 and 16, are there as well.
    assert len(found) == 3 * 4 == seen[-1].done == seen[-1].total
    assert found.default in found.configurations
    assert found.ok.all()
    # A pass that was disturbed does not count.
    assert {len(found.samples_of(row)) for row in range(len(found))} <= {6, 12}
    assert (found.compile_s > 0).all()
    assert (found.measure_s > 0).all()
    assert found.subject is not None
    assert found.subject.workload.sizes == (32, 32, 32)
    assert found.facts["threads"] == 1
    assert any("12 configurations" in text for text in said)
    arena = Arena(found)
    assert arena.space.order_size == 12
    assert arena.notes == ()
    assert arena.space.has_prior
    with Database.open(tmp_path / "record.db") as store:
        (record,) = store.runs()
        assert record.status is RunStatus.FINISHED
        # What other shapes can learn from.
        assert all(store.task(t.task_id).space for t in store.trial_records(record.id))
        assert store.count_trials(record.id) == 12


@pytest.mark.slow
def test_stopped_and_resumed_it_measures_the_rest(program: Path, tmp_path: Path) -> None:
    given = request(program, tmp_path)
    session: RecordSession

    def stop(progress: object) -> None:
        session.request_stop()

    session = RecordSession(given, progress=stop, timing=QUICK)
    assert session.run() is None
    assert not given.output.exists()
    with Database.open(tmp_path / "record.db") as store:
        (first,) = store.runs()
        assert first.status is RunStatus.INTERRUPTED
        before = store.trials(first.id)
        assert 1 <= len(before) < 12
    said: list[str] = []
    made = run(request(program, tmp_path, options={"resume": True}), say=said.append)
    assert made is not None
    assert len(made) == 12
    assert any(f"going on with run {first.id}" in text for text in said)
    for trial in before:
        row = made.configurations.index(trial.configuration)
        assert trial.time_s is not None
        assert made.time_s[row] <= trial.time_s


@pytest.mark.slow
def test_stopped_between_passes_the_passes_go_on(program: Path, tmp_path: Path) -> None:
    session: RecordSession

    def stop(text: str) -> None:
        if text.startswith("pass 2"):
            session.request_stop()

    session = RecordSession(request(program, tmp_path), say=stop, timing=QUICK)
    assert session.run() is None
    assert _trials(tmp_path / "record.db") == 12
    seen: list[object] = []
    made = run(request(program, tmp_path, options={"resume": True}), progress=seen.append)
    assert made is not None
    assert seen == []
    assert any(len(made.samples_of(row)) == 12 for row in range(12))


@pytest.mark.slow
def test_killed_and_resumed_nothing_is_measured_twice(program: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "tilewright", "replay", "record", str(program)),
        *("--threads", "1", "--db", str(tmp_path / "record.db"), "-o", str(tmp_path / "space.npz")),
        *("--knob", "vector_common_parallel_m=1,2,4,8"),
        *("--knob", "vector_common_parallel_n=8,16,32", "--knob", "vector_reduction_k=1,2,4,16"),
        *("--passes", "1"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    count = 0
    while count < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        count = _trials(tmp_path / "record.db")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert count >= 3
    assert not (tmp_path / "space.npz").exists()
    before = _trials(tmp_path / "record.db")
    assert before < 48
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"which has {before} configurations" in done.stderr
    # The compiler's own sizes, where the lists lack them, are recorded as well.
    recorded = len(read_recording(tmp_path / "space.npz"))
    assert recorded >= 48
    assert _trials(tmp_path / "record.db") == recorded


def _trials(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with Database.open(path, create=False) as store:
            return sum(store.count_trials(r.id) for r in store.runs())
    except UserError:
        return 0


@pytest.mark.slow
def test_failing_candidates_are_rows_like_any_other(program: Path, tmp_path: Path) -> None:
    class Broken(RecordSession):
        """Every other candidate cannot be compiled in time."""

        def _measure(self, subject):  # type: ignore[no-untyped-def]
            from tilewright.tuning import stages

            real = stages.DispatchCompiler.compile

            def compile_(compiler, configurations):  # type: ignore[no-untyped-def]
                return [
                    stages.CompiledCandidate(made.configuration, Status.COMPILE_TIMEOUT)
                    if dict(made.configuration.items)["vector_reduction_k"] == 2
                    else made
                    for made in real(compiler, configurations)
                ]

            stages.DispatchCompiler.compile = compile_  # type: ignore[method-assign]
            try:
                return super()._measure(subject)
            finally:
                stages.DispatchCompiler.compile = real  # type: ignore[method-assign]

    made = Broken(request(program, tmp_path), timing=QUICK).run()
    assert made is not None
    assert int(made.ok.sum()) == 9
    found = read_recording(tmp_path / "space.npz")
    assert {found.trial(row).status for row in range(12)} == {Status.OK, Status.COMPILE_TIMEOUT}


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(program: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "tilewright", "replay", "record", str(program)),
        *("--threads", "1", "--db", str(tmp_path / "record.db"), "-o", str(tmp_path / "space.npz")),
        *("--knob", "vector_common_parallel_m=1,2,4,8"),
        *("--knob", "vector_common_parallel_n=8,16,32", "--knob", "vector_reduction_k=1,2,4,16"),
        *("--passes", "1"),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ}
    )
    deadline = time.monotonic() + 120
    while _trials(tmp_path / "record.db") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "stopped: --resume goes on with what was measured"
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dispatch": "conv"}, "none has 'conv' in its name .there are: main_dispatch_0"),
        ({"knobs": {"tile_q": "4"}}, "unknown knob 'tile_q'"),
    ],
)
def test_what_cannot_be_recorded(
    changes: dict[str, object], told: str, program: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        run(request(program, tmp_path, **changes))
    assert not (tmp_path / "space.npz").exists()


@pytest.mark.slow
def test_sizes_that_the_program_leaves_open(tmp_path: Path) -> None:
    program = tmp_path / "dynamic.mlir"
    program.write_text(DYNAMIC)
    with pytest.raises(UserError, match=r"no dispatch to record .*--input"):
        run(request(program, tmp_path))
    sizes = {"inputs": ("48x32xf32", "32x32xf32")}
    made = run(request(program, tmp_path, options=sizes, knobs={"vector_reduction_k": "1,2"}))
    assert made is not None
    assert made.subject is not None
    assert made.subject.workload.sizes == (48, 32, 32)
    assert made.ok.all()


def test_mistakes_are_said_before_any_work(program: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--dispatch: '\(' is not a regular expression"):
        RecordSession(request(program, tmp_path, dispatch="("))
    given = request(program, tmp_path)
    with pytest.raises(UserError, match="there is no directory"):
        RecordSession(RecordRequest(program, given.options, tmp_path / "no" / "space.npz"))
