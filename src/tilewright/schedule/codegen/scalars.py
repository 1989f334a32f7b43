"""One operation of the `arith` and `math` dialects, or a few, for each of the language's.

All of them work on scalars and on vectors of one dimension. A bool is an i1, and a byte in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, math

from tilewright.schedule.types import BOOL, INDEX, bits, is_float

_TYPES = {BOOL: "i1"}
_PREDICATES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
_ORDERED = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}
_UNORDERED = 14

_FLOAT = {
    "add": arith.AddFOp,
    "sub": arith.SubFOp,
    "mul": arith.MulFOp,
    "div": arith.DivFOp,
    "min": arith.MinimumFOp,
    "max": arith.MaximumFOp,
}
_INTEGER = {
    "add": arith.AddIOp,
    "sub": arith.SubIOp,
    "mul": arith.MulIOp,
    "min": arith.MinSIOp,
    "max": arith.MaxSIOp,
    "and": arith.AndIOp,
    "or": arith.OrIOp,
    "xor": arith.XOrIOp,
    "shl": arith.ShLIOp,
    "shr": arith.ShRSIOp,
    "logical_and": arith.AndIOp,
    "logical_or": arith.OrIOp,
}
#: Quotients of integers that are known not to be negative: rounded either way they are the same,
#: and of those without a sign LLVM makes one multiplication or shift.
UNSIGNED = {"floordiv": arith.DivUIOp, "floormod": arith.RemUIOp}
# What the dialect calls operations, where that is not the function's own name.
_MATH = {"expm1": "ExpM1", "round": "RoundEven", "pow": "PowF", "copysign": "CopySign"}
# Exact in any format, so that the narrow ones need not be computed in f32.
_EXACT = ("abs", "floor", "ceil", "round", "trunc")
# Floats of fewer bits are computed with in f32.
_WIDE = 32
_LOG10_E = 0.4342944819032518276511289


@functools.cache
def _parsed(kind: Any, context: ir.Context, text: str) -> Any:
    return kind.parse(text, context)


def parsed_type(text: str) -> ir.Type:
    """A type of the current context by its text.

    Args:
        text: as MLIR writes it.
    """
    made: ir.Type = _parsed(ir.Type, ir.Context.current, text)
    return made


def parsed_attribute(text: str) -> ir.Attribute:
    """An attribute of the current context by its text.

    Args:
        text: as MLIR writes it.
    """
    made: ir.Attribute = _parsed(ir.Attribute, ir.Context.current, text)
    return made


def element(dtype: str) -> ir.Type:
    """The type of a scalar.

    Args:
        dtype: a short type name (:mod:`tilewright.schedule.types`).
    """
    return parsed_type(_TYPES.get(dtype, dtype))


def type_of(dtype: str, lanes: int) -> ir.Type:
    """The type of a scalar (no lanes) or a vector.

    Args:
        dtype: of the elements.
        lanes: of the vector; 0 for a scalar.
    """
    one = element(dtype)
    return ir.VectorType.get([lanes], one) if lanes else one


def memory_element(dtype: str) -> ir.Type:
    """The type that an element has in memory.

    Args:
        dtype: a short type name; a bool is a byte in memory.
    """
    return element("i8" if dtype == BOOL else dtype)


def memory_type(dtype: str, lanes: int) -> ir.Type:
    """The type of a vector as it is in memory.

    Args:
        dtype: of the elements.
        lanes: one at least.
    """
    return ir.VectorType.get([lanes], memory_element(dtype))


def _floating(type_: ir.Type) -> bool:
    return isinstance(type_, ir.FloatType)


def constant(dtype: str, value: Any) -> ir.Value:
    """A scalar constant, rounded or wrapped to its type.

    Args:
        dtype: its type.
        value: a number that need not be one of that type.
    """
    if not is_float(dtype) and dtype != BOOL:
        width = bits(dtype)
        value = (int(value) + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))
    return filled(element(dtype), value)


def filled(type_: ir.Type, value: float | int | bool) -> ir.Value:
    """A constant of a type, in all lanes of a vector.

    Args:
        type_: of a scalar or a vector.
        value: one that the type has.
    """
    one = ir.VectorType(type_).element_type if _is_vector(type_) else type_
    attribute = (
        ir.FloatAttr.get(one, float(value)) if _floating(one) else ir.IntegerAttr.get(one, value)
    )
    if _is_vector(type_):
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return arith.ConstantOp(type_, attribute).result


def like(reference: ir.Value, value: float | int | bool) -> ir.Value:
    """A constant of the type of another value.

    Args:
        reference: the other value.
        value: the number.
    """
    return filled(reference.type, value)


def _is_vector(type_: ir.Type) -> bool:
    return isinstance(type_, ir.VectorType)


def from_memory(value: ir.Value, dtype: str) -> ir.Value:
    """What was loaded, as it is computed with.

    Args:
        value: a scalar or vector.
        dtype: of the buffer.
    """
    if dtype != BOOL:
        return value
    return arith.CmpIOp(_PREDICATES["ne"], value, like(value, 0)).result


def to_memory(value: ir.Value, dtype: str) -> ir.Value:
    """A value as it is stored.

    Args:
        value: a scalar or vector.
        dtype: of the buffer.
    """
    if dtype != BOOL:
        return value
    return arith.ExtUIOp(_with_element(value, memory_element(BOOL)), value).result


def _with_element(value: ir.Value, one: ir.Type) -> ir.Type:
    """The type of a value with another element type."""
    if _is_vector(value.type):
        return ir.VectorType.get(ir.VectorType(value.type).shape, one)
    return one


def compare(op: str, a: ir.Value, b: ir.Value, dtype: str) -> ir.Value:
    """A comparison; of floats it is false where one is NaN, but for `ne`.

    Args:
        op: `eq`, `ne`, `lt`, `le`, `gt` or `ge`.
        a: the left operand.
        b: the right operand.
        dtype: of both.

    Returns:
        An i1, or a vector of them.
    """
    if is_float(dtype):
        return arith.CmpFOp(_ORDERED[op], a, b).result
    if dtype == BOOL and op not in ("eq", "ne"):
        # As numbers false is less than true; as i1, true is -1.
        a, b = b, a
    return arith.CmpIOp(_PREDICATES[op], a, b).result


def operation(op: str, args: list[ir.Value], dtype: str, constant_divisor: bool) -> ir.Value:
    """An operator of :class:`tilewright.schedule.expr.Binary`, or `not`, on values of `dtype`.

    Division of integers by 0 gives 0, and overflow wraps: neither ends the process. Floats of two
    bytes are computed in f32 and rounded, which gives the same numbers (f32 has more than twice
    their bits, and two) and which IREE's passes leave to LLVM; of an f16 maximum they crash.

    Args:
        op: the operator.
        args: its one or two operands, both scalars or both vectors.
        dtype: of the operands.
        constant_divisor: whether the divisor is known not to be 0 or -1.
    """
    if op == "not":
        return arith.XOrIOp(args[0], like(args[0], True)).result
    if is_float(dtype) and bits(dtype) < _WIDE:
        found = operation(op, [cast(one, dtype, "f32") for one in args], "f32", constant_divisor)
        return found if op in _PREDICATES else cast(found, "f32", dtype)
    a, b = args
    if op in _PREDICATES:
        return compare(op, a, b, dtype)
    if is_float(dtype):
        kind = _FLOAT[op]
        if op in ("add", "sub", "mul"):
            # A product and a sum may become one instruction.
            return kind(a, b, fastmath=parsed_attribute("#arith.fastmath<contract>")).result
        if op in ("min", "max"):
            # Which of 0 and -0 it is takes more instructions than the extreme itself.
            return kind(a, b, fastmath=parsed_attribute("#arith.fastmath<nsz>")).result
        return kind(a, b).result
    if op in _INTEGER:
        return _INTEGER[op](a, b).result
    return _divided(op, a, b, constant_divisor)


def _divided(op: str, a: ir.Value, b: ir.Value, constant_divisor: bool) -> ir.Value:
    if constant_divisor:
        return _quotient(op, a, b)
    none = like(b, 0)
    is_zero = arith.CmpIOp(_PREDICATES["eq"], b, none).result
    is_minus = arith.CmpIOp(_PREDICATES["eq"], b, like(b, -1)).result
    special = arith.OrIOp(is_zero, is_minus).result
    usual = _quotient(op, a, arith.SelectOp(special, like(b, 1), b).result)
    # By -1 the quotient is the negative and the remainder 0; by 0 both are 0, as in NumPy.
    negative = arith.SubIOp(none, a).result if op.endswith("div") else none
    result = arith.SelectOp(is_minus, negative, usual).result
    return arith.SelectOp(is_zero, none, result).result


def _quotient(op: str, a: ir.Value, b: ir.Value) -> ir.Value:
    match op:
        case "floordiv":
            return arith.FloorDivSIOp(a, b).result
        case "truncdiv":
            return arith.DivSIOp(a, b).result
        case "truncmod":
            return arith.RemSIOp(a, b).result
    return _floor_remainder(a, b)


def _floor_remainder(a: ir.Value, b: ir.Value) -> ir.Value:
    rest = arith.RemSIOp(a, b).result
    none = like(rest, 0)
    nonzero = arith.CmpIOp(_PREDICATES["ne"], rest, none).result
    signs = arith.CmpIOp(_PREDICATES["lt"], arith.XOrIOp(rest, b).result, none).result
    wrong = arith.AndIOp(nonzero, signs).result
    return arith.SelectOp(wrong, arith.AddIOp(rest, b).result, rest).result


def cast(value: ir.Value, source: str, target: str) -> ir.Value:
    """A conversion: floats to integers truncate, to bool everything but 0 is true.

    Args:
        value: a scalar or vector.
        source: its type.
        target: the type that it gets.
    """
    if source == target:
        return value
    type_ = _with_element(value, element(target))
    if target == BOOL:
        return operation("ne", [value, like(value, 0)], source, True)
    if source == BOOL:
        if is_float(target):
            return arith.UIToFPOp(type_, value).result
        wide = arith.ExtUIOp(_with_element(value, element("i64")), value).result
        return cast(wide, "i64", target) if target != "i64" else wide
    if INDEX in (source, target):
        if is_float(target):
            return cast(cast(value, INDEX, "i64"), "i64", target)
        if is_float(source):
            return cast(cast(value, source, "i64"), "i64", INDEX)
        return arith.IndexCastOp(type_, value).result
    if is_float(source) and is_float(target):
        if bits(source) == bits(target):
            return cast(cast(value, source, "f32"), "f32", target)
        if (source, target) == ("bf16", "f32"):
            return _widened(value, type_)
        kind = arith.ExtFOp if bits(target) > bits(source) else arith.TruncFOp
    elif is_float(source):
        kind = arith.FPToSIOp
    elif is_float(target):
        kind = arith.SIToFPOp
    else:
        kind = arith.ExtSIOp if bits(target) > bits(source) else arith.TruncIOp
    return kind(type_, value).result


def _widened(value: ir.Value, type_: ir.Type) -> ir.Value:
    """bf16 in f32, by its bits: LLVM takes a float that is rounded and widened again for the one
    that was rounded, where it may contract operations."""
    whole = _with_element(value, element("i16"))
    wide = _with_element(value, element("i32"))
    bits_ = arith.ExtUIOp(wide, arith.BitcastOp(whole, value).result).result
    moved = arith.ShLIOp(bits_, like(bits_, 16)).result
    return arith.BitcastOp(type_, moved).result


def intrinsic(name: str, args: Sequence[ir.Value]) -> ir.Value:
    """An intrinsic of LLVM on floats, as the function of their type.

    Args:
        name: as LLVM's reference has it.
        args: its operands, all scalars or all vectors, of which the result is another.
    """
    return llvm.CallIntrinsicOp(args[0].type, name, list(args), [], []).results[0]


def call(name: str, args: list[ir.Value], dtype: str) -> ir.Value:
    """A function (:class:`tilewright.schedule.expr.Call`); f16 and bf16 are computed in f32 and
    rounded once.

    Args:
        name: of the function.
        args: its operands, all scalars or all vectors.
        dtype: of the operands.
    """
    if name == "isnan":
        return arith.CmpFOp(_UNORDERED, args[0], args[0]).result
    if name == "abs" and not is_float(dtype):
        return math.AbsIOp(args[0]).result if dtype != BOOL else args[0]
    if bits(dtype) == 16 and name not in _EXACT:
        wide = [cast(arg, dtype, "f32") for arg in args]
        return cast(call(name, wide, "f32"), "f32", dtype)
    if name == "abs":
        return math.AbsFOp(args[0]).result
    if name == "log10":
        logarithm = math.LogOp(args[0]).result
        return arith.MulFOp(logarithm, like(logarithm, _LOG10_E)).result
    return getattr(math, f"{_MATH.get(name, name.capitalize())}Op")(*args).result
