"""Scalar expressions: what a kernel computes, one typed node each, and their text.

The nodes are the same before and after lowering, with two exceptions: what the user writes reads
tensors and reduces (:mod:`tilewright.schedule.tensor`), a lowered nest loops and loads elements of
buffers (:mod:`tilewright.schedule.nest`). Nodes are immutable and compared by identity; `a == b`
builds a comparison. :func:`same` compares structure.

`index` is the type of loop variables. It meets an element type by becoming it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.types import BOOL, INDEX, canonical, is_float, is_integer, promoted
from tilewright.schedule.walk import Node, children, node, nodes, own, transform

Number: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Expr | int | float | bool | Any"

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod")
EXTREMES = ("min", "max")
BITWISE = ("and", "or", "xor", "shl", "shr")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or")

# How an operation is written, and how tightly it binds; the others are written as functions.
SIGNS = {
    "add": ("+", 5),
    "sub": ("-", 5),
    "mul": ("*", 6),
    "div": ("/", 6),
    "floordiv": ("//", 6),
    "floormod": ("%", 6),
    "shl": ("<<", 4),
    "shr": (">>", 4),
    "and": ("&", 4),
    "xor": ("^", 4),
    "or": ("|", 4),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "logical_and": ("and", 1),
    "logical_or": ("or", 0),
}


def _operator(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: binary(op, self, other)


def _swapped(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: binary(op, other, self)


class Expr(Node["Expr"]):
    """Base of all expressions."""

    __slots__ = ()

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Its type, a short name (:mod:`tilewright.schedule.types`)."""

    @abstractmethod
    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        """The expression in one line, with Python's operators.

        Args:
            names: of variables that are called otherwise here than they are.
            level: how tightly what is around it binds; parentheses are put where that is more.
        """

    def __repr__(self) -> str:
        return self.text({})

    __add__, __radd__ = _operator("add"), _swapped("add")
    __sub__, __rsub__ = _operator("sub"), _swapped("sub")
    __mul__, __rmul__ = _operator("mul"), _swapped("mul")
    __truediv__, __rtruediv__ = _operator("div"), _swapped("div")
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _swapped("floordiv")
    __mod__, __rmod__ = _operator("floormod"), _swapped("floormod")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("shr")
    __lt__ = _operator("lt")
    __le__ = _operator("le")
    __gt__ = _operator("gt")
    __ge__ = _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]
    __ne__ = _operator("ne")  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __neg__(self) -> Expr:
        return binary("sub", const(0, self.dtype), self)

    def __invert__(self) -> Expr:
        return Not(self) if self.dtype == BOOL else binary("xor", self, const(-1, self.dtype))

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


def listed(exprs: Sequence[Expr], names: Mapping[Var, str]) -> str:
    """The texts of expressions, with commas between them.

    Args:
        exprs: the expressions.
        names: of variables that are called otherwise here.
    """
    return ", ".join(e.text(names) for e in exprs)


class Var(Expr):
    """A loop variable (`index`) or a parameter of a combiner (any type); known by identity."""

    __slots__ = ("dtype", "name")
    dtype: str

    def __init__(self, name: str, dtype: str = INDEX) -> None:
        self.name = name
        self.dtype = dtype

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return names.get(self, self.name)


@node()
class Const(Expr):
    """A constant: an int for integer types and `index`, a float for floats, a bool for bool.

    Floats may be infinite. The value is not rounded to its type; whoever emits it does that.
    """

    value: Number
    dtype: str = field()

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        if is_float(self.dtype):
            text = repr(float(self.value))
            return text if self.dtype == "f32" else f"{self.dtype}({text})"
        plain = self.dtype in (INDEX, BOOL, "i32")
        return str(self.value) if plain else f"{self.dtype}({self.value})"


@node("a", "b")
class Binary(Expr):
    """`op` of two values of one type.

    Arithmetic (`add sub mul div floordiv floormod truncdiv truncmod min max and or xor shl shr`)
    gives that type: `div` is for floats only, the four integer divisions for integers only;
    `floordiv` and `floormod` round towards minus infinity, `truncdiv` and `truncmod` towards 0.
    `min` and `max` of floats give NaN when either is NaN. Comparisons (`eq ne lt le gt ge`,
    ordered: false for NaN, but for `ne`) and `logical_and`, `logical_or` give bool. Integers are
    signed and wrap.
    """

    op: str
    a: Expr
    b: Expr
    dtype: str = field()

    def __bool__(self) -> bool:
        # `x in [...]` and `==` on containers of expressions ask for this: identity answers.
        if self.op == "eq":
            return self.a is self.b
        if self.op == "ne":
            return self.a is not self.b
        return Expr.__bool__(self)

    def remade(self, values: Sequence[Any]) -> Expr:
        op, a, b, _ = values
        return binary(op, a, b)

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        if self.op not in SIGNS:
            return f"{self.op}({listed((self.a, self.b), names)})"
        sign, mine = SIGNS[self.op]
        right = mine + (self.op not in ("add", "mul", "logical_and", "logical_or"))
        if self.op == "mul" and isinstance(self.b, Binary) and self.b.op in _QUOTIENTS:
            right = mine + 1
        space = "" if mine >= 6 else " "
        text = f"{self.a.text(names, mine)}{space}{sign}{space}{self.b.text(names, right)}"
        return f"({text})" if mine < level else text


_QUOTIENTS = ("div", "floordiv", "floormod")


