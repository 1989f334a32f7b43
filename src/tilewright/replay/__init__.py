"""The bench: spaces that were measured once, searched without a machine and without its noise.

    from tilewright.replay import Conditions, evaluate, open_arena, parse_strategy, simulate
    from tilewright.replay.simulate import score

    arena = open_arena(Path("mine.npz"))
    conditions = Conditions()
    run = simulate(arena, parse_strategy("auto"), conditions, seed=0)
    print(score(conditions.race(arena), evaluate(arena, run, conditions).best))

`simulate` takes any search with `ask` and `tell`: a function of a space, a seed and the trials
known beforehand. :mod:`tilewright.replay.record` makes recordings.
"""

from tilewright.replay.arena import Arena, Race, open_arena
from tilewright.replay.recording import (
    KnobValues,
    RecordedDispatch,
    Recording,
    read_recording,
    write_recording,
)
from tilewright.replay.score import (
    SpaceScores,
    StrategyScores,
    parse_strategy,
    score_strategies,
)
from tilewright.replay.simulate import (
    Conditions,
    MakeSearch,
    SearchScore,
    SimulatedRun,
    StrategyChoice,
    evaluate,
    simulate,
)
from tilewright.replay.space import RecordedSpace, open_space

__all__ = [
    "Arena",
    "Conditions",
    "KnobValues",
    "MakeSearch",
    "Race",
    "RecordedDispatch",
    "RecordedSpace",
    "Recording",
    "SearchScore",
    "SimulatedRun",
    "SpaceScores",
    "StrategyChoice",
    "StrategyScores",
    "evaluate",
    "open_arena",
    "open_space",
    "parse_strategy",
    "read_recording",
    "score_strategies",
    "simulate",
    "write_recording",
]
