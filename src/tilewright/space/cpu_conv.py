"""`ConvTileAndDecomposeExpert`: tiles a 2-d convolution until one window row is left, and turns it
into 1-d convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.space.constraints import Constraint, declared
from tilewright.space.cpu_tiles import CpuPipeline
from tilewright.space.terms import term, variable


class DecomposedConvolution(CpuPipeline):
    """Convolutions and poolings that the compiler itself gives to it."""

    name = "ConvTileAndDecomposeExpert"
    levels = ("distribution", "vector_common_parallel", "vector_reduction")

    def own_rules(self) -> Sequence[Constraint]:
        """After tiling, the window and the image must be 1 in one and the same direction.

        IREE's `verifyConvTileAndDecomposeExpertConfig` refuses everything else, of the named
        convolutions; those that IREE has made `linalg.generic` are vectorised as they are.
        """
        if self.template.root_op.name == "linalg.generic":
            return []
        windows, images = self.workload.by_role("window"), self.workload.by_role("image")
        if len(windows) != 2 or len(images) != 2:
            return []
        names: list[str] = []
        fixed: list[int] = []
        for loop, level in (
            (windows[0], "vector_reduction"),
            (images[0], "vector_common_parallel"),
            (windows[1], "vector_reduction"),
            (images[1], "vector_common_parallel"),
        ):
            name = self.knob(level, loop)
            fixed.append(1 if name is None else -1)
            if name is not None:
                names.append(name)

        def reason(*values: Any) -> str:
            given = iter(values)
            kh, oh, kw, ow = (next(given) if f < 0 else f for f in fixed)
            return (
                f"the window {kh}x{kw} and the image {oh}x{ow} must be 1 in the same direction "
                "to decompose the convolution"
            )

        if not names:
            return []
        left = iter(names)
        kh, oh, kw, ow = (variable(next(left)) if f < 0 else term(f) for f in fixed)
        condition = ((kh == 1) & (oh == 1)) | ((kw == 1) & (ow == 1))
        return [declared("decomposable_window", names, condition, reason)]


PIPELINES: tuple[type[CpuPipeline], ...] = (DecomposedConvolution,)
