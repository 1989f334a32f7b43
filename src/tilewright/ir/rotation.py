"""Benchmarks that read other buffers each time: for caches larger than a kernel's operands.

A kernel that is dispatched many times on the same operands finds them in the cache from the second
time on. With as many copies of them as fill the cache, taken in turn, each time is like the first.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import stream

from tilewright.ir.walk import walk

_EXECUTE = "stream.cmd.execute"


def rotate(function: ir.Operation, calls: list[ir.Operation], repeats: int, sets: int) -> bool:
    """Have a function run its dispatch `repeats` times on `sets` sets of arguments in turn.

    It then takes all arguments `sets` times over: those of the first set, then of the second.
    Results go to one buffer.

    Args:
        function: the `util.func` at the executable-configurations phase, changed in place.
        calls: its dispatches of one executable.
        repeats: how often they run.
        sets: how many sets of arguments.

    Returns:
        False, with nothing changed, for a function of another form than one dispatch in one
        submission.
    """
    submissions = [op for op in walk(function) if op.name == _EXECUTE]
    if len(submissions) != 1 or len(calls) != 1 or len(function.regions[0].blocks) != 1:
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
    call = calls[0]
    inside = _captured(submissions[0], copies)
    for turn in range(1, repeats):
        copy = call.clone(ip=ir.InsertionPoint(call)).operation
        for position, value in enumerate(copy.operands):
            for known, others in inside:
                if value == known and turn % sets:
                    copy.operands[position] = others[turn % sets - 1]
    return True


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
