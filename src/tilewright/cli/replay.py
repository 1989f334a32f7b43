"""`tilewright replay`: spaces that were measured once, and strategies scored on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.interrupt import Interruption, interruptible
from tilewright.cli.tuning_options import tuning_options
from tilewright.errors import UserError

if TYPE_CHECKING:
    from tilewright.replay.record import RecordProgress
    from tilewright.replay.score import SpaceScores, StrategyScores

_PATH = click.Path(path_type=Path)
# Configurations between two lines of progress.
_LINE_EVERY = 25


@click.group(
    name="replay",
    epilog="""\b
Examples:
  tilewright replay score --strategy auto --strategy random
  tilewright replay score matmul_49x2048x512 --strategy genetic:population=16 --plot scores.png
  tilewright replay list
  tilewright replay record matmul.mlir -o mine.npz
  tilewright replay score mine.npz --strategy auto""",
)
def command() -> None:
    """Score search strategies on spaces that were measured once.

    A recorded space holds every one of its configurations with what became of it: status, raw
    samples, seconds to compile and to measure. Searching it needs no machine, shows no noise and
    takes a fraction of a second, so that strategies are compared over hundreds of runs.
    """


@command.command("record", short_help="Measure every configuration of a space.")
@click.argument("program", type=_PATH)
@click.option(
    "--dispatch", metavar="REGEX", help="The dispatch whose name has this in it, if several."
)
@click.option(
    "--knob",
    "knobs",
    metavar="NAME=V1,V2",
    multiple=True,
    help="Values to record of a knob (`inspect` lists them); may be repeated. Knobs without it "
    "keep the compiler's value.",
)
@click.option(
    "--points",
    metavar="N",
    default="1000",
    show_default=True,
    help="About how many configurations, where no --knob says which.",
)
@click.option(
    "--passes",
    metavar="N",
    default="4",
    show_default=True,
    help="How often each is timed, at moments far apart; the second fastest counts.",
)
@click.option("--name", metavar="NAME", default="", help="The space's name (default: the file's).")
@tuning_options("target", "seed", "function", "inputs", "iree_flags", "threads", "db", "resume")
@click.option("-o", "--output", "out", required=True, metavar="FILE", type=_PATH,
              help="The recorded space (.npz).")  # fmt: skip
def record(
    program: Path,
    dispatch: str | None,
    knobs: tuple[str, ...],
    points: str,
    passes: str,
    name: str,
    out: Path,
    **given: Any,
) -> None:
    """Measure every configuration of a space of one dispatch of PROGRAM.

    The configurations are the full product of the values of each knob, as far as they are valid;
    without --knob, values are chosen so that there are about --points of them. Each is compiled,
    timed and checked as in tuning, in several passes of five samples each. A thousand take some
    minutes.

    Ctrl-C ends the recording; what was measured is in the database, and --resume goes on.
    """
    from tilewright.replay.record import RecordRequest, RecordSession
    from tilewright.tuning.parse import parse_count
    from tilewright.tuning.request import make_request

    options = make_request(program, {k: None if v == () else v for k, v in given.items()}).options
    request = RecordRequest(
        program,
        options,
        out,
        dispatch,
        _knob_lists(knobs),
        parse_count(points, "--points", 2),
        name,
        parse_count(passes, "--passes", 1),
    )
    session = RecordSession(request, lambda text: click.echo(text, err=True), _show_progress)

    try:
        with interruptible(session):
            recording = session.run()
    except KeyboardInterrupt as error:
        raise Interruption("interrupted: --resume goes on with what was measured") from error
    if recording is None:
        raise Interruption("stopped: --resume goes on with what was measured")
    ok = int(recording.ok.sum())
    click.echo(
        f"{out}: {words.plural(len(recording), 'configuration')}, {len(recording) - ok} failed"
    )


def _knob_lists(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UserError(f"--knob {text!r}: write it as NAME=VALUE,VALUE")
        if name.strip() in found:
            raise UserError(f"--knob {name.strip()}: given twice; give all its values in one list")
        found[name.strip()] = values
    return found


def _show_progress(progress: RecordProgress) -> None:
    if progress.done % _LINE_EVERY and progress.done < progress.total:
        return
    click.echo(
        f"{progress.done} of {progress.total}, {progress.failed} failed, best "
        f"{words.milliseconds(progress.best_s)} ms, default "
        f"{words.milliseconds(progress.default_s)} ms",
        err=True,
    )


@command.command("score", short_help="Score strategies on recorded spaces.")
@click.argument("spaces", nargs=-1, metavar="[SPACE]...")
@click.option(
    "--strategy",
    "strategies",
    metavar="NAME[:OPTION=VALUE,...]",
    multiple=True,
    help="A strategy, with options of its own; may be repeated (default: the one that tune uses).",
)
@click.option("--runs", metavar="N", default="200", show_default=True, help="Runs on each space.")
@click.option("--seed", metavar="N", default="0", show_default=True,
              help="One seed, one result.")  # fmt: skip
@click.option("--jobs", metavar="N", help="Processes at a time (default: all cores).")
@click.option(
    "--per",
    type=click.Choice(["evaluation", "second"]),
    default="evaluation",
    show_default=True,
    help="What progress is counted in: trials, or their simulated time.",
)
@click.option("--batch", metavar="N", default="8", show_default=True,
              help="Configurations asked for at a time.")  # fmt: skip
@click.option(
    "--noisy", is_flag=True, help="Tell single samples; say what choosing by them has lost."
)
@click.option("--no-prior", is_flag=True, help="Take the analytic prior away.")
@click.option(
    "--no-default",
    is_flag=True,
    help="Do not tell the compiler's own choice and its time beforehand.",
)
@click.option(
    "--transfer",
    metavar="N",
    default="0",
    show_default=True,
    help="Let strategies learn from N trials of every other space of the same kind beforehand.",
)
@click.option("--plot", "picture", metavar="FILE", type=_PATH,
              help="Draw the curves (.png, .svg, .pdf).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(
    spaces: tuple[str, ...],
    strategies: tuple[str, ...],
    runs: str,
    seed: str,
    jobs: str | None,
    per: str,
    batch: str,
    noisy: bool,
    no_prior: bool,
    no_default: bool,
    transfer: str,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Score strategies on recorded spaces: those named (shipped, or files), or all shipped ones.

    The score is the mean over a budget of (random search's expected best so far minus the
    strategy's) over (random's minus the optimum): 1 is the optimum at once, 0 as good as random,
    below 0 worse. The budget ends where random search has closed 95% of the gap between the median
    and the optimum; random's curve is computed, not run. The interval (95%) is over the runs.
    """
    from tilewright.replay.recording import find_all
    from tilewright.replay.score import parse_strategy, score_strategies
    from tilewright.replay.simulate import Conditions
    from tilewright.search import DEFAULT_STRATEGY
    from tilewright.target import usable_cores
    from tilewright.tuning.parse import parse_count

    choices = [parse_strategy(text) for text in strategies or (DEFAULT_STRATEGY,)]
    conditions = Conditions(
        per=per,
        batch=parse_count(batch, "--batch"),
        noisy=noisy,
        prior=not no_prior,
        default=not no_default,
        transfer=parse_count(transfer, "--transfer", 0),
    )
    paths = find_all(spaces)
    if picture is not None:
        from tilewright.pictures import check_picture

        check_picture(picture)
    progress = _ScoreProgress(len(paths) * len(choices), quiet=as_json)
    found = score_strategies(
        paths,
        choices,
        conditions,
        runs=parse_count(runs, "--runs"),
        seed=parse_count(seed, "--seed", 0),
        jobs=usable_cores() if jobs is None else parse_count(jobs, "--jobs"),
        on_space=progress.done,
    )
    if picture is not None:
        from tilewright.replay.plot import plot

        plot(picture, paths, found, conditions)
    if as_json:
        output.print_json({"strategies": {s.label: s.to_json(noisy) for s in found}})
    else:
        _print_scores(found, noisy)


