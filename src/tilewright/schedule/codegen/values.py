"""Values to operations: arithmetic, comparisons, conversions, loads, of scalars and vectors.

Every value is made once in a block and used again in the blocks within, until memory that it was
read from is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.code import Access, Storage, Value
from tilewright.schedule.codegen.linear import Atom, Linear, constant
from tilewright.schedule.types import BOOL, INDEX, bits

# Buffers start at multiples of this many bytes.
_ALIGNMENT = 64


class ValueEmitter:
    """Emits values at the insertion point.

    gathers: whether the target has loads and stores of vectors whose lanes lie anywhere. masks:
    whether it has those of some lanes of a vector only. memory: the memref of each storage. held:
    what the elements in registers are now, by their access's key.
    """

    def __init__(self, gathers: bool, masks: bool) -> None:
        self.gathers = gathers
        self.masks = masks
        self.memory: dict[Storage, ir.Value] = {}
        self.held: dict[Any, ir.Value] = {}
        self.loops: dict[Atom, ir.Value] = {}
        self.index = ir.IndexType.get()
        self._made: list[dict[Any, ir.Value]] = [{}]
        self._versions: dict[Storage, int] = {}

    # -- blocks ------------------------------------------------------------------------------------

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is made within is not there afterwards."""
        self._made.append({})
        yield
        self._made.pop()

    def changed(self, storage: Storage) -> None:
        """The storage has been written: what was read from it is out of date."""
        self._versions[storage] = self._versions.get(storage, 0) + 1

    def _once(self, key: Any, make: Callable[[], ir.Value]) -> ir.Value:
        for made in reversed(self._made):
            found = made.get(key)
            if found is not None:
                return found
        value = make()
        self._made[-1][key] = value
        return value

    # -- indices -----------------------------------------------------------------------------------

    def number(self, value: int) -> ir.Value:
        """A constant of type `index`."""
        return self._once(value, lambda: arith.ConstantOp(self.index, value).result)

    def linear(self, place: Linear) -> ir.Value:
        """A sum that is the same in all lanes."""
        if not place.terms:
            return self.number(place.constant)
        return self._once(self._versioned(place), lambda: self._sum(place))

    def _sum(self, place: Linear) -> ir.Value:
        if place.constant:
            rest = self.linear(Linear(place.terms, 0))
            return arith.AddIOp(rest, self.number(place.constant)).result
        atom, factor = place.terms[-1]
        term = self._atom(atom)
        if factor != 1:
            one = Linear(((atom, factor),), 0)
            if len(place.terms) > 1:
                term = self.linear(one)
            else:
                return arith.MulIOp(term, self.number(factor)).result
        if len(place.terms) == 1:
            return term
        return arith.AddIOp(self.linear(Linear(place.terms[:-1], 0)), term).result

    def _versioned(self, place: Linear) -> Any:
        """A key that changes with the memory that the sum depends on."""
        if not place.volatile:
            return place
        return (place, tuple(sorted((id(s), v) for s, v in self._versions.items())))

    def _atom(self, atom: Atom) -> ir.Value:
        if atom.kind == "loop":
            return self.loops[atom]
        if atom.kind == "value":
            return self.value(atom.args[0])
        a = self.linear(atom.args[0])
        other = atom.args[1]
        b = self.linear(other) if isinstance(other, Linear) else self.number(other)
        return scalars.index_operation(atom.kind, a, b)

    def lanes_of(self, place: Linear, lanes: int) -> ir.Value:
        """A sum as a vector of indices, [lanes]."""
        key = ("lanes", self._versioned(place), lanes)
        return self._once(key, lambda: self._vector_sum(place, lanes))

    def _vector_sum(self, place: Linear, lanes: int) -> ir.Value:
        type_ = ir.VectorType.get([lanes], self.index)
        even = Linear(tuple(t for t in place.terms if not t[0].lane), place.constant)
        total: ir.Value | None = None
        for atom, factor in place.terms:
            if not atom.lane:
                continue
            term = self._lane_atom(atom, lanes, type_)
            if factor != 1:
                term = arith.MulIOp(term, self._splat(self.number(factor), type_)).result
            total = term if total is None else arith.AddIOp(total, term).result
        base = self._splat(self.linear(even), type_)
        return base if total is None else arith.AddIOp(base, total).result

    def _lane_atom(self, atom: Atom, lanes: int, type_: ir.Type) -> ir.Value:
        if atom.kind == "lane":
            numbers = [ir.IntegerAttr.get(self.index, n) for n in range(lanes)]
            return self._once(
                ("iota", lanes),
                lambda: arith.ConstantOp(type_, ir.DenseElementsAttr.get(numbers, type_)).result,
            )
        if atom.kind == "value":
            return self.value(atom.args[0], lanes)
        a = self.lanes_of(atom.args[0], lanes)
        other = atom.args[1]
        if not isinstance(other, Linear):
            other = constant(other)
        return scalars.index_operation(atom.kind, a, self.lanes_of(other, lanes))

    @staticmethod
    def _splat(value: ir.Value, type_: ir.Type) -> ir.Value:
        return vector.BroadcastOp(type_, value).result

    # -- values ------------------------------------------------------------------------------------

    def value(self, value: Value, lanes: int = 0) -> ir.Value:
        """The operation's result; with `lanes`, a scalar is spread over as many."""
        made = self._value(value)
        if lanes and not value.lanes:
            type_ = ir.VectorType.get([lanes], made.type)
            return self._once(("splat", made, lanes), lambda: self._splat(made, type_))
        return made

    def _value(self, value: Value) -> ir.Value:
        if value.op == "load" and value.data.key in self.held:
            return self.held[value.data.key]
        versions = self._versions
        key = (value, *(versions.get(s, 0) for s in value.reads)) if value.reads else value
        return self._once(key, lambda: self._make(value))

    def _make(self, value: Value) -> ir.Value:
        lanes = value.lanes
        match value.op:
            case "const":
                return scalars.constant(value.dtype, value.data)
            case "index":
                return self.lanes_of(value.data, lanes) if lanes else self.linear(value.data)
            case "sign":
                op, difference = value.data
                return self._sign(op, difference, lanes)
            case "load":
                return self.load(value.data)
            case "splat":
                return self.value(value.args[0], lanes)
            case "any":
                mask = self.value(value.args[0])
                kind = scalars.parsed_attribute("#vector.kind<or>")
                return vector.ReductionOp(scalars.element(BOOL), kind, mask).result
            case "last":
                return self._last(value)
            case "guarded":
                return self._guarded(value)
            case "select":
                a, b = (self.value(arg, lanes) for arg in value.args[1:])
                return arith.SelectOp(self.value(value.args[0]), a, b).result
            case "cast":
                (operand,) = value.args
                return scalars.cast(self.value(operand), operand.dtype, value.dtype)
            case "call":
                args = [self.value(arg, lanes) for arg in value.args]
                return scalars.call(value.data, args, value.args[0].dtype)
        args = [self.value(arg, lanes) for arg in value.args]
        constant_divisor = value.args[-1].op == "const"
        return scalars.operation(value.op, args, value.args[0].dtype, constant_divisor)

    def _sign(self, op: str, difference: Linear, lanes: int) -> ir.Value:
        if not lanes:
            return scalars.compare(op, self.linear(difference), self.number(0), INDEX)
        base, step = difference.without_lane()
        if op == "lt" and step == 1:
            # Lanes below `-base` are true, which is what the operation for masks says.
            type_ = ir.VectorType.get([lanes], scalars.element(BOOL))
            return vector.CreateMaskOp(type_, [self.linear(base.scaled(-1))]).result
        if step is None:
            zero = self.lanes_of(constant(0), lanes)
            return scalars.compare(op, self.lanes_of(difference, lanes), zero, INDEX)
        # The lanes' part is constant, so that only one sum is made for each vector.
        bound = self._splat(self.linear(base.scaled(-1)), ir.VectorType.get([lanes], self.index))
        numbers = [ir.IntegerAttr.get(self.index, step * n) for n in range(lanes)]
        type_ = ir.VectorType.get([lanes], self.index)
        steps = arith.ConstantOp(type_, ir.DenseElementsAttr.get(numbers, type_)).result
        return scalars.compare(op, steps, bound, INDEX)

    def _last(self, value: Value) -> ir.Value:
        source = self.value(value.args[0])
        lanes = value.args[0].lanes
        if len(value.args) == 1:
            return vector.ExtractOp(source, [], [lanes - 1]).result
        mask = self.value(value.args[1])
        result = vector.ExtractOp(source, [], [0]).result
        for lane in range(1, lanes):
            chosen = vector.ExtractOp(mask, [], [lane]).result
            result = arith.SelectOp(
                chosen, vector.ExtractOp(source, [], [lane]).result, result
            ).result
        return result

    def _guarded(self, value: Value) -> ir.Value:
        type_ = scalars.type_of(value.dtype, value.lanes)
        branch = scf.IfOp(self.value(value.args[0]), [type_], has_else=True)
        for block, arm in zip((branch.then_block, branch.else_block), value.args[1:], strict=True):
            with ir.InsertionPoint(block), self.block():
                scf.YieldOp([self.value(arm, value.lanes)])
        return branch.results[0]

    # -- memory ------------------------------------------------------------------------------------

    def load(self, access: Access) -> ir.Value:
        """The elements of an access, from memory."""
        base, dtype = self.memory[access.storage], access.storage.dtype
        if not access.lanes:
            return scalars.from_memory(
                memref.LoadOp(base, [self.linear(access.place)]).result, dtype
            )
        first, step = access.place.without_lane()
        type_ = scalars.memory_type(dtype, access.lanes)
        if step == 1 and (access.mask is None or self.masks):
            if access.mask is None:
                read = vector.LoadOp(
                    type_, base, [self.linear(first)], alignment=alignment(first, access)
                ).result
            else:
                read = vector.MaskedLoadOp(
                    type_,
                    base,
                    [self.linear(first)],
                    self.value(access.mask, access.lanes),
                    scalars.zero(type_),
                ).result
        elif self.gathers:
            read = vector.GatherOp(
                type_,
                base,
                [self.number(0)],
                self.lanes_of(access.place, access.lanes),
                self._mask(access),
                scalars.zero(type_),
            ).result
        else:
            read = self._one_by_one(access, type_)
        return scalars.from_memory(read, dtype)

    def store(self, access: Access, value: ir.Value) -> None:
        """Write elements to memory."""
        base, dtype = self.memory[access.storage], access.storage.dtype
        value = scalars.to_memory(value, dtype)
        if not access.lanes:
            memref.StoreOp(value, base, [self.linear(access.place)])
            return
        first, step = access.place.without_lane()
        if step == 1 and access.mask is None:
            vector.StoreOp(value, base, [self.linear(first)], alignment=alignment(first, access))
        elif step == 1 and self.masks:
            vector.MaskedStoreOp(base, [self.linear(first)], self._mask(access), value)
        elif self.gathers:
            places = self.lanes_of(access.place, access.lanes)
            vector.ScatterOp(None, base, [self.number(0)], places, self._mask(access), value)
        else:
            for lane, place, wanted in self._lanes(access):
                one = vector.ExtractOp(value, [], [lane]).result
                if wanted is None:
                    memref.StoreOp(one, base, [place])
                    continue
                branch = scf.IfOp(wanted)
                with ir.InsertionPoint(branch.then_block):
                    memref.StoreOp(one, base, [place])
                    scf.YieldOp([])

    def _mask(self, access: Access) -> ir.Value:
        if access.mask is not None:
            return self.value(access.mask, access.lanes)
        type_ = scalars.type_of(BOOL, access.lanes)
        return arith.ConstantOp(
            type_, ir.DenseElementsAttr.get_splat(type_, ir.BoolAttr.get(True))
        ).result

    def _one_by_one(self, access: Access, type_: ir.Type) -> ir.Value:
        base, read = self.memory[access.storage], scalars.zero(type_)
        element = ir.VectorType(type_).element_type
        for lane, place, wanted in self._lanes(access):
            if wanted is None:
                one = memref.LoadOp(base, [place]).result
            else:
                branch = scf.IfOp(wanted, [element], has_else=True)
                with ir.InsertionPoint(branch.then_block):
                    scf.YieldOp([memref.LoadOp(base, [place]).result])
                with ir.InsertionPoint(branch.else_block):
                    scf.YieldOp([vector.ExtractOp(read, [], [lane]).result])
                one = branch.results[0]
            read = vector.InsertOp(one, read, [], [lane]).result
        return read

    def _lanes(self, access: Access) -> Iterator[tuple[int, ir.Value, ir.Value | None]]:
        """Each lane's number, its place, and whether it is wanted where that is not certain."""
        first, step = access.place.without_lane()
        places = None if step is not None else self.lanes_of(access.place, access.lanes)
        mask = self.value(access.mask, access.lanes) if access.mask is not None else None
        for lane in range(access.lanes):
            wanted = vector.ExtractOp(mask, [], [lane]).result if mask is not None else None
            if places is None:
                assert step is not None
                yield lane, self.linear(first.plus(step * lane)), wanted
            else:
                yield lane, vector.ExtractOp(places, [], [lane]).result, wanted


def alignment(first: Linear, access: Access) -> int:
    """Bytes that the address of the first element is known to be a multiple of."""
    step = gcd(first.constant, *(factor for _, factor in first.terms))
    size = bits(access.storage.dtype) // 8
    known = gcd(step * size, _ALIGNMENT) if step else _ALIGNMENT
    return max(known, size)
