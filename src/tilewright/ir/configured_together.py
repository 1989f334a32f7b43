"""Isolated dispatches that are compiled together to where the compiler configures them.

Most of what one takes are passes over a program that is hardly there: twelve of an Inception-like
network took 0.5 to 0.9 s together, 1.7 to 2.1 one by one. Each comes out as it does alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir

from tilewright.ir.dispatches import ISOLATED_FUNCTION
from tilewright.ir.session import CONFIGURED_PHASE, ISOLATED_PHASE, CompilerSession
from tilewright.ir.walk import string_attribute, symbols, walk

_EXECUTABLE, _FUNCTION, _DISPATCH = "flow.executable", "util.func", "stream.cmd.dispatch"


def joinable(modules: Sequence[ir.Module]) -> list[int]:
    """Which isolated dispatches can be compiled together.

    Args:
        modules: as `isolate` makes them.

    Returns:
        Positions: of those that are nothing but an executable and the function that calls it, the
        first of each name.
    """
    found: list[int] = []
    taken: set[str] = set()
    for position, module in enumerate(modules):
        named = symbols(module)
        kinds = {name: op.name for name, op in named.items()}
        plain = len(module.body.operations) == len(named) and not len(module.operation.attributes)
        own = {name for name, kind in kinds.items() if kind == _EXECUTABLE}
        if plain and own and not own & taken and kinds == _kinds(own):
            found.append(position)
            taken |= own
    return found


def _kinds(executables: set[str]) -> dict[str, str]:
    return {**dict.fromkeys(executables, _EXECUTABLE), ISOLATED_FUNCTION: _FUNCTION}


def configure_together(compiler: CompilerSession, modules: Sequence[ir.Module]) -> list[ir.Module]:
    """Isolated dispatches at the executable-configurations phase.

    Args:
        compiler: of the modules' context.
        modules: `joinable` ones.

    Returns:
        The program of each.

    Raises:
        CompileError: one of them does not compile.
    """
    with compiler.context, ir.Location.unknown():
        whole = ir.Module.create()
        for number, module in enumerate(modules):
            for op in module.body.operations:
                copy = op.operation.clone(ip=ir.InsertionPoint(whole.body)).operation
                if copy.name == _FUNCTION:
                    copy.attributes["sym_name"] = ir.StringAttr.get(_name(number))
        compiler.run(whole.operation, ISOLATED_PHASE, CONFIGURED_PHASE, verify=False)
        return [_alone(whole, number) for number in range(len(modules))]


def _name(number: int) -> str:
    return f"{ISOLATED_FUNCTION}_{number}"


def _alone(whole: ir.Module, number: int) -> ir.Module:
    """A copy of the program with nothing of the other dispatches."""
    module = ir.Module.create()
    for name in whole.operation.attributes:
        module.operation.attributes[name] = whole.operation.attributes[name]
    function = symbols(whole)[_name(number)]
    used = {
        ir.SymbolRefAttr(entry).value[0]
        for op in walk(function)
        if op.name == _DISPATCH
        for entry in ir.ArrayAttr(op.attributes["entry_points"])
    }
    for view in whole.body.operations:
        op = view.operation
        if op == function or not _is_of_another(op, used):
            copy = op.clone(ip=ir.InsertionPoint(module.body)).operation
            if op == function:
                copy.attributes["sym_name"] = ir.StringAttr.get(ISOLATED_FUNCTION)
    return module


def _is_of_another(op: ir.Operation, used: set[str]) -> bool:
    is_executable = op.name == "hal.executable"
    return op.name == _FUNCTION or (is_executable and string_attribute(op, "sym_name") not in used)