@node("a")
class Not(Expr):
    """Negation of a bool."""

    a: Expr

    @property
    def dtype(self) -> str:
        return BOOL

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return f"not {self.a.text(names, 7)}"


@node("condition", "a", "b")
class Select(Expr):
    """`a` where `condition` holds, else `b`.

    `guarded` (te.if_then_else): the value not taken must not be evaluated, since its loads may lie
    outside of their buffers. Otherwise (te.select) both may be.
    """

    condition: Expr
    a: Expr
    b: Expr
    guarded: bool

    @property
    def dtype(self) -> str:
        return self.a.dtype

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        name = "if_then_else" if self.guarded else "select"
        return f"{name}({listed(children(self), names)})"


@node("value")
class Cast(Expr):
    """Conversion to another type. Float to integer truncates towards 0; to bool is `!= 0`."""

    dtype: str = field()
    value: Expr = field()

    def remade(self, values: Sequence[Any]) -> Expr:
        dtype, value = values
        return cast(dtype, value)

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return f"{self.dtype}({self.value.text(names)})"


@node("args")
class Call(Expr):
    """A pure function of scalars, by the names of :mod:`tilewright.schedule.functions`.

    `abs` takes one number of any type, `pow` and `atan2` two floats, `fma` (a * b + c, rounded
    once) three, all others one float; `isnan` gives a bool.
    """

    name: str
    args: tuple[Expr, ...]
    dtype: str = field()

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return f"{self.name}({listed(self.args, names)})"


@dataclass(frozen=True, eq=False, slots=True)
class Combiner:
    """A commutative, associative combination of tuples of values, with its identity.

    `lhs` and `rhs` are variables, one for each value; `result` says what they give together;
    `identity` is what changes nothing. `name` is `sum`, `prod`, `min`, `max` or the user's.
    """

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Expr, ...]

    def combine(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> tuple[Expr, ...]:
        """The combined values of two tuples.

        Args:
            lhs, rhs: a value each for every variable.

        Returns:
            As many values.
        """
        values: dict[Expr, Expr] = dict(zip((*self.lhs, *self.rhs), (*lhs, *rhs), strict=True))
        return tuple(substitute(r, values) for r in self.result)


# -- what an expression has in it ------------------------------------------------------------------


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with variables replaced by values.

    Args:
        expr: an expression.
        values: what stands for which variable.

    Returns:
        The expression itself where nothing changes.
    """
    return transform(expr, values.get) if values else expr


def variables(expr: Expr) -> set[Var]:
    """The variables that occur in an expression."""
    return {node for node in nodes(expr) if isinstance(node, Var)}


def alike(a: Expr, b: Expr) -> bool:
    """Whether two nodes are of one kind and type and say the same but for their operands.

    Buffers, tensors and variables are compared by identity.

    Args:
        a: a node.
        b: another one.
    """
    return (
        type(a) is type(b)
        and a.dtype == b.dtype
        and all(x is y or x == y for x, y in zip(own(a), own(b), strict=True))
        and len(children(a)) == len(children(b))
    )


def same(a: Expr, b: Expr, renamed: Mapping[Var, Var] | None = None) -> bool:
    """Whether two expressions have one structure.

    Args:
        a: an expression.
        b: another one.
        renamed: variables of `a`, with those of `b` that stand for them.
    """
    if a is b and not renamed:
        return True
    if isinstance(a, Var):
        return (renamed or {}).get(a, a) is b
    return alike(a, b) and all(
        same(x, y, renamed) for x, y in zip(children(a), children(b), strict=True)
    )


# -- building --------------------------------------------------------------------------------------


def const(value: Number, dtype: Any = None) -> Const:
    """A constant of a type; without one bool, `i32` or `f32` by the value.

    Args:
        value: the number.
        dtype: its type, by any of its names.

    Returns:
        The constant.
    """
    if dtype is None:
        dtype = BOOL if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"
    name = canonical(dtype)
    if name == BOOL:
        return Const(bool(value), name)
    return Const(float(value) if is_float(name) else int(value), name)


TRUE = Const(True, BOOL)


def is_true(expr: Expr) -> bool:
    """Whether a condition is the constant that always holds."""
    return isinstance(expr, Const) and expr.value is True


def index(value: int) -> Const:
    """An index constant."""
    return Const(value, INDEX)


def as_expr(value: Operand, dtype: str | None = None) -> Expr:
    """An expression of what a user may write for one: numbers, axes, tensors of no dimension.

    Args:
        value: a number, an axis, an element of a tensor, a tensor without dimensions.
        dtype: the type of a number.

    Returns:
        The expression.

    Raises:
        ScheduleError: it is nothing of these.
    """
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
    """The value converted to a type.

    Args:
        dtype: the type, by any of its names.
        value: the operand.

    Returns:
        The operand itself where it has the type, a constant for a constant.
    """
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
    """`op` of two operands brought to one type, folded where both are index constants.

    Args:
        op: one of :data:`ARITHMETIC`, :data:`EXTREMES`, :data:`BITWISE`, :data:`COMPARISONS`,
            :data:`LOGICAL`.
        a, b: the operands; a Python number takes the other's type.

    Returns:
        The expression.

    Raises:
        ScheduleError: the operation is not for this type, or divides by 0.
    """
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
    """The result of index arithmetic where it is plain: two constants, or a neutral one.

    Args:
        op: the operation.
        x, y: its operands, of type `index`.

    Returns:
        The plainer expression, or None.
    """
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
