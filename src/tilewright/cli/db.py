"""`tilewright db`: what the database holds, and moving it about."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import PATH, json_option, tuning_options
from tilewright.store import Database, Filter
from tilewright.tuning.parse import parse_duration

if TYPE_CHECKING:
    from tilewright.store import Database, Filter, ListingRow, RowCounts

_db = click.option(
    "--db",
    "place",
    metavar="FILE|URL",
    help="The database: a file, or postgresql+psycopg://USER@HOST/NAME (default: $TILEWRIGHT_DB, "
    "else a file in the user's data directory).",
)


def _which(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that `_filter` takes."""
    for flag, metavar, text in (
        ("--newer-than", "DURATION", "Only what was stored within it, such as 7d."),
        ("--workload", "TEXT", "Only workloads with this in their name, such as 512x512."),
        ("--compiler", "VERSION", "Only by this compiler version."),
        ("--target", "NAME", "Only for this target, as `db list` shows it."),
    ):
        function = click.option(flag, metavar=metavar, help=text)(function)
    return function


@click.group(
    name="db",
    epilog="""\b
Examples:
  tilewright db list --workload contraction
  tilewright db export laptop.jsonl --newer-than 30d
  tilewright db import laptop.jsonl --db shared.db
  tilewright db merge laptop.db --db postgresql+psycopg://me@host/tilewright
  tilewright db explain examples/matmul.mlir
  tilewright db prune --older-than 90d --dry-run""",
)
def command() -> None:
    """The database of trials and results.

    Every trial of every run is kept in one SQLite file, or on a PostgreSQL server, safe for several
    processes at once. Results in it are reused when the same workload comes up again on the same
    kind of processor with the same compiler version.
    """


@command.command("list", short_help="List workloads with their trials and results.")
@_db
@_which
@json_option
def list_(place: str | None, as_json: bool, **which: str | None) -> None:
    """List the workloads with their trials and results, the most recently used first."""
    wanted = _filter(**which)
    with _open(place) as store:
        rows = store.listing(wanted)
        where = store.place
    if as_json:
        output.print_json([_row_json(row) for row in rows])
        return
    if not rows:
        click.echo(f"{where}: nothing that fits")
        return
    from tilewright.tuning.variants import variant_of

    numbers = ("default ms", "tuned ms", "speed-up", "trials", "ok")
    table = output.table(
        ("workload", "variant", *numbers, "last", "target", "compiler"), right=numbers
    )
    for row in rows:
        counts = (str(row.trials), str(row.ok), words.when(row.last))
        what = (row.workload, variant_of(row.flags))
        table.add_row(*what, *_times(row), *counts, row.target, row.compiler)
    output.console().print(table)
    click.echo(f"{words.plural(len(rows), 'workload')} in {where}")


@command.command("export", short_help="Write runs, trials and results to a file.")
@click.argument("file", type=PATH)
@_db
@_which
def export(file: Path, place: str | None, **which: str | None) -> None:
    """Write runs, trials and results to FILE as JSON lines, for another machine to import."""
    wanted = _filter(**which)
    with _open(place) as store:
        counts = store.export(file, wanted)
    click.echo(f"{file}: {_counted(counts)}")


