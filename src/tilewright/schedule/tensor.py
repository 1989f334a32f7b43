"""Tensors, the operations that compute them, and the expressions that read and reduce them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Combiner, Expr, Operand, Var, as_expr, cast, is_true, listed
from tilewright.schedule.types import BOOL, INDEX, canonical, is_float
from tilewright.schedule.walk import node, nodes

# Kinds of axes.
DATA = "data"
REDUCE = "reduce"
THREAD_AXIS = "thread"

# What thread axes are: blocks, threads of a block, and loops of one thread that look like threads.
BLOCK_TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
VTHREAD = "vthread"


class Range(NamedTuple):
    """Values from `min` on, `extent` of them."""

    min: int
    extent: int


class IterVar(Var):
    """An axis: a variable with the range that it runs over.

    dom: first value and number of values; None for a thread axis whose extent follows from what
        is bound to it.
    kind: `data` (an axis of the result), `reduce`, or `thread`; axes made by `split` and `fuse`
        have the kind of what they were made from.
    tag: of a thread axis, `blockIdx.x` and so on.
    """

    __slots__ = ("dom", "kind", "tag")

    def __init__(
        self, name: str, dom: tuple[int, int] | None, kind: str = DATA, tag: str = ""
    ) -> None:
        super().__init__(name, INDEX)
        self.dom = Range(*dom) if dom is not None else None
        self.kind = kind
        self.tag = tag

    @property
    def var(self) -> IterVar:
        """The axis as a variable of expressions."""
        return self


class Tensor:
    """Output `index` of an operation; `tensor[i, j]` reads an element in an expression."""

    __slots__ = ("dtype", "index", "name", "op", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, index: int = 0) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.index = index
        self.op: TensorOp

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Expr | TensorSlice:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) < len(self.shape):
            return TensorSlice(self, given)
        return self._read(given)

    def __call__(self, *indices: Operand) -> Expr:
        return self._read(indices)

    def _read(self, given: tuple[Any, ...]) -> TensorRead:
        if len(given) != len(self.shape):
            raise ScheduleError(
                f"tensor '{self.name}' has {len(self.shape)} dimensions, read with {len(given)} "
                "indices"
            )
        parts = []
        for i, value in enumerate(given):
            if isinstance(value, slice):
                raise ScheduleError(f"tensor '{self.name}': index {i} is a slice; give an element")
            part = as_expr(value, INDEX)
            if is_float(part.dtype) or part.dtype == BOOL:
                raise ScheduleError(
                    f"tensor '{self.name}': index {i} is {part.dtype} '{part}', not an integer"
                )
            parts.append(cast(INDEX, part))
        return TensorRead(self, tuple(parts))

    def as_expr(self) -> Expr:
        """The one element of a tensor without dimensions."""
        return self._read(())

    def __repr__(self) -> str:
        return f"Tensor({self.name}, shape={list(self.shape)}, {self.dtype})"


class TensorSlice:
    """A tensor with fewer indices than dimensions: `A[i][j]` is `A[i, j]`."""

    __slots__ = ("_given", "_tensor")

    def __init__(self, tensor: Tensor, given: tuple[Any, ...]) -> None:
        self._tensor = tensor
        self._given = given

    def __getitem__(self, indices: Any) -> Expr | TensorSlice:
        more = indices if isinstance(indices, tuple) else (indices,)
        return self._tensor[(*self._given, *more)]

    def as_expr(self) -> Expr:
        """Refuses: an element has an index for each dimension."""
        return self._tensor._read(self._given)


@node("indices")
class TensorRead(Expr):
    """An element of a tensor, as the user writes it; lowered to a load of a buffer."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return f"{self.tensor.name}[{listed(self.indices, names)}]"


@node("sources", "condition", "init")
class Reduce(Expr):
    """Output `index` of the combination of `sources` over all values of `axes` for which
    `condition` holds. Allowed only as the whole body of a computation."""

    combiner: Combiner
    sources: tuple[Expr, ...]
    axes: tuple[IterVar, ...]
    condition: Expr
    index: int = 0
    init: tuple[Expr, ...] | None = None

    @property
    def dtype(self) -> str:
        return self.sources[self.index].dtype

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        axes = ", ".join(a.name for a in self.axes)
        where = "" if is_true(self.condition) else f", where={self.condition.text(names)}"
        return f"{self.combiner.name}({self.sources[self.index].text(names)}, axis=[{axes}]{where})"


