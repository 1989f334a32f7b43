"""Scalar expressions: what a kernel computes, one typed node each.

The nodes are the same before and after lowering, with two exceptions: a :class:`Reduce` and a
:class:`TensorRead` occur only in what the user writes; lowering turns them into loops and into
:class:`Load` of buffers. Nodes are immutable and compared by identity; `a == b` builds a
comparison. :func:`same` compares structure.

`index` is the type of loop variables. It meets an element type by becoming it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.types import BOOL, INDEX, canonical, is_float, is_integer, promoted

if TYPE_CHECKING:
    from tilewright.schedule.nest import Buffer
    from tilewright.schedule.tensor import IterVar, Tensor

Number: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Expr | int | float | bool | Any"

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod")
EXTREMES = ("min", "max")
BITWISE = ("and", "or", "xor", "shl", "shr")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or")


class Expr:
    """Base of all expressions. `dtype` is a short type name (:mod:`tilewright.schedule.types`)."""

    __slots__ = ("dtype",)
    dtype: str

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return binary("floormod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return binary("floormod", other, self)

    def __neg__(self) -> Expr:
        return binary("sub", const(0, self.dtype), self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, other)

    def __lshift__(self, other: Operand) -> Expr:
        return binary("shl", self, other)

    def __rshift__(self, other: Operand) -> Expr:
        return binary("shr", self, other)

    def __invert__(self) -> Expr:
        return Not(self) if self.dtype == BOOL else binary("xor", self, const(-1, self.dtype))

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return binary("ge", self, other)

    def __eq__(self, other: Operand) -> Expr:  # type: ignore[override]
        return binary("eq", self, other)

    def __ne__(self, other: Operand) -> Expr:  # type: ignore[override]
        return binary("ne", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ScheduleError(
            f"the value of '{self}' is known only when the kernel runs: use te.if_then_else "
            "instead of if, te.all and te.any instead of and and or"
        )

    def equal(self, other: Operand) -> Expr:
        """The comparison `self == other`, as an expression."""
        return binary("eq", self, other)

    def astype(self, dtype: Any) -> Expr:
        """The value converted to another type (see :class:`Cast`)."""
        return cast(dtype, self)

    def __repr__(self) -> str:
        from tilewright.schedule.printer import show_expr

        return show_expr(self)


class Var(Expr):
    """A loop variable (`index`) or a parameter of a combiner (any type); known by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: str = INDEX) -> None:
        self.name = name
        self.dtype = dtype


class Const(Expr):
    """A constant: an int for integer types and `index`, a float for floats, a bool for bool.

    Floats may be infinite. The value is not rounded to its type; whoever emits it does that.
    """

    __slots__ = ("value",)

    def __init__(self, value: Number, dtype: str) -> None:
        self.value = value
        self.dtype = dtype


class Binary(Expr):
    """`op` of two values of one type.

    Arithmetic (`add sub mul div floordiv floormod truncdiv truncmod min max and or xor shl shr`)
    gives that type: `div` is for floats only, the four integer divisions for integers only;
    `floordiv` and `floormod` round towards minus infinity, `truncdiv` and `truncmod` towards 0.
    `min` and `max` of floats give NaN when either is NaN. Comparisons (`eq ne lt le gt ge`,
    ordered: false for NaN, but for `ne`) and `logical_and`, `logical_or` give bool. Integers are
    signed and wrap.
    """

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Expr, b: Expr, dtype: str) -> None:
        self.op = op
        self.a = a
        self.b = b
        self.dtype = dtype

    def __bool__(self) -> bool:
        # `x in [...]` and `==` on containers of expressions ask for this: identity answers.
        if self.op == "eq":
            return self.a is self.b
        if self.op == "ne":
            return self.a is not self.b
        return super().__bool__()


class Not(Expr):
    """Negation of a bool."""

    __slots__ = ("a",)

    def __init__(self, a: Expr) -> None:
        self.a = a
        self.dtype = BOOL


class Select(Expr):
    """`a` where `condition` holds, else `b`.

    `guarded` (te.if_then_else): the value not taken must not be evaluated, since its loads may lie
    outside of their buffers. Otherwise (te.select) both may be.
    """

    __slots__ = ("a", "b", "condition", "guarded")

    def __init__(self, condition: Expr, a: Expr, b: Expr, guarded: bool) -> None:
        self.condition = condition
        self.a = a
        self.b = b
        self.guarded = guarded
        self.dtype = a.dtype


class Cast(Expr):
    """Conversion to another type. Float to integer truncates towards 0; to bool is `!= 0`."""

    __slots__ = ("value",)

    def __init__(self, dtype: str, value: Expr) -> None:
        self.dtype = dtype
        self.value = value


class Call(Expr):
    """A pure function of scalars (names: :data:`tilewright.schedule.functions.FUNCTIONS`)."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[Expr, ...], dtype: str) -> None:
        self.name = name
        self.args = args
        self.dtype = dtype


class TensorRead(Expr):
    """An element of a tensor, as the user writes it; lowered to a :class:`Load`."""

    __slots__ = ("indices", "tensor")

    def __init__(self, tensor: Tensor, indices: tuple[Expr, ...]) -> None:
        self.tensor = tensor
        self.indices = indices
        self.dtype = tensor.dtype


class Load(Expr):
    """An element of a buffer: one index for each of the buffer's dimensions."""

    __slots__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        self.buffer = buffer
        self.indices = indices
        self.dtype = buffer.dtype


