"""Work on constants that a compiled program does in every call, where it could be done ahead.

Weights that are packed, transposed or converted have another layout than they come in, which
belongs into an initializer: there it is evaluated when the program is compiled or loaded.
"""

from __future__ import annotations

from collections import Counter

from iree.compiler import ir

from tilewright.attributes import is_attribute, items_of, parse_type
from tilewright.ir.walk import walk

_DISPATCH, _ENTRIES, _ACCESSES = "stream.cmd.dispatch", "entry_points", "resource_accesses"
_FUNCTION = "util.func"
# Bits of an access; lifetimes of resources that are written before the first call only.
_READ = 1
_CONSTANT = "constant"


def constant_dispatches(module: ir.Module | ir.Operation) -> Counter[str]:
    """The dispatches of a program's functions that read constants and nothing else.

    Args:
        module: the program at the executable-configurations phase.

    Returns:
        How many calls of each there are in functions, by the names of their entry points.
        Dispatches that read nothing, and those of initializers, are none of them.
    """
    found: Counter[str] = Counter()
    for function in walk(module.operation, lambda op: False):
        if function.name == _FUNCTION:
            found.update(
                _entry(op)
                for op in walk(function)
                if op.name == _DISPATCH and _reads_constants_only(op)
            )
    return found


def _reads_constants_only(dispatch: ir.Operation) -> bool:
    types = [parse_type(str(value.type)) for value in dispatch.operands]
    resources = [items_of(one) for one in types if is_attribute(one, "!stream.resource")]
    accesses = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(dispatch.attributes[_ACCESSES])]
    read = [life for life, access in zip(resources, accesses, strict=True) if access & _READ]
    return bool(read) and all(life == [_CONSTANT] for life in read)


def _entry(dispatch: ir.Operation) -> str:
    """The name of the entry point; of several, one for each kind of processor, the first."""
    first = ir.SymbolRefAttr(ir.ArrayAttr(dispatch.attributes[_ENTRIES])[0])
    return str(first.value[-1])