def reads(expr: Expr) -> list[TensorRead]:
    """The tensor reads of an expression."""
    return [node for node in nodes(expr) if isinstance(node, TensorRead)]


class TensorOp:
    """What makes tensors. `outputs` are known by identity and outlive changes by a schedule."""

    __slots__ = ("name", "outputs")

    def __init__(self, name: str, outputs: tuple[Tensor, ...]) -> None:
        self.name = name
        self.outputs = outputs

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def output(self, index: int) -> Tensor:
        """One of the tensors that this makes."""
        return self.outputs[index]

    @property
    def axis(self) -> tuple[IterVar, ...]:
        raise ScheduleError(f"'{self.name}' is a placeholder: it has no axes to schedule")

    reduce_axis = axis


class PlaceholderOp(TensorOp):
    """A tensor that the caller hands over."""

    __slots__ = ()


class ComputeOp(TensorOp):
    """Every element of the outputs by an expression of its indices.

    body: one expression for each output; all of them reductions over the same axes, or none.
    """

    __slots__ = ("_axis", "attrs", "body", "tag")

    def __init__(
        self,
        name: str,
        outputs: tuple[Tensor, ...],
        axis: tuple[IterVar, ...],
        body: tuple[Expr, ...],
        tag: str = "",
        attrs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, outputs)
        self._axis = axis
        self.body = body
        self.tag = tag
        self.attrs = attrs or {}

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The axes of the result."""
        return self._axis

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        """The axes that are reduced."""
        reduction = self.reduction
        return reduction.axes if reduction is not None else ()

    def with_body(self, body: tuple[Expr, ...]) -> ComputeOp:
        """The same outputs, computed otherwise."""
        return ComputeOp(self.name, self.outputs, self.axis, body, self.tag, self.attrs)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it reads."""
        return tuple(dict.fromkeys(r.tensor for e in self.body for r in reads(e)))

    @property
    def reduction(self) -> Reduce | None:
        """The reduction that this is, if it is one (output 0's; they differ in `index`)."""
        first = self.body[0]
        return first if isinstance(first, Reduce) else None


