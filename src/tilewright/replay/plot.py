"""Curves of strategies on recorded spaces, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright import pictures
from tilewright.replay.arena import open_arena
from tilewright.replay.score import StrategyScores
from tilewright.replay.simulate import SECOND, Conditions

_COLUMNS = 3


def plot(
    path: Path, paths: Sequence[Path], strategies: Sequence[StrategyScores], conditions: Conditions
) -> None:
    """Draw the mean best so far over the budget, of each strategy on each space.

    Args:
        path: where the picture is written; its suffix says in which format.
        paths: the spaces' files, in the order of the scores.
        strategies: what is drawn, beside random's expected best and the optimum.
        conditions: those that the scores were made under.
    """
    rows = math.ceil(len(paths) / _COLUMNS)
    columns = min(_COLUMNS, len(paths))
    figure = pictures.figure(figsize=(4.5 * columns, 3.2 * rows))
    for number, file in enumerate(paths):
        axes = figure.add_subplot(rows, columns, number + 1)
        arena = open_arena(file)
        race = conditions.race(arena)
        steps = np.arange(1, race.budget + 1, dtype=np.float64)
        if conditions.per == SECOND:
            steps *= race.trial_s
        axes.plot(steps, race.expected[: race.budget] * 1e3, "k--", label="random (expected)")
        for strategy in strategies:
            axes.plot(steps, strategy.spaces[number].curve * 1e3, label=strategy.label)
        axes.axhline(race.optimum * 1e3, color="grey", linewidth=0.8, label="optimum")
        axes.set_title(arena.name, fontsize="small")
        axes.set_yscale("log")
        axes.set_xlabel("simulated seconds" if conditions.per == SECOND else "evaluations")
        axes.set_ylabel("best so far, ms")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
    pictures.save_picture(figure, path)
