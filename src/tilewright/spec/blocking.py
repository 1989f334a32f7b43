"""Blocked layouts of convolution networks: a transform spec that runs before global optimisation.

With a block of 8 channels, an image of 1x64x56x56 becomes one of 1x8x56x56x8, in which eight
channels of a pixel lie side by side: what is read and written together fills vectors and cache
lines, whatever the number of channels, and weights are packed once, when the program is compiled
or loaded. Convolutions, depthwise ones and pooling windows are made generic and packed by IREE's
own op, each shape with blocks of its own; changes of layout are then moved through padding,
elementwise ops and residual sums to where they meet and cancel:

    transform.named_sequence @__transform_main(%module) {
      %functions = transform.structured.match ops{["util.func"]} in %module
      %0 = transform.apply_registered_pass "…detach-elementwise-from-named-ops" to %functions
      transform.foreach %broadcasts { transform.structured.generalize }
      %shape = transform.structured.match ops{["linalg.conv_2d_nchw_fchw"]}         // for each one
          attributes {strides = …, dilations = …} filter_operand_types = […] in %module
      transform.foreach %shape {
        transform.structured.generalize
        transform.structured.pack packed_sizes = [0, 8, 0, 0, 8, 0, 0]
      }
      transform.apply_patterns to %0 { data_layout_propagation, canonicalization }
      transform.apply_registered_pass "iree-dispatch-creation-elementwise-op-fusion" to %0
    }

Biases are broadcast to the whole of an image by importers; as generic ops they take the blocked
layout like any other elementwise op, and fusing puts them into their reader, so that a call packs
none of them. Fusing comes last, since a change of layout does not get through an op that sums two
packed values. Equal ops must not be made one here (`apply_cse`): IREE 3.13 lets a convolution
update a zero fill in place that another convolution begins with, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

from tilewright.errors import UserError
from tilewright.ir.reference.access import OperandAccess, indexing_maps, loop_sizes, plain_dims
from tilewright.ir.walk import walk
from tilewright.spec import library

_DETACH = "iree-global-opt-detach-elementwise-from-named-ops"
_FUSE = "iree-dispatch-creation-elementwise-op-fusion"
# Ops whose images have their channels in front of the picture: behind it they are side by side.
_OPS = frozenset(
    f"linalg.{name}"
    for name in (
        "conv_1d_ncw_fcw",
        "conv_2d_nchw_fchw",
        "conv_2d_ngchw_fgchw",
        "conv_2d_ngchw_gfchw",
        "conv_3d_ncdhw_fcdhw",
        "depthwise_conv_1d_ncw_cw",
        "depthwise_conv_2d_nchw_chw",
        "depthwise_conv_3d_ncdhw_cdhw",
        "pooling_nchw_max",
        "pooling_nchw_sum",
        "pooling_ncw_max",
        "pooling_ncw_sum",
    )
)
_POOLING = "linalg.pooling_"


@dataclass(frozen=True)
class BlockableOp:
    """All windows of one shape in a program whose channels can be blocked.

    op: MLIR's name of it. types: of its operands, the result last, as MLIR writes them. attributes:
    strides and dilations, as MLIR writes them, by name. loops: sizes of its loops. channels: the
    loop of the image's channels, where each result reads several of them; outputs: the loop of the
    result's; both is the one loop of depthwise ops and of pooling, as `outputs`. flops: of one of
    them. image, result: bytes that it reads and writes. count: how many there are.
    """

    op: str
    types: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    loops: tuple[int, ...]
    channels: int | None
    outputs: int
    image: int
    result: int
    count: int = 1

    @property
    def image_channels(self) -> int:
        """How many channels its image has (in a group)."""
        return self.loops[self.outputs if self.channels is None else self.channels]

    @property
    def result_channels(self) -> int:
        """How many channels its result has (in a group)."""
        return self.loops[self.outputs]

    def packed_sizes(self, blocks: Blocks) -> list[int]:
        """What `transform.structured.pack` is given.

        Args:
            blocks: of the image's channels and of the result's.

        Returns:
            For each loop its block; 0: none.
        """
        sizes = [0] * len(self.loops)
        sizes[self.outputs] = blocks.result
        if self.channels is not None:
            sizes[self.channels] = blocks.image
        return sizes


@dataclass(frozen=True)
class Blocks:
    """Channels that lie side by side in an op's image and in its result; 0: as they are."""

    image: int
    result: int


def blockable_ops(module: ir.Module | ir.Operation) -> list[BlockableOp]:
    """Convolutions and pooling windows whose channels can be blocked, by shape.

    Args:
        module: the program at the preprocessing phase, compiled without a spec.

    Returns:
        In order of first occurrence. Ops with sizes known at run time only, and those whose
        channels are side by side already, are none of them.
    """
    found: dict[BlockableOp, int] = {}
    for op in walk(module.operation):
        if op.name in _OPS:
            shape = _blockable(op)
            if shape is not None:
                found[shape] = found.get(shape, 0) + 1
    return [replace(shape, count=count) for shape, count in found.items()]