class _ScoreProgress:
    """A line on stderr for each strategy and space that is done."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._count = 0

    def done(self, label: str, scores: SpaceScores) -> None:
        self._count += 1
        if not self._quiet:
            click.echo(
                f"[{self._count} of {self._total}] {label} on {scores.space}: {scores.mean:.3f}",
                err=True,
            )


def _print_scores(found: Sequence[StrategyScores], noisy: bool) -> None:
    columns = ["space", *(strategy.label for strategy in found)]
    table = output.table(columns, right=columns[1:])
    for number, space in enumerate(found[0].spaces):
        table.add_row(space.space, *(f"{s.spaces[number].mean:.3f}" for s in found))
    table.add_row("mean", *(f"{s.mean:.3f}" for s in found))
    table.add_row("95% interval", *(words.interval(*s.interval) for s in found))
    table.add_row("lowest", *(f"{min(p.mean for p in s.spaces):.3f}" for s in found))
    table.add_row("trials to 5%, of random's", *(_ratio(s.trials_ratio) for s in found))
    if noisy:
        table.add_row("lost by exploring", *(f"{1 - s.explored:.3f}" for s in found))
        table.add_row("lost by selecting", *(f"{s.explored - s.mean:.3f}" for s in found))
    output.console().print(table)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not reached"


# -- what there is ---------------------------------------------------------------------------------


@command.command("list", short_help="List the recorded spaces that come with tilewright.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the recorded spaces that come with tilewright."""
    from tilewright.replay.arena import describe_space
    from tilewright.replay.recording import shipped

    found = [describe_space(path) for path in shipped().values()]
    if as_json:
        output.print_json([asdict(one) for one in found])
        return
    columns = ("space", "kind", "configurations", "ok", "optimum ms", "median ms", "default ms")
    table = output.table((*columns, "budget"), right=(*columns[2:], "budget"))
    for one in found:
        table.add_row(
            one.name,
            one.kind,
            words.count(one.configurations),
            words.share(one.ok / one.configurations),
            words.milliseconds(one.optimum_s),
            words.milliseconds(one.median_s),
            words.milliseconds(one.default_s),
            str(one.budget),
        )
    output.console().print(table)
    click.echo(words.plural(len(found), "recorded space"))


