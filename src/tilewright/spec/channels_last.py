"""Channels last for a whole convolution network: IREE's pass in a spec, and what the pass leaves.

IREE's pass gives plain convolutions, of images and of volumes, their channels last, each with a
transpose before it and one behind it. Depthwise and grouped convolutions, pooling windows,
concatenations of channels, the zeros between the elements of what a transposed convolution reads,
and resizes (`pixel_chains`) stay as they are, so that the transposes around them do not meet: in a
MobileNet each depthwise layer would read or write channels first. Here those ops get transposes of
their own; then all are moved to where they cancel:

    transform.named_sequence @__transform_main(%module) {
      %functions = transform.structured.match ops{["util.func"]} in %module
      transform.foreach %functions {
        transform.foreach_match …    // each op: itself with channels last, between transposes
        transform.apply_dce
      }
      transform.apply_registered_pass "…convert-conv-to-channels-last" to …
      transform.apply_registered_pass "…elementwise-op-fusion" to …
      transform.apply_registered_pass "canonicalize" to …
      transform.apply_registered_pass "linalg-fold-unit-extent-dims" to …    // see `Channels`
      transform.apply_registered_pass "…propagate-linalg-transpose" with … to …
      transform.apply_registered_pass "canonicalize" to …
      transform.apply_registered_pass "cse" to …    // where concatenations begin with others
    }

What is elementwise is made one op before transposes move: a hard-swish reads its input twice, and
no transpose gets through a value with two readers.

Where each layer concatenates what all before it made (Huang et al., "Densely Connected
Convolutional Networks", CVPR 2017), a concatenation begins with all parts of another one: it is
made of that one and of what is new. IREE copies each part by a dispatch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor, transform

from tilewright.errors import UserError
from tilewright.ir.reference.access import indexing_maps
from tilewright.ir.reference.quantised import DEQUANTIZE, QUANTIZE
from tilewright.ir.site_module import SITE_FUNCTION, IsolatedSite, isolate_value
from tilewright.ir.site_ops import is_elementwise
from tilewright.ir.walk import symbols, walk
from tilewright.spec import library, shared_sequences
from tilewright.spec.pattern import SitePattern, call, define_function
from tilewright.spec.pixel_chains import (
    CHAIN_END,
    CHANNELS,
    RANK,
    last_order,
    pixel_chain,
    reordered_slice,
    with_channels_last,
)

_FOLD = "linalg-fold-unit-extent-dims"
_FUSE = "iree-dispatch-creation-elementwise-op-fusion"
_CONVERT = "iree-preprocessing-convert-conv-to-channels-last"
_PROPAGATE = "iree-global-opt-propagate-linalg-transpose"
# Without canonicalisation before it the compiler crashes on some networks.
_CANONICALIZE = "canonicalize"
_SAME_ONCE = "cse"
_GROUPED = "linalg.conv_2d_ngchw_gfchw"
# With the rank of their images.
_CONVOLUTIONS = {
    "linalg.conv_2d_nchw_fchw": RANK,
    _GROUPED: RANK,
    "linalg.depthwise_conv_2d_nchw_chw": RANK,
    "linalg.conv_3d_ncdhw_fcdhw": RANK + 1,
}
_DEPTHWISE = "linalg.depthwise_conv_2d_nchw_chw"
_POOLING = {
    "linalg.pooling_nchw_max": linalg.pooling_nhwc_max,
    "linalg.pooling_nchw_sum": linalg.pooling_nhwc_sum,
}
# What is known before a run.
_CONSTANT = "arith.constant"
_KNOWN = (_CONSTANT, "util.global.load")
_CONCAT, _INSERT = "tensor.concat", "tensor.insert_slice"
_TO_LAST, _FILTER = last_order(RANK), (1, 2, 0)
# Of an image whose channels are groups of some, to them last and back; of its filter.
_GROUPS, _GROUPED_FILTER = (0, 3, 4, 1, 2), (0, 1, 3, 4, 2)


@dataclass(frozen=True)
class ChannelsFirst:
    """What a program computes with channels first besides plain convolutions.

    ops: each kind of op alone, or with the others of its chain of pixels, as `IsolatedSite.module`
    has it: those that IREE's pass leaves so.
    folds: whether an elementwise op reads some place of an operand in all its steps, as where an
    image is scaled by a number for each channel. IREE 3.13 crashes when it moves a transpose to
    such an op, so axes of one step are folded before. Nowhere else: what is padded loses its batch
    by it, and transposes do not get through that. beginnings: for each op, where it is a
    concatenation, how many of its parts are all parts of another one, ascending.
    """

    ops: tuple[str, ...]
    folds: bool
    beginnings: tuple[tuple[int, ...], ...] = ()


def find_channels_first(module: ir.Module | ir.Operation) -> ChannelsFirst:
    """What a program has between its convolutions that is to have channels last as well.

    Args:
        module: the program at the preprocessing phase, compiled without a spec.

    Returns:
        Ops in order of first occurrence, equal ones once; none for a program without convolutions
        that have channels first.
    """
    found: dict[str, str] = {}
    beginnings: dict[str, set[int]] = {}
    joined: set[tuple[ir.Value, ...]] = set()
    folds = False
    # Of volumes or images, whichever are convolved; tensors of other ranks are something else.
    ranks = {_CONVOLUTIONS[op.name] for op in walk(module.operation) if op.name in _CONVOLUTIONS}
    for op in walk(module.operation):
        folds |= is_elementwise(op) and not all(map(_is_projection, indexing_maps(op)))
        # Channels that are groups of some have two dimensions.
        if _rank(op) - (op.name == _GROUPED) in ranks and _is_channels_first(op):
            alone = _alone(op)
            found.setdefault(alone.digest, str(alone.module.operation.get_asm()))
            parts = tuple(op.operands) if op.name == _CONCAT else ()
            known = {count for count in range(2, len(parts)) if parts[:count] in joined}
            # Of equal ops only what holds for all.
            beginnings[alone.digest] = beginnings.get(alone.digest, known) & known
            joined.add(parts)
    counts = tuple(tuple(sorted(one)) for one in beginnings.values())
    return ChannelsFirst(tuple(found.values()), folds, counts)


def _alone(op: ir.Operation) -> IsolatedSite:
    """An op by itself, with the numbers that it is given and all of the ops of its chain."""
    chain = pixel_chain(op)
    inside = (op,) if chain is None else chain.ops
    return isolate_value(op.results[0], lambda one: one in inside or _is_number(one))


def write_channels_last_spec(found: ChannelsFirst) -> str:
    """The text of a verified spec that brings a program's convolutions and these ops to it.

    For plain `iree-compile`, with `--iree-preprocessing-transform-spec-filename=`.

    Args:
        found: what :func:`find_channels_first` finds in the program.

    Returns:
        A module of the transform dialect.
    """
    with library.new_context(), ir.Location.unknown():
        module = library.new_module({})
        sites = [ir.Module.parse(text) for text in found.ops]
        pairs: list[tuple[str, str]] = []
        with ir.InsertionPoint(module.body):
            for number, (site, counts) in enumerate(zip(sites, found.beginnings, strict=True)):
                name = f"{library.PREFIX}channels_last_{number}"
                try:
                    pattern = SitePattern(symbols(site)[SITE_FUNCTION])
                except UserError:
                    continue  # what cannot be recognised stays as it is
                _define(name, pattern, counts)
                pairs.append((f"{name}_is", f"{name}_replace"))
            library.define(
                library.PREPROCESSING_ENTRY_POINT,
                [library.any_op()],
                lambda program: _convert(program, pairs, found),
            )
        shared_sequences.add_helpers(module)
        module.operation.verify()
        return str(module.operation.get_asm())


def _is_channels_first(op: ir.Operation) -> bool:
    if op.name in (QUANTIZE, DEQUANTIZE):
        return _is_quantised_image(op)
    if op.name == CHAIN_END:
        return pixel_chain(op) is not None
    if op.name not in (_DEPTHWISE, _GROUPED, *_POOLING, _CONCAT, _INSERT):
        return False
    types = [v.type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    if not all(ir.RankedTensorType(type_).has_static_shape for type_ in types):
        return False
    if op.name == _CONCAT:
        dim: int = ir.IntegerAttr(op.attributes["dim"]).value
        rank: int = ir.RankedTensorType(op.results[0].type).rank
        return rank >= RANK and dim == CHANNELS
    if op.name == _INSERT:
        # All of its offsets, sizes and strides are known.
        ranks = {ir.RankedTensorType(type_).rank for type_ in types}
        return len(op.operands) == len(types) and len(ranks) == 1 and min(ranks) >= RANK
    return True


def _rank(op: ir.Operation) -> int:
    """Of the tensor that an op makes; 0 where it makes none."""
    types = [value.type for value in op.results if isinstance(value.type, ir.RankedTensorType)]
    return ir.RankedTensorType(types[0]).rank if types else 0


def _is_quantised_image(op: ir.Operation) -> bool:
    """Whether an op quantises an image, or the other way round: filters are left as they are."""
    type_ = ir.RankedTensorType(op.results[0].type)
    owner = op.operands[0].owner
    known = not isinstance(owner, ir.Block) and owner.operation.name in _KNOWN
    maps = indexing_maps(op)
    identity = ir.AffineMap.get_identity(type_.rank, op.context)
    plain = maps[0] == maps[-1] == identity and all(map(_is_projection, maps))
    return type_.rank == RANK and type_.has_static_shape and plain and not known


def _define(name: str, pattern: SitePattern, beginnings: Sequence[int]) -> None:
    """Define an op's function, matcher and rewrite."""
    op = pattern.root

    def body(*values: ir.Value) -> list[ir.Value]:
        made = _with_channels_last(op, [*values], beginnings)
        last = ir.RankedTensorType(made.type).rank - 1
        back = _GROUPS if op.name == _GROUPED else (0, last, *range(1, last))
        return [_transposed(made, back)]

    define_function(name, pattern.input_types, [pattern.output_type], body)
    pattern.define_matcher(f"{name}_is")
    handles = [library.any_op(), library.any_value(), library.any_value()]

    def replace(root: ir.Value, inputs: ir.Value, output: ir.Value) -> None:
        call(name, pattern.ordered(inputs), output, root)

    library.define(f"{name}_replace", handles, replace)


