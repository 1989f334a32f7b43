"""`tilewright report`."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError
from tilewright.measure.machine import describe


@click.command(
    name="report",
    epilog="""\b
Examples:
  tilewright report tuned
  tilewright report tuned --output page.html
  tilewright report --compare results.json --output comparison.html
  tilewright report --compare results.json --markdown""",
)
@click.argument("folder", required=False, metavar="[OUT]", type=PATH)
@click.option("--compare", "results", metavar="RESULTS", type=PATH,
    help="Report on results of `tilewright compare` instead.")  # fmt: skip
@click.option("--output", "-o", metavar="FILE", type=PATH,
    help="The page (default: report.html in OUT, or beside RESULTS).")  # fmt: skip
@click.option("--base", metavar="NAME", help="What the speed-ups of a comparison are over.")
@click.option("--markdown", is_flag=True, help="Print the tables of a comparison as Markdown.")
@click.option("--no-peak", "peak", is_flag=True, default=True, flag_value=False,
    help="No roofline where the machine's peak is not known yet.")  # fmt: skip
def command(
    folder: Path | None,
    results: Path | None,
    output: Path | None,
    base: str | None,
    markdown: bool,
    peak: bool,
) -> None:
    """Make one HTML page on a tuning run, or on a comparison, that opens without a network.

    OUT is the folder that `tilewright tune` wrote, which has such a page already; here it is made
    anew, with a roofline under the measured limits of this machine.
    """

    if (folder is None) == (results is None):
        raise UserError("give either the folder of a tuning run, or --compare RESULTS")
    if folder is not None:
        if markdown or base is not None:
            raise UserError("--markdown and --base are for comparisons; give --compare RESULTS")
        try:
            page = _tuning(folder, output, peak)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{folder}: a file of it is not as tilewright writes it ({type(error).__name__}: "
                f"{error}); tune the program again"
            ) from error
        click.echo(f"{page}: written")
        return
    assert results is not None
    from tilewright.report import comparison_markdown, write_comparison_page

    if markdown:
        click.echo(comparison_markdown(results, base))
        return
    page = write_comparison_page(results, output or results.with_suffix(".html"), base)
    click.echo(f"{page}: written")


def _tuning(folder: Path, output: Path | None, measure: bool) -> Path:
    from tilewright.measure.peak import cached_peak, machine_peak
    from tilewright.report import write_tuning_page
    from tilewright.report.result_folder import read_result_folder

    manifest = read_result_folder(folder).manifest
    threads = manifest["options"].get("threads") or manifest["machine"]["threads"]
    here = _is_here(manifest["machine"]["cpu"])
    found = (machine_peak(threads) if measure else cached_peak(threads)) if here else None
    return write_tuning_page(folder, output, found)


def _is_here(cpu: str) -> bool:
    """Whether a result is of a machine such as this one."""

    return describe().cpu == cpu
