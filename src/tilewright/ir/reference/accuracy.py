"""What decides how far a correct result may be from the exact one, read off the program.

Rounding errors grow with the number of additions that an element goes through, and are those of the
coarsest format on the way. Both are static: a size that the types leave open is taken to be a given
one, at least as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.access import loop_sizes
from tilewright.ir.reference.attention import attention_lengths
from tilewright.ir.reference.elements import Array, Unsupported, element_of, significant_bits
from tilewright.ir.reference.interpreter import (
    CALLS,
    called_function,
    evaluate,
    find_function,
    tied_operands,
)
from tilewright.ir.reference.quantised import DEQUANTIZE, QUANTIZE
from tilewright.ir.reference.structured import is_structured, structure
from tilewright.ir.reference.tensors import UNKNOWN_SIZES, segments, shape_of
from tilewright.ir.walk import symbols, walk

# Combinations that never round, however many of them there are.
_SELECTING = frozenset(
    "arith." + name
    for name in (
        *("maximumf", "minimumf", "maxnumf", "minnumf", "maxsi", "minsi", "maxui", "minui"),
        *("andi", "ori", "xori", "select"),
    )
)
# Float operations whose results are exact.
_EXACT = _SELECTING | {"arith.constant", "arith.extf", "arith.negf", "math.absf", "math.copysign"}
_TO_INTEGER = ("arith.fptosi", "arith.fptoui", QUANTIZE)
_ATTENTION = ("iree_linalg_ext.attention", "iree_linalg_ext.online_attention")
_ALONG_DIMENSION = ("linalg.softmax", "iree_linalg_ext.scan")


def reduction_length(module: ir.Module, function: str, unknown_size: int | None = None) -> int:
    """The longest chain of additions (or products) that any element of a result goes through.

    Along the flow of data the lengths of successive reductions add up: a matrix product of k terms
    after another gives twice k. 1 when nothing is accumulated.

    Args:
        module: with the function.
        function: its name.
        unknown_size: stands for the length of a reduction that is known at run time only.

    Raises:
        Unsupported: there is such a reduction, and nothing stands for it.
    """
    lengths = _Lengths(symbols(module), unknown_size)
    target = find_function(lengths.table, function)
    return max([1, *lengths.function(target, [0] * len(target.regions[0].blocks[0].arguments))])


@dataclass(frozen=True)
class _Lengths:
    """Chain lengths along the flow of data through the functions of a module."""

    table: dict[str, ir.Operation]
    unknown_size: int | None

    def function(self, function: ir.Operation, arguments: Sequence[int]) -> list[int]:
        """Of the results of a function; of its arguments after it, for a dispatch."""
        block = function.regions[0].blocks[0]
        lengths: dict[Any, int] = dict(zip(block.arguments, arguments, strict=True))
        returned = self._block(block, lengths)
        return returned or [lengths[a] for a in block.arguments]

    def _block(self, block: ir.Block, lengths: dict[Any, int]) -> list[int]:
        for view in block.operations:
            op = view.operation
            before = [lengths.get(v, 0) for v in op.operands]
            if op.name in ("func.return", "util.return", "scf.yield"):
                return before
            if op.name == "flow.dispatch":
                after = self._dispatch(op, before)
            elif op.name == "iree_tensor_ext.dispatch.tensor.store":
                lengths[_buffer(op.operands[1])] = max(before[:2])
                continue
            elif op.name in ("func.call", "util.call"):
                after = self.function(called_function(self.table, op), before)
            else:
                total = max(before, default=0) + own_length(op, self.unknown_size)
                inner = [self._block(r.blocks[0], lengths) for r in _control(op)]
                total = max([total, *(x for result in inner for x in result)])
                after = [total] * len(op.results)
            lengths.update(zip(op.results, after, strict=True))
        return []

    def _dispatch(self, op: ir.Operation, before: Sequence[int]) -> list[int]:
        function = called_function(self.table, op)
        _, arguments, _, _ = segments(op, before)
        tied = tied_operands(op)
        buffers = [*arguments, *(0 for t in tied if t < 0)]
        after = self.function(function, buffers)
        fresh = iter(range(len(arguments), len(buffers)))
        return [after[t if t >= 0 else next(fresh)] for t in tied]


def _buffer(value: Any) -> Any:
    """The argument that a store writes to, behind the ops that say how large it is."""
    while not isinstance(value.owner, ir.Block):
        if value.owner.operation.name != "flow.dispatch.tie_shape":
            break
        value = value.owner.operation.operands[0]
    return value


def _control(op: ir.Operation) -> Iterator[Any]:
    """Regions of scf.if and scf.for (a loop's own accumulation over its trips is not counted)."""
    if op.name in ("scf.if", "scf.for"):
        yield from (r for r in op.regions if len(r.blocks))


def own_length(op: ir.Operation, unknown_size: int | None = None) -> int:
    """Additions per output element in one op (0: it accumulates nothing).

    Args:
        op: any.
        unknown_size: as in `reduction_length`.
    """
    if op.name in _ATTENTION:
        return sum(_known(op, attention_lengths(op, _shapes(op)), unknown_size))
    if op.name in _ALONG_DIMENSION:
        along = _shapes(op)[0][int(op.attributes["dimension"])]
        return _known(op, [along], unknown_size)[0]
    if not is_structured(op):
        return 0
    plan = structure(op)
    block = op.regions[0].blocks[0]
    yielded = list(block.operations)[-1].operation.operands
    combining = {v.owner.name for v in yielded if not isinstance(v, ir.BlockArgument)}
    if not any(plan.reduction) or combining <= _SELECTING:
        return 0
    sizes = loop_sizes(plan.accesses, _shapes(op), op.name)
    summed = [n for n, r in zip(sizes, plan.reduction, strict=True) if r]
    return int(np.prod(_known(op, summed, unknown_size), dtype=object))


def _known(op: ir.Operation, sizes: Sequence[int], unknown_size: int | None) -> list[int]:
    """The sizes, with another for those that are known at run time only (-1)."""
    if unknown_size is None and any(n < 0 for n in sizes):
        raise Unsupported(f"the length of a reduction over dynamic sizes ({op.name})")
    return [n if n >= 0 else unknown_size or 1 for n in sizes]


def _shapes(op: ir.Operation) -> list[tuple[int, ...]]:
    """The shapes of the operands, -1 for sizes known at run time only."""
    return [
        shape_of(v.type, UNKNOWN_SIZES) if isinstance(v.type, ir.RankedTensorType) else ()
        for v in op.operands
    ]


@dataclass(frozen=True)
class Accuracy:
    """What the error of a correct result depends on; see `tilewright.measure.verify`.

    `working_type`: the coarsest float format that a computed value is rounded to on its way, such
    as `bf16` (not that of inputs and constants, which are exact): an f32 result of a program that
    rounds to bf16 inside is that coarse. `accumulation_type`: the coarsest format in which terms
    are added up. Both are empty when no float is computed (or none is added up).
    `reduction_length`: see the function of that name. `rounds_to_integer`: floats are converted to
    integers, so that an integer may come out one off where the float is at a rounding boundary.
    """

    working_type: str
    accumulation_type: str
    reduction_length: int
    rounds_to_integer: bool


def accuracy(module: ir.Module, function: str, unknown_size: int | None = None) -> Accuracy:
    """The accuracy that results of a function can have.

    Args:
        module: with the function.
        function: its name.
        unknown_size: as in `reduction_length`.
    """
    table = symbols(module)
    operations = list(_operations(table, find_function(table, function), set()))
    working = [t for op in operations for t in _rounded_types(op)]
    sums = [op for op in operations if own_length(op, unknown_size)]
    adding = [t for op in sums for t in _accumulated_types(op)]
    return Accuracy(
        _coarsest(working),
        _coarsest(adding),
        reduction_length(module, function, unknown_size),
        any(op.name in _TO_INTEGER for op in operations),
    )


def _coarsest(types: Sequence[Any]) -> str:
    names = {e.name for e in map(element_of, types) if e.is_float}
    return min(names, key=lambda n: (significant_bits(n), n), default="")


def _operations(
    table: dict[str, ir.Operation], function: ir.Operation, reached: set[ir.Operation]
) -> Iterator[ir.Operation]:
    """Every operation of a function and of all that it calls, each function once."""
    reached.add(function)
    for op in walk(function):
        yield op
        if op.name in CALLS:
            callee = called_function(table, op)
            if callee not in reached:
                yield from _operations(table, callee, reached)


def _rounded_types(op: ir.Operation) -> list[Any]:
    """The types that an operation rounds values to."""
    if op.name in _ATTENTION:
        # Queries are scaled in their own format, weights rounded to that of the values.
        return [v.type for v in (op.operands[0], op.operands[2], *op.results)]
    computes = op.name.split(".")[0] in ("arith", "math") and op.name not in _EXACT
    if op.name == QUANTIZE:
        # The quotient is rounded to the format of the scale.
        return [op.operands[1].type]
    computes |= op.name in ("linalg.softmax", DEQUANTIZE)
    return [v.type for v in op.results] if computes else []


def _accumulated_types(op: ir.Operation) -> list[Any]:
    """The types in which an op that accumulates does so."""
    if op.name == "iree_linalg_ext.attention":
        return [ir.F32Type.get(op.context)]
    return [v.type for v in op.results]


# Evaluations on perturbed inputs: with four, hardly an element stays put in all by chance.
_PROBES = 4


def sensitivity(
    module: ir.Module, function: str, inputs: Sequence[Array], element_type: str, seed: int = 0
) -> list[Array]:
    """How much each element of each result moves when the inputs change in their last digit.

    The largest change over a few evaluations in which every element of every float input is changed
    by up to one unit roundoff, at random. Where this is large the data is ill-conditioned: no
    evaluation in that format can be closer.

    Args:
        module: with the function.
        function: its name.
        inputs: one array for each argument.
        element_type: the format whose roundoff is meant.
        seed: of the changes.

    Returns:
        One array for each result, of its shape; zero for integers.
    """
    generator = np.random.default_rng(seed)
    unit = 2.0 ** -significant_bits(element_type)
    exact = evaluate(module, function, inputs)
    moved = [np.zeros(x.shape) for x in exact]
    for _ in range(_PROBES):
        probe = [_perturbed(np.asarray(x), unit, generator) for x in inputs]
        for i, (a, b) in enumerate(zip(exact, evaluate(module, function, probe), strict=True)):
            if a.dtype == np.float64:
                with np.errstate(invalid="ignore"):
                    moved[i] = np.fmax(moved[i], np.abs(a - b))
    return moved


def _perturbed(values: Array, unit: float, generator: np.random.Generator) -> Array:
    if values.dtype.kind in "biu" or values.dtype.name.startswith(("int", "uint")):
        return values
    exact = values.astype(np.float64)
    return np.asarray(exact * (1.0 + unit * generator.uniform(-1.0, 1.0, exact.shape)))
