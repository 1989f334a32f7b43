"""Sites of a program: what IREE makes each dispatch of, found at the preprocessing phase.

Every op of the program gets a number as its location, and the ops in its body get the same. The
compiler's passes hand locations on; so, where dispatches have been formed, the numbers in one say
which ops it was made of. What was fused into others without a trace belongs where it is used. Ops
of constants alone, which the compiler evaluates ahead, stay outside: sites take their results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from iree.compiler import ir

from tilewright.ir.classify import element_bits
from tilewright.ir.dispatches import called_entries, count_calls
from tilewright.ir.locations import places
from tilewright.ir.reference.access import iterator_kinds
from tilewright.ir.session import CompilerSession
from tilewright.ir.site_module import IsolatedSite, isolate_value, needed
from tilewright.ir.walk import walk

SITE_PHASE = "preprocessing"
"""The phase at which sites are found, and of which their modules are."""

_FORMED_PHASE, _OUTLINED_PHASE = "dispatch-creation", "flow"
_FORMED, _CALL = "flow.dispatch.workgroups", "flow.dispatch"
# What computes on tensors. An op of another dialect with tensors is no part of a site.
_DIALECTS = ("arith.", "complex.", "iree_linalg_ext.", "linalg.", "math.", "tensor.")
# Equal ones are made one: they have the location of any op, and show nothing of it.
_ANYWHERE = ("arith.constant", "flow.", "iree_tensor_ext.", "linalg.fill", "tensor.empty")
# Another way to look at the same data.
_VIEWS = ("tensor.cast", "tensor.collapse_shape", "tensor.empty", "tensor.expand_shape")
# No access to the data.
_SIZES = ("tensor.dim",)
# What is not part of any dispatch, where a dispatch would be.
_OUTSIDE = -1
_NOTHING = "no op of the program was found in it"
# How much of a value is known before a run: all from the code, all with the weights, or not.
_FREE, _CONSTANT, _DATA = range(3)


@dataclass(frozen=True)
class ProgramSite:
    """A site of a program.

    dispatches: entry points of the dispatches that IREE computes it with. count: how often a run
    computes it. alone: the site as a module; None where `reason` says why there is none. constant:
    which of its inputs are known before a run. Two with the same `alone.digest` and `constant` are
    the same site.
    """

    dispatches: tuple[str, ...]
    count: int
    alone: IsolatedSite | None
    constant: tuple[bool, ...] = ()
    reason: str = ""


def find_program_sites(
    compiler: CompilerSession, module: ir.Operation, function: str | None = None
) -> list[ProgramSite]:
    """The sites of a program, equal ones counted together, in the order of their dispatches.

    Args:
        compiler: a session of whose context `module` is.
        module: the program at the phase `SITE_PHASE`; it is left as it is.
        function: the entry point whose run is counted; by default every public one is run once.

    Returns:
        A site for every dispatch of the run, at least; where none could be found, one with a reason
        and without a module.

    Raises:
        CompileError: the program does not compile.
    """
    ops = _ProgramOps(module)
    found = _Grouping(ops, _formed(compiler, ops, module, function)).sites()
    merged: dict[object, ProgramSite] = {}
    for site in found:
        key = site if site.alone is None else (site.alone.digest, site.constant)
        known = merged.get(key)
        if known is None:
            merged[key] = site
            continue
        names = tuple(dict.fromkeys((*known.dispatches, *site.dispatches)))
        merged[key] = replace(known, dispatches=names, count=known.count + site.count)
    return list(merged.values())


@dataclass(frozen=True)
class _Dispatch:
    """A dispatch where the program has it: how often it runs, and the numbers of the ops in it;
    None where it was one before the compiler formed any."""

    entry: str
    count: int
    ops: frozenset[int] | None


def _formed(
    compiler: CompilerSession, ops: _ProgramOps, module: ir.Operation, function: str | None
) -> list[_Dispatch]:
    """The dispatches that the compiler makes of a program."""
    copy = module.operation.clone()
    number_of: dict[int, int] = {}
    with copy.context:
        for number, op in enumerate(_program_ops(copy)):
            location = ir.Location.file("site", number, 0)
            for place in places(location):
                number_of[place] = number
            for one in (op, *walk(op)):
                one.location = location
    compiler.run(copy, SITE_PHASE, _FORMED_PHASE)
    formed: dict[str, list[tuple[ir.Location, frozenset[int]]]] = defaultdict(list)
    for op in walk(copy):
        if op.name == _FORMED:
            numbers = {
                number_of[place]
                for one in walk(op)
                for place in places(one.location)
                if place in number_of
                and (not one.name.startswith(_ANYWHERE) or ops.is_cheap(ops.ops[number_of[place]]))
            }
            formed[_function_of(op)].append((op.location, frozenset(numbers)))
    compiler.run(copy, _FORMED_PHASE, _OUTLINED_PHASE)
    counts = count_calls(copy, function)
    found = []
    for op in walk(copy):
        if op.name != _CALL or not counts[op]:
            continue
        left = formed[_function_of(op)]
        at = next((i for i, (location, _) in enumerate(left) if location == op.location), None)
        inside = None if at is None else left.pop(at)[1]
        found.append(_Dispatch(called_entries(op)[0][1], counts[op], inside))
    return found


def _function_of(op: ir.Operation) -> str:
    while "sym_name" not in op.attributes and op.parent is not None:
        op = op.parent.operation
    return str(op.attributes["sym_name"]) if "sym_name" in op.attributes else ""


def _program_ops(module: ir.Operation) -> Iterator[ir.Operation]:
    """The ops of a module that can be part of a site, in order."""
    for op in walk(module, lambda op: not _computes(op) and op.name != "util.initializer"):
        if _computes(op):
            yield op


def _computes(op: ir.Operation) -> bool:
    return (
        op.name.startswith(_DIALECTS)
        and op.name != "arith.constant"
        and len(op.results) > 0
        and all(isinstance(value.type, ir.RankedTensorType) for value in op.results)
    )


class _ProgramOps:
    """The ops of a program by their numbers, with what is known of each."""

    def __init__(self, module: ir.Operation) -> None:
        self.ops = list(_program_ops(module))
        self.number = {op: number for number, op in enumerate(self.ops)}
        self._globals = {
            str(op.attributes["sym_name"]): "is_mutable" not in op.attributes
            for op in walk(module, lambda _: False)
            if op.name == "util.global"
        }
        self._known: dict[ir.Operation, int] = {}
        self._data: dict[ir.Operation, int] = {}

    def known(self, value: ir.Value) -> int:
        """One of _FREE, _CONSTANT, _DATA."""
        if isinstance(value.owner, ir.Block):
            return _DATA
        op = value.owner.operation
        if op not in self._known:
            self._known[op] = self._known_of(op)
        return self._known[op]

    def _known_of(self, op: ir.Operation) -> int:
        if op.name == "arith.constant":
            value = op.attributes["value"]
            dense = isinstance(op.results[0].type, ir.ShapedType)
            splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
            return _CONSTANT if dense and not splat else _FREE
        if op.name == "util.global.load":
            name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
            return _CONSTANT if self._globals.get(f'"{name}"') else _DATA
        if not op.name.startswith(_DIALECTS):
            return _DATA
        return max(map(self.known, needed(op)), default=_FREE)

    def stays_outside(self, op: ir.Operation) -> bool:
        """Whether the compiler computes it ahead: of constants, and not larger than these."""
        constant = self.known(op.results[0]) == _CONSTANT
        return constant and sum(map(_bits, op.results)) <= self._data_of(op)

    def _data_of(self, op: ir.Operation) -> int:
        """Bits of the constants that an op of constants reads."""
        if op not in self._data:
            self._data[op] = 0
            for value in dict.fromkeys(needed(op)):
                if self.known(value) == _CONSTANT:
                    owner = value.owner.operation
                    ahead = not _computes(owner) or self.stays_outside(owner)
                    self._data[op] += _bits(value) if ahead else self._data_of(owner)
        return self._data[op]

    def is_cheap(self, op: ir.Operation) -> bool:
        """Whether the compiler may compute it in several dispatches instead of storing it."""
        if op.name.startswith(("tensor.", "arith.", "math.", "complex.")):
            return True
        kinds = iterator_kinds(op)
        return op.name == "linalg.fill" or (kinds is not None and not any(kinds))

    def users(self, value: ir.Value) -> set[int]:
        """The ops that use a value; _OUTSIDE stands for all that are no part of a site."""
        found = set()
        for use in value.uses:
            user = use.owner.operation
            while user not in self.number and user.parent is not None:
                user = user.parent.operation
            if use.owner.operation.name not in _SIZES:
                found.add(self.number.get(user, _OUTSIDE))
        return found


def _bits(value: ir.Value) -> int:
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    points: int = prod(max(0, size) for size in type_.shape)
    return points * element_bits(type_.element_type)


class _Grouping:
    """Which ops are computed together, and what that gives as sites."""

    def __init__(self, ops: _ProgramOps, dispatches: Sequence[_Dispatch]) -> None:
        self._ops = ops
        self._dispatches = dispatches
        # For each op the dispatches that it is computed in, by the first of each group.
        self._where: list[set[int]] = [set() for _ in ops.ops]
        for index, dispatch in enumerate(dispatches):
            for number in dispatch.ops or ():
                self._where[number].add(index)
        self._group = self._joined()
        self._where = [{self._group[index] for index in where} for where in self._where]
        self._absorb()

    def _joined(self) -> list[int]:
        """Dispatches that are parts of one computation: a product on packed data, with packing."""
        group = list(range(len(self._dispatches)))
        for number, where in enumerate(self._where):
            if len(where) > 1 and not self._ops.is_cheap(self._ops.ops[number]):
                first = min(group[index] for index in where)
                joined = {group[index] for index in where}
                group = [first if one in joined else one for one in group]
        return group

    def _absorb(self) -> None:
        """Find a place for ops that left no trace: where they are used, or what they use is."""
        lost = []
        for number, op in reversed(list(enumerate(self._ops.ops))):
            if self._where[number]:
                continue
            users = {user for value in op.results for user in self._ops.users(value)}
            where = set().union(*(self._at(user) for user in users))
            view = op.name in _VIEWS
            if len(where) == 1 or view or (self._ops.is_cheap(op) and _OUTSIDE not in where):
                self._where[number] = where
            if not view and where & {_OUTSIDE}:
                lost.append(number)
        for number in reversed(lost):
            makers = {
                place
                for value in needed(self._ops.ops[number])
                if not isinstance(value.owner, ir.Block)
                and value.owner.operation in self._ops.number
                and self._ops.known(value) == _DATA
                for place in self._where[self._ops.number[value.owner.operation]]
            }
            if len(makers) == 1:
                self._where[number] = makers

    def _at(self, user: int) -> set[int]:
        return {_OUTSIDE} if user == _OUTSIDE else self._where[user]

    def sites(self) -> Iterator[ProgramSite]:
        """The sites, in the order of their first dispatches."""
        results = self._results()
        for first in dict.fromkeys(self._group):
            members = [
                d for d, one in zip(self._dispatches, self._group, strict=True) if one == first
            ]
            names = tuple(dict.fromkeys(d.entry for d in members))
            count = max(d.count for d in members)
            values = results[first]
            if len(values) == 1:
                yield self._site(names, count, values[0], first)
            elif values:
                yield ProgramSite(names, count, None, reason=f"it has {len(values)} results")
            else:
                own = members[0].ops is None
                reason = "the program has it as a dispatch already" if own else _NOTHING
                yield ProgramSite(names, count, None, reason=reason)

    def _site(self, names: tuple[str, ...], count: int, value: ir.Value, group: int) -> ProgramSite:
        def inside(op: ir.Operation) -> bool:
            number = self._ops.number.get(op)
            known = self._ops.known(op.results[0])
            if known == _DATA:
                return number is not None and group in self._where[number]
            return known == _FREE or (number is not None and not self._ops.stays_outside(op))

        alone = isolate_value(value, inside)
        constant = tuple(self._ops.known(one) == _CONSTANT for one in alone.inputs)
        return ProgramSite(names, count, alone, constant, alone.obstacle)

    def _results(self) -> dict[int, list[ir.Value]]:
        """For each group the values that are used where they are not computed."""
        found: dict[int, list[ir.Value]] = defaultdict(list)
        shared = []
        for number, op in enumerate(self._ops.ops):
            where = self._where[number] - {_OUTSIDE}
            for value in op.results:
                if not where or not self._is_used_outside(value, self._where[number]):
                    continue
                if len(where) == 1:
                    found[min(where)].append(value)
                else:
                    shared.append((value, where))
        for value, where in shared:
            found[min(where, key=lambda one: (len(found[one]), one))].append(value)
        return found

    def _is_used_outside(self, value: ir.Value, where: set[int]) -> bool:
        if self._ops.known(value) == _FREE:
            # Whoever uses it computes it.
            return _OUTSIDE in self._ops.users(value)
        return any(self._at(user) - where for user in self._ops.users(value))
