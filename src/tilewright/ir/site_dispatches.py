"""Which ops of a program at the preprocessing phase each of its dispatches is made of.

Every op gets a number as its location, and so does its body. The compiler's passes hand locations
on; so, where dispatches have been formed, the numbers in one say what it was made of.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.dispatches import called_entries, count_calls
from tilewright.ir.locations import first_place, places
from tilewright.ir.session import SITE_PHASE, CompilerSession
from tilewright.ir.site_ops import ProgramOps, is_cheap, is_elementwise, program_ops
from tilewright.ir.walk import walk

_FORMED_PHASE, _OUTLINED_PHASE = "dispatch-creation", "flow"
_FORMED, _CALL = "flow.dispatch.workgroups", "flow.dispatch"
# Equal ones are made one: they have the location of any op, and show nothing of it.
_ANYWHERE = ("arith.constant", "flow.", "iree_tensor_ext.", "linalg.fill", "tensor.empty")
_STRUCTURED = ("iree_linalg_ext.", "linalg.")
# Changes of layout that are split off the ops that ask for them.
_PACKING = (
    "iree_linalg_ext.im2col",
    "iree_linalg_ext.map_",
    "linalg.pack",
    "linalg.unpack",
)
# By place: the number of an op, and whether the place is in its body.
_Marks = dict[int, tuple[int, bool]]


@dataclass(frozen=True)
class FormedDispatch:
    """A dispatch where the program has it.

    entry: its entry point. count: how often a run runs it. ops: the numbers of the ops that it was
    made of; None where it was a dispatch before the compiler formed any. perhaps: ops without
    arithmetic of which it has the locations: they are in it or next to it.
    """

    entry: str
    count: int
    ops: frozenset[int] | None
    perhaps: frozenset[int]


def form_dispatches(
    compiler: CompilerSession, ops: ProgramOps, copy: ir.Operation, function: str | None
) -> list[FormedDispatch]:
    """The dispatches that the compiler makes of a program, each where a run runs it.

    Args:
        compiler: a session of whose context `copy` is.
        ops: those of the program.
        copy: of the program at the phase `SITE_PHASE`; it is taken to the flow phase.
        function: the entry point whose run is counted; by default every public one is run once.

    Raises:
        CompileError: the program does not compile.
    """
    marks: _Marks = {}
    with copy.context:
        for number, op in enumerate(program_ops(copy)):
            for nested, one in ((False, op), *((True, inner) for inner in walk(op))):
                one.location = ir.Location.file("site", number, int(nested))
                marks.update(dict.fromkeys(places(one.location), (number, nested)))
    compiler.run(copy, SITE_PHASE, _FORMED_PHASE, verify=False)
    formed: dict[str, list[tuple[ir.Location, tuple[frozenset[int], frozenset[int]]]]] = (
        defaultdict(list)
    )
    for op in walk(copy):
        if op.name == _FORMED:
            formed[_function_of(op)].append((op.location, _ops_of(op, ops, marks)))
    compiler.run(copy, _FORMED_PHASE, _OUTLINED_PHASE, verify=False)
    counts = count_calls(copy, function)
    found = []
    for op in walk(copy):
        if op.name != _CALL or not counts[op]:
            continue
        left = formed[_function_of(op)]
        at = next((i for i, (location, _) in enumerate(left) if location == op.location), None)
        inside, perhaps = (None, frozenset[int]()) if at is None else left.pop(at)[1]
        found.append(FormedDispatch(called_entries(op)[0][1], counts[op], inside, perhaps))
    return found


def _ops_of(
    dispatch: ir.Operation, ops: ProgramOps, marks: _Marks
) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the ops that a dispatch was made of, and of those that it may be made of.

    Fusing two elementwise ops keeps the ops of both bodies, where they were. The location of the
    fused op is that of either, or of both and of what they use, its own first. And an op can be
    split: its bias is added in another dispatch, its operands are packed where they are made. So
    these count only where there is nothing else: in a dispatch that copies or packs.
    """
    surely, parts, perhaps, hardly = set[int](), set[int](), set[int](), set[int]()
    for op in walk(dispatch):
        anywhere = op.name.startswith(_ANYWHERE)
        whole = op.name.startswith(_STRUCTURED) and not op.name.startswith(_PACKING)
        whole &= not op.parent.operation.name.startswith(_STRUCTURED) and not is_elementwise(op)
        first = first_place(op.location)
        for place in places(op.location) & marks.keys():
            number, nested = marks[place]
            if anywhere:
                hardly.add(number)
            elif not is_cheap(ops.ops[number]):
                (surely if whole and place == first else parts).add(number)
            elif nested and not op.name.endswith(".yield"):
                surely.add(number)
            else:
                perhaps.add(number)
    return frozenset(surely or parts or perhaps or hardly), frozenset(perhaps)


def _function_of(op: ir.Operation) -> str:
    while "sym_name" not in op.attributes and op.parent is not None:
        op = op.parent.operation
    return str(op.attributes["sym_name"]) if "sym_name" in op.attributes else ""
