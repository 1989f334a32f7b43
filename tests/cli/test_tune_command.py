"""`tilewright tune`: its options reach the run, its result is shown, signals end it in order.

The run itself is played by a stand-in here; tests/cli/test_end_to_end.py has the real one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import commands
from tilewright.cli.summary import program_lines
from tilewright.errors import UserError
from tilewright.tuning import events, session
from tilewright.tuning.context import Interrupted
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.result import DispatchSummary, ProgramSummary, TuneResult

TUNED = DispatchSummary(
    name="main_dispatch_0_matmul",
    workload="contraction 64x64x64 f32",
    count=3,
    share=0.75,
    default_ms=4.0,
    tuned_ms=2.0,
    speedup=2.0,
    trials=60,
    status="tuned",
    configuration="DoubleTilingExpert: distribution 32,32,0",
    default_configuration="DoubleTilingExpert: distribution 64,64,0",
    speedup_ci=(1.9, 2.1),
    gflops_default=52.4,
    gflops_tuned=104.8,
    verification="float64 NumPy",
    failed_trials=4,
    space_points=8.6e7,
    tried_share=60 / 8.6e7,
)
SKIPPED = DispatchSummary("pad", "", 1, 0.0, None, None, 1.0, 0, "skipped: dynamic shape", "")
RESULT = TuneResult(
    program=ProgramSummary(
        default_ms=16.0,
        tuned_ms=10.0,
        speedup=1.6,
        speedup_ci=(1.55, 1.65),
        verified=True,
        variant="data-tiling",
        variants={"default": 16.0, "data-tiling": 12.0, "im2col": "it crashed"},
        largest_error=2.5e-6,
        allowed_error=1e-4,
        constant_work={},
    ),
    dispatches=(TUNED, SKIPPED),
    trials_total=60,
    wall_s=75.0,
    phase_s={"search": 50.0},
    output=Path("out"),
    changed=("main_dispatch_0_matmul",),
)
NOTHING = replace(
    RESULT,
    program=replace(
        RESULT.program, tuned_ms=16.0, speedup=1.0, speedup_ci=(1.0, 1.0), variant="default"
    ),
    dispatches=(replace(TUNED, status="default kept", tuned_ms=4.0, speedup=1.0, speedup_ci=None),),
    changed=(),
)


class Session:
    """Stands in for a run: says a little, then gives its outcome."""

    outcome: TuneResult | Exception = RESULT
    asked: dict[str, Any]

    def __init__(
        self, program: Path, options: TuneOptions, listener: events.Listener, began: float
    ) -> None:
        type(self).asked = {"program": program, "options": options}
        self._listener = listener

    def request_stop(self) -> None: ...

    def run(self) -> TuneResult:
        self._listener(events.PhaseStarted("search", "as if"))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[Session]:
    class Own(Session):
        pass

    monkeypatch.setattr(session, "TuningSession", Own)
    return Own


def tune(*args: str) -> Result:
    return CliRunner().invoke(commands, ["tune", *args], prog_name="tilewright")


def test_the_part_of_the_time_that_changes_layouts() -> None:
    packs = replace(TUNED, kind="pack", count=2, tuned_ms=0.5, status="default kept")
    rest = replace(TUNED, kind="contraction", count=3, tuned_ms=3.0)
    # What a kernel for several dispatches has taken over, and that task where nothing is kept.
    gone = replace(packs, status="part of chain")
    chain = replace(packs, kind="chain", dispatches=("a", "b"))
    assert RESULT.layout_share == 0.0
    result = replace(RESULT, dispatches=(packs, rest, gone, chain, SKIPPED))
    assert result.layout_share == pytest.approx(0.1)
    assert result.to_json()["layout_share"] == 0.1
    (line,) = (one for one in program_lines(result) if one.startswith("Changes of layout"))
    assert "take 10.0% of the time" in line
    assert line.endswith("; no constant is packed or transformed in a call.")


def test_constants_that_are_packed_in_a_call_are_counted() -> None:
    program = replace(RESULT.program, constant_work={"pack_0": 2, "pack_1": 1})
    (line,) = (one for one in program_lines(replace(RESULT, program=program)) if "Changes" in one)
    assert line.endswith("; in every call 3 dispatches pack or transform constants.")
    unknown = replace(RESULT, program=replace(program, constant_work=None))
    assert not any("constant" in one for one in program_lines(unknown))


def test_every_option_reaches_the_run(stand_in: type[Session], tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.touch()
    config = tmp_path / "a.cfg"
    config.write_text("[SearchSpace]\ntile_m = [8]\n")
    result = tune(
        "m.mlir", "--target", "cpu:znver4", "--effort", "quick", "--max-trials", "9",
        "--time-limit", "1h30m", "--strategy", "grid", "--seed", "4", "--function", "f",
        "--input", "4xf32=1", "--input", "@a.npy", "--parameters", f"model={weights}",
        "--iree-flag=--iree-opt-level=O2", "--iree-flag", "--x", "--variants", "default,mine=--y",
        "--only", "matmul", "--threads", "2", "--config", str(config), "--db", "t.db",
        "--resume", "--fresh", "--keep-candidates", "kept", "-o", "result", "--json",
        "--iree-bin", "tools", "--no-verify", "--verbose",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    options: TuneOptions = stand_in.asked["options"]
    assert stand_in.asked["program"] == Path("m.mlir")
    assert options == TuneOptions(
        target="cpu:znver4",
        effort="quick",
        max_trials=9,
        time_limit_s=5400.0,
        strategy="grid",
        seed=4,
        function="f",
        inputs=("4xf32=1", "@a.npy"),
        parameters=options.parameters,
        iree_flags=("--iree-opt-level=O2", "--x"),
        variants=options.variants,
        only="matmul",
        threads=2,
        config=options.config,
        db=Path("t.db"),
        resume=True,
        fresh=True,
        keep_candidates=Path("kept"),
        output=Path("result"),
        json=True,
        iree_bin=Path("tools"),
        no_verify=True,
        verbose=True,
    )
    assert [str(p) for p in options.parameters] == [f"model={weights}"]
    assert [str(v) for v in options.variants or ()] == ["default", "mine=--y"]
    assert options.config is not None
    assert options.config.path == config


def test_options_not_given_are_the_defaults(stand_in: type[Session]) -> None:
    assert tune("m.mlir").exit_code == 0
    assert stand_in.asked["options"] == TuneOptions()


def test_the_result_says_what_was_found(stand_in: type[Session]) -> None:
    result = tune("m.mlir")
    text = " ".join(result.stdout.split())
    assert "main_dispatch_0_matmul 3 75.0% 4.00 2.00 2.00x (1.90 to 2.10) 52.4 -> 105 tuned" in text
    assert "now DoubleTilingExpert: distribution 32,32,0" in text
    assert "default DoubleTilingExpert: distribution 64,64,0" in text
    assert "checked against float64 NumPy" in text
    assert "pad: skipped: dynamic shape" in text
    assert "main_dispatch_0_matmul 8.6e+07 60 4 7e-05%" in text
    assert "im2col it crashed" in text
    assert "Program: 16.0 ms by default, 10.0 ms tuned: 1.60x the speed" in text
    assert "95% interval 1.55 to 1.65), variant data-tiling" in text
    assert "Outputs equal those of the untuned program. Largest error: 2.5e-06, allowed" in text
    by_float64 = replace(RESULT.program, compared_with="float64 NumPy").outputs
    assert by_float64.startswith(
        "Outputs are as right as the untuned program's, by float64 NumPy. Largest error: 2.5e-06"
    )
    assert "changed the configuration of 1 dispatch: main_dispatch_0_matmul" in text
    assert "60 trials in 1 min 15 s" in text
    assert "search: as if" in result.stderr


def test_the_line_to_make_it_by_hand(stand_in: type[Session], tmp_path: Path) -> None:
    (tmp_path / "command.txt").write_text("iree-compile m.mlir " + "--flag " * 60 + "-o x.vmfb\n")
    stand_in.outcome = replace(RESULT, output=tmp_path)
    line = "iree-compile m.mlir " + "--flag " * 60 + "-o x.vmfb"
    assert f"\n  {line}\n" in tune("m.mlir").stdout, "whole, on a line of its own"


def test_nothing_better_is_a_success_said_plainly(stand_in: type[Session]) -> None:
    stand_in.outcome = NOTHING
    result = tune("m.mlir")
    assert result.exit_code == 0
    assert "Nothing beat the compiler's defaults" in result.stdout
    assert "2.00x" not in result.stdout


def test_a_variant_alone(stand_in: type[Session]) -> None:
    stand_in.outcome = replace(RESULT, dispatches=NOTHING.dispatches, changed=())
    assert "The variant alone is what made it faster" in tune("m.mlir").stdout


def test_json_is_all_that_stdout_has(stand_in: type[Session]) -> None:
    result = tune("m.mlir", "--json")
    assert json.loads(result.stdout) == json.loads(json.dumps(RESULT.to_json()))
    assert "search: as if" in result.stderr


def test_warnings_of_the_configuration_file(stand_in: type[Session], tmp_path: Path) -> None:
    config = tmp_path / "a.cfg"
    config.write_text("[SearchSpace]\ntile_m = [8]\ntile_m = [8]\n")
    result = tune("m.mlir", "--config", str(config))
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert "tile_m is given more than once" in result.stderr


def test_a_users_mistake_in_the_run(stand_in: type[Session]) -> None:
    stand_in.outcome = UserError("m.mlir:3:5: error: expected ')'")
    result = tune("m.mlir")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "error: m.mlir:3:5: error: expected ')'"
    assert result.stdout == ""


def test_a_fault_of_ours_in_the_run(stand_in: type[Session]) -> None:
    stand_in.outcome = RuntimeError("the spec changed nothing")
    result = tune("m.mlir")
    assert result.exit_code == 1
    assert "internal error: RuntimeError: the spec changed nothing" in result.stderr


def test_an_interrupt_with_nothing_found(stand_in: type[Session]) -> None:
    stand_in.outcome = Interrupted()
    result = tune("m.mlir")
    assert result.exit_code == 130
    assert "no results were written" in result.stderr


def test_stopped_early_is_said(stand_in: type[Session]) -> None:
    stand_in.outcome = replace(RESULT, interrupted=True)
    result = tune("m.mlir")
    assert result.exit_code == 0
    assert "Stopped early by Ctrl-C after 60 trials" in result.stdout


# Signals, to a process of its own

PLAYED = """
    import sys, time
    from pathlib import Path
    from tilewright.cli.main import main
    from tilewright.tuning import events, session
    sys.path.insert(0, {here!r})
    from test_tune_command import RESULT
    from dataclasses import replace

    class Session:
        stops = 0
        def __init__(self, program, options, listener, began):
            self.listener = listener
        def request_stop(self):
            Session.stops += 1
        def abort(self):
            Path("stopped").touch()
        def run(self):
            self.listener(events.PhaseStarted("search"))
            heed = {heed}
            end = time.monotonic() + 20
            try:
                print("running", flush=True)
                while time.monotonic() < end and not (heed and Session.stops):
                    time.sleep(0.01)
            finally:
                time.sleep(0.3)
                Path("tidied").touch()
            return replace(RESULT, interrupted=True)

    session.TuningSession = Session
    sys.argv = ["tilewright", "tune", "m.mlir"]
    main()
