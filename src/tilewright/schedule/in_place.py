"""Which inputs of a kernel its output can take the place of in memory.

An output may be where an input is if each element of the input is read right where the element of
the output at the same place is computed, and nowhere else: a residual that is added to what a
convolution makes. The output's own stage computes each element once (a split that does not divide
is cut off), unless it is a reduction, which reads or begins what it stores without the input.
"""

from __future__ import annotations

from typing import Any

from tilewright.schedule.expr import Expr, Var
from tilewright.schedule.nest import Buffer, Kernel, Load, Prefetch, Region, Store
from tilewright.schedule.walk import Node, children, nodes


def replaceable(kernel: Kernel) -> list[Buffer]:
    """The inputs whose memory the kernel's output can have.

    Args:
        kernel: with one output, on a processor whose work is shared out by pieces.

    Returns:
        The buffers, of those that it reads.
    """
    if len(kernel.writes) != 1:
        return []
    (output,) = kernel.writes
    return [
        buffer
        for buffer in kernel.reads
        if buffer is not output
        and (buffer.size, buffer.dtype) == (output.size, output.dtype)
        and _is_replaceable(kernel, buffer, output)
    ]


def _is_replaceable(kernel: Kernel, buffer: Buffer, output: Buffer) -> bool:
    names: dict[Var, str] = {
        node: f"v{number}"
        for number, node in enumerate(one for one in nodes(kernel.body) if isinstance(one, Var))
    }
    stores = 0
    done: set[int] = set()
    left: list[Node[Any]] = [kernel.body]
    while left:
        node = left.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, Prefetch):
            continue
        if isinstance(node, Load | Region) and node.buffer in (buffer, output):
            return False
        if isinstance(node, Store) and node.buffer is output:
            stores += 1
            loads = [one for one in nodes(node.value) if isinstance(one, Load)]
            own = [one for one in loads if one.buffer is buffer]
            place = _place(output, node.indices, names)
            if not own or any(one.buffer is output for one in loads):
                return False
            if any(_place(buffer, one.indices, names) != place for one in own):
                return False
            left += node.indices
            continue
        left += children(node)
    return stores > 0


def _place(
    buffer: Buffer, indices: tuple[Expr, ...], names: dict[Var, str]
) -> list[tuple[str, int]]:
    """Where an element is, in the same words for equal places: its indices with their strides,
    without those of dimensions that have one element."""
    return [
        (index.text(names), stride)
        for index, extent, stride in zip(indices, buffer.shape, buffer.layout, strict=True)
        if extent > 1
    ]
