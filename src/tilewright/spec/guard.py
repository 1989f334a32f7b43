"""Keep a foreign `foreach_match` in a merged spec from functions that are configured already.

Two steps, because a spec may configure several ops of one function: before it starts, the functions
that have a configuration are marked; while it runs, the ops in marked functions are skipped.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

from tilewright.spec import library

#: Unit attribute on a function that an earlier spec of a merged one configured.
CONFIGURED = "tilewright.configured"

_FREE = library.PREFIX + "is_free_function"
_ANY = library.PREFIX + "is_anything"
_IN_CONFIGURED = library.PREFIX + "is_in_configured_function"
_LEAVE = library.PREFIX + "leave"
_MARK = library.PREFIX + "mark_configured"
_HAS_MARK = library.PREFIX + "has_configured_mark"


def mark_configured(func: ir.Value) -> ir.Value:
    """Emit the step that marks `func` if one of its ops is configured; the handle after it."""
    pairs = [(_FREE, _LEAVE), (_ANY, _MARK)]
    matchers, actions = (
        ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in names])
        for names in zip(*pairs, strict=True)
    )
    # Without `restrict_root` the function itself, which is the root, would be passed over.
    return transform.ForeachMatchOp(
        library.any_op(), [], func, [], matchers, actions, restrict_root=True
    ).updated


def guarding_pair() -> tuple[str, str]:
    """The (matcher, action) that takes up every op of a marked function and does nothing."""
    return _IN_CONFIGURED, _LEAVE


def add_guards(module: ir.Module) -> None:
    """Define the sequences that the steps above use, if `module` uses them and has them not yet."""
    operations = [op.operation for op in module.body.operations]
    defined = {library.symbol(op) for op in operations}
    used = any(
        library.text(matcher) == _FREE
        for op in library.walk(module.operation)
        if op.name == "transform.foreach_match"
        for matcher in ir.ArrayAttr(op.attributes["matchers"])
        if isinstance(matcher, ir.FlatSymbolRefAttr)
    )
    if not used or _FREE in defined:
        return
    with ir.InsertionPoint(operations[0]):
        _matcher(_FREE, lambda op: library.include(library.UNCONFIGURED, [op]))
        _matcher(_ANY, lambda op: None)
        _matcher(_IN_CONFIGURED, _in_configured)
        action = library.named_sequence(_LEAVE, [library.any_op()])
        with ir.InsertionPoint(action.body):
            transform.YieldOp()
        action = library.named_sequence(_MARK, [library.any_op()])
        with ir.InsertionPoint(action.body):
            transform.AnnotateOp(action.body.arguments[0], CONFIGURED)
            transform.YieldOp()
        check = library.named_sequence(_HAS_MARK, [library.any_op()])
        with ir.InsertionPoint(check.body):
            marked = structured.MatchOp(
                library.any_op(),
                check.body.arguments[0],
                ops=ir.ArrayAttr.get([ir.StringAttr.get("func.func")]),
                op_attrs=ir.DictAttr.get({CONFIGURED: ir.UnitAttr.get()}),
            ).result
            library.include(library.COUNT_OPS, [marked, library.integer(1)])
            transform.YieldOp()


def _matcher(name: str, build: Callable[[ir.Value], None]) -> None:
    """A matcher of one op that hands the op on."""
    sequence = transform.NamedSequenceOp(
        name, [library.any_op()], [library.any_op()], arg_attrs=[library.readonly()]
    )
    with ir.InsertionPoint(sequence.body):
        build(sequence.body.arguments[0])
        transform.YieldOp([sequence.body.arguments[0]])


def _in_configured(op: ir.Value) -> None:
    func = transform.GetParentOp(library.any_op(), op, op_name="func.func").result
    library.include(_HAS_MARK, [func])
