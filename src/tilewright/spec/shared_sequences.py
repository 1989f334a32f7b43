"""Helper sequences that the entries of specs share, put into the specs that call them by name.

They count what a handle stands for, compare values, and say whether a function has been configured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import transform

from tilewright.ir.walk import walk
from tilewright.spec.library import (
    FUNCTION_OP,
    PREFIX,
    any_op,
    any_value,
    define,
    include,
    integer,
    integer_type,
    match,
    match_tiled_ops,
    symbol,
    text,
)

UNCONFIGURED = "tilewright_unconfigured"
COUNT_OPS = "tilewright_count_ops"
COUNT_VALUES = "tilewright_count_values"
COUNT_OPERANDS = "tilewright_count_operands"
SAME_VALUE = "tilewright_same_value"

#: Unit attribute on a function that an earlier spec of a merged one configured.
CONFIGURED = "tilewright.configured"
_FREE = PREFIX + "is_free_function"
_ANY = PREFIX + "is_anything"
_IN_CONFIGURED = PREFIX + "is_in_configured_function"
_LEAVE = PREFIX + "leave"
_MARK = PREFIX + "mark_configured"
_HAS_MARK = PREFIX + "has_configured_mark"

# A foreign `foreach_match` in a merged spec is kept from functions that are configured already in
# two steps, because a spec may configure several ops of one function: before it starts, the
# functions that have a configuration are marked; while it runs, the ops in marked ones are skipped.

#: The (matcher, action) that takes up every op of a marked function and does nothing.
GUARDING_PAIR = (_IN_CONFIGURED, _LEAVE)


def mark_configured(func: ir.Value) -> ir.Value:
    """Emit the step that marks a function if one of its ops is configured.

    Args:
        func: its handle, which is consumed.

    Returns:
        The handle after it.
    """
    matchers, actions = (
        ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in names])
        for names in ((_FREE, _ANY), (_LEAVE, _MARK))
    )
    # Without `restrict_root` the function itself, which is the root, would be passed over.
    return transform.ForeachMatchOp(
        any_op(), [], func, [], matchers, actions, restrict_root=True
    ).updated


def _unconfigured(func: ir.Value) -> None:
    """No compute op has a configuration yet: not from an earlier entry, not from the user."""
    each = transform.ForeachOp([], [match_tiled_ops(func)])
    with ir.InsertionPoint(each.body):
        ir.Operation.create(
            "transform.iree.match.has_no_lowering_config", operands=[each.body.arguments[0]]
        )
        transform.YieldOp()


def _count(handle: ir.Value, count: ir.Value) -> None:
    number = transform.NumAssociationsOp(integer_type(), handle).result
    transform.MatchParamCmpIOp(number, count, transform.MatchCmpIPredicate.eq)


def _count_operands(op: ir.Value, count: ir.Value) -> None:
    _count(transform.GetOperandOp(any_value(), op, [], is_all=True).result, count)


def _same_value(first: ir.Value, second: ir.Value) -> None:
    _count(transform.merge_handles([first, second], deduplicate=True), integer(1))


def _is_free(func: ir.Value) -> ir.Value:
    include(UNCONFIGURED, [func])
    return func


def _is_in_configured(op: ir.Value) -> ir.Value:
    include(_HAS_MARK, [transform.GetParentOp(any_op(), op, op_name=FUNCTION_OP).result])
    return op


def _has_mark(func: ir.Value) -> None:
    marked = match(func, [FUNCTION_OP], {CONFIGURED: ir.UnitAttr.get()})
    include(COUNT_OPS, [marked, integer(1)])


def _mark(func: ir.Value) -> None:
    transform.AnnotateOp(func, CONFIGURED)


@dataclass(frozen=True)
class _Helper:
    """A helper sequence; a matcher hands on the op that it is given."""

    build: Callable[..., ir.Value | None]
    types: tuple[Callable[[], ir.Type], ...] = (any_op,)
    is_matcher: bool = False


# Each after those that it uses.
_HELPERS = {
    UNCONFIGURED: _Helper(_unconfigured),
    COUNT_OPS: _Helper(_count, (any_op, integer_type)),
    COUNT_VALUES: _Helper(_count, (any_value, integer_type)),
    COUNT_OPERANDS: _Helper(_count_operands, (any_op, integer_type)),
    SAME_VALUE: _Helper(_same_value, (any_value, any_value)),
    _HAS_MARK: _Helper(_has_mark),
    _FREE: _Helper(_is_free, is_matcher=True),
    _ANY: _Helper(lambda op: op, is_matcher=True),
    _IN_CONFIGURED: _Helper(_is_in_configured, is_matcher=True),
    _LEAVE: _Helper(lambda op: None),
    _MARK: _Helper(_mark),
}


def is_helper(op: ir.Operation) -> bool:
    """Whether an op of a spec is one of the helper sequences, which are the same in all specs.

    Args:
        op: any.
    """
    return symbol(op) in _HELPERS


def add_helpers(module: ir.Module) -> None:
    """Define the helper sequences that a module uses and does not have, at its start.

    Args:
        module: a library of named sequences.
    """
    defined = {symbol(op) for op in module.body.operations}
    used = _used(module.operation)
    for name, helper in reversed(_HELPERS.items()):
        if name in defined or name not in used:
            continue
        with ir.InsertionPoint.at_block_begin(module.body):
            results = [any_op()] if helper.is_matcher else []
            types = [type_() for type_ in helper.types]
            used |= _used(define(name, types, helper.build, results=results))


def _used(root: ir.Operation) -> set[str]:
    """The sequences that ops below `root` include or match with."""
    found: set[str] = set()
    for op in walk(root):
        if op.name == "transform.include":
            found.add(text(op.attributes["target"]))
        elif op.name == "transform.foreach_match":
            for name in ("matchers", "actions"):
                found |= {text(reference) for reference in ir.ArrayAttr(op.attributes[name])}
    return found
