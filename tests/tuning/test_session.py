"""The promises of a tuning run, each with an attempt to break it."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import TRACEBACK, UserError
from tilewright.measure.comparison import Finalist
from tilewright.measure.inputs import read_outputs, write_outputs
from tilewright.measure.ways import ways_to_run
from tilewright.store import Database, RunStatus
from tilewright.toolchain import Toolchain
from tilewright.trial import Status
from tilewright.tuning import how_to_run, outputs, reuse, session, variant_phase
from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, Outcome
from tilewright.tuning.config_file import read_config
from tilewright.tuning.events import DispatchesRanked, Event, TrialDone, ignore
from tilewright.tuning.opening import open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import Programs
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession
from tilewright.tuning.variants import BUILT_IN, DEFAULT_VARIANT

PROGRAM = """func.func @main(%a: tensor<96x80xf32>, %b: tensor<80x112xf32>) -> tensor<96x112xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<96x112xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<96x112xf32>) -> tensor<96x112xf32>
  %r = linalg.matmul ins(%a, %b : tensor<96x80xf32>, tensor<80x112xf32>)
    outs(%f : tensor<96x112xf32>) -> tensor<96x112xf32>
  return %r : tensor<96x112xf32>
}
"""

TRIALS = 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "matmul.mlir"
    path.write_text(PROGRAM)
    return path


def options(folder: Path, **changes: object) -> TuneOptions:
    """A run of a few trials of one matmul as the compiler makes it, without kernels of our own."""
    given: dict[str, object] = {
        "effort": "quick",
        "max_trials": TRIALS,
        "strategy": "random",
        "kernels": "off",
        "variants": (DEFAULT_VARIANT,),
        "db": folder / "tilewright.db",
        "output": folder / "out",
        **changes,
    }
    return TuneOptions(**given)  # type: ignore[arg-type]


def tune(
    program: Path, given: TuneOptions, listener: Callable[[Event], None] = ignore
) -> TuneResult:
    return TuningSession(program, given, listener).run()


def trials_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(
    program: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TuneResult, list[Event]]:
    folder = tmp_path_factory.mktemp("finished")
    events: list[Event] = []
    result = tune(program, options(folder), events.append)
    return folder, result, events


class TestResultFolder:
    def test_files_are_all_there_and_nothing_else(
        self, finished: tuple[Path, TuneResult, list[Event]]
    ) -> None:
        folder, _, _ = finished
        assert {p.name for p in (folder / "out").iterdir()} == {
            "command.txt",
            "manifest.json",
            "program.vmfb",
            "run.log",
            "summary.json",
            "trials.csv",
            "tuning_spec.mlir",
        }
        left = {p.name for p in folder.iterdir()}
        assert not [name for name in left if name.startswith(".")], left

    def test_command_reproduces_the_program_with_plain_iree_compile(
        self, finished: tuple[Path, TuneResult, list[Event]], tmp_path: Path
    ) -> None:
        folder, _, _ = finished
        shipped = (folder / "out" / "program.vmfb").read_bytes()
        command = (folder / "out" / "command.txt").read_text()
        (folder / "out" / "program.vmfb").unlink()
        tools = Toolchain().iree_compile.parent
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment)
        assert (folder / "out" / "program.vmfb").read_bytes() == shipped

    def test_the_lines_that_run_the_program_run_it(
        self, finished: tuple[Path, TuneResult, list[Event]]
    ) -> None:
        folder, result, _ = finished
        # One processor leaves no choice.
        assert len(result.runs) == len(ways_to_run(os.cpu_count() or 1)) or not result.runs
        told = (folder / "out" / "command.txt").read_text().splitlines()[1:]
        for one, line in zip(result.runs, told, strict=True):
            assert line.startswith("# ")
            assert line.endswith(one.command)
            tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(
                [*shlex.split(one.command), "--benchmark_min_time=1x"],
                check=True,
                capture_output=True,
                env={**os.environ, "PATH": tools},
            )

    def test_summary_has_the_promised_fields(
        self, finished: tuple[Path, TuneResult, list[Event]]
    ) -> None:
        folder, result, _ = finished
        summary = json.loads((folder / "out" / "summary.json").read_text())
        assert {
            "default_ms",
            "tuned_ms",
            "speedup",
            "speedup_ci",
            "verified",
            "variant",
        } <= summary["program"].keys()
        (dispatch,) = summary["dispatches"]
        assert {
            "name",
            "workload",
            "count",
            "share",
            "default_ms",
            "tuned_ms",
            "speedup",
            "trials",
            "status",
            "configuration",
        } <= dispatch.keys()
        assert summary["trials_total"] == TRIALS == result.trials_total
        assert summary["program"]["verified"] is True
        assert summary["wall_s"] > 0
        assert {"search", "main_process_cpu"} <= summary["phase_s"].keys()

    def test_every_trial_has_a_row(self, finished: tuple[Path, TuneResult, list[Event]]) -> None:
        folder, _, events = finished
        rows = trials_of(folder)
        told = [e for e in events if isinstance(e, TrialDone)]
        assert len(rows) == len(told) == TRIALS
        assert {row["status"] for row in rows} <= {str(s) for s in Status}
        knobs = [row["knobs"] for row in rows]
        assert len(set(knobs)) == len(knobs), "a configuration was tried twice"

    def test_a_tuned_dispatch_is_never_slower_than_its_default(
        self, finished: tuple[Path, TuneResult, list[Event]]
    ) -> None:
        _, result, _ = finished
        assert result.program.speedup >= 1.0 or not result.changed
        for dispatch in result.dispatches:
            if dispatch.status == "tuned":
                assert dispatch.speedup_ci is not None
                assert dispatch.speedup_ci[0] > 1.0


def test_a_program_can_be_tuned_for_fewer_threads_than_it_may_have(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.tuning.session.leave_workers_out", how_to_run.leave_workers_out)
    monkeypatch.setattr(how_to_run, "_TRIED_S", 1e9)
    monkeypatch.setattr(how_to_run, "_waking_takes_longer", lambda *times: True)
    result = tune(program, options(tmp_path, threads=2))
    assert any("it is tuned for one thread" in note for note in result.notes)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["options"]["threads"] == 1
    # The other way is measured all the same.
    assert {one.device for one in result.runs} == {"local-sync", "local-task"}
    # On a machine that is busy by now the next run finds what this one did all the same.
    monkeypatch.setattr(how_to_run, "_waking_takes_longer", lambda *times: False)
    monkeypatch.setattr(reuse, "_SAME_DEFAULT", 1000.0)
    again = tune(program, options(tmp_path, threads=2, output=tmp_path / "again"))
    assert any("for one thread, as the run before" in note for note in again.notes)
    assert again.trials_total == 0


def test_a_variant_with_the_same_dispatches_is_not_searched_beside_another(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = (DEFAULT_VARIANT, BUILT_IN["o3"], BUILT_IN["data-tiling"])
    ratios = {"default": 1.0, "o3": 0.99, "data-tiling": 1.01}

    def compared(_: Programs, builds: Sequence[Build]) -> dict[str, float]:
        return {one.name: ratios.get(one.name, 3.0) for one in builds}

    def faster(
        programs: Programs, outcome: Outcome, rivals: Sequence[Company]
    ) -> list[tuple[Company, Finalist]]:
        (found,) = [one for one in rivals if one.build.name == "o3"]
        judged = programs.compare([outcome.default, found.build], 1.0)
        assert not isinstance(judged, str)
        return [(found, judged[1])]

    monkeypatch.setattr(variant_phase, "_compare_variants", compared)
    # The program of a variant that was not searched is handed back all the same.
    monkeypatch.setattr(outputs, "_faster", faster)
    given = options(tmp_path, effort="thorough", variants=variants, kernels="on", max_trials=4)
    result = tune(program, given)
    assert "the dispatches of o3 are those of default, where they are searched" in result.notes
    assert {row["variant"] for row in trials_of(tmp_path)} <= {"default", "data-tiling"}
    assert result.program.variant == "o3"
    (dispatch,) = result.dispatches
    assert dispatch.status.startswith("skipped: ")


@pytest.mark.parametrize("developing", [False, True])
def test_a_fault_in_the_search_does_not_cost_what_was_found(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, developing: bool
) -> None:
    search = session.search

    def faulty(*given: Any) -> None:
        search(*given)
        raise KeyError("a knob that is not there")

    monkeypatch.setattr(session, "search", faulty)
    given = options(tmp_path)
    if developing:
        monkeypatch.setenv(TRACEBACK, "1")
        with pytest.raises(KeyError, match="a knob"):
            tune(program, given)
        with Database.open(tmp_path / "tilewright.db") as database:
            assert [run.status for run in database.runs()] == [RunStatus.INTERRUPTED]
        return
    monkeypatch.delenv(TRACEBACK)
    result = tune(program, given)
    (note,) = [one for one in result.notes if "a fault of tilewright" in one]
    assert note.startswith("the search ended before its end (KeyError: 'a knob that is not there'")
    assert "test_session.py:" in note
    assert len(trials_of(tmp_path)) == TRIALS
    (dispatch,) = result.dispatches
    assert dispatch.status in ("tuned", "default kept"), "it was confirmed"


def test_wrong_results_are_quarantined_and_never_shipped(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is changed behind the run's back, so that every candidate computes garbage."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    changed: list[Path] = []

    def corrupt(event: Event) -> None:
        if isinstance(event, DispatchesRanked):
            for path in tmp_path.glob("tilewright-*/default/**/expected.npz"):
                arrays = [np.asarray(a) + 1.0 for a in read_outputs(path)]
                write_outputs(path, arrays)
                changed.append(path)

    result = tune(program, options(tmp_path, strategy="guided"), corrupt)
    assert changed
    rows = trials_of(tmp_path)
    assert rows
    assert all(row["status"] != "ok" for row in rows), [row["status"] for row in rows]
    assert any(row["status"] == "wrong_result" for row in rows)
    assert result.changed == ()
    assert result.program.speedup == 1.0
    assert [d.status for d in result.dispatches] == ["default kept"]


def test_stopping_early_writes_out_what_was_found(program: Path, tmp_path: Path) -> None:
    seen: list[Event] = []
    session: TuningSession

    def stop_after_two(event: Event) -> None:
        if isinstance(event, TrialDone):
            seen.append(event)
            if len(seen) == 2:
                session.request_stop()

    session = TuningSession(program, options(tmp_path, max_trials=50), stop_after_two)
    result = session.run()
    assert result.interrupted
    assert result.trials_total == 2 == len(trials_of(tmp_path))
    assert (tmp_path / "out" / "program.vmfb").exists()
    with Database.open(tmp_path / "tilewright.db") as store:
        assert [run.status for run in store.runs()] == [RunStatus.INTERRUPTED]


def is_kernel(row: dict[str, str]) -> bool:
    return str(json.loads(row["knobs"])["pipeline"]).startswith("kernel-")


# tests/test_faults.py kills runs of all kinds; this one looks at kernels besides.
@pytest.mark.slow
def test_resume_after_kill_repeats_and_loses_nothing(program: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import test_session as t\n"
        "def tell(e):\n"
        "    if isinstance(e, t.TrialDone): print(e.trial.configuration.items, flush=True)\n"
        "given = t.options(Path(sys.argv[3]), max_trials=8, kernels='on')\n"
        "t.tune(Path(sys.argv[2]), given, tell)\n"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(program)]
    child = subprocess.Popen([*arguments, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [child.stdout.readline().strip() for _ in range(3)]
    os.kill(child.pid, signal.SIGKILL)
    told += [line.strip() for line in child.stdout if line.strip()]
    child.wait()
    with Database.open(tmp_path / "tilewright.db") as store:
        (run,) = store.runs()
        before = [str(t.configuration.items) for t in store.trials(run_id=run.id)]
    assert set(told) <= set(before), "a trial that was reported is not in the database"

    result = tune(program, options(tmp_path, max_trials=8, kernels="on", resume=True))
    assert result.trials_total == 8
    with Database.open(tmp_path / "tilewright.db") as store:
        (run,) = store.runs()
        after = [str(t.configuration.items) for t in store.trials(run_id=run.id)]
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 8
    rows = trials_of(tmp_path)
    assert len(rows) == 8
    assert {is_kernel(row) for row in rows} == {True, False}, "kernels beside configurations"
    assert {row["status"] for row in rows if is_kernel(row)} == {Status.OK}


def test_a_tuned_workload_is_reused_unless_fresh(
    program: Path,
    finished: tuple[Path, TuneResult, list[Event]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, _, _ = finished
    db = folder / "tilewright.db"
    # However much longer the default takes where others keep the machine busy.
    monkeypatch.setattr(reuse, "_SAME_DEFAULT", 1000.0)
    again = tune(program, options(tmp_path, db=db))
    assert again.trials_total == 0
    assert any("reusing" in note for note in again.notes)
    fresh = tune(program, options(tmp_path, db=db, fresh=True, seed=1, max_trials=1))
    assert fresh.trials_total == 1
    (tried,) = [row["knobs"] for row in trials_of(tmp_path)]
    assert tried != trials_of(folder)[0]["knobs"], "the seed decides what is tried"


def test_configuration_file_restricts_the_search(tmp_path: Path) -> None:
    (tmp_path / "matmul.mlir").write_text(PROGRAM)
    file = tmp_path / "auto-scheduler.cfg"
    file.write_text(
        "[Env]\ninput_file = matmul.mlir\n"
        f"output_file = {tmp_path / 'matmul.csv'}\n"
        "[SearchSpace]\ntile_m = [16,32,4096]\ntile_n = [16,48]\nblock_dim_x = [64]\n"
        "[SearchStrategy]\ntuner = RandomTuner\nn_trial = 2\n"
    )
    config = read_config(file, known_tuners=("RandomTuner", "random"))
    given = options(tmp_path, max_trials=None, strategy=None).with_config(config)
    assert config.input_file is not None
    result = tune(config.input_file, given)
    rows = trials_of(tmp_path)
    assert len(rows) == 2
    for row in rows:
        knobs = json.loads(row["knobs"])
        assert knobs["distribution_m"] in (16, 32)
        assert knobs["distribution_n"] in (16, 48)
    assert any("block_dim_x has no effect" in note for note in result.notes)
    assert any("tile_m = 4096 has no effect" in note for note in result.notes)
    assert (tmp_path / "matmul.csv").read_text() == (tmp_path / "out/trials.csv").read_text()


def test_a_run_that_checks_nothing_says_so_in_all_that_it_writes(
    program: Path, tmp_path: Path, finished: tuple[Path, TuneResult, list[Event]]
) -> None:
    events: list[Event] = []
    kept = tmp_path / "kept"
    db = finished[0] / "tilewright.db"
    given = options(
        tmp_path, max_trials=2, no_verify=True, verbose=True, keep_candidates=kept, db=db
    )
    result = tune(program, given, events.append)
    assert not result.program.verified
    assert "not compared" in result.program.outputs
    assert {d.verification for d in result.dispatches} == {"nothing (--no-verify)"}
    assert any("--no-verify" in note for note in result.notes)
    folder = tmp_path / "out"
    for name in ("run.log", "command.txt", "summary.json", "manifest.json"):
        assert "no-verify" in (folder / name).read_text().replace("no_verify", "no-verify"), name
    rows = trials_of(tmp_path)
    assert [row["message"] for row in rows if row["status"] == "ok"]
    assert all("not verified" in row["message"] for row in rows if row["status"] == "ok")
    assert not any("reusing" in note for note in result.notes), "not what was checked, nor back"
    # Verbose: each trial with the file that it was compiled from.
    details = [e.detail for e in events if isinstance(e, TrialDone)]
    assert len(details) == 2
    for detail in details:
        assert detail is not None
        source = Path(shlex.split(detail.command)[1])
        assert source.parent == kept / "default" / result.dispatches[0].name
        assert "lowering_config" in source.read_text()
        assert detail.flops == 2 * 96 * 80 * 112
        assert detail.configuration


def test_tools_of_another_version_are_refused(program: Path, tmp_path: Path) -> None:
    other = tmp_path / "tools" / "iree-compile"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho IREE compiler version 2.1.0\n")
    other.chmod(0o755)
    with pytest.raises(UserError, match=r"--iree-bin .* version 2\.1\.0, .* version 3\."):
        tune(program, options(tmp_path, iree_bin=other.parent))
    assert not (tmp_path / "out").exists()


def test_candidates_are_kept_when_asked_for_and_one_seed_gives_one_order_of_them(
    program: Path, finished: tuple[Path, TuneResult, list[Event]], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    result = tune(program, options(tmp_path, keep_candidates=kept))
    again = [row["knobs"] for row in trials_of(tmp_path)]
    assert again == [row["knobs"] for row in trials_of(finished[0])]
    # Without kernels none is one.
    assert not any(is_kernel(row) for row in trials_of(tmp_path))
    assert not any(d.dispatches or d.kernel for d in result.dispatches)
    assert not (tmp_path / "out" / "preprocessing_spec.mlir").exists()
    modules = sorted(kept.rglob("*.mlir"))
    commands = sorted(kept.rglob("*.txt"))
    assert len(modules) == len(commands) == TRIALS
    assert "--compile-from=executable-configurations" in commands[0].read_text()


def test_a_limit_that_leaves_no_time_to_search_is_said(program: Path, tmp_path: Path) -> None:
    result = tune(program, options(tmp_path, time_limit_s=0.1))
    assert result.trials_total == 0
    (said,) = [note for note in result.notes if "no candidate was tried" in note]
    assert "--time-limit" in said


def test_no_dispatches_are_read_once_more_when_time_is_up(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of a variant is handed back as it is, where it is the fastest."""

    def compared(_: Programs, builds: Sequence[Build]) -> dict[str, float]:
        return {one.name: 1.0 if one.name == "default" else 0.5 for one in builds}

    def read(*_: Any) -> None:
        pytest.fail("a variant was taken apart")

    monkeypatch.setattr(variant_phase, "_compare_variants", compared)
    monkeypatch.setattr(variant_phase, "_too_late", lambda *_: False)
    monkeypatch.setattr(session, "take_apart", read)
    variants = (DEFAULT_VARIANT, BUILT_IN["o3"])
    result = tune(program, options(tmp_path, time_limit_s=0.1, variants=variants))
    assert "no time for the dispatches of o3 (--time-limit)" in result.notes
    assert result.trials_total == 0
    assert [dispatch.name for dispatch in result.dispatches]
    assert (tmp_path / "out" / "program.vmfb").is_file()