def _with_channels_last(
    op: ir.Operation, values: Sequence[ir.Value], beginnings: Sequence[int]
) -> ir.Value:
    """The op on values with channels last; its own have them first."""
    last = _transposed
    order = last_order(_rank(op))
    if op.name == _CONCAT:
        inputs = [last(value, order) for value in _operands(op, values)]
        joined, taken = inputs[:1], 1
        for count in (*beginnings, len(inputs)):
            joined, taken = [_joined([*joined, *inputs[taken:count]])], count
        return joined[0]
    if op.name == _INSERT:
        source, into = (last(value, order) for value in _operands(op, values))
        where = reordered_slice(op, order)
        return tensor.InsertSliceOp(source, into, [], [], [], *where.values()).result
    if op.name in (QUANTIZE, DEQUANTIZE):
        return _quantised(op, _operands(op, values))
    if (chain := pixel_chain(op)) is not None:

        def given(argument: ir.Value) -> ir.Value:
            return values[ir.BlockArgument(argument).arg_number]

        return with_channels_last(op, given, last(given(chain.image), _TO_LAST))
    image, window, into = _operands(op, values)
    make: Callable[..., ir.Value] = linalg.depthwise_conv_2d_nhwc_hwc
    if op.name in _POOLING:
        make = _POOLING[op.name]
    elif op.name == _GROUPED:
        make, order = linalg.conv_2d_nhwgc_gfhwc, _GROUPS
        window = last(window, _GROUPED_FILTER)
    else:
        window = last(window, _FILTER)
    strides, dilations = (
        list(ir.DenseIntElementsAttr(op.attributes[name])) for name in ("strides", "dilations")
    )
    made = make(
        last(image, order),
        window,
        outs=[last(into, order)],
        strides=strides,
        dilations=dilations,
    )
    return made if isinstance(made, ir.Value) else made.results[0]


