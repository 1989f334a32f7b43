"""`tilewright ci`: whether results still hold, for CI servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli import output
from tilewright.cli.tuning_options import (
    PATH,
    against_option,
    json_option,
    tuning_options,
    with_other_iree,
)
from tilewright.errors import UserError
from tilewright.files import check_writable_file, write_file, write_text
from tilewright.tuning.parse import parse_share

if TYPE_CHECKING:
    from tilewright.tuning.check_result import ResultCheck

REGRESSION = 3
"""The exit status of a check that found something that no longer holds."""

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@click.group(
    name="ci",
    epilog="""\b
Examples:
  tilewright ci check tuned
  tilewright ci check tuned --against 3.12 --summary check.md --junit check.xml""",
)
def command() -> None:
    """Whether results of tuning still hold: for CI servers, and after an update of IREE."""


@command.command("check", short_help="See whether a result folder still holds.")
@click.argument("result", metavar="RESULT_DIR", type=PATH)
@against_option
@click.option("--program", metavar="FILE", type=PATH,
              help="The program (default: the one that the result was made of).")  # fmt: skip
@click.option("--tolerance", metavar="SHARE",
              help="Part of the recorded speed-up that may be gone (default: 10%).")  # fmt: skip
@click.option("--summary", metavar="FILE", type=PATH,
              help="Write a summary in Markdown; it is also added to $GITHUB_STEP_SUMMARY where "
              "that is set.")  # fmt: skip
@click.option("--junit", metavar="FILE", type=PATH, help="Write a report in JUnit's XML.")
@click.option("--compile-only", is_flag=True,
              help="Only see whether the specs apply; run nothing.")  # fmt: skip
@tuning_options("target", "inputs", "parameters", "iree_flags", "threads", "device")
@json_option
def check(
    result: Path,
    against: str | None,
    program: Path | None,
    tolerance: str | None,
    summary: Path | None,
    junit: Path | None,
    compile_only: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """See whether the result in RESULT_DIR still holds with this IREE, on this machine.

    Every entry of its specs must still apply to the program, the tuned program must compute what
    the untuned one does, and must be as fast beside it as recorded, but for the tolerance; both are
    timed in interleaved rounds. On another kind of machine it must not be slower than untuned.

    Exit status: 0 it holds; 3 something no longer does, named in the output; 2 a mistake in what
    was asked.
    """
    for path, flag in ((summary, "--summary"), (junit, "--junit")):
        if path is not None:
            check_writable_file(path, flag)
    share = None if tolerance is None else parse_share(tolerance, "--tolerance")
    if against is not None:
        return with_other_iree(against)
    from tilewright.report.check_result import junit as junit_report
    from tilewright.report.check_result import markdown
    from tilewright.tuning.check_result import DEFAULT_TOLERANCE, check_result

    found = check_result(
        result,
        program=program,
        tolerance=DEFAULT_TOLERANCE if share is None else share,
        compile_only=compile_only,
        **given,
    )
    text = markdown(found)
    if summary is not None:
        write_text(summary, text)
    if junit is not None:
        write_file(junit, junit_report(found))
    _add_to_step(text)
    if as_json:
        output.print_json(found)
    else:
        _print(found)
    return 0 if found.ok else REGRESSION


def _print(found: ResultCheck) -> None:
    """The check on the terminal, and the failures once more at its end."""
    from tilewright.report.check_result import cases_table, speed_table

    click.echo(
        f"{found.folder}: made with IREE {found.made_with}, checked with IREE {found.checked_with}"
    )
    output.print_table(cases_table(found))
    if found.speedup is not None:
        output.print_table(speed_table(found))
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    for one in found.failed:
        click.echo(f"failed: {one.kind} {one.name}: {one.message}", err=True)
    click.echo(f"{found.folder}: {'holds' if found.ok else 'no longer holds'}")


def _add_to_step(text: str) -> None:
    """Add the summary to that of the step that GitHub runs."""
    path = os.environ.get(_SUMMARY_VARIABLE)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"${_SUMMARY_VARIABLE}: cannot write {path} ({error.strerror})") from error
