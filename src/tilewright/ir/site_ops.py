"""The ops of a program that can be part of sites, with what is known of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from math import prod

from iree.compiler import ir

from tilewright.ir.classify import element_bits
from tilewright.ir.hand_written import ALIGNMENT
from tilewright.ir.reference.access import iterator_kinds
from tilewright.ir.reference.quantised import DEQUANTIZE, QUANTIZE
from tilewright.ir.site_module import needed
from tilewright.ir.walk import string_attribute, walk

FREE, CONSTANT, DATA = range(3)
"""How much of a value is known before a run: all from the code, all with the weights, or not."""

OUTSIDE = -1
"""What is no part of any site, where the number of an op or of a dispatch would be."""

# What computes on tensors. An op of another dialect with tensors is no part of a site.
_DIALECTS = ("arith.", "complex.", "iree_linalg_ext.", "linalg.", "math.", "tensor.")
# What stores a number in more bits.
_WIDENING = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
# What takes many times as long as a multiplication.
_FUNCTIONS = (
    *("math.atan", "math.cos", "math.erf", "math.exp", "math.log", "math.pow", "math.sin"),
    *("math.sqrt", "math.rsqrt", "math.tan", "arith.div", "complex."),
)
# What takes a part of a tensor; how many equal ones of one tensor are steps, not halves or heads.
_SLICE, _STEPS = "tensor.extract_slice", 8
# By how many bits what is made of constants may be larger than these for IREE to compute it ahead.
_LARGER = 8 << 20
# What takes an element from a place that is computed, in the body of another op.
_ELEMENT = "tensor.extract"
# No access to the data.
_SIZES = ("tensor.dim",)


def program_ops(module: ir.Operation) -> Iterator[ir.Operation]:
    """The ops of a program that can be part of a site.

    Args:
        module: the program.

    Yields:
        Them in order, without those in the regions of others.
    """
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


def is_elementwise(op: ir.Operation) -> bool:
    """Whether an op has loops, and reduces in none of them.

    Args:
        op: any op.
    """
    if op.name in (QUANTIZE, DEQUANTIZE):
        return True  # they have indexing maps, and no body
    kinds = iterator_kinds(op)
    return kinds is not None and not any(kinds)


def is_cheap(op: ir.Operation) -> bool:
    """Whether the compiler may compute an op in several dispatches instead of storing it.

    Args:
        op: one that can be part of a site.
    """
    return (
        op.name.startswith(("arith.", "complex.", "math.", "tensor."))
        or op.name in ("linalg.broadcast", "linalg.fill", "linalg.transpose")
        or is_elementwise(op)
    )


def is_costly(op: ir.Operation) -> bool:
    """Whether an op computes a function of each element, such as an exponential, or divides by it.

    Args:
        op: one that can be part of a site.
    """
    return any(one.name.startswith(_FUNCTIONS) for one in (op, *walk(op)))


def is_move(op: ir.Operation) -> bool:
    """Whether an op computes nothing: it only says where data is, or moves it.

    Args:
        op: one that can be part of a site.
    """
    if op.name.startswith("tensor.") or op.name in ("linalg.broadcast", "linalg.transpose"):
        return True
    return is_elementwise(op) and len(list(walk(op))) == 1


def is_spread(op: ir.Operation) -> bool:
    """Whether an op puts the elements of a tensor apart from each other in another.

    Args:
        op: one that can be part of a site.
    """
    if op.name != "tensor.insert_slice":
        return False
    return any(step != 1 for step in ir.DenseI64ArrayAttr(op.attributes["static_strides"]))


def is_widening(op: ir.Operation) -> bool:
    """Whether an op only stores each number of a tensor in more bits, or what it stands for.

    Args:
        op: one that can be part of a site.
    """
    body = [one.name for one in walk(op)]
    written = len(body) == 2 and body[0] in _WIDENING
    if not is_elementwise(op) or not (written or op.name == DEQUANTIZE):
        return False
    return size_in_bits(op.results[0]) > size_in_bits(op.operands[0])


def _is_part_of_sequence(op: ir.Operation) -> bool:
    """Whether an op takes a part of a tensor that lies in memory as it is wanted, from a place that
    is known, and where a tensor can begin."""
    types = [ir.RankedTensorType(value.type) for value in (op.operands[0], op.results[0])]
    if len(op.operands) > 1 or not all(one.has_static_shape for one in types):
        return False
    sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[name]))
        for name in ("static_sizes", "static_strides")
    )
    whole = types[0].shape
    cut = next((n for n, size in enumerate(sizes) if size != whole[n]), len(sizes))
    rest = prod(whole[cut + 1 :])
    return (
        prod(whole[:cut]) == 1
        and set(strides) == {1}
        and list(whole[cut + 1 :]) == sizes[cut + 1 :]
        and rest * element_bits(types[0].element_type) % (8 * ALIGNMENT) == 0
    )


class ProgramOps:
    """The ops of a program by their numbers, with what is known of each."""

    def __init__(self, module: ir.Operation) -> None:
        self.ops = list(program_ops(module))
        self.number = {op: number for number, op in enumerate(self.ops)}
        self._globals = {
            string_attribute(op, "sym_name"): "is_mutable" not in op.attributes
            for op in walk(module, lambda _: False)
            if op.name == "util.global"
        }
        self._known: dict[ir.Operation, int] = {}
        self._data: dict[ir.Operation, int] = {}
        self._made_of: dict[ir.Operation, Hashable] = {}
        for op in self.ops:  # in order: otherwise a long chain would be a deep recursion
            self.stays_outside(op)
        self._in_steps = self._parts_of_sequences()

    def _parts_of_sequences(self) -> set[ir.Operation]:
        """The ops that take the equal parts of a tensor of many, as steps that are written out do
        of their sequence."""
        parts: dict[tuple[ir.Value, ir.Type], list[ir.Operation]] = defaultdict(list)
        for op in self.ops:
            if op.name == _SLICE and _is_part_of_sequence(op):
                parts[op.operands[0], op.results[0].type].append(op)
        return {op for same in parts.values() if len(same) >= _STEPS for op in same}

    def is_placed_late(self, op: ir.Operation) -> bool:
        """Whether an op takes a part of a tensor that whoever uses it takes for an input: from a
        place that is known at run time only, or one of many that are alike, such as what a step of
        a loop, or one that is written out, reads of a sequence.

        Args:
            op: one that can be part of a site.
        """
        if op.name != _SLICE:
            return False
        late = len(op.operands) > 1 and ir.RankedTensorType(op.results[0].type).has_static_shape
        return late or op in self._in_steps

    def known(self, value: ir.Value) -> int:
        """How much of a value is known before a run.

        Args:
            value: of the program.

        Returns:
            One of FREE, CONSTANT, DATA.
        """
        if isinstance(value.owner, ir.Block):
            return DATA
        op = value.owner.operation
        if op not in self._known:
            self._known[op] = self._known_of(op)
        return self._known[op]

    def _known_of(self, op: ir.Operation) -> int:
        if op.name == "arith.constant":
            value = op.attributes["value"]
            dense = isinstance(op.results[0].type, ir.ShapedType)
            splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
            return CONSTANT if dense and not splat else FREE
        if op.name == "util.global.load":
            name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
            return CONSTANT if self._globals.get(name) else DATA
        if not op.name.startswith(_DIALECTS):
            return DATA
        return max(map(self.known, needed(op)), default=FREE)

    def stays_outside(self, op: ir.Operation) -> bool:
        """Whether the compiler computes an op ahead: of constants, and not larger than these, or
        little larger and too much to be computed wherever it is used.

        Args:
            op: one that can be part of a site.
        """
        if self.known(op.results[0]) != CONSTANT:
            return False
        more = sum(map(size_in_bits, op.results)) - self._data_of(op)
        costly = is_costly(op) or not is_cheap(op) or any(o.name == _ELEMENT for o in walk(op))
        return more <= 0 or (more <= _LARGER and costly)

    def _data_of(self, op: ir.Operation) -> int:
        """Bits of the constants that an op of constants reads."""
        if op not in self._data:
            self._data[op] = 0
            for value in dict.fromkeys(needed(op)):
                if self.known(value) == CONSTANT:
                    owner = value.owner.operation
                    ahead = not _computes(owner) or self.stays_outside(owner)
                    self._data[op] += size_in_bits(value) if ahead else self._data_of(owner)
        return self._data[op]

    def sequence_of(self, values: Iterable[ir.Value]) -> ir.Value | None:
        """The tensor of which one of some values is a part that is placed late, one of many.

        Args:
            values: of the program.
        """
        makers = (one.owner.operation for one in values if not isinstance(one.owner, ir.Block))
        return next((op.operands[0] for op in makers if op in self._in_steps), None)

    def constant_of(self, value: ir.Value) -> Hashable:
        """What two values have in common that are made of the same constants in the same way, such
        as the weights that each step of a sequence transposes for itself. Bodies of ops are not
        compared: it is for what is likely to be in a cache, not for what is computed.

        Args:
            value: known with the weights.
        """
        if self.known(value) == DATA or value.owner.name == "arith.constant":
            itself: Hashable = value
            return itself
        op = value.owner.operation
        if op not in self._made_of:
            made = tuple(map(self.constant_of, op.operands))
            self._made_of[op] = (op.name, str(op.attributes), made)
        return (self._made_of[op], str(value.type))

    def maker(self, value: ir.Value) -> int:
        """The op that a value is a result of.

        Args:
            value: of the program.

        Returns:
            Its number; OUTSIDE where it is no part of a site.
        """
        if isinstance(value.owner, ir.Block):
            return OUTSIDE
        return self.number.get(value.owner.operation, OUTSIDE)

    def users(self, value: ir.Value) -> set[int]:
        """The ops that use a value.

        Args:
            value: of the program.

        Returns:
            Their numbers; OUTSIDE stands for all that are no part of a site.
        """
        found = set()
        for use in value.uses:
            user = use.owner.operation
            while user not in self.number and user.parent is not None:
                user = user.parent.operation
            if use.owner.operation.name not in _SIZES:
                found.add(self.number.get(user, OUTSIDE))
        return found


def size_in_bits(value: ir.Value) -> int:
    """Bits of all elements of a tensor.

    Args:
        value: any value.

    Returns:
        The bits; 0 for what is no tensor or has a size that is not known.
    """
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    points: int = prod(max(0, size) for size in type_.shape)
    return points * element_bits(type_.element_type)
