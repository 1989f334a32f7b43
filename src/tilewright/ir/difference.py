"""Whether two configured dispatches are the same code: a dispatch alone, and in its program.

Both are executables at the executable-configurations phase, in one context. What is compared is
all that code generation goes by: the target, the function with its ops, their attributes (the
compiler's own configuration among them), types and bodies, how values flow between the ops, and
the number of workgroups. What depends on the host alone is not: names of symbols, which binding a
buffer is and where in it the buffer begins, and how a number gets to the dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iree.compiler import ir

from tilewright.ir.gpu_constraints import CONSTRAINTS
from tilewright.ir.lowering import LOWERING_CONFIG, ROOT_OP, TRANSLATION_INFO

# A buffer; its operands say where it begins, its attributes which binding it is.
_BUFFER = "hal.interface.binding.subspan"
_PASSED = "hal.interface.constant.load"
# What a number that is passed to a dispatch goes through: it comes as words of 32 bits.
_UNPACKED = (
    "arith.bitcast",
    "arith.extui",
    "arith.index_cast",
    "arith.index_castui",
    "arith.ori",
    "arith.shli",
    "arith.trunci",
    "iree_tensor_ext.dispatch.workload.ordinal",
    "util.assume.int",
)
# Attributes that say nothing of the code: names, and the compiler's mark for tuners.
_NAMES = frozenset(("sym_name", "function_ref", ROOT_OP))
_CONFIGURATION = frozenset((LOWERING_CONFIG, TRANSLATION_INFO))


class _Different(Exception):
    """Says where."""


def difference(alone: ir.Operation, program: ir.Operation, *, configuration: bool = True) -> str:
    """In what the code of a dispatch alone is not that of the program.

    Args:
        alone: the `hal.executable` of the dispatch, isolated and configured.
        program: that of the program, of the same context.
        configuration: whether the compiler's own configuration must be the same, too.

    Returns:
        '' where the two are the same, else one line that names the first difference.
    """
    try:
        ignored = _NAMES if configuration else _NAMES | _CONFIGURATION
        _Comparison(ignored).operation(alone.operation, program.operation)
    except _Different as found:
        return str(found)
    return ""


class _Comparison:
    """One walk over two executables; `_other` has the value in the one for each of the other."""

    def __init__(self, ignored: frozenset[str]) -> None:
        self._ignored = ignored
        self._other: tuple[dict[ir.Value, ir.Value], dict[ir.Value, ir.Value]] = ({}, {})

    def operation(self, one: ir.Operation, two: ir.Operation) -> None:
        if one.name != two.name:
            raise _Different(f"{one.name} where the program has {two.name}")
        self._attributes(one, two)
        self._each(one, "operands", (one.operands, two.operands), self._values)
        self._each(one, "results", (one.results, two.results), self._defined)
        self._each(one, "regions", (one.regions, two.regions), self._region)

    def _region(self, inside: ir.Operation, one: ir.Region, two: ir.Region) -> None:
        self._each(inside, "blocks", (one.blocks, two.blocks), self._block)

    def _block(self, inside: ir.Operation, one: ir.Block, two: ir.Block) -> None:
        self._each(inside, "block arguments", (one.arguments, two.arguments), self._defined)
        ours, theirs = list(_code(one)), list(_code(two))
        for first, second in zip(ours, theirs, strict=False):
            self.operation(first, second)
        self._each(inside, "operations", (ours, theirs))

    def _defined(self, user: ir.Operation, one: ir.Value, two: ir.Value) -> None:
        self._types(user, one.type, two.type)
        self._pair(user, one, two)

    def _values(self, user: ir.Operation, one: ir.Value, two: ir.Value) -> None:
        """Operands must come from the same op, or in the same way from outside."""
        kind = _origin(one)
        if kind != _origin(two):
            raise _Different(f"{user.name}: {kind} where the program has {_origin(two)}")
        self._types(user, one.type, two.type)
        if kind == "a constant":
            ours, theirs = (v.owner.operation.attributes["value"] for v in (one, two))
            if ours != theirs:
                raise _Different(f"{user.name}: {ours} where the program has {theirs}")
            return
        if kind == "a buffer" and one not in self._other[0]:
            for a, b in zip(_sizes(one), _sizes(two), strict=True):
                self._values(user, a, b)
        self._pair(user, one, two)

    def _pair(self, user: ir.Operation, one: ir.Value, two: ir.Value) -> None:
        forth, back = self._other
        if forth.setdefault(one, two) != two or back.setdefault(two, one) != one:
            raise _Different(f"{user.name}: an operand is another value than in the program")

    def _types(self, user: ir.Operation, one: ir.Type, two: ir.Type) -> None:
        if one != two and not (
            isinstance(one, ir.MemRefType)
            and isinstance(two, ir.MemRefType)
            and _buffer_form(one) == _buffer_form(two)
        ):
            raise _Different(f"{user.name}: {one} where the program has {two}")

    def _attributes(self, one: ir.Operation, two: ir.Operation) -> None:
        ours, theirs = (
            {name: op.attributes[name] for name in op.attributes if name not in self._ignored}
            for op in (one, two)
        )
        for name in dict.fromkeys((*ours, *theirs)):
            # An attribute is not compared with nothing: the bindings raise a TypeError.
            if not (name in ours and name in theirs) or ours[name] != theirs[name]:
                raise _Different(
                    f"{one.name}: {name} = {ours.get(name, 'nothing')} where the program has "
                    f"{theirs.get(name, 'nothing')}"
                )

    def _each(
        self,
        user: ir.Operation,
        what: str,
        parts: tuple[Sequence[Any], Sequence[Any]],
        compare: Callable[[ir.Operation, Any, Any], None] | None = None,
    ) -> None:
        """There must be as many, and each like the other."""
        one, two = map(len, parts)
        if one != two:
            raise _Different(f"{user.name}: {one} {what} where the program has {two}")
        if compare:
            for ours, theirs in zip(*parts, strict=True):
                compare(user, ours, theirs)


def _code(block: ir.Block) -> Iterable[ir.Operation]:
    """The ops of a block, but for those that only bring in what the host gives or what is known:
    these are compared where they are used."""
    for view in block.operations:
        op = view.operation
        if op.name == CONSTRAINTS or op.name == _BUFFER or op.name == "hal.executable.export":
            continue
        if len(op.results) and _origin(op.results[0]) in ("a constant", "a number"):
            continue
        yield op


def _origin(value: ir.Value) -> str:
    """Where a value of a dispatch comes from."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return "an argument"
    op = owner.operation
    if op.name == "arith.constant":
        return "a constant"
    if op.name == _BUFFER:
        return "a buffer"
    return "a number" if _is_passed(value) else "a result"


def _sizes(buffer: ir.Value) -> list[ir.Value]:
    """The sizes of a buffer that its type leaves open, after where it begins."""
    return list(buffer.owner.operation.operands)[1:]


def _is_passed(value: ir.Value) -> bool:
    """Whether a value is a number that the host passes, in however many words."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation
    if op.name == _PASSED:
        return True
    return op.name in _UNPACKED and any(_is_passed(v) for v in op.operands)


def _buffer_form(type_: ir.MemRefType) -> tuple[object, ...]:
    """A buffer's type without where it begins."""
    strides, _ = type_.get_strides_and_offset()
    return tuple(type_.shape), type_.element_type, tuple(strides), type_.memory_space
