"""Candidates: one dispatch, already configured by the compiler, with another configuration.

The template is the module of one isolated dispatch at the executable-configurations phase. A
candidate is compiled from there, which skips everything that all candidates have in common.

A kernel that is dispatched many times on the same operands finds them in the cache from the second
time on. Where caches are larger than a kernel's operands, benchmarks rotate: with as many copies of
the operands as fill the cache, taken in turn, each time is like the first.
"""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir
from iree.compiler.dialects import stream

from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.dispatches import ISOLATED_FUNCTION
from tilewright.ir.gpu_constraints import erase_constraints
from tilewright.ir.template import compute_ops, find_function
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
            turn (see `rotate`).

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
        add_benchmark(module, None if whole else executable, repeats, rotations)
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
        DispatchAttributes.of(function, configuration).put_on(function, compute_ops(function))


def isolated_function(module: ir.Module) -> ir.Operation:
    """The function of an isolated dispatch's module that calls it.

    Args:
        module: where its function is a `util.func`.
    """
    return next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "util.func"
        and string_attribute(op.operation, "sym_name") == ISOLATED_FUNCTION
    )


def add_benchmark(
    module: ir.Module, executable: str | None, repeats: int, rotations: int = 1
) -> None:
    """Add `bench`, which repeats the dispatches of an executable or all that `main` submits.

    Args:
        module: at the executable-configurations phase, with a function `main`.
        executable: its name; None repeats everything.
        repeats: how often.
        rotations: sets of arguments that `bench` takes; see `make_candidate`.
    """
    with module.context, ir.Location.unknown():
        copy = isolated_function(module).clone(ip=ir.InsertionPoint(module.body)).operation
        copy.attributes["sym_name"] = ir.StringAttr.get(BENCHMARK_FUNCTION)
        if "iree.reflection" in copy.attributes:
            del copy.attributes["iree.reflection"]
        if executable is None:
            submitted = [op for op in walk(copy) if op.name == _EXECUTE]
            once = rotations == 1 or len(submitted) != 1
            often = max(repeats, rotations)
            if once or not rotate(copy, _commands(submitted[0])[:-1], often, rotations):
                _repeat_submissions(submitted, repeats)
            return
        calls = [
            op
            for op in walk(copy)
            if op.name == "stream.cmd.dispatch" and _dispatches(op, executable)
        ]
        if rotations > 1 and len(calls) == 1 and rotate(copy, calls, repeats, rotations):
            return
        for call in calls:
            for _ in range(repeats - 1):
                call.clone(ip=ir.InsertionPoint(call))


def _commands(submission: ir.Operation) -> list[ir.Operation]:
    """What a submission records, and the end of its block."""
    return [op.operation for op in submission.regions[0].blocks[0].operations]


def _repeat_submissions(submissions: list[ir.Operation], repeats: int) -> None:
    """What each command buffer records, in order, this many times: as if `main` were called again,
    without the way back to the host."""
    for submission in submissions:
        *commands, end = _commands(submission)
        for _ in range(repeats - 1):
            for command in commands:
                command.clone(ip=ir.InsertionPoint(end))


def _dispatches(call: ir.Operation, executable: str) -> bool:
    return any(
        ir.SymbolRefAttr(point).value[0] == executable
        for point in ir.ArrayAttr(call.attributes["entry_points"])
    )


_EXECUTE = "stream.cmd.execute"


def rotate(function: ir.Operation, calls: list[ir.Operation], repeats: int, sets: int) -> bool:
    """Have a function run commands `repeats` times on `sets` sets of arguments in turn.

    It then takes all arguments `sets` times over: those of the first set, then of the second.
    Results go to one buffer.

    Args:
        function: the `util.func` at the executable-configurations phase, changed in place.
        calls: one dispatch, or all commands of a submission in their order.
        repeats: how often they run.
        sets: how many sets of arguments.

    Returns:
        False, with nothing changed, for a function of another form than one submission.
    """
    submissions = [op for op in walk(function) if op.name == _EXECUTE]
    if len(submissions) != 1 or len(function.regions[0].blocks) != 1:
        return False
    block = function.regions[0].blocks[0]
    first = list(block.arguments)
    if not first or any(op.name == "util.call" for op in walk(function)):
        return False
    copies = [_copy_of_arguments(block, submissions[0], first) for _ in range(sets - 1)]
    function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(list(function_type.inputs) * sets, function_type.results)
    )
    for name in ("arg_attrs", "tied_operands", "iree.abi.stub"):
        if name in function.attributes:
            del function.attributes[name]
    inside = _captured(submissions[0], copies)
    for turn in range(1, repeats):
        for call in calls:
            copy = call.clone(ip=ir.InsertionPoint(calls[0])).operation
            if turn % sets:
                _exchange(copy, {known: others[turn % sets - 1] for known, others in inside})
    return True


def _exchange(command: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    """Have a command, with what is in it, use other values."""
    for op in (command, *walk(command)):
        for position, value in enumerate(op.operands):
            if value in values:
                op.operands[position] = values[value]


def _copy_of_arguments(
    block: ir.Block, submission: ir.Operation, first: list[ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    """New arguments, and what is made of them before the submission: (as it was, the new)."""
    pairs: list[tuple[ir.Value, ir.Value]] = [
        (value, block.add_argument(value.type, value.location)) for value in first
    ]
    for op in list(block.operations):
        operation = op.operation
        if operation == submission:
            break
        if not any(value == old for value in operation.operands for old, _ in pairs):
            continue
        copy = operation.clone(ip=ir.InsertionPoint(submission)).operation
        for position, value in enumerate(copy.operands):
            for old, new in pairs:
                if value == old:
                    copy.operands[position] = new
        pairs += zip(operation.results, copy.results, strict=True)
    return pairs


def _captured(
    submission: ir.Operation, copies: list[list[tuple[ir.Value, ir.Value]]]
) -> list[tuple[ir.Value, list[ir.Value]]]:
    """Have the submission capture the copies as well: for each value inside it that stands for an
    argument's buffer, those that stand for its copies."""
    view = submission.opview
    resources, sizes = list(view.resource_operands), list(view.resource_operand_sizes)
    block = submission.regions[0].blocks[0]
    inside: list[tuple[ir.Value, list[ir.Value]]] = []
    more, more_sizes = [], []
    for resource, size, known in zip(
        list(resources), list(sizes), list(block.arguments), strict=True
    ):
        others = [new for pairs in copies for old, new in pairs if old == resource]
        if others:
            made = [block.add_argument(other.type, other.location) for other in others]
            inside.append((known, made))
            more += others
            more_sizes += [size] * len(others)
    with ir.InsertionPoint(submission):
        made_op = stream.CmdExecuteOp(
            submission.results[0].type,
            [*resources, *more],
            [*sizes, *more_sizes],
            once=view.once or None,
            await_timepoint=view.await_timepoint,
            affinity=view.affinity,
            loc=submission.location,
        )
    block.append_to(made_op.operation.regions[0])
    submission.results[0].replace_all_uses_with(made_op.operation.results[0])
    submission.erase()
    return inside
