"""What tensor expressions compute, in float64 NumPy: the meaning of an expression, for tests.

It knows nothing of schedules. Every stage is computed whole, a box of its loops at a time; reads at
sums of loops are strided views, others are gathered. As in the reference of programs only
conversions round, to the type they convert to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Binary, Call, Cast, Const, Expr, Not, Select, is_true
from tilewright.schedule.tensor import ComputeOp, IterVar, Reduce, Tensor, TensorOp, TensorRead
from tilewright.schedule.types import BOOL, bits, is_float, numpy_type
from tilewright.schedule.walk import nodes

Array = npt.NDArray[Any]
# Points of a stage's loops that are computed at once.
_POINTS = 1 << 20


def evaluate_expression(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], values: Sequence[Any]
) -> list[Array]:
    """The outputs of an expression.

    values: one for each of `inputs`. Floats are float64, integers int64 with the value of their
    type, bools bool.
    """
    known: dict[Tensor, Array] = {}
    for tensor, value in zip(inputs, values, strict=True):
        array = np.asarray(value)
        assert array.shape == tensor.shape, (array.shape, tensor.shape)
        known[tensor] = held(array, tensor.dtype)
    with np.errstate(all="ignore"):
        for op in _ordered(outputs):
            known.update(zip(op.outputs, _computed(op, known), strict=True))
    return [known[tensor] for tensor in outputs]


def held(array: Array, dtype: str) -> Array:
    """An array in the form in which elements of a type are held."""
    if dtype == BOOL:
        return array.astype(np.bool_)
    return array.astype(np.float64 if is_float(dtype) else np.int64)


def _ordered(outputs: Sequence[Tensor]) -> list[ComputeOp]:
    """The stages below some tensors, each behind what it reads."""
    found: dict[TensorOp, None] = {}

    def visit(tensor: Tensor) -> None:
        op = tensor.op
        if isinstance(op, ComputeOp) and op not in found:
            for below in op.input_tensors:
                visit(below)
            found[op] = None

    for tensor in outputs:
        visit(tensor)
    return [op for op in found if isinstance(op, ComputeOp)]


def _computed(op: ComputeOp, known: Mapping[Tensor, Array]) -> list[Array]:
    shape = op.outputs[0].shape
    results = [np.zeros(shape, held(np.zeros(()), t.dtype).dtype) for t in op.outputs]
    reduction = op.reduction
    if reduction is None:
        for box in _boxes(list(op.axis)):
            evaluator = _Evaluator(box, known)
            where = tuple(slice(low, high) for low, high in box.values())
            for result, body in zip(results, op.body, strict=True):
                result[where] = evaluator.value(body)
        return results
    product = _product(op, reduction, known)
    if product is not None:
        return [product]
    totals: list[Array] | None = None
    start = reduction.init or reduction.combiner.identity
    rank = len(op.axis)
    for box in _boxes(list(op.axis)):
        where = tuple(slice(low, high) for low, high in box.values())
        empty = _Evaluator(box, known)
        extents = [high - low for low, high in box.values()]
        totals = [np.array(np.broadcast_to(empty.value(e), extents)) for e in start]
        inner = max(1, math.prod(extents))
        for part in _boxes(list(reduction.axes), max(1, _POINTS // inner)):
            evaluator = _Evaluator({**box, **part}, known)
            full = [*extents, *(high - low for low, high in part.values())]
            terms = [np.broadcast_to(evaluator.value(s), full) for s in reduction.sources]
            held_where = np.broadcast_to(evaluator.value(reduction.condition), full)
            terms = [
                np.where(held_where, t, np.asarray(_Evaluator({}, known).value(e)))
                if not held_where.all()
                else t
                for t, e in zip(terms, reduction.combiner.identity, strict=True)
            ]
            totals = _combined(reduction, totals, terms, rank)
        for result, body in zip(results, op.body, strict=True):
            assert isinstance(body, Reduce)
            result[where] = totals[body.index]
    return results


def _product(op: ComputeOp, reduction: Reduce, known: Mapping[Tensor, Array]) -> Array | None:
    """A plain sum of products of two factors, by BLAS: what makes real shapes take no time."""
    (source, *others), combiner = reduction.sources, reduction.combiner
    plain = isinstance(combiner.result[0], Binary) and combiner.result[0].op == "add"
    if others or not plain or not is_true(reduction.condition) or reduction.init is not None:
        return None
    if not isinstance(source, Binary) or source.op != "mul":
        return None
    axes = [*op.axis, *reduction.axes]
    box = {a: (a.dom.min, a.dom.min + a.dom.extent) for a in axes if a.dom is not None}
    evaluator = _Evaluator(box, known)
    factors, labels = [], []
    for side in (source.a, source.b):
        array = evaluator.value(side)
        array = array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
        kept = [d for d, n in enumerate(array.shape) if n > 1]
        factors.append(array.squeeze())
        labels.append(kept)
    extents = [high - low for low, high in box.values()]
    missing = [d for d in range(len(op.axis), len(axes)) if d not in {*labels[0], *labels[1]}]
    out = [d for d in range(len(op.axis)) if d in {*labels[0], *labels[1]}]
    total = np.einsum(factors[0], labels[0], factors[1], labels[1], out, optimize=True)
    total = total * math.prod(extents[d] for d in missing)
    shape = [n if d in out else 1 for d, n in enumerate(extents[: len(op.axis)])]
    whole = np.broadcast_to(total.reshape(shape), op.outputs[0].shape)
    return _wrapped(np.array(whole, order="C"), op.outputs[0].dtype)


# What combines one value with many. Sums of integers wrap at the end.
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _combined(reduction: Reduce, totals: list[Array], terms: list[Array], rank: int) -> list[Array]:
    """Terms combined into totals over all axes behind the first ones."""
    combiner = reduction.combiner
    axes = tuple(range(rank, terms[0].ndim))
    plain = combiner.result[0]
    if len(terms) == 1 and isinstance(plain, Binary) and plain.op in _UFUNCS:
        ufunc = _UFUNCS[plain.op]
        total = ufunc(totals[0], ufunc.reduce(terms[0], axis=axes))
        return [_wrapped(total, combiner.lhs[0].dtype)]
    flat = [t.reshape(*t.shape[:rank], -1) for t in terms]
    while flat[0].shape[-1] > 1:
        # Halves are combined with each other: associative and commutative, says the combiner.
        odd = [t[..., -1:] for t in flat] if flat[0].shape[-1] % 2 else None
        even = [t[..., : t.shape[-1] // 2 * 2] for t in flat]
        flat = _apply(reduction, [t[..., ::2] for t in even], [t[..., 1::2] for t in even])
        if odd is not None:
            flat = [np.concatenate([a, b], axis=-1) for a, b in zip(flat, odd, strict=True)]
    return _apply(reduction, totals, [t[..., 0] for t in flat])


def _apply(reduction: Reduce, a: list[Array], b: list[Array]) -> list[Array]:
    combiner = reduction.combiner
    evaluator = _Evaluator({}, {})
    evaluator.known.update(zip((*combiner.lhs, *combiner.rhs), (*a, *b), strict=True))
    shape = np.broadcast(a[0], b[0]).shape
    return [np.broadcast_to(evaluator.value(r), shape) for r in combiner.result]


def _boxes(axes: list[IterVar], points: int = _POINTS) -> Iterator[dict[IterVar, tuple[int, int]]]:
    """Boxes of the loops, of not many more than so many points each."""
    spans: list[list[tuple[int, int]]] = []
    left = points
    for axis in reversed(axes):
        assert axis.dom is not None
        low, extent = axis.dom
        step = max(1, min(extent, left))
        left //= extent
        spans.insert(0, [(a, min(a + step, low + extent)) for a in range(low, low + extent, step)])
    for combination in itertools.product(*spans):
        yield dict(zip(axes, combination, strict=True))


class _Evaluator:
    """Values of expressions over a box of loops: an axis of the array for each loop."""

    def __init__(
        self, box: Mapping[IterVar, tuple[int, int]], tensors: Mapping[Tensor, Array]
    ) -> None:
        self.known: dict[Expr, Array] = {}
        self._box = box
        self._tensors = tensors
        self._arithmetic = Arithmetic({v: (a, b - 1) for v, (a, b) in box.items()})
        for position, (var, (low, high)) in enumerate(box.items()):
            shape = [1] * len(box)
            shape[position] = high - low
            self.known[var] = np.arange(low, high, dtype=np.int64).reshape(shape)

    def value(self, expr: Expr) -> Array:
        # Indices of reads are looked at as sums, not computed.
        for node in nodes(expr):
            if node not in self.known:
                self.known[node] = np.asarray(self._node(node))
        return self.known[expr]

    def _node(self, expr: Expr) -> Any:
        match expr:
            case Const():
                return held(np.asarray(expr.value), expr.dtype)
            case TensorRead():
                return self._read(expr)
            case Binary():
                return _binary(expr, self.known[expr.a], self.known[expr.b])
            case Not():
                return ~self.known[expr.a]
            case Select():
                return np.where(self.known[expr.condition], self.known[expr.a], self.known[expr.b])
            case Cast():
                return _cast(self.known[expr.value], expr.value.dtype, expr.dtype)
            case Call():
                return FUNCTIONS[expr.name](*(self.known[a] for a in expr.args))
        raise AssertionError(f"{type(expr).__name__} {expr}")

    def _read(self, read: TensorRead) -> Array:
        array = self._tensors[read.tensor]
        view = self._view(read, array)
        if view is not None:
            return view
        indices = [self.known[i] for i in read.indices]
        clipped = [np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape, strict=True)]
        picked = array[tuple(clipped)]
        # What is read outside has to be in a branch that is not taken: a use of it shows.
        outside = [i != c for i, c in zip(indices, clipped, strict=True)]
        if array.dtype == np.float64 and any(o.any() for o in outside):
            return np.where(np.logical_or.reduce(np.broadcast_arrays(*outside)), np.nan, picked)
        return picked

    def _view(self, read: TensorRead, array: Array) -> Array | None:
        """The elements without a copy, where all indices are sums of loops and inside."""
        strides = dict.fromkeys(self._box, 0)
        start = 0
        for index, size, stride in zip(read.indices, array.shape, array.strides, strict=True):
            form = self._arithmetic.linear(index)
            if form.low < 0 or form.high >= size:
                return None
            start += form.constant * stride
            for atom, factor in form.terms.items():
                if atom.kind != "var":
                    return None
                (var,) = atom.args
                start += factor * self._box[var][0] * stride
                strides[var] += factor * stride
        shape = tuple(high - low if strides[v] else 1 for v, (low, high) in self._box.items())
        return np.ndarray(shape, array.dtype, array, start, tuple(strides.values()))


def _wrapped(value: Array, dtype: str) -> Array:
    if dtype == BOOL or is_float(dtype) or bits(dtype) == 64:
        return value
    span = 1 << bits(dtype)
    return (value + span // 2) % span - span // 2


def _cast(value: Array, source: str, target: str) -> Array:
    if target == BOOL:
        return value != 0
    if is_float(target):
        rounded = value.astype(numpy_type(target)) if target != "f64" else value
        return rounded.astype(np.float64)
    if is_float(source):
        return _wrapped(np.trunc(value).astype(np.int64), target)
    return _wrapped(value.astype(np.int64), target)


def _truncdiv(a: Array, b: Array) -> Array:
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient))


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": lambda a, b: a // np.where(b == 0, 1, b),
    "floormod": lambda a, b: a % np.where(b == 0, 1, b),
    "truncdiv": _truncdiv,
    "truncmod": lambda a, b: np.where(b == 0, 0, a - b * _truncdiv(a, b)),
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}


def _binary(expr: Binary, a: Array, b: Array) -> Array:
    return _wrapped(np.asarray(_BINARY[expr.op](a, b)), expr.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "tan", "sin"),
        *("cos", "sinh", "cosh", "floor", "ceil", "trunc", "abs", "isnan", "copysign"),
    )
}
FUNCTIONS |= {
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.power,
    "round": np.rint,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "fma": lambda a, b, c: a * b + c,
}