def _quantised(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value:
    """A quantisation of an image, whose scales can be one for each channel."""
    made, *numbers, _ = operands
    type_ = _type(op.results[0].type, _TO_LAST)
    maps = [
        ir.AffineMap.get(
            RANK, 0, [ir.AffineExpr.get_dim(_TO_LAST.index(one.position)) for one in map_.results]
        )
        for map_ in indexing_maps(op)[1:-1]
    ]
    image = ir.AffineMap.get_identity(RANK)
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes["indexing_maps"] = ir.ArrayAttr.get(
        [ir.AffineMapAttr.get(map_) for map_ in (image, *maps, image)]
    )
    into = tensor.EmptyOp(list(type_.shape), type_.element_type).result
    new = ir.Operation.create(
        op.name,
        results=[type_],
        operands=[_transposed(made, _TO_LAST), *numbers, into],
        attributes=attributes,
    )
    return new.results[0]


def _joined(values: Sequence[ir.Value]) -> ir.Value:
    """Values with channels last as one, beside each other."""
    types = [ir.RankedTensorType(value.type) for value in values]
    shape = [*types[0].shape[:-1], sum(type_.shape[-1] for type_ in types)]
    whole = ir.RankedTensorType.get(shape, types[0].element_type)
    return tensor.ConcatOp(whole, len(shape) - 1, [*values]).result


def _operands(op: ir.Operation, values: Sequence[ir.Value]) -> list[ir.Value]:
    """What an op is given, where its function is given `values`; numbers of its own."""
    return [
        values[ir.BlockArgument(value).arg_number]
        if isinstance(value.owner, ir.Block)
        else arith.ConstantOp(value.type, value.owner.operation.attributes["value"]).result
        for value in op.operands
    ]


def _is_number(op: ir.Operation) -> bool:
    """Whether an op is a constant that is no tensor."""
    return op.name == _CONSTANT and not isinstance(op.results[0].type, ir.ShapedType)


def _transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    type_ = _type(value.type, order)
    empty = tensor.EmptyOp(list(type_.shape), type_.element_type).result
    made = linalg.transpose(value, outs=[empty], permutation=list(order))
    return made.operation.results[0]


def _type(type_: ir.Type, order: Sequence[int]) -> ir.RankedTensorType:
    old = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([old.shape[dim] for dim in order], old.element_type)


def _convert(module: ir.Value, pairs: Sequence[tuple[str, str]], found: ChannelsFirst) -> None:
    """The whole of the spec: rewrite, convert, move, cancel."""

    def rewrite(function: ir.Value) -> None:
        done = library.foreach_match(function, pairs)
        ir.Operation.create("transform.apply_dce", operands=[done])

    if pairs:
        library.foreach(library.match(module, [library.FUNCTION]), rewrite)
    handle = library.match(module, [library.FUNCTION])
    moved = {"enable-sink-transpose-through-pad": True}
    passes: list[tuple[str, dict[str, bool]]] = [(_CONVERT, {}), (_FUSE, {}), (_CANONICALIZE, {})]
    passes += [(_FOLD, {}), (_CANONICALIZE, {})] if found.folds else []
    passes += [(_PROPAGATE, moved), (_CANONICALIZE, {})]
    # Concatenations that others begin with: the same ops in each of these.
    passes += [(_SAME_ONCE, {})] if any(found.beginnings) else []
    for name, options in passes:
        handle = transform.apply_registered_pass(library.any_op(), handle, name, options=options)


def _is_projection(map_: ir.AffineMap) -> bool:
    return all(isinstance(one, ir.AffineDimExpr) for one in map_.results)