def distinct(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken.

    Args:
        name: the name that is wanted.
        taken: the names that there are.

    Returns:
        A name that is not taken.
    """
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


def shape_of(shape: Any, where: str) -> tuple[int, ...]:
    """A shape as positive integers.

    Args:
        shape: a size or a sequence of sizes.
        where: what it is the shape of, for the message.

    Returns:
        The sizes.

    Raises:
        ScheduleError: one is no positive integer.
    """
    given = shape if isinstance(shape, Sequence) else (shape,)
    sizes = []
    for extent in given:
        value: Any = getattr(extent, "value", extent)
        if hasattr(value, "__index__") and not isinstance(value, bool):
            value = value.__index__()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(
                f"{where}: shape {tuple(given)!r} has '{extent}' (allowed: positive integers)"
            )
        sizes.append(value)
    return tuple(sizes)


def placeholder(shape: Any, dtype: Any = "f32", name: str = "placeholder") -> Tensor:
    """A tensor that the caller hands over.

    Args:
        shape: positive integers, () for a scalar.
        dtype: its element type, "f32" or "float32".
        name: shown in nests and messages.

    Returns:
        The tensor.

    Raises:
        ScheduleError: a size is no positive integer.
    """
    tensor = Tensor(name, shape_of(shape, f"placeholder '{name}'"), canonical(dtype))
    tensor.op = PlaceholderOp(name, (tensor,))
    return tensor


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: dict[str, Any] | None = None,
) -> Any:
    """A tensor computed element by element.

    A reduction stands alone: computing with its result takes another `compute`.

    Args:
        shape: positive integers, () for a scalar.
        fcompute: called once with an axis for each dimension; gives the element's expression, or a
            list of them for several outputs of that shape, or a reduction (`te.sum`, ...).
        name: of the tensor; several outputs get `.v0` and so on.
        tag, attrs: kept with the operation, for whoever schedules it.

    Returns:
        The tensor, or a tuple of them where `fcompute` gave several.

    Raises:
        ScheduleError: the shape and the parameters of `fcompute` do not go together, or a reduction
            is part of a larger expression.
    """
    sizes = shape_of(shape, f"compute '{name}'")
    axes = tuple(
        IterVar(n, (0, e)) for n, e in zip(_axis_names(fcompute, len(sizes)), sizes, strict=True)
    )
    made = fcompute(*axes)
    several = isinstance(made, list | tuple)
    body = tuple(_element(e) for e in (made if several else (made,)))
    _check_body(name, body)
    suffix = [f".v{i}" if len(body) > 1 else "" for i in range(len(body))]
    outputs = tuple(
        Tensor(name + s, sizes, e.dtype, i)
        for i, (e, s) in enumerate(zip(body, suffix, strict=True))
    )
    op = ComputeOp(name, outputs, axes, body, tag, attrs)
    for tensor in outputs:
        tensor.op = op
    return outputs if several else outputs[0]


def _element(value: Any) -> Expr:
    expr = as_expr(value)
    # A loop variable's own type is no element type.
    return cast("i32", expr) if expr.dtype == INDEX else expr


def _axis_names(function: Callable[..., Any], rank: int) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    # Parameters with a default are the user's own (`lambda i, f=f: ...`).
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    plain = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    gathered = [p for p in parameters if p.kind == p.VAR_POSITIONAL]
    if gathered and len(plain) <= rank:
        return plain + [f"i{i}" for i in range(len(plain), rank)]
    if len(plain) != rank:
        raise ScheduleError(
            f"compute: the shape has {rank} dimensions, its function takes {len(plain)} axes "
            f"({', '.join(plain)})"
        )
    return plain


def _check_body(name: str, body: tuple[Expr, ...]) -> None:
    if not body:
        raise ScheduleError(f"compute '{name}': its function gave no expression")
    whole = [e for e in body if isinstance(e, Reduce)]
    for expr in body:
        inner = [n for n in nodes(expr) if isinstance(n, Reduce) and n is not expr]
        if inner:
            raise ScheduleError(
                f"compute '{name}': a reduction is part of a larger expression; compute it as a "
                "tensor of its own and read that"
            )
    if whole and (len(whole) < len(body) or any(r.axes != whole[0].axes for r in whole)):
        raise ScheduleError(
            f"compute '{name}': several outputs are either all the values of one reduction, or none"
        )
    if whole and sorted(r.index for r in whole) != list(range(len(whole[0].sources))):
        raise ScheduleError(
            f"compute '{name}': a reduction of {len(whole[0].sources)} values gives as many "
            f"outputs, here {len(body)}"
        )


def reduce_axis(dom: Any, name: str = "rv") -> IterVar:
    """An axis to reduce over: `reduce_axis(n, "k")` or `reduce_axis((begin, end), name="k")`.

    Args:
        dom: the number of values, or the first one and the one behind the last.
        name: of the axis.

    Returns:
        The axis.

    Raises:
        ScheduleError: the range is empty or none.
    """
    given = tuple(dom) if isinstance(dom, Sequence) else (0, dom)
    if len(given) != 2 or not all(
        hasattr(v, "__index__") and not isinstance(v, bool) for v in given
    ):
        raise ScheduleError(f"reduce_axis '{name}': {dom!r} is neither an extent nor (begin, end)")
    begin, end = (int(v) for v in given)
    if end <= begin:
        raise ScheduleError(f"reduce_axis '{name}': the range from {begin} to {end} is empty")
    return IterVar(name, (begin, end - begin), REDUCE)


def thread_axis(dom: Any = None, tag: str = "", name: str = "") -> IterVar:
    """A thread axis to bind loops to: `thread_axis("threadIdx.x")`, or with its extent,
    `thread_axis((0, 32), "threadIdx.x")`.

    Args:
        dom: how many there are, or the range from 0 on; without it what is bound to the axis
            decides. The tag may stand here.
        tag: `blockIdx.x` to `blockIdx.z`, `threadIdx.x` to `threadIdx.z`, `vthread`.
        name: of the axis; the tag unless given.

    Returns:
        The axis.

    Raises:
        ScheduleError: the tag is unknown, or the range does not begin at 0.
    """
    if isinstance(dom, str):
        dom, tag = None, dom
    allowed = (*BLOCK_TAGS, *THREAD_TAGS, VTHREAD)
    if tag not in allowed and tag != "cthread":
        raise ScheduleError(f"thread_axis: unknown tag '{tag}' (allowed: {', '.join(allowed)})")
    tag = VTHREAD if tag == "cthread" else tag
    extent: tuple[int, int] | None = None
    if dom is not None:
        extent = (0, dom) if isinstance(dom, int) else (int(dom[0]), int(dom[1]) - int(dom[0]))
        if extent[0] != 0 or extent[1] < 1:
            raise ScheduleError(f"thread_axis '{tag}': the range {dom!r} does not count from 0")
    return IterVar(name or tag, extent, THREAD_AXIS, tag)
