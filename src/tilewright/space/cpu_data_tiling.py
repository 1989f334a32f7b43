"""`DataTiling`: packs data into tiles and back."""

from __future__ import annotations

from tilewright.space.cpu_rules import fits_only_own
from tilewright.space.cpu_tiles import PipelineRules

RULES = PipelineRules("DataTiling", ("distribution", "vector_common_parallel"))

fits = fits_only_own("DataTiling")
