"""Integer operations of MLIR's `arith` as expressions: with a sign, without, of one bit."""

from __future__ import annotations

from iree.compiler import ir

from tilewright.schedule import functions as te
from tilewright.schedule.expr import Const, Expr, Not, binary, cast, const
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.sketch.scalar_rules import ScalarRules, Scalars
from tilewright.sketch.untranslatable import Untranslatable

RULES = ScalarRules()

_LOWEST = {8: -(1 << 7), 16: -(1 << 15), 32: -(1 << 31), 64: -(1 << 63)}


def unsigned(x: Expr, where: str) -> Expr:
    """An integer of at most 32 bits as the i64 that its bits are without a sign.

    Args:
        x: the integer.
        where: the operation, for the message.

    Raises:
        Untranslatable: it has 64 bits.
    """
    if x.dtype == BOOL:
        return cast("i64", x)
    if bits(x.dtype) == 64:
        raise Untranslatable(where, f"unsigned arithmetic of {x.dtype}")
    return binary("and", cast("i64", x), const((1 << bits(x.dtype)) - 1, "i64"))


def _below(op: str, x: Expr, y: Expr) -> Expr:
    """A comparison of integers without a sign."""
    if x.dtype == BOOL:
        return binary(op, cast("i32", x), cast("i32", y))
    if x.dtype == INDEX:
        x, y = cast("i64", x), cast("i64", y)
    if bits(x.dtype) < 64:
        return binary(op, unsigned(x, op), unsigned(y, op))
    sign = const(_LOWEST[64], x.dtype)
    return binary(op, binary("xor", x, sign), binary("xor", y, sign))


_ORDERINGS = ("lt", "le", "gt", "ge")


@RULES.rule("arith.cmpi")
def _compare_integers(op: ir.Operation, operands: Scalars) -> Expr:
    predicate = int(op.attributes["predicate"])
    x, y = operands
    if predicate < 2:
        return binary(("eq", "ne")[predicate], x, y)
    if predicate < 6:
        # As a signed number a true i1 is -1.
        return binary(_ORDERINGS[predicate - 2], *((y, x) if x.dtype == BOOL else (x, y)))
    return _below(_ORDERINGS[predicate - 6], x, y)


_LOGIC = {
    "arith.addi": "ne",
    "arith.subi": "ne",
    "arith.xori": "ne",
    "arith.muli": "logical_and",
    "arith.andi": "logical_and",
    "arith.minui": "logical_and",
    "arith.maxsi": "logical_and",
    "arith.ori": "logical_or",
    "arith.maxui": "logical_or",
    "arith.minsi": "logical_or",
}
_SIGNED = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.maxsi": "max",
    "arith.minsi": "min",
    "arith.divsi": "truncdiv",
    "arith.remsi": "truncmod",
    "arith.floordivsi": "floordiv",
}


@RULES.rule(*_SIGNED)
def _signed(op: ir.Operation, operands: Scalars) -> Expr:
    if operands[0].dtype != BOOL:
        return binary(_SIGNED[op.name], *operands)
    if op.name not in _LOGIC:
        raise Untranslatable(op.name, "division of i1")
    if op.name == "arith.xori" and isinstance(operands[1], Const):
        return Not(operands[0]) if operands[1].value else operands[0]
    return binary(_LOGIC[op.name], *operands)


@RULES.rule("arith.maxui", "arith.minui")
def _unsigned_extreme(op: ir.Operation, operands: Scalars) -> Expr:
    x, y = operands
    if x.dtype == BOOL:
        return binary(_LOGIC[op.name], x, y)
    return te.select(_below("ge" if op.name == "arith.maxui" else "le", x, y), x, y)


@RULES.rule("arith.ceildivsi")
def _ceiling(op: ir.Operation, operands: Scalars) -> Expr:
    x, y = operands
    more = binary("ne", binary("floormod", x, y), const(0, x.dtype))
    return binary("add", binary("floordiv", x, y), cast(x.dtype, more))


@RULES.rule("arith.divui", "arith.remui", "arith.ceildivui", "arith.shrui")
def _unsigned(op: ir.Operation, operands: Scalars) -> Expr:
    x, y = operands
    if x.dtype == INDEX:
        raise Untranslatable(op.name, "unsigned arithmetic of index")
    a, b = unsigned(x, op.name), unsigned(y, op.name)
    match op.name:
        case "arith.divui":
            made = binary("floordiv", a, b)
        case "arith.remui":
            made = binary("floormod", a, b)
        case "arith.ceildivui":
            made = -binary("floordiv", -a, b)
        case _:
            made = binary("shr", a, b)
    return cast(x.dtype, made)


@RULES.rule("arith.shli", "arith.shrsi")
def _shifted(op: ir.Operation, operands: Scalars) -> Expr:
    return binary("shl" if op.name == "arith.shli" else "shr", *operands)


@RULES.rule("math.absi")
def _absolute(op: ir.Operation, operands: Scalars) -> Expr:
    return te.abs(operands[0])


@RULES.rule("arith.mulsi_extended", "arith.mului_extended")
def _extended_product(op: ir.Operation, operands: Scalars) -> Scalars:
    dtype = operands[0].dtype
    if dtype == INDEX or bits(dtype) == 64:
        raise Untranslatable(op.name, f"the upper half of a product of {dtype}")
    signed = op.name == "arith.mulsi_extended"
    x, y = (cast("i64", v) if signed else unsigned(v, op.name) for v in operands)
    whole = binary("mul", x, y)
    return [cast(dtype, whole), cast(dtype, binary("shr", whole, const(bits(dtype), "i64")))]


@RULES.rule("arith.addui_extended")
def _extended_sum(op: ir.Operation, operands: Scalars) -> Scalars:
    whole = binary("add", *operands)
    return [whole, _below("lt", whole, operands[0])]