def block_of(channels: int, largest: int, least: int) -> int:
    """The block for a number of channels: what tensors with as many have wherever they occur.

    Args:
        channels: how many there are.
        largest, least: powers of two.

    Returns:
        The largest power of two from `largest` down to `least` that divides them; 0 where none
        does.
    """
    block = largest
    while block >= least:
        if channels % block == 0:
            return block
        block //= 2
    return 0


def blocks_of(op: BlockableOp, largest: int, least: int) -> Blocks:
    """The blocks of an op's image and result.

    Args:
        op: the op.
        largest, least: as for :func:`block_of`.

    Returns:
        Its blocks. An image of few channels, a picture's, is read as it is.
    """
    result = block_of(op.result_channels, largest, least)
    image = result if op.channels is None else block_of(op.image_channels, largest, least)
    return Blocks(image, result)


def write_blocking_spec(chosen: Mapping[BlockableOp, Blocks]) -> str:
    """The text of a verified spec that blocks exactly these ops.

    For plain `iree-compile`, with `--iree-preprocessing-transform-spec-filename=`. Other ops are
    blocked only where layouts are moved through them.

    Args:
        chosen: the ops with their blocks; without any the spec is valid and changes nothing.

    Returns:
        A module of the transform dialect.

    Raises:
        UserError: a block does not divide its channels.
    """
    for op, blocks in chosen.items():
        for block, channels in (
            (blocks.image, op.image_channels),
            (blocks.result, op.result_channels),
        ):
            if block and channels % block:
                raise UserError(
                    f"blocked layout: {op.op} has {channels} channels, which blocks of {block} do "
                    "not divide; give a divisor"
                )
    with library.new_context(), ir.Location.unknown():
        module = library.new_module({})
        with ir.InsertionPoint(module.body):
            library.define(
                library.PREPROCESSING_ENTRY_POINT,
                [library.any_op()],
                lambda program: _block(program, chosen),
            )
        module.operation.verify()
        return str(module.operation.get_asm())


def _blockable(op: ir.Operation) -> BlockableOp | None:
    types = [ir.RankedTensorType(value.type) for value in op.operands]
    if not all(type_.has_static_shape for type_ in types):
        return None
    maps = indexing_maps(op)
    image, weights, result = ({loop for _, loop in plain_dims(m)} for m in (*maps[:2], maps[-1]))
    summed = (image & weights) - result
    made = (result & weights) - image
    both = result & image
    if op.name.startswith(_POOLING):
        # Its batch and its channels, in the order of the image.
        made, summed = {sorted(both)[1]}, set()
    elif not made and not summed:
        made = both & weights
    if len(made) != 1 or len(summed) > 1:
        return None
    return BlockableOp(
        op=op.name,
        types=tuple(str(type_) for type_ in types),
        attributes=tuple(
            (name, str(op.attributes[name]))
            for name in ("dilations", "strides")
            if name in op.attributes
        ),
        loops=loop_sizes(
            [OperandAccess(map_) for map_ in maps], [tuple(t.shape) for t in types], op.name
        ),
        channels=next(iter(summed), None),
        outputs=made.pop(),
        image=_bytes(types[0]),
        result=_bytes(types[-1]),
    )


def _bytes(type_: ir.RankedTensorType) -> int:
    element: int = type_.element_type.width
    elements: int = prod(type_.shape)
    return elements * element // 8


def _block(module: ir.Value, chosen: Mapping[BlockableOp, Blocks]) -> None:
    """The whole of the spec: detach biases, pack what is chosen, move and cancel, fuse."""
    if not chosen:
        return
    functions = library.match(module, [library.FUNCTION])
    prepared = transform.apply_registered_pass(library.any_op(), functions, _DETACH)
    broadcasts = library.match(module, ["linalg.broadcast"])
    library.foreach(broadcasts, _generalize)
    for op, blocks in chosen.items():
        attributes = {name: ir.Attribute.parse(text) for name, text in op.attributes}
        types = ir.ArrayAttr.get([ir.TypeAttr.get(ir.Type.parse(text)) for text in op.types])
        found = library.match(module, [op.op], attributes, filter_operand_types=types)
        library.foreach(found, partial(_pack, sizes=op.packed_sizes(blocks)))
    propagation = transform.ApplyPatternsOp(prepared)
    with ir.InsertionPoint(propagation.patterns):
        structured.ApplyDataLayoutPropagationPatternsOp()
        transform.ApplyCanonicalizationPatternsOp()
    transform.apply_registered_pass(library.any_op(), prepared, _FUSE)


def _generalize(op: ir.Value) -> None:
    structured.GeneralizeOp(op)


def _pack(found: ir.Value, sizes: Sequence[int]) -> None:
    generic = structured.GeneralizeOp(found).result
    structured.PackOp(
        transform.OperationType.get("linalg.generic"),
        generic,
        packed_sizes=[],
        static_packed_sizes=list(sizes),
    )