def test_a_time_limit_counts_from_when_the_user_says(program: Path, tmp_path: Path) -> None:
    given = options(tmp_path, time_limit_s=1000.0)
    result = TuningSession(program, given, ignore, began=time.monotonic() - 2000.0).run()
    assert result.trials_total == 0
    assert result.wall_s > 2000.0


def test_opening_the_program_is_part_of_the_limit(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[float] = []

    def noted(*given: Any, **more: Any) -> Any:
        called.append(time.monotonic())
        return open_program(*given, **more)

    monkeypatch.setattr(session, "open_program", noted)
    begin = time.monotonic()
    given = options(tmp_path, time_limit_s=100.0, dry_run=True)
    with TuningSession(program, given)._opened() as context:
        assert begin <= context.started <= called[0]
        assert context.deadlines.end("finish") == context.started + 100.0


class TestUsersMistakes:
    def test_folder_of_something_else_is_not_overwritten(
        self, program: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious.txt").write_text("mine")
        with pytest.raises(UserError, match="something else"):
            tune(program, options(tmp_path))
        assert (tmp_path / "out" / "precious.txt").read_text() == "mine"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("func.func @main( {", "cannot parse"),
            ("func.func @main() { return }", "no tunable dispatch: the program runs no kernels"),
        ],
    )
    def test_bad_programs_leave_nothing_behind(
        self, text: str, message: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "bad.mlir"
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            tune(path, options(tmp_path))
        assert not (tmp_path / "out").exists()

    def test_wrong_input_names_what_the_program_takes(self, program: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="96x80xf32"):
            tune(program, options(tmp_path, inputs=("3x3xf32=1",)))
        assert not (tmp_path / "out").exists()

    def test_unknown_target_and_strategy(self, program: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cpu"):
            tune(program, options(tmp_path, target="gpu"))
        with pytest.raises(UserError, match="guided"):
            tune(program, options(tmp_path, strategy="simulated"))


@pytest.mark.slow
def test_two_runs_at_once_share_a_database(program: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import test_session as t\n"
        "folder = Path(sys.argv[3])\n"
        "o = t.options(folder.parent, output=folder / 'out', fresh=True)\n"
        "t.tune(Path(sys.argv[2]), o)\n"
    )
    children = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        children.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    code,
                    str(Path(__file__).parent),
                    str(program),
                    str(tmp_path / name),
                ]
            )
        )
    assert [child.wait(timeout=300) for child in children] == [0, 0]
    with Database.open(tmp_path / "tilewright.db") as store:
        runs = store.runs()
        assert len(runs) == 2
        assert [store.count_trials(run.id) for run in runs] == [TRIALS, TRIALS]


def test_search_spaces_default_is_not_a_candidate(
    finished: tuple[Path, TuneResult, list[Event]],
) -> None:
    folder, result, _ = finished
    default = result.dispatches[0].default_configuration
    own = [row for row in trials_of(folder) if row["configuration"] == default]
    assert own == [], "the compiler's own choice is the baseline, not a trial"
