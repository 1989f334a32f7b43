"""Sites as plain data: parts of a program that one kernel of our own can compute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tilewright.argument import ArgumentType
from tilewright.trial import Configuration


@dataclass(frozen=True)
class Site:
    """What IREE makes one dispatch of, or several that belong together, at the preprocessing phase.

    name: no other site of the program has it. dispatches: the entry points, at the flow phase of
        the same compile, of what IREE computes it with: of a chain of reductions, say, several;
        of equal sites it can compile in several ways, too. runs: how often one run runs each of
        them for this site, so these times their times is what the site takes without a kernel.
        count: how often one run computes it, equal ones counted together. module: a file with a
        module at the preprocessing phase whose one public function `main` computes the site alone.
        inputs: its arguments. constant: which of them the program knows before it runs (weights,
        also those from parameter files): they can be packed ahead. output: its one result.
        reason: why no kernel is tried for it, '' where one can be. What could not even be cut out
        of the program has the empty path for its module, no inputs, and None for its output.
        again: where all of it is in loops, how many different sets of constants one time around
        reads, and the next time reads again; else 0.
    """

    name: str
    dispatches: tuple[str, ...]
    count: int
    module: Path
    inputs: tuple[ArgumentType, ...]
    constant: tuple[bool, ...]
    output: ArgumentType | None
    reason: str = ""
    runs: tuple[int, ...] = ()
    again: int = 0

    @property
    def constant_bytes(self) -> int:
        """Of what it reads that the program knows before it runs."""
        known = zip(self.inputs, self.constant, strict=True)
        return sum(one.bytes for one, constant in known if constant)

    @property
    def all_runs(self) -> tuple[int, ...]:
        """`runs`, and where they are not known as if each dispatch ran as often as the site."""
        return self.runs or (self.count,) * len(self.dispatches)


def free_name(name: str, taken: Collection[str]) -> str:
    """A name that nothing else has.

    Args:
        name: that is wanted.
        taken: those that there are.

    Returns:
        The name as it is where it is free, else with the first number behind it that makes it so.
    """
    names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(one for one in names if one not in taken)


@dataclass(frozen=True)
class KernelChoice:
    """A kernel of our own for a site: which sketch writes its schedule, with which knobs.

    Stands where a `CompilationInfo` does for a dispatch that stays IREE's.
    """

    sketch: str
    knobs: Configuration

    def describe(self) -> str:
        """Sketch and knobs in one line."""
        values = ", ".join(f"{name} {value}" for name, value in self.knobs.items)
        return f"kernel {self.sketch}: {values}" if values else f"kernel {self.sketch}"
