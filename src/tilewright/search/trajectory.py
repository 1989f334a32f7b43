"""What searches along a single path have in common: starts, steps, and starting over."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.search.first_batch import Opening
from tilewright.search.interface import Strategy
from tilewright.search.pool import Pool
from tilewright.search.unseen import UnseenSampler
from tilewright.trial import Configuration

_SAMPLE = 1024
_MAX_REACH = 4
# Random steps drawn for each one that is wanted, before the neighbours are listed.
_DRAWS = 4


@dataclass(frozen=True)
class Proposal:
    """Something asked for: where it belongs on the path, and the chance drawn for it.

    `run` counts the starts; `is_start`: it is one of the points that a run begins from.
    """

    configuration: Configuration
    run: int
    is_start: bool
    chance: float


@dataclass
class Path:
    """Where a run stands: the point it is at, the best it saw, and the steps since that improved.

    `before` is the point that it was at before the last step it took.
    """

    run: int
    at: Configuration | None = None
    time: float = math.inf
    before: Configuration | None = None
    best: float = math.inf
    steps: int = 0
    waited: int = 0
    reach: int = 1

    def go(self, config: Configuration, time: float) -> None:
        """Take a step."""
        self.before, self.at, self.time = self.at, config, time


class TrajectorySearch(Strategy):
    """Goes from point to point by what was measured, and starts over when it is stuck.

    The path is not remembered but walked anew at every ask: over the proposals in the order in
    which they were made, with the times told since, so that the order of telling is of no account.
    A subclass has the options `starts`, `patience`, `use_default` and `use_prior`.
    """

    def _start(self) -> None:
        self._sampler = UnseenSampler(self.space, self.rng)
        self._pool = Pool(self.space, self.rng, _SAMPLE)
        self._opening = Opening(
            self.space,
            self._sampler,
            use_default=bool(self.options["use_default"]),
            use_prior=bool(self.options["use_prior"]),
        )
        self._log: list[Proposal] = []

    @abstractmethod
    def _follow(self, path: Path, proposal: Proposal, time: float) -> None:
        """Take the step to a proposal with this time (infinite if it failed), or do not."""

    @abstractmethod
    def _steps(self, path: Path, n: int, taken: set[Configuration]) -> list[Configuration]:
        """Up to `n` members outside `taken` to try next from where the path is."""

    def _propose(self, n: int) -> Sequence[Configuration]:
        paths = self._walk()
        path = paths[-1]
        if path.waited >= self.count("patience"):
            path = Path(path.run + 1)
            paths.append(path)
        chosen: dict[Configuration, tuple[int, bool]] = {}
        missing = self.count("starts") - sum(p.is_start for p in self._log if p.run == path.run)
        if missing > 0:
            chosen.update(dict.fromkeys(self._starts(min(n, missing)), (path.run, True)))
        # Until the starts of a run are measured, the run before it goes on.
        moving = next((p for p in reversed(paths) if p.at is not None), None)
        if moving is not None and len(chosen) < n:
            taken = self.seen | chosen.keys()
            for config in self._steps(moving, n - len(chosen), taken):
                chosen[config] = moving.run, False
        for config in self._sampler.draw(n - len(chosen), self.seen | chosen.keys()):
            chosen[config] = path.run, True
        chances = self.rng.random(len(chosen)).tolist()
        self._log += [
            Proposal(config, run, is_start, chance)
            for (config, (run, is_start)), chance in zip(chosen.items(), chances, strict=True)
        ]
        return list(chosen)

    def _starts(self, n: int) -> list[Configuration]:
        candidates = self._pool.members(self.seen) if self.options["use_prior"] else []
        return self._opening.propose(n, self.seen, candidates)

    def _walk(self) -> list[Path]:
        """The path of every run as it is after all that was told; there is at least one."""
        paths = [Path(0)]
        mine = {p.configuration for p in self._log}
        for trial in self.history.best(len(self.history)):
            # The first run may begin at the best of what was known before.
            if trial.configuration not in mine and trial.time_s is not None:
                paths[0].go(trial.configuration, trial.time_s)
                paths[0].best = trial.time_s
                break
        for proposal in self._log:
            while proposal.run >= len(paths):
                paths.append(Path(len(paths)))
            time = self.history.seconds(proposal.configuration)
            if time is not None:
                self._advance(paths[proposal.run], proposal, math.inf if math.isnan(time) else time)
        return paths

    def _advance(self, path: Path, proposal: Proposal, time: float) -> None:
        path.steps += 1
        path.waited = 0 if time < path.best else path.waited + 1
        path.best = min(path.best, time)
        if not proposal.is_start:
            self._follow(path, proposal, time)
        elif time < path.time:
            path.go(proposal.configuration, time)
            path.before = None  # a start is no step in any direction

    def _near(
        self, centre: Configuration, n: int, taken: set[Configuration], reach: int
    ) -> list[Configuration]:
        """Up to `n` random steps from a point, outside `taken`; wider ones when these run out."""
        centre = self.space.nearest_valid(centre)
        found: dict[Configuration, None] = {}
        for wide in range(reach, _MAX_REACH + 1):
            drawn = self.space.step_many([centre] * (_DRAWS * n), self.rng, wide)
            found.update(dict.fromkeys(c for c in drawn if c not in taken))
            if len(found) >= n:
                break
        return list(found)[:n]
