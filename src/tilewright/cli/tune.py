"""`tilewright tune`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilewright.cli import BEGAN, output
from tilewright.cli.interrupt import Interruption, interruptible
from tilewright.cli.tuning_options import tuning_options
from tilewright.errors import UserError
from tilewright.target import parse_target

if TYPE_CHECKING:
    from tilewright.cli.view import RunView
    from tilewright.tuning.compile_only import CompileOnlyResult
    from tilewright.tuning.request import TuneRequest
    from tilewright.tuning.result import TuneResult
    from tilewright.tuning.session import TuningSession

T = TypeVar("T")


@click.command(
    name="tune",
    epilog="""\b
Examples:
  tilewright tune matmul.mlir -o tuned
  tilewright tune model.mlir --effort quick --time-limit 10m
  tilewright tune model.onnx --input 1x3x224x224xf32 --threads 4
  tilewright tune model.pt2             (of torch.export.save)
  tilewright tune model.mlir --parameters model=weights.irpa
  tilewright tune model.mlir --variants default,mine=--iree-opt-level=O3
  tilewright tune                       (reads auto-scheduler.cfg, if it is here)
  tilewright tune matmul.mlir --dry-run
  tilewright tune matmul.mlir --target cuda:sm_80 --compile-only
  tilewright tune matmul.mlir --target cuda:sm_80 --runner dir:measurements

The output folder holds tuning_spec.mlir, preprocessing_spec.mlir where kernels
of our own are used, program.vmfb, command.txt (the plain iree-compile line that
makes the same program, and how it runs fastest), summary.json, trials.csv,
run.log, manifest.json and report.html, a page on all of it.

Ctrl-C ends the search and writes out what was found; a second Ctrl-C aborts
(exit status 130), and --resume goes on from there.""",
)
@click.argument("program", required=False, type=click.Path(path_type=Path))
@tuning_options()
@click.option("--no-report", "report", is_flag=True, default=True, flag_value=False,
    help="Write no report.html.")  # fmt: skip
def command(program: Path | None, report: bool, **given: Any) -> None:
    """Find faster code for the hot dispatches of PROGRAM, and prove it.

    PROGRAM is MLIR (text or bytecode, in any input dialect that IREE takes: StableHLO, TOSA,
    linalg), an .onnx model, or a .pt2 file of torch.export; without one a configuration file names
    it, --config or auto-scheduler.cfg in this folder. It
    is compiled and measured as it is; then whole-program variants, configurations of each hot
    dispatch and, on CPUs, kernels of our own are tried on this machine. A choice is kept only when
    the results are right and it is faster beyond the noise, alone and in the whole program.
    """
    from tilewright.tuning.project import find_project
    from tilewright.tuning.request import make_request

    asked = {k: None if v == () else v for k, v in given.items()}
    request = make_request(program, asked, find_project(Path.cwd()))
    if request.options.dry_run:
        _dry_run(request)
        return
    run_and_tell(request, report)


def run_and_tell(request: TuneRequest, report: bool = True) -> None:
    """Run, and print what was found.

    Args:
        request: what is run.
        report: whether a page is written into the result folder.
    """
    from tilewright.tuning.compile_only import CompileOnlyResult

    result = _run(request, lambda session: session.run())
    if isinstance(result, CompileOnlyResult):
        _print_compiled(result, request)
        return
    page = _report(result, request) if report else None
    if request.options.json:
        output.print_json(result.to_json())
        return
    from tilewright.cli.summary import print_summary

    print_summary(result, output.console(), page)


def _dry_run(request: TuneRequest) -> None:
    from tilewright.tuning.dry_run import plan_lines

    result = _run(request, lambda session: session.dry_run())
    if request.options.json:
        output.print_json(result.to_json())
        return
    for line in plan_lines(result):
        click.echo(line)


def _print_compiled(result: CompileOnlyResult, request: TuneRequest) -> None:
    from tilewright.tuning.compile_only import summary_lines

    if request.options.json:
        output.print_json(result.to_json())
        return
    for line in summary_lines(result):
        click.echo(line)


def _report(result: TuneResult, request: TuneRequest) -> Path | None:
    """Write the page; a run is not lost because that fails."""
    from tilewright.measure.peak import cached_peak
    from tilewright.report import write_tuning_page

    target = parse_target(request.options.target, request.options.threads)
    # What is not known already is not measured here: the user waits for the result.
    peak = None if target.is_gpu else cached_peak(target.cores)
    try:
        return write_tuning_page(result.output, peak=peak)
    except (UserError, OSError, ValueError) as error:
        click.echo(f"warning: no report: {error}", err=True)
        return None


def _run(request: TuneRequest, do: Callable[[TuningSession], T]) -> T:
    from tilewright.tuning.context import Interrupted
    from tilewright.tuning.events import Event, Note
    from tilewright.tuning.session import TuningSession

    view = make_view(request.options.time_limit_s, plain=request.options.json)

    def listen(event: Event) -> None:
        view.listen(event)
        if view.progress.stopping:
            # Once more: a Ctrl-C before the run had begun found nothing to stop.
            session.request_stop()

    session = TuningSession(request.program, request.options, listen, began=BEGAN)
    try:
        with view, _stoppable(session, view):
            for text in request.notes:
                view.listen(Note(text))
            for text in request.warnings:
                view.listen(Note(text, warning=True))
            return do(session)
    except (KeyboardInterrupt, Interrupted) as error:
        raise Interruption(
            "interrupted: no results were written; --resume goes on with the trials so far"
        ) from error


def make_view(time_limit_s: float | None, plain: bool) -> RunView:
    """A view on stderr: stdout is for the result alone.

    Args:
        time_limit_s: the run's, if it has one.
        plain: no live view in any case.
    """
    from tilewright.cli.view import PlainView, RunProgress

    progress = RunProgress(time_limit_s)
    console = output.console(stderr=True)
    # Rich also takes FORCE_COLOR, which many log viewers set, for a terminal.
    if plain or not sys.stderr.isatty() or console.is_dumb_terminal:
        return PlainView(progress, lambda text: click.echo(text, err=True))
    # Drawing terminal pictures takes more of rich than writing lines does.
    from tilewright.cli.live import LiveView

    return LiveView(progress, console)


@contextmanager
def _stoppable(session: TuningSession, view: RunView) -> Iterator[None]:
    class Run:
        def request_stop(self) -> None:
            view.stopping()
            session.request_stop()

        def abort(self) -> None:
            session.abort()

    with interruptible(Run()):
        yield
