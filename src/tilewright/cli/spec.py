"""`tilewright spec`: tuning specs merged, checked, shown; programs freed of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import (
    PATH,
    against_option,
    json_option,
    tuning_options,
    with_other_iree,
)
from tilewright.files import write_file, write_text


@click.group(
    name="spec",
    epilog="""\b
Examples:
  tilewright spec show tuned/tuning_spec.mlir
  tilewright spec merge a.mlir b.mlir -o both.mlir
  tilewright spec check both.mlir --program model.mlir
  tilewright spec update tuned -o tuned-again
  tilewright spec library own
  tilewright spec strip dispatch.mlir -o plain.mlir""",
)
def command() -> None:
    """Specs: transform-dialect libraries that carry configurations and kernels into iree-compile.

    Specs written by hand or by other tools work as well as those of tilewright.
    """


@command.command("merge", short_help="Make one spec of any number.")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", type=PATH)
@click.option("-o", "--output", "out", required=True, metavar="FILE", type=PATH,
              help="The merged spec.")  # fmt: skip
@click.option("--apart", is_flag=True,
              help="Leave kernels that follow each other dispatches of their own, to be seen one "
              "by one in a trace.")  # fmt: skip
def merge(specs: tuple[Path, ...], out: Path, apart: bool) -> None:
    """Make one spec of any number; where two fit the same dispatch, the earlier one wins.

    Preprocessing specs, which have the kernels, are joined with each other.
    """
    from tilewright.sketch.spec_tasks import merge_files

    merged = merge_files(specs, apart)
    write_text(out, merged.text)
    names = {f"spec {n}": str(path) for n, path in enumerate(specs, start=1)}
    for note in merged.notes:
        click.echo(f"note: {_named(note, names)}", err=True)
    click.echo(
        f"{out}: {words.plural(len(merged.entries), 'entry', 'entries')} from "
        f"{words.plural(len(specs), 'spec')}"
    )


def _named(note: str, names: dict[str, str]) -> str:
    """A note on `spec 2` with the file's name beside it, where it is first called that."""
    source, colon, rest = note.partition(":")
    return f"{source} ({names[source]}){colon}{rest}" if source in names else note


@command.command("check", short_help="Check a spec with this compiler, or a program.")
@click.argument("spec", type=PATH)
@click.option("--program", metavar="FILE", type=PATH, help="Also check that it fits this program.")
@click.option("--against", metavar="NEW_IREE|RESULT_DIR",
              help="Check with another IREE (a version, an environment), or that it fits the "
              "program of a result folder, as that was tuned.")  # fmt: skip
@tuning_options("target", "iree_flags")
def check(spec: Path, program: Path | None, against: str | None, **given: Any) -> int:
    """Check that this compiler takes a spec, and with --program that it changes something there.

    The code of kernels is compiled, for the processor that --target names.

    A spec that matches no dispatch of the program is an error.
    """
    from tilewright.sketch.spec_tasks import check_code, report_on
    from tilewright.target import parse_target
    from tilewright.tuning.apply import apply
    from tilewright.tuning.variants import without_spec

    if against is not None:
        if not (Path(against) / "manifest.json").is_file():
            return with_other_iree(against)
        from tilewright.tuning.recorded import read_recorded

        found = read_recorded(Path(against), program, given["target"])
        program = found.program
        flags = (*found.tuned.iree_flags, *without_spec(found.tuned.variant.flags))
        given = {"target": found.tuned.target, "iree_flags": (*flags, *(given["iree_flags"] or ()))}
    report = report_on(spec)
    if report.kernels:
        check_code(spec, parse_target(given["target"] or "cpu"), tuple(given["iree_flags"] or ()))
    count = words.plural(len(report.entries), "entry", "entries")
    sort = "preprocessing" if report.is_preprocessing else "tuning"
    click.echo(f"{spec}: a valid {sort} spec with {count}"
               f"{'' if report.ours else ', not written by tilewright'}")  # fmt: skip
    if program is None:
        return 0
    from tilewright.cli.output import print_changes

    print_changes(apply(program, spec, **given))
    return 0


@command.command("update", short_help="Bring a result up to date.")
@click.argument("result", metavar="RESULT_DIR", type=PATH)
@against_option
@click.option("--program", metavar="FILE", type=PATH,
              help="The program (default: the one that the result was made of).")  # fmt: skip
@tuning_options(
    "target", "inputs", "parameters", "iree_flags", "threads", "device", "effort", "max_trials",
    "time_limit_s", "variants", "db", "output", "json",
)  # fmt: skip
def update(result: Path, against: str | None, program: Path | None, **given: Any) -> int:
    """Bring the result in RESULT_DIR up to date with this IREE and this machine.

    Its entries are matched anew by what they are for, measured and confirmed beside the compiler's
    own choice, and written again. What the program or the compiler have changed since is searched,
    and nothing else. The new result goes to --output, which may be RESULT_DIR itself.
    """
    if against is not None:
        return with_other_iree(against)
    from tilewright.cli.tune import run_and_tell
    from tilewright.tuning.update import update_request

    run_and_tell(update_request(result, program, given))
    return 0


