"""Dispatches written down by hand, as the compiler would configure them: no compiler is needed."""

from __future__ import annotations

from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate, OpTemplate, Tiling, Translation
from tilewright.workload import Dim, Workload

TARGET = Target("cpu", "host", 4, 64, 32, 32 << 10, 1 << 20, 16 << 20, 512 * 64)


def matmul(m: int, n: int, k: int, target: Target = TARGET) -> DispatchSpace:
    """The space of an f32 matmul: one pipeline, all levels."""
    root = OpTemplate(
        name="linalg.matmul",
        extents=(m, n, k),
        reduction=(False, False, True),
        shared=(0, 1, 2),
        tiling=Tiling.of(
            {
                "distribution": (min(64, m), min(64, n), 0),
                "vector_common_parallel": (min(8, m), min(16, n), 0),
                "vector_reduction": (0, 0, 1),
            }
        ),
        operand_loops=((0, 2), (2, 1), (0, 1)),
        operand_inner=(2, 1, 1),
    )
    dims = (Dim("m", m), Dim("n", n), Dim("k", k, reduction=True))
    workload = Workload("contraction", dims, ("f32",) * 3, ("",) * 3, "")
    return _space(root, workload, "DoubleTilingExpert", target)


def convolution(size: int, channels: int, filters: int, target: Target = TARGET) -> DispatchSpace:
    """The space of a 3x3 f32 convolution in NHWC: two pipelines."""
    extents = (1, size, size, filters, 3, 3, channels)
    root = OpTemplate(
        name="linalg.conv_2d_nhwc_hwcf",
        extents=extents,
        reduction=(False,) * 4 + (True,) * 3,
        shared=tuple(range(7)),
        tiling=Tiling.of(
            {
                "distribution": (1, 1, min(28, size), min(64, filters), 0, 0, 0),
                "vector_common_parallel": (1, 1, min(4, size), min(16, filters), 0, 0, 0),
                "vector_reduction": (0, 0, 0, 0, 1, 1, min(8, channels)),
            }
        ),
        operand_loops=((0, 1, 2, 4, 5, 6), (4, 5, 6, 3), (0, 1, 2, 3)),
        operand_inner=(6, 3, 3),
    )
    roles = ("batch", "image", "image", "channel", "window", "window", "k")
    dims = tuple(
        Dim(role, extent, reduction)
        for role, extent, reduction in zip(roles, extents, root.reduction, strict=True)
    )
    workload = Workload("convolution", dims, ("f32",) * 3, ("",) * 3, "")
    return _space(root, workload, "ConvTileAndDecomposeExpert", target)


def row_sum(rows: int, columns: int, target: Target = TARGET) -> DispatchSpace:
    """The space of a sum over the columns of an f32 matrix."""
    root = OpTemplate(
        name="linalg.generic",
        extents=(rows, columns),
        reduction=(False, True),
        shared=(0, 1),
        tiling=Tiling.of(
            {
                "distribution": (min(64, rows), 0),
                "vector_common_parallel": (min(4, rows), 0),
                "vector_reduction": (0, min(16, columns)),
            }
        ),
        operand_loops=((0, 1), (0,)),
        operand_inner=(1, 0),
    )
    dims = (Dim("parallel", rows), Dim("reduction", columns, reduction=True))
    workload = Workload("reduction", dims, ("f32",) * 2, ("",) * 2, "")
    return _space(root, workload, "DoubleTilingExpert", target)


def _space(root: OpTemplate, workload: Workload, pipeline: str, target: Target) -> DispatchSpace:
    template = DispatchTemplate(Translation(pipeline), (root,), 0)
    space = dispatch_space(template, workload, target)
    assert space is not None
    return space
