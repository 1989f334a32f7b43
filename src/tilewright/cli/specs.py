"""`tilewright specs`: libraries of specs, filled and copied."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright import words
from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError


@click.group(
    name="specs",
    epilog="""\b
Examples:
  tilewright specs push shared-specs tuned
  tilewright specs pull https://example.org/specs -o shared-specs
  tilewright tune model.mlir --library shared-specs""",
)
def command() -> None:
    """Libraries of specs: folders of plain files, which any web server can hand out.

    `tilewright spec library` shows what one has; `tilewright tune --library` begins with it.
    """


@command.command("push", short_help="Put specs into a library.")
@click.argument("library", metavar="DIR")
@click.argument("given", metavar="RESULT_DIR|SPEC...", nargs=-1, required=True, type=PATH)
def push(library: str, given: tuple[Path, ...]) -> None:
    """Put the specs of result folders, or specs, into the library DIR; it is made where it is not.

    A spec that is there already is not put in again.
    """
    from tilewright.files import read_text
    from tilewright.sketch.spec_tasks import report_on
    from tilewright.tuning import spec_library
    from tilewright.tuning.outputs import PREPROCESSING, SPEC, read_manifest

    if spec_library.is_url(library):
        raise UserError(
            f"{library}: a URL is only read: push into a folder, and put that where it is served"
        )
    pushed = []
    for one in given:
        files, program = [one], ""
        if one.is_dir():
            program = str(read_manifest(one)["program"]["digest"])
            files = [path for path in (one / SPEC, one / PREPROCESSING) if path.is_file()]
        for path in files:
            text, report = read_text(path, "spec"), report_on(path)
            if one.is_dir() and not report.evidence:
                continue
            pushed.append((text.encode(), report, program))
    if not pushed:
        raise UserError(
            f"{', '.join(map(str, given))}: no entries that are known to be for something; tune "
            "with this version, and push what was found"
        )
    new = spec_library.push(Path(library), pushed)
    click.echo(f"{library}: {words.plural(len(new), 'new spec')} of {len(pushed)}")


@command.command("pull", short_help="Copy a library.")
@click.argument("library", metavar="DIR|URL|own")
@click.option("-o", "--output", "folder", required=True, metavar="DIR", type=PATH,
              help="The folder that has the library afterwards, beside what it had.")  # fmt: skip
def pull(library: str, folder: Path) -> None:
    """Copy a library of specs, from a folder or from a web server; digests are checked."""
    from tilewright.tuning import spec_library

    there = spec_library.open_library(library)
    new = spec_library.pull(there, folder)
    click.echo(f"{folder}: {words.plural(len(new), 'new spec')} of {len(there.specs)}")