@command.command("import", short_help="Merge exported files into the database.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PATH)
@_db
def import_(files: tuple[Path, ...], place: str | None) -> None:
    """Merge exported FILEs into the database; what it has already is not added again."""

    with Database.open(place) as store:
        for file in files:
            click.echo(f"{file}: {_counted(store.import_(file))} new in {store.place}")


@command.command("prune", short_help="Delete runs with their trials.")
@click.option("--older-than", metavar="DURATION", help="Runs begun longer ago, such as 90d.")
@click.option("--target", metavar="NAME", help="Runs for this target.")
@click.option("--compiler", metavar="VERSION", help="Runs by this compiler version.")
@click.option("--not-compiler", metavar="VERSION", help="Runs by any other compiler version.")
@click.option("--results", is_flag=True, help="Delete the results of their workloads too.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_db
def prune(
    place: str | None, older_than: str | None, results: bool, dry_run: bool, **which: str | None
) -> None:
    """Delete the runs that meet every condition given, with their trials.

    The results of workloads stay, so that they can be reused, unless --results is given. A run
    that is still going on is never deleted.
    """
    age = _duration(older_than, "--older-than")
    with _open(place) as store:
        counts = store.prune(older_than_s=age, keep_results=not results, dry_run=dry_run, **which)
        where = store.place
    click.echo(f"{where}: {_counted(counts)} {'would be deleted' if dry_run else 'deleted'}")


@command.command("merge", short_help="Add what other databases have.")
@click.argument("others", nargs=-1, required=True, metavar="OTHER...")
@_db
def merge(others: tuple[str, ...], place: str | None) -> None:
    """Add what the databases OTHER have, files or servers; what is there is not added again."""
    with Database.open(place) as store:
        for other in others:
            with Database.open(other, create=False) as source:
                counts = store.merge(source)
                click.echo(f"{source.place}: {_counted(counts)} new in {store.place}")


@command.command("gc", short_help="Delete what serves nothing.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_db
def gc(place: str | None, dry_run: bool) -> None:
    """Delete runs that ended without storing anything, and workloads and machines that nothing
    names; give the space back."""
    with _open(place) as store:
        counts, where = store.gc(dry_run), store.place
    click.echo(f"{where}: {_counted(counts)} {'would be deleted' if dry_run else 'deleted'}")


@command.command("verify", short_help="Check that everything in it can be read.")
@_db
def verify(place: str | None) -> int:
    """Read every row as those do who use it: pages, references, fields, numbers given twice.

    Exit status 3 where something is wrong.
    """
    with _open(place) as store:
        found, where = store.verify(), store.place
    for text in found:
        click.echo(f"{where}: {text}")
    click.echo(f"{where}: {words.plural(len(found), 'fault') if found else 'all is well'}")
    return 3 if found else 0


@command.command("explain", short_help="Say why a record is used here, or is not.")
@click.argument("what", metavar="PROGRAM|WORKLOAD|NUMBER")
@tuning_options("target", "threads", "iree_flags", "only", "kernels", "device")
@_db
@json_option
def explain(what: str, place: str | None, as_json: bool, **given: Any) -> None:
    """Compare records with what a run here would measure: each field of their keys.

    Of a PROGRAM each dispatch is looked up; else the records with that WORKLOAD in their name, or
    the one with that NUMBER (`db list --json`: task_id).
    """
    from tilewright.tuning.explain import explain as run
    from tilewright.tuning.options import TuneOptions, read_fields

    options = TuneOptions(**read_fields(given), dry_run=True)
    with _open(place) as store:
        found = run(what, store, options, lambda text: click.echo(text, err=True))
    if as_json:
        output.print_json([one.to_json() for one in found])
        return
    for one in found:
        record = f" (task {one.task}, run {one.run}, {words.plural(one.trials, 'trial')})"
        click.echo(f"{one.name}{record if one.task else ''}: {one.verdict}")
        if one.compared:
            table = output.table(("", "key", "recorded", "now"))
            for field in one.compared:
                table.add_row("=" if field.equal else "!", field.field, field.recorded, field.now)
            output.console().print(table)


def _open(place: str | None) -> Database:
    """An existing database: a mistyped name must not make an empty one."""

    return Database.open(place, create=False)


def _filter(
    target: str | None, compiler: str | None, workload: str | None, newer_than: str | None
) -> Filter:

    age = _duration(newer_than, "--newer-than")
    return Filter(target, compiler, workload, None if age is None else time.time() - age)


def _duration(text: str | None, option: str) -> float | None:

    return None if text is None else parse_duration(text, option)


def _times(row: ListingRow) -> tuple[str, str, str]:
    """Default, tuned and speed-up as far as the row has them."""
    if row.result is None:
        return "-", words.milliseconds(row.best_s), "-"
    tuned = row.result.configuration is not None
    return (
        words.milliseconds(row.result.default_s),
        words.milliseconds(row.result.tuned_s),
        words.times(row.result.speedup) if tuned else "default kept",
    )


def _row_json(row: ListingRow) -> dict[str, object]:
    data = dataclasses.asdict(row)
    if row.result is not None:
        chosen = row.result.configuration
        data["result"]["configuration"] = None if chosen is None else dict(chosen.items)
        data["result"]["speedup"] = row.result.speedup
    return data


def _counted(counts: RowCounts) -> str:
    return ", ".join(
        words.plural(number, name.removesuffix("s")) for name, number in vars(counts).items()
    )
