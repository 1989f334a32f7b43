"""The axes that tiles of sliding windows are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.schedule.tensor import IterVar
from tilewright.sketch.sliding import SlidingReduction
from tilewright.sketch.structure import extent


@dataclass(frozen=True)
class WindowTiles:
    """Axes by their roles; None where there is no such axis.

    found: the reduction. vector: along which vectors lie. block: further output channels. column,
        row: of the picture.
    """

    found: SlidingReduction
    vector: IterVar
    block: IterVar | None
    column: IterVar | None
    row: IterVar | None

    @property
    def tiled(self) -> list[IterVar]:
        """Those that there are, the innermost last."""
        axes = (self.row, self.block, self.column, self.vector)
        return [axis for axis in axes if axis is not None]

    @property
    def panel(self) -> IterVar | None:
        """Along which pieces of parallel work have several tiles beside those of rows."""
        found = self.found
        others = [a for a in found.order if a is not None and a not in {*self.tiled, *found.slides}]
        channels = None if self.vector in found.slides else self.vector
        wide = [axis for axis in others if extent(axis) > 1]
        return next((a for a in (self.block, channels, *wide[-1:]) if a is not None), None)

    @property
    def pieced(self) -> IterVar:
        """The axis whose tiles pieces of parallel work share out beside the panels."""
        return next(a for a in (self.row, self.column, self.vector) if a is not None)

    @property
    def turns(self) -> bool:
        """Whether vectors are columns that lie side by side in a copy of the image alone."""
        dims = self.found.dims
        return self.vector in self.found.slides and dims[-1].data is not self.vector

    @property
    def across(self) -> IterVar | None:
        """The axis of columns, whether or not vectors lie along it."""
        return self.vector if self.vector in self.found.slides else self.column

    def knob_of(self, axis: IterVar) -> str:
        """The knob with the size of tiles along an axis.

        Args:
            axis: one of those that tiles are made of.
        """
        roles = ((self.row, "rows"), (self.block, "blocks"), (self.column, "columns"))
        return next((name for role, name in roles if role is axis), "width")

    def steps(self, *, by_windows: bool) -> list[IterVar]:
        """The axes that are summed over, outermost first.

        Args:
            by_windows: whether windows are the outer ones, or channels.
        """
        *outer, inner = self.found.channels or (None,)
        last = [inner] if inner is not None else []
        windows = self.found.windows
        steps = [*windows, *outer, *last] if by_windows else [*outer, *last, *windows]
        return [axis for axis in steps if axis is not None]
