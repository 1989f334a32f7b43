"""`tilewright replay score`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright import words
from tilewright.cli import output

if TYPE_CHECKING:
    from tilewright.replay.score import SpaceScores, StrategyScores

_PATH = click.Path(path_type=Path)


@click.command(name="score", short_help="Score strategies on recorded spaces.")
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
def command(
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