@command.command("show", short_help="Show what a recorded space holds.")
@click.argument("space")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(space: str, as_json: bool) -> None:
    """Show what a recorded space holds, how it was recorded, and how hard it is for random search.

    SPACE is the name of one that comes with tilewright, or a file.
    """
    from tilewright.replay.arena import describe_space
    from tilewright.replay.recording import find

    found = describe_space(find(space))
    if as_json:
        output.print_json(asdict(found))
        return
    click.echo(f"{found.name}: {found.workload or found.kind}")
    for name, values in found.knobs.items():
        click.echo(f"  {name}: {', '.join(map(str, values))}")
    failed = ", ".join(f"{number} {status}" for status, number in found.failures.items())
    click.echo(
        f"{words.plural(found.configurations, 'configuration')}, {found.ok} ok"
        + (f", {failed}" if failed else "")
    )
    click.echo(
        f"optimum {words.milliseconds(found.optimum_s)} ms, median "
        f"{words.milliseconds(found.median_s)} ms, worst {words.milliseconds(found.worst_s)} ms, "
        f"default {words.milliseconds(found.default_s)} ms"
    )
    click.echo(f"optimum: {found.optimum}")
    click.echo(
        f"random search: {words.plural(found.budget, 'trial')} close 95% of the gap between the "
        f"median and the optimum; {found.random_trials} come within 5% of it, as a median"
    )
    for name, value in found.recorded.items():
        click.echo(f"{name}: {value}")
    for note in found.notes:
        click.echo(f"note: {note}")


# -- other tools -----------------------------------------------------------------------------------


@command.command("export", short_help="Write a space or a run in the T4 form.")
@click.argument("space", required=False)
@click.option("--t4", "out", required=True, metavar="FILE", type=_PATH,
              help="Write T4 results (.json).")  # fmt: skip
@click.option("--run", metavar="N", help="The trials of this run of the database instead.")
@click.option("--task", metavar="TEXT", help="Of several workloads of the run, the one named so.")
@tuning_options("db")
def export(space: str | None, out: Path, run: str | None, task: str | None, db: str | None) -> None:
    """Write a recorded space, or a run's trials, in the T4 form that auto-tuners exchange.

    SPACE is the name of one that comes with tilewright, or a file. With --run the trials of a
    tuning run are taken from the database.
    """
    from tilewright.files import check_writable_file
    from tilewright.replay.t4 import recording_to_t4, to_t4, write_t4

    if (space is None) == (run is None):
        raise UserError("replay export: give either a SPACE or --run N")
    check_writable_file(out, "--t4")
    if space is not None:
        from tilewright.replay.recording import find, read_recording

        data = recording_to_t4(read_recording(find(space)))
    else:
        from tilewright.replay.t4 import run_trials
        from tilewright.tuning.parse import parse_count

        assert run is not None
        data = to_t4(run_trials(db, parse_count(run, "--run"), task))
    write_t4(out, data)
    click.echo(f"{out}: {words.plural(len(data['results']), 'result')}")


@command.command("import", short_help="Make a recorded space of T4 results.")
@click.argument("file", type=_PATH)
@click.option("-o", "--output", "out", required=True, metavar="FILE", type=_PATH,
              help="The recorded space (.npz).")  # fmt: skip
@click.option("--name", metavar="NAME", default="", help="The space's name (default: the file's).")
@click.option(
    "--objective", metavar="NAME", help="The time to minimise (default: the file's objective)."
)
def import_(file: Path, out: Path, name: str, objective: str | None) -> None:
    """Make a recorded space of T4 results (.json or .json.gz), of tilewright or of other tools.

    What of it was measured is what can be searched; its rules and its default are not known, unless
    tilewright wrote it.
    """
    from tilewright.files import check_writable_file
    from tilewright.replay.recording import write_recording
    from tilewright.replay.t4 import read_t4

    check_writable_file(out, "-o")
    recording = read_t4(file, name, objective)
    write_recording(out, recording)
    duplicates = recording.facts.get("duplicates")
    again = f", {duplicates} came again" if duplicates else ""
    click.echo(f"{out}: {words.plural(len(recording), 'configuration')}{again}")