class Combiner:
    """A commutative, associative combination of tuples of values, with its identity.

    `lhs` and `rhs` are variables, one for each value; `result` says what they give together;
    `identity` is what changes nothing. `name` is `sum`, `prod`, `min`, `max` or the user's.
    """

    __slots__ = ("identity", "lhs", "name", "result", "rhs")

    def __init__(
        self,
        name: str,
        lhs: tuple[Var, ...],
        rhs: tuple[Var, ...],
        result: tuple[Expr, ...],
        identity: tuple[Expr, ...],
    ) -> None:
        self.name = name
        self.lhs = lhs
        self.rhs = rhs
        self.result = result
        self.identity = identity

    def combine(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> tuple[Expr, ...]:
        """The combined values of two tuples."""
        from tilewright.schedule.walk import substitute

        values: dict[Expr, Expr] = dict(zip((*self.lhs, *self.rhs), (*lhs, *rhs), strict=True))
        return tuple(substitute(r, values) for r in self.result)


class Reduce(Expr):
    """Output `index` of the combination of `sources` over all values of `axes` for which
    `condition` holds. Allowed only as the whole body of a computation."""

    __slots__ = ("axes", "combiner", "condition", "index", "init", "sources")

    def __init__(
        self,
        combiner: Combiner,
        sources: tuple[Expr, ...],
        axes: tuple[IterVar, ...],
        condition: Expr,
        index: int = 0,
        init: tuple[Expr, ...] | None = None,
    ) -> None:
        self.combiner = combiner
        self.sources = sources
        self.axes = axes
        self.condition = condition
        self.index = index
        self.init = init
        self.dtype = sources[index].dtype


# -- building --------------------------------------------------------------------------------------


def const(value: Number, dtype: Any = None) -> Const:
    """A constant of a type; without one bool, `i32` or `f32` by the value."""
    if dtype is None:
        dtype = BOOL if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"
    name = canonical(dtype)
    if name == BOOL:
        return Const(bool(value), name)
    return Const(float(value) if is_float(name) else int(value), name)


TRUE = Const(True, BOOL)


def index(value: int) -> Const:
    """An index constant."""
    return Const(value, INDEX)


def as_expr(value: Operand, dtype: str | None = None) -> Expr:
    """An expression of what a user may write for one: numbers, axes, tensors of no dimension."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool | int | float):
        return const(value, dtype)
    made = getattr(value, "as_expr", None)
    if made is not None:
        result: Expr = made()
        return result
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return const(value.item(), dtype or canonical(value.dtype))
    raise ScheduleError(
        f"'{value}' of type {type(value).__name__} is no expression (allowed: numbers, axes, "
        "elements of tensors such as A[i, j], and what is made of them)"
    )


def cast(dtype: Any, value: Operand) -> Expr:
    """The value converted to a type."""
    name = canonical(dtype)
    operand = as_expr(value)
    if operand.dtype == name:
        return operand
    if isinstance(operand, Const) and not (is_integer(name) and is_float(operand.dtype)):
        return const(operand.value, name)
    return Cast(name, operand)


def _matched(op: str, a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Both operands as expressions of one type; a Python number takes the other's type."""
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        a, b = _number_as(a, b), _number_as(b, a)
    x, y = as_expr(a), as_expr(b)
    if x.dtype != y.dtype:
        dtype = promoted(x.dtype, y.dtype)
        x, y = cast(dtype, x), cast(dtype, y)
    return x, y


def _number_as(value: Operand, other: Operand) -> Operand:
    if isinstance(value, bool | int | float) and not isinstance(other, bool | int | float):
        dtype = as_expr(other).dtype
        if isinstance(value, bool):
            return const(value, BOOL)
        if isinstance(value, float) and not is_float(dtype):
            return const(value, "f32")
        return const(value, "i32" if dtype == BOOL else dtype)
    return value


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """`op` of two operands brought to one type, folded where both are index constants."""
    x, y = _matched(op, a, b)
    dtype = x.dtype
    if op in LOGICAL and dtype != BOOL:
        raise ScheduleError(f"'{op}' needs two bools, got {dtype}: '{x}' and '{y}'")
    if op == "div" and not is_float(dtype):
        raise ScheduleError(
            f"'/' of {dtype} values has no one meaning: use // or te.truncdiv, or cast to a float "
            f"first ('{x}' / '{y}')"
        )
    if op in ("floordiv", "floormod", "truncdiv", "truncmod", *BITWISE):
        logical = dtype == BOOL and op in ("and", "or", "xor")
        if not is_integer(dtype) and not logical:
            raise ScheduleError(f"'{op}' needs integers, got {dtype}: '{x}' and '{y}'")
        if op.endswith(("div", "mod")) and isinstance(y, Const) and y.value == 0:
            raise ScheduleError(f"division by zero: '{op}' of '{x}' by 0")
    if dtype == BOOL and op in (*ARITHMETIC, *EXTREMES):
        x, y, dtype = cast("i32", x), cast("i32", y), "i32"
    if dtype == INDEX:
        folded = fold_index(op, x, y)
        if folded is not None:
            return folded
    return Binary(op, x, y, BOOL if op in COMPARISONS or op in LOGICAL else dtype)


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda p, q: p + q,
    "sub": lambda p, q: p - q,
    "mul": lambda p, q: p * q,
    "floordiv": lambda p, q: p // q,
    "floormod": lambda p, q: p % q,
    "min": min,
    "max": max,
}


def fold_index(op: str, x: Expr, y: Expr) -> Expr | None:
    """The result of index arithmetic where it is plain: two constants, or a neutral one."""
    if isinstance(y, Const):
        if isinstance(x, Const):
            folded = _FOLDED.get(op)
            return index(folded(int(x.value), int(y.value))) if folded else None
        if (y.value == 0 and op in ("add", "sub")) or (y.value == 1 and op in ("mul", "floordiv")):
            return x
    elif isinstance(x, Const) and (
        (x.value == 0 and op == "add") or (x.value == 1 and op == "mul")
    ):
        return y
    return None