@command.command("library", short_help="Show what a library of specs has for this machine.")
@click.argument("place", metavar="DIR|URL|own")
@tuning_options("target", "threads")
@json_option
def show_library(place: str, as_json: bool, **given: Any) -> None:
    """Show what a library of specs has, and what of it fits this machine.

    An entry fits this processor (all that measurements depend on is equal: processor, caches,
    threads, the compiler), its family (the same kind of processor, vectors as wide), or neither.
    `own` is the library that comes with tilewright.
    """
    from tilewright.measure.measurement_key import measurement_key
    from tilewright.sketch.spec_tasks import resolved_target
    from tilewright.target import parse_target
    from tilewright.tuning.spec_library import gain, open_library, rows

    library = open_library(place)
    threads = given["threads"]
    target = parse_target(given["target"] or "cpu", int(threads) if threads else None)
    target = resolved_target(target)
    now = measurement_key(target)
    found = list(rows(library, target.key, now))
    if as_json:
        listed = [
            {"file": f, "fits": fits.how, "why": fits.why, **one.texts()} for f, one, fits in found
        ]
        output.print_json({"target": target.key, "machine": now.to_json(), "entries": listed})
        return
    click.echo(f"this machine: {now.gpu or now.processor}, {target.key}")
    table = output.table(("operator", "fits", "but", "gain", "tuned on", "IREE", "file"), ("gain",))
    for file, one, fits in found:
        where = f"{one.processor}, {one.target}"
        table.add_row(one.workload, fits.how or "nothing", fits.why, words.times(gain(one)), where,
                      one.compiler, file)  # fmt: skip
    output.console().print(table)


@command.command("show", short_help="Show what each entry matches and what it sets.")
@click.argument("spec", type=PATH)
@json_option
def show(spec: Path, as_json: bool) -> None:
    """Show what each entry of a spec matches and what it sets.

    Of kernels also the loops, and the schedule as a function in Python.
    """
    from tilewright.sketch.spec_tasks import report_on

    report = report_on(spec)
    if as_json:
        output.print_json(
            {
                "file": str(spec),
                "written_by_tilewright": report.ours,
                "header": dict(report.header),
                "entries": report.entries,
                "kernels": [dict(kernel) for kernel in report.kernels],
                "sequences": [list(names) for names in report.sequences],
                "evidence": dict(report.evidence),
            }
        )
        return
    for key, value in report.header.items():
        click.echo(f"{key}: {value}")
    if not report.entries:
        click.echo("no entries: the compiler's own choices stay")
        return
    table = output.table(("entry", "matches", "pipeline", "configuration"))
    for row in report.entries:
        table.add_row(row.name, row.matches, row.pipeline, row.configuration)
    output.console().print(table)
    for name, known in report.evidence.items():
        between = f" ({known.low} to {known.high})" if known.low else ""
        timed = f"{known.default_ms} to {known.tuned_ms} ms{between}"
        alone = "nothing" if known.tuned_ms else "nothing alone"
        click.echo(
            f"{name}: {timed if known.tuned_ms else 'not timed alone'} on {known.processor}, "
            f"{known.target}, IREE {known.compiler}, {known.date}; results compared with "
            f"{known.verified or alone}"
        )
    for names in report.sequences:
        click.echo(f"one dispatch where they follow each other: {', '.join(names)}")
    for kernel in report.kernels:
        click.echo(
            f"\nkernel {kernel['name']}, for {kernel['target']}\n{kernel['loops'].rstrip()}\n"
        )
        click.echo(f"its schedule, as Python\n{kernel['python'].rstrip()}")


@command.command("strip", short_help="Take the configurations off a program.")
@click.argument("program", type=PATH)
@click.option("-o", "--output", "out", metavar="FILE", type=PATH,
              help="Where the program without them goes (default: standard output).")  # fmt: skip
def strip(program: Path, out: Path | None) -> None:
    """Take the configurations off a program, so that a spec can give it others.

    PROGRAM is MLIR in which ops carry a lowering config, compilation info or the compiler's marks,
    and functions translation info: by hand, by `tilewright apply --emit-mlir`, or because IREE
    wrote it as a dispatch that it has configured. Specs leave what is configured alone.
    """
    from tilewright.sketch.spec_tasks import strip_file

    text, removed = strip_file(program)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_file(out, text)
    kinds = ", ".join(f"{count} {name}" for name, count in removed.items())
    what = f"removed {kinds}" if kinds else "there were no configurations to remove"
    click.echo(f"{out or program}: {what}", err=out is None)
