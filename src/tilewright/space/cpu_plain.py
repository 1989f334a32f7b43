"""CPU pipelines without rules of their own, for what the compiler itself gives to them."""

from __future__ import annotations

from tilewright.space.cpu_tiles import CpuPipeline


class BufferOps(CpuPipeline):
    """Copies between buffers."""

    name = "BufferOpsTileAndVectorize"
    levels = ("distribution", "vector_common_parallel")


class DataTiling(CpuPipeline):
    """Packs data into tiles and back."""

    name = "DataTiling"
    levels = ("distribution", "vector_common_parallel")


class LinalgExt(CpuPipeline):
    """Attention and other ops of the LinalgExt dialect."""

    name = "LinalgExtTileAndVectorize"
    levels = ("distribution", "vector_common_parallel", "vector_reduction")


class DefaultPipeline(CpuPipeline):
    """What is left."""

    name = "Default"
    levels = ("distribution", "vector_common_parallel")


PIPELINES: tuple[type[CpuPipeline], ...] = (DataTiling, LinalgExt, BufferOps, DefaultPipeline)