"""


def play(tmp_path: Path, heed: bool, *signals: int, apart_s: float = 0.15) -> tuple[int, str, str]:
    """Send signals to a run, the first as soon as it goes on: exit status, stdout, stderr."""
    code = textwrap.dedent(PLAYED).format(here=str(Path(__file__).parent), heed=heed)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    for number in signals:
        process.send_signal(number)
        time.sleep(apart_s)
    stdout, stderr = process.communicate(timeout=15)
    return process.returncode, stdout, stderr


def test_the_first_interrupt_stops_and_writes_out(tmp_path: Path) -> None:
    status, stdout, stderr = play(tmp_path, True, signal.SIGINT)
    assert status == 0
    assert "press Ctrl-C again to abort" in stderr
    assert "Stopped early by Ctrl-C" in stdout
    assert not (tmp_path / "stopped").exists()


def test_the_second_interrupt_aborts(tmp_path: Path) -> None:
    status, stdout, stderr = play(tmp_path, False, signal.SIGINT, signal.SIGINT)
    assert status == 130
    assert stdout == ""
    assert "no results were written" in stderr
    assert "Traceback" not in stderr
    assert (tmp_path / "stopped").exists(), "compilers still running were not ended"
    assert (tmp_path / "tidied").exists()


def test_more_interrupts_do_not_break_off_the_tidying_up(tmp_path: Path) -> None:
    status, _, stderr = play(tmp_path, False, *[signal.SIGINT] * 4, apart_s=0.05)
    assert status == 130
    assert (tmp_path / "tidied").exists()
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_aborts_at_once(tmp_path: Path, number: int) -> None:
    status, stdout, stderr = play(tmp_path, False, number)
    assert status == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert (tmp_path / "tidied").exists()


def test_signals_are_as_they_were_afterwards(stand_in: type[Session]) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    tune("m.mlir")
    assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
