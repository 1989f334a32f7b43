"""`BufferOpsTileAndVectorize`, for copies between buffers, and `Default`, for what is left."""

from __future__ import annotations

from tilewright.space.cpu_rules import fits_only_own
from tilewright.space.cpu_tiles import PipelineRules

RULES = PipelineRules("BufferOpsTileAndVectorize", ("distribution", "vector_common_parallel"))
DEFAULT_RULES = PipelineRules("Default", ("distribution", "vector_common_parallel"))

fits = fits_only_own("BufferOpsTileAndVectorize")
fits_default = fits_only_own("Default")
