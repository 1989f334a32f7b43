"""What computes an image of pixels of another one, each channel alike, by several ops: resizes.

Transposes get through each of these ops, but not through a value with several readers, and an image
that is made larger is read at its edges and beside them as well. So all of the ops between one
image and the next, each of which has its own dimension for the batch and one for the channels, are
written anew with the channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import tensor

from tilewright.ir.reference.access import indexing_maps
from tilewright.ir.reference.tensors import reassociation
from tilewright.ir.site_module import needed
from tilewright.ir.site_ops import is_elementwise

CHAIN_END = "tensor.collapse_shape"
"""The last op of a chain: the elements that were broadcast, as one dimension."""
_EXPAND, _SLICE, _CONCAT, _EMPTY = (
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.concat",
    "tensor.empty",
)
RANK, _BATCH, CHANNELS = 4, 0, 1
"""Images: a batch, channels, height and width."""


@dataclass(frozen=True)
class PixelChain:
    """Ops between one image and another.

    ops: from the last to the first, each once. image: what they read; the values that the ops read
    besides have fewer dimensions.
    """

    ops: tuple[ir.Operation, ...]
    image: ir.Value


def pixel_chain(root: ir.Operation) -> PixelChain | None:
    """The ops with which a program makes an image of another one.

    Args:
        root: the last of them.

    Returns:
        None where there is no such image, or an op that does not keep batch and channels apart.
    """
    if root.name != CHAIN_END or ir.RankedTensorType(root.results[0].type).rank != RANK:
        return None
    ops: dict[ir.Operation, None] = {}
    images: dict[ir.Value, None] = {}
    waiting: list[ir.Value] = [root.results[0]]
    while waiting:
        value = waiting.pop()
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if op in ops:
            continue
        if op is None or not (op == root or _belongs(op)):
            if isinstance(value.type, ir.RankedTensorType) and value.type.rank >= RANK:
                images[value] = None
        elif op.name != _EMPTY and not _keeps_apart(op):
            return None
        else:
            ops[op] = None
            waiting += op.operands
    if len(images) != 1 or not any(is_elementwise(op) for op in ops):
        return None
    (image,) = images
    return PixelChain(tuple(ops), image) if image.type.rank == RANK else None


def _belongs(op: ir.Operation) -> bool:
    types = [value.type for value in (*op.operands, *op.results)]
    if not all(isinstance(t, ir.RankedTensorType) and t.has_static_shape for t in types):
        return False
    if op.name in (_EXPAND, _SLICE, _CONCAT, _EMPTY):
        return True
    # What is computed of an image of four dimensions, pixel by pixel, transposes get through.
    broadcasts = op.name == "linalg.generic" and is_elementwise(op) and len(op.results) == 1
    operands = set(op.operands)
    return broadcasts and types[-1].rank > RANK and all(one in operands for one in needed(op))


def _keeps_apart(op: ir.Operation) -> bool:
    """Whether batch and channels stay dimensions of their own."""
    ranks = [ir.RankedTensorType(value.type).rank for value in (*op.operands, op.results[0])]
    if op.name == _SLICE:
        return bool(ranks[0] == ranks[-1])
    if op.name == _CONCAT:
        dim: int = ir.IntegerAttr(op.attributes["dim"]).value
        return dim > CHANNELS
    if op.name in (_EXPAND, CHAIN_END):
        return reassociation(op)[: CHANNELS + 1] == [[_BATCH], [CHANNELS]]
    own = ir.AffineMap.get_identity(ranks[-1], op.context)
    return bool(indexing_maps(op)[-1] == own)


def last_order(rank: int) -> tuple[int, ...]:
    """The order of an image's dimensions with its channels last.

    Args:
        rank: how many there are.
    """
    return (_BATCH, *range(CHANNELS + 1, rank), CHANNELS)


def reordered_slice(op: ir.Operation, order: Sequence[int]) -> dict[str, list[int]]:
    """Where a slice lies among dimensions in another order.

    Args:
        op: takes it out or puts it in; all of its numbers are known.
        order: the old dimensions.

    Returns:
        Its offsets, sizes and strides, by the names of the attributes.
    """
    names = ("static_offsets", "static_sizes", "static_strides")
    numbers = {name: list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in names}
    return {name: [of[dim] for dim in order] for name, of in numbers.items()}


def with_channels_last(
    root: ir.Operation, given: Callable[[ir.Value], ir.Value], image: ir.Value
) -> ir.Value:
    """Write the ops of a chain anew where the insertion point is.

    Args:
        root: of the chain, in a function of which its inputs are arguments.
        given: what stands for an argument.
        image: the image with its channels last.

    Returns:
        The result, which has them last, too.
    """
    chain = pixel_chain(root)
    assert chain is not None
    made: dict[ir.Value, ir.Value] = {chain.image: image}

    def value_of(old: ir.Value) -> ir.Value:
        if old not in made:
            made[old] = given(old) if isinstance(old.owner, ir.Block) else written(old.owner)
        return made[old]

    def written(op: ir.Operation) -> ir.Value:
        op = op.operation
        old = ir.RankedTensorType(op.results[0].type)
        order = last_order(old.rank)
        type_ = ir.RankedTensorType.get([old.shape[dim] for dim in order], old.element_type)
        if op.name == _EMPTY:
            return tensor.EmptyOp(list(type_.shape), type_.element_type).result
        operands = [value_of(value) for value in op.operands]
        copy = op.clone().operation
        for at, operand in enumerate(operands):
            copy.operands[at] = operand
        for name, attribute in _attributes(op, order, type_.shape).items():
            copy.attributes[name] = attribute
        copy.results[0].set_type(type_)
        return copy.results[0]

    return value_of(root.results[0])


def _attributes(
    op: ir.Operation, order: Sequence[int], shape: Sequence[int]
) -> dict[str, ir.Attribute]:
    """What an op says of dimensions, for others of its result's."""
    if op.name == _CONCAT:
        old = op.attributes["dim"]
        dim = order.index(ir.IntegerAttr(old).value)
        return {"dim": ir.IntegerAttr.get(old.type, dim)}
    if op.name == _SLICE:
        return {
            name: ir.DenseI64ArrayAttr.get(numbers)
            for name, numbers in reordered_slice(op, order).items()
        }
    if op.name in (_EXPAND, CHAIN_END):
        groups = reassociation(op)
        count = iter(range(sum(map(len, groups))))
        sizes = [len(groups[dim]) for dim in last_order(len(groups))]
        index = ir.IntegerType.get_signless(64)
        found: dict[str, ir.Attribute] = {
            "reassociation": ir.ArrayAttr.get(
                [
                    ir.ArrayAttr.get([ir.IntegerAttr.get(index, next(count)) for _ in range(size)])
                    for size in sizes
                ]
            )
        }
        if op.name == _EXPAND:
            found["static_output_shape"] = ir.DenseI64ArrayAttr.get(list(shape))
        return found
    dims = [ir.AffineExpr.get_dim(order.index(dim)) for dim in range(len(order))]
    maps = []
    for operand, map_ in zip(op.operands, indexing_maps(op), strict=True):
        results = [one.compose(ir.AffineMap.get(len(dims), 0, dims)) for one in map_.results]
        rank = ir.RankedTensorType(operand.type).rank
        if rank >= RANK:
            results = [results[dim] for dim in last_order(rank)]
        maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(len(dims), 0, results)))
    return {"indexing_maps": ir.ArrayAttr.get(maps)}
