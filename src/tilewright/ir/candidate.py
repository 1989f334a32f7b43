"""Candidates: one dispatch, already configured by the compiler, with another configuration.

The template is the module of one isolated dispatch at the executable-configurations phase. A
candidate is compiled from there, which skips everything that all candidates have in common.
"""

from __future__ import annotations

from iree.compiler import ir

from tilewright.ir.compute_ops import compute_ops
from tilewright.ir.dispatches import ISOLATED_FUNCTION
from tilewright.ir.gpu_constraints import erase_constraints
from tilewright.ir.lowering import write_configuration
from tilewright.ir.rotation import rotate
from tilewright.ir.template import find_function
from tilewright.ir.walk import string_attribute, walk
from tilewright.tiling import CompilationInfo

BENCHMARK_FUNCTION = "bench"


def make_candidate(
    template: str | bytes,
    context: ir.Context,
    executable: str,
    entry: str,
    configuration: CompilationInfo | None,
    repeats: int = 1,
    whole: bool = False,
    keep_constraints: bool = False,
    rotations: int = 1,
) -> ir.Module:
    """The template with a configuration, and a function that runs the dispatch several times.

    Args:
        template: the module of one isolated dispatch at the executable-configurations phase.
        context: that of the session which is to compile it.
        executable: the name of the dispatch's executable.
        entry: the name of its entry point.
        configuration: None leaves the compiler's own.
        repeats: `main` runs the dispatch once and returns its results; with more than 1 there is
            also `bench`, which takes the same arguments and runs the dispatch this often, one after
            the other, in one submission to the device.
        whole: `bench` runs all that `main` submits this often, its other dispatches and fills
            included; without a configuration no dispatch need be named then.
        keep_constraints: what the compiler stated about configurations stays in the module, which
            then cannot be compiled.
        rotations: `bench` takes this many sets of arguments, one after the other, and uses them in
            turn (see `ir.rotation`).

    Returns:
        A module to compile from the executable-configurations phase.

    Raises:
        UnreadableConfiguration: the template has no such dispatch, or the configuration is for ops
            that the dispatch does not have.
    """
    with context:
        module = ir.Module.parse(template)
    if configuration is not None or not whole:
        configure(module, executable, entry, configuration)
    if not keep_constraints:
        erase_constraints(module.operation)
    if repeats > 1:
        _add_benchmark(module, None if whole else executable, repeats, rotations)
    return module


def configure(
    module: ir.Module, executable: str, entry: str, configuration: CompilationInfo | None
) -> None:
    """Give a dispatch of a configured module another configuration, in place.

    Args:
        module: a module at the executable-configurations phase.
        executable: the name of the dispatch's executable.
        entry: the name of its entry point.
        configuration: None leaves the compiler's own.

    Raises:
        UnreadableConfiguration: as `make_candidate`.
    """
    function = find_function(module, executable, entry)
    if configuration is not None:
        write_configuration(function, compute_ops(function), configuration)


def _add_benchmark(
    module: ir.Module, executable: str | None, repeats: int, rotations: int = 1
) -> None:
    """Adds `bench`; it repeats the dispatches of an executable, or (None) everything."""
    with module.context, ir.Location.unknown():
        main = next(
            op.operation
            for op in module.body.operations
            if op.operation.name == "util.func"
            and string_attribute(op.operation, "sym_name") == ISOLATED_FUNCTION
        )
        copy = main.clone(ip=ir.InsertionPoint(module.body)).operation
        copy.attributes["sym_name"] = ir.StringAttr.get(BENCHMARK_FUNCTION)
        if "iree.reflection" in copy.attributes:
            del copy.attributes["iree.reflection"]
        if executable is None:
            _repeat_submissions(copy, repeats)
            return
        calls = [
            op
            for op in walk(copy)
            if op.name == "stream.cmd.dispatch" and _dispatches(op, executable)
        ]
        if rotations > 1 and rotate(copy, calls, repeats, rotations):
            return
        for call in calls:
            for _ in range(repeats - 1):
                call.clone(ip=ir.InsertionPoint(call))


def _repeat_submissions(function: ir.Operation, repeats: int) -> None:
    """What each command buffer records, in order, this many times: as if `main` were called again,
    without the way back to the host."""
    for submission in [op for op in walk(function) if op.name == "stream.cmd.execute"]:
        *commands, end = (op.operation for op in submission.regions[0].blocks[0].operations)
        for _ in range(repeats - 1):
            for command in commands:
                command.clone(ip=ir.InsertionPoint(end))


def _dispatches(call: ir.Operation, executable: str) -> bool:
    return any(
        ir.SymbolRefAttr(point).value[0] == executable
        for point in ir.ArrayAttr(call.attributes["entry_points"])
    )
