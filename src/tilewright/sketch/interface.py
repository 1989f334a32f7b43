"""What a sketch is: a rule that writes a schedule with knobs for a tensor expression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.schedule.lower import Lowered, lower
from tilewright.schedule.nest import Buffer, LoopProgram
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tensor import Tensor
from tilewright.sketch.packing import Packing
from tilewright.space.search_space import SearchSpace
from tilewright.target import Target
from tilewright.trial import Configuration


@dataclass(frozen=True)
class SiteExpression:
    """A site as a tensor expression.

    inputs: a placeholder for each argument of the site, in its order. constant: which of them can
        be packed ahead. output: what the site computes; one stage for each op that was kept apart.
    """

    inputs: tuple[Tensor, ...]
    constant: tuple[bool, ...]
    output: Tensor


@dataclass(frozen=True)
class SketchedKernel:
    """A schedule that a sketch wrote.

    schedule: of `arguments[-1]`. arguments: a placeholder for each input of the site, in its order
        and packed where `packings` says so, then the output. packings: by the position of an input,
        how it is packed outside the kernel; of constant inputs alone.
    """

    schedule: Schedule
    arguments: tuple[Tensor, ...]
    packings: Mapping[int, Packing] = field(default_factory=dict)

    def lower(self, name: str = "main") -> Lowered:
        """Its loops.

        Args:
            name: of the function.

        Raises:
            ScheduleError: the schedule cannot be carried out.
        """
        return lower(self.schedule, self.arguments, name)

    def unaligned(self, program: LoopProgram) -> frozenset[Buffer]:
        """The buffers of which a kernel must not believe that they begin at an aligned place.

        A compiler may put a result right into a part of a larger tensor (a concatenation, say), and
        hand over a part of one as an input. What is packed is a tensor of its own.

        Args:
            program: the kernel's, lowered.

        Returns:
            The output and the inputs that are not packed.
        """
        own = {program.inputs[n] for n, p in self.packings.items() if p.moves}
        return frozenset(program.arguments) - own


class Sketch(ABC):
    """A rule for an expression on a target; made where it fits.

    The constructor raises `space.pipeline.Unfit`, with the reason, for an expression that the rule
    is not for. `space` has the rule's knobs, with constraints and a prior; its default is what the
    rule takes for best. A sketch looks at loops and reads, never at names of operations.
    `is_exact`: whether it computes the same sums of the same products, in whatever order. `work`:
    the part of the products that what it takes for best computes, of those that the expression has;
    below 1 where it leaves out what adds nothing. `best`:
    what another of its kind took for best, and for worth a trial, for an equal expression and
    target, which need not be looked for again.
    """

    name: ClassVar[str]
    is_exact: ClassVar[bool] = True
    work: float = 1.0
    space: SearchSpace
    best: Sequence[Configuration] = ()

    @abstractmethod
    def __init__(self, site: SiteExpression, target: Target) -> None: ...

    @abstractmethod
    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """The schedule for a configuration.

        Args:
            configuration: a member of `space`.

        Returns:
            A new schedule of the expression, or of one that computes the same.
        """
