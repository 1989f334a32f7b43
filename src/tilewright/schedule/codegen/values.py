"""Expressions to operations: index arithmetic as sums, lanes and masks, loads and stores.

Every operation is made once in a block and used again in the blocks within. What memory is kept in
registers over loops is LLVM's to decide, which is told that buffers do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from tilewright.ir.hand_written import ALIGNMENT
from tilewright.schedule.arith import Arithmetic, Atom, Linear, holds, number
from tilewright.schedule.codegen import narrow_functions, scalars, wide_functions
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.expr import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Not,
    Select,
    Var,
    cast,
)
from tilewright.schedule.nest import Buffer, Load
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.schedule.walk import nodes

_NOTHING = number(0)


@dataclass(frozen=True)
class Storage:
    """Where a buffer is: a memref of one dimension, and elements between neighbours (in vectorized
    loops, with the lanes' elements in between).

    own: whether nobody else sees it. alignment: bytes that the address of its first element is a
    multiple of.
    """

    memory: ir.Value
    size: int
    dtype: str
    spread: int = 1
    lane: Linear = _NOTHING
    own: bool = False
    alignment: int = ALIGNMENT


@dataclass(frozen=True)
class _Access:
    """One element of a storage, or one for each lane (`lanes`, else 0) where `mask` has it."""

    storage: Storage
    place: Linear
    lanes: int
    mask: ir.Value | None

    @property
    def exists(self) -> bool:
        """Whether the elements are certain to be inside of the storage."""
        return self.place.low >= 0 and self.place.high < self.storage.size


def is_vector(value: object) -> bool:
    """Whether a value has lanes.

    Args:
        value: what :meth:`ValueEmitter.value` or :meth:`ValueEmitter.condition` gave.
    """
    return isinstance(value, ir.Value) and isinstance(value.type, ir.VectorType)


def is_pure(expr: Expr) -> bool:
    """Whether an index expression is made of variables and arithmetic alone.

    Args:
        expr: of type `index`.
    """
    return not any(isinstance(node, Load | Cast | Select) for node in nodes(expr))


class ValueEmitter:
    """Emits expressions at the insertion point, where the loops' variables have the values of
    `bound`.

    Within `vector` there is a `lane`, and what depends on it has lanes; within `masked` what is
    read and written is only that of the lanes for which the condition holds.

    processor: what code is made for.
    """

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.sums = Arithmetic()
        self.storages: dict[Buffer, Storage] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.mask: ir.Value | None = None
        #: Identities of the comparisons that are known to hold.
        self.assumed: frozenset[int] = frozenset()
        #: The values of the variables that `loop_var` makes.
        self.loops: dict[Var, ir.Value] = {}
        self._index = ir.IndexType.get()
        self._bound: dict[Var, Linear] = {}
        #: What has been made in this block and those around it, and the keys of each block's own.
        self._made: dict[Any, ir.Value] = {}
        self._own: list[list[Any]] = [[]]
        #: The parameters of a function that is written out, and what has been computed of them.
        self._known: dict[Expr, ir.Value] = {}
        self._versions: dict[ir.Value, int] = {}
        # Unrolled loops ask for the same sums over and over: by expression, or a buffer with its
        # indices, and the values of the variables in it. None for what is more than arithmetic.
        self._free: dict[Expr, tuple[Var, ...] | None] = {}
        self._sums: dict[tuple[object, ...], Linear] = {}

    # -- where code stands -------------------------------------------------------------------------

    def loop_var(self, name: str, extent: int) -> Var:
        """A new variable of a loop from 0 to `extent` - 1.

        Args:
            name: for messages.
            extent: iterations.
        """
        var = Var(name)
        self.sums.bind(var, 0, extent - 1)
        return var

    @contextmanager
    def bound(self, values: Mapping[Var, Linear], known: Iterable[Expr] = ()) -> Iterator[None]:
        """Where variables have these values, instead of those that they may have had.

        Args:
            values: by variable of the nest.
            known: comparisons, as objects of the nest, that hold there.
        """
        outer, assumed = self._bound, self.assumed
        self._bound = {**outer, **values}
        self.assumed = assumed | {id(part) for part in known}
        yield
        self._bound, self.assumed = outer, assumed

    @contextmanager
    def vector(self, lane: Var, lanes: int) -> Iterator[None]:
        """Where each operation is one for all lanes.

        Args:
            lane: the variable of the lanes' numbers.
            lanes: how many there are.
        """
        self.lane, self.lanes = lane, lanes
        yield
        self.lane, self.lanes, self.mask = None, 0, None

    @contextmanager
    def masked(self, condition: ir.Value) -> Iterator[None]:
        """Where only the lanes count for which a condition holds.

        Args:
            condition: a vector of bools.
        """
        outer = self.mask
        both = condition
        if outer is not None:
            both = self._operation("logical_and", BOOL, outer, condition)
        self.mask = both
        yield
        self.mask = outer

    @contextmanager
    def block(self, block: ir.Block) -> Iterator[None]:
        """Operations go to the end of a block; what is made there is not there afterwards.

        Args:
            block: of a loop or a branch, without a terminator yet.
        """
        self._own.append([])
        with ir.InsertionPoint(block):
            yield
        for key in self._own.pop():
            self._made.pop(key, None)

    def changed(self, *written: ir.Value) -> None:
        """Memory has been written: what was read is out of date.

        Args:
            written: the memrefs; all memory without any.
        """
        for memory in written or list(self._versions):
            self._versions[memory] = self._versions.get(memory, 0) + 1

    def once(self, key: Any, make: Callable[[], ir.Value]) -> ir.Value:
        """The value made for an equal key in this block or one around it, else a new one.

        Args:
            key: tells what is made; values of MLIR may be in it.
            make: emits it.
        """
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
            self._own[-1].append(key)
        return found

    # -- indices -----------------------------------------------------------------------------------

    def number(self, value: int) -> ir.Value:
        """A constant of type `index`.

        Args:
            value: any integer.
        """
        return self.once(value, lambda: arith.ConstantOp(self._index, value).result)

    def linear(self, expr: Expr) -> Linear:
        """An expression of type `index` as a sum.

        Args:
            expr: in terms of the nest's variables.

        Returns:
            The sum in terms of the emitted loops' variables.
        """
        match expr:
            case Const():
                return number(int(expr.value))
            case Var():
                return self._bound[expr]
            case Binary():
                free = self._variables(expr)
                if free is None:
                    return self.sums.combined(expr.op, self.linear(expr.a), self.linear(expr.b))
                key = (expr, *(self._bound[var] for var in free))
                known = self._sums.get(key)
                if known is None:
                    known = self.sums.combined(expr.op, self.linear(expr.a), self.linear(expr.b))
                    self._sums[key] = known
                return known
            case Select():
                chosen = self.condition(expr.condition)
                if isinstance(chosen, bool):
                    return self.linear(expr.a if chosen else expr.b)
        value = self.value(expr)
        moving = [self.lane] if self.lane is not None and is_vector(value) else []
        return self.sums.opaque(value, value, moving)

    def _variables(self, expr: Expr) -> tuple[Var, ...] | None:
        """The variables of an index expression of nothing but arithmetic; None for others."""
        if expr not in self._free:
            parts = nodes(expr)
            plain = all(isinstance(part, Const | Var | Binary) for part in parts)
            found = tuple(part for part in parts if isinstance(part, Var))
            self._free[expr] = found if plain else None
        return self._free[expr]

    def sum(self, place: Linear) -> ir.Value:
        """A sum that is the same in all lanes, an `index`.

        Args:
            place: a sum that has nothing to do with the lane.
        """
        terms = sorted(place.terms.items(), key=lambda term: term[0].number)
        return self.once(place, lambda: self._sum(terms, place.constant))

    def _sum(self, terms: list[tuple[Atom, int]], constant: int) -> ir.Value:
        """Parts of the sum are made once as well: outer loops' come first."""
        if not terms:
            return self.number(constant)
        if constant:
            rest = self.sum(Linear(dict(terms), 0))
            return arith.AddIOp(rest, self.number(constant)).result
        *others, (atom, factor) = terms
        if others:
            last = self.sum(Linear({atom: factor}, 0))
            return arith.AddIOp(self.sum(Linear(dict(others), 0)), last).result
        value = self._atom(atom, self.sum)
        return value if factor == 1 else arith.MulIOp(value, self.number(factor)).result

    def _atom(self, atom: Atom, part: Callable[[Linear], ir.Value]) -> ir.Value:
        if atom.kind == "var":
            return self._lane_numbers(1) if atom.args[0] is self.lane else self.loops[atom.args[0]]
        if atom.kind == "opaque":
            value: ir.Value = atom.args[0]
            return value
        a, b = atom.args
        return scalars.operation(atom.kind, [part(a), part(b)], INDEX, not b.terms)

    def lanes_of(self, place: Linear) -> ir.Value:
        """A sum as a vector of indices.

        Args:
            place: any sum.
        """
        return self.once(("lanes", place, self.lanes), lambda: self._lane_sum(place))

    def _lane_sum(self, place: Linear) -> ir.Value:
        mine, even = place.part(lambda atom, _: self.lane in atom.variables)
        total = self.spread(self.sum(even.plus(place.constant)))
        for atom, factor in mine.terms.items():
            term = self._atom(atom, self.lanes_of)
            if factor != 1:
                term = arith.MulIOp(term, self.spread(self.number(factor))).result
            total = arith.AddIOp(total, term).result
        return total

    def _lane_numbers(self, step: int) -> ir.Value:
        type_ = ir.VectorType.get([self.lanes], self._index)
        steps = [ir.IntegerAttr.get(self._index, step * lane) for lane in range(self.lanes)]
        return self.once(
            ("steps", step, self.lanes),
            lambda: arith.ConstantOp(type_, ir.DenseElementsAttr.get(steps, type_)).result,
        )

    def spread(self, value: ir.Value) -> ir.Value:
        """A value with lanes: a scalar is the same in all of them.

        Args:
            value: a scalar or a vector.

        Returns:
            A vector of as many elements as there are lanes.
        """
        if is_vector(value):
            return value
        type_ = ir.VectorType.get([self.lanes], value.type)
        return self.once(
            ("splat", value, self.lanes), lambda: vector.BroadcastOp(type_, value).result
        )

    # -- conditions --------------------------------------------------------------------------------

    def condition(self, expr: Expr) -> bool | ir.Value:
        """A bool.

        Args:
            expr: of type `bool`.

        Returns:
            True or False of Python where that is known.
        """
        if id(expr) in self.assumed:
            return True
        match expr:
            case Const():
                return bool(expr.value)
            case Not():
                inner = self.condition(expr.a)
                return not inner if isinstance(inner, bool) else self.negated(inner)
            case Binary() if expr.op in LOGICAL:
                return self.logical(expr.op, self.condition(expr.a), self.condition(expr.b))
            case Binary() if expr.op in COMPARISONS and expr.a.dtype == INDEX:
                return self.compared(expr.op, self.linear(expr.a).plus(self.linear(expr.b), -1))
        return self._computed(expr)

    def negated(self, value: ir.Value) -> ir.Value:
        """The negation of a bool.

        Args:
            value: an i1 or a vector of them.
        """
        return self.once(("not", value), lambda: scalars.operation("not", [value], BOOL, False))

    def logical(self, op: str, a: bool | ir.Value, b: bool | ir.Value) -> bool | ir.Value:
        """`logical_and` or `logical_or` of two bools.

        Args:
            op: the operator.
            a: one that is known, or a value.
            b: the other.
        """
        for first, second in ((a, b), (b, a)):
            if isinstance(first, bool):
                return first if first == (op == "logical_or") else second
        return a if a == b else self._operation(op, BOOL, a, b)

    def compared(self, op: str, difference: Linear) -> bool | ir.Value:
        """The comparison of a sum with 0.

        Args:
            op: `eq`, `ne`, `lt`, `le`, `gt` or `ge`.
            difference: the sum.

        Returns:
            True or False of Python where that is known.
        """
        known = holds(op, difference)
        if known is not None:
            return known
        if op in ("le", "gt"):
            op, difference = ("lt" if op == "le" else "ge"), difference.plus(-1)
        return self.once((op, difference, self.lanes), lambda: self._compared(op, difference))

    def _compared(self, op: str, difference: Linear) -> ir.Value:
        if self.lane not in difference.variables:
            return scalars.compare(op, self.sum(difference), self.number(0), INDEX)
        assert self.lane is not None
        step, base = difference.step(self.lane)
        if step is None:
            return scalars.compare(
                op, self.lanes_of(difference), self.spread(self.number(0)), INDEX
            )
        bound = self.sum(base.times(-1))
        if op == "lt" and step == 1:
            # Lanes below the bound are true, which is what the operation for masks says.
            type_ = ir.VectorType.get([self.lanes], scalars.element(BOOL))
            return vector.CreateMaskOp(type_, [bound]).result
        # The lanes' part is constant, so that only one sum is made for each vector.
        return scalars.compare(op, self._lane_numbers(step), self.spread(bound), INDEX)

    # -- values ------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> ir.Value:
        """The value of an expression, a vector where it differs between lanes.

        Args:
            expr: of any type.
        """
        if expr.dtype != BOOL:
            return self._computed(expr)
        known = self.condition(expr)
        return self.constant(known, BOOL) if isinstance(known, bool) else known

    def constant(self, value: float | int | bool, dtype: str) -> ir.Value:
        """A scalar constant.

        Args:
            value: the number.
            dtype: a short type name.
        """
        # Equal floats may differ in their sign, and NaN equals nothing.
        key = value.hex() if isinstance(value, float) else value
        return self.once((dtype, key), lambda: scalars.constant(dtype, value))

    def _computed(self, expr: Expr) -> ir.Value:
        if self._known and expr not in self._known:
            self._known[expr] = self._made_of(expr)
        return self._known[expr] if self._known else self._made_of(expr)

    def _made_of(self, expr: Expr) -> ir.Value:
        match expr:
            case Select():
                return self._select(expr)
            case Load():
                return self._load(expr)
            case Cast():
                source, inner = expr.value.dtype, self.value(expr.value)
                key = ("cast", source, expr.dtype, inner)
                return self.once(key, lambda: scalars.cast(inner, source, expr.dtype))
            case Call():
                args = self._alike(*(self.value(arg) for arg in expr.args))
                dtype = expr.args[0].dtype
                return self.once((expr.name, dtype, *args), lambda: self._call(expr, args))
            case _ if expr.dtype == INDEX:
                place = self.linear(expr)
                return self.lanes_of(place) if self.lane in place.variables else self.sum(place)
            case Const():
                return self.constant(expr.value, expr.dtype)
            case Binary():
                a, b = self.value(expr.a), self.value(expr.b)
                return self._operation(expr.op, expr.a.dtype, a, b, isinstance(expr.b, Const))
        raise TypeError(f"no value for {type(expr).__name__}")

    def _call(self, call: Call, args: Sequence[ir.Value]) -> ir.Value:
        dtype, name = call.args[0].dtype, call.name
        written = wide_functions.FUNCTIONS if dtype == "f64" else {}
        if dtype != "f64" and name in narrow_functions.NAMES and not self.processor.is_gpu:
            if dtype != "f32":
                wide = Call(name, tuple(cast("f32", arg) for arg in call.args), "f32")
                return self.value(cast(dtype, wide))
            if name not in narrow_functions.FUNCTIONS:
                return narrow_functions.exponential(args[0], base_2=name == "exp2")
            written = narrow_functions.FUNCTIONS
        if name not in written:
            return scalars.call(name, list(args), dtype)
        parameters = [Var(name, dtype) for _ in args]
        outer = self._known
        self._known = {**outer, **dict(zip(parameters, args, strict=True))}
        result = self.value(written[name](*parameters))
        self._known = outer
        return result

    def _operation(
        self, op: str, dtype: str, a: ir.Value, b: ir.Value, constant_divisor: bool = False
    ) -> ir.Value:
        args = self._alike(a, b)
        return self.once(
            (op, dtype, *args), lambda: scalars.operation(op, args, dtype, constant_divisor)
        )

    def _alike(self, *values: ir.Value) -> list[ir.Value]:
        """The values all with lanes, or all without."""
        return [self.spread(v) for v in values] if any(map(is_vector, values)) else list(values)

    def _select(self, expr: Select) -> ir.Value:
        condition = self.condition(expr.condition)
        if isinstance(condition, bool):
            return self.value(expr.a if condition else expr.b)
        test = expr.condition
        if expr.guarded and is_vector(condition):
            if isinstance(test, Binary) and test.op == "logical_and":
                # One by one: what is the same in all lanes is a branch, the rest a mask.
                inner = Select(test.b, expr.a, expr.b, True)
                return self._select(Select(test.a, inner, expr.b, True))
            with self.masked(condition):
                a = self.value(expr.a)
            with self.masked(self.negated(condition)):
                b = self.value(expr.b)
        elif expr.guarded and (self._may_fail(expr.a) or self._may_fail(expr.b)):
            lanes = self.lanes if self._has_lanes(expr.a) or self._has_lanes(expr.b) else 0
            return self._chosen(
                condition,
                scalars.type_of(expr.dtype, lanes),
                lambda: self.value(expr.a),
                lambda: self.value(expr.b),
            )
        else:
            a, b = self.value(expr.a), self.value(expr.b)
        parts = self._alike(a, b, *([condition] if is_vector(condition) else []))[:2]
        return self.once(
            ("select", condition, *parts), lambda: arith.SelectOp(condition, *parts).result
        )

    def _chosen(
        self,
        condition: ir.Value,
        type_: ir.Type,
        then: Callable[[], ir.Value],
        otherwise: Callable[[], ir.Value],
    ) -> ir.Value:
        """One value or the other, of which only that one is computed."""
        branch = scf.IfOp(condition, [type_], has_else=True)
        for block, arm in ((branch.then_block, then), (branch.else_block, otherwise)):
            with self.block(block):
                value = arm()
                scf.YieldOp([value if value.type == type_ else self.spread(value)])
        return branch.results[0]

    def _has_lanes(self, expr: Expr) -> bool:
        """Whether an expression differs between lanes."""
        return self.lane is not None and any(
            (isinstance(node, Var) and self.lane in self._bound[node].variables)
            or (isinstance(node, Load) and self.storages[node.buffer].spread > 1)
            for node in nodes(expr)
        )

    def _may_fail(self, expr: Expr) -> bool:
        """Whether evaluating an expression reads what may not exist."""
        return any(
            isinstance(node, Load)
            and not (
                all(map(is_pure, node.indices)) and self.access(node.buffer, node.indices).exists
            )
            for node in nodes(expr)
        )

    # -- memory ------------------------------------------------------------------------------------

    def flat(self, buffer: Buffer, indices: Iterable[Expr]) -> Linear:
        """The place of an element in its storage.

        Args:
            buffer: one that exists here.
            indices: one for each of its dimensions.
        """
        storage, indices = self.storages[buffer], tuple(indices)
        free = [self._variables(expr) for expr in indices]
        if None in free:
            return self._flat(storage, buffer, indices)
        values = (self._bound[var] for found in free for var in found or ())
        key = (buffer, storage.lane, storage.spread, indices, *values)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = self._flat(storage, buffer, indices)
        return known

    def _flat(self, storage: Storage, buffer: Buffer, indices: tuple[Expr, ...]) -> Linear:
        place = storage.lane
        for expr, stride in zip(indices, buffer.layout, strict=True):
            step = self.linear(expr).times(stride * storage.spread)
            # Axes that were fused are one again where their elements are neighbours. (On GPUs LLVM
            # then writes out loops with barriers.)
            whole = not self.processor.is_gpu
            place = self.sums.combined("add", place, step) if whole else place.plus(step)
        return place

    def access(self, buffer: Buffer, indices: Iterable[Expr]) -> _Access:
        """The elements of a buffer that the lanes read or write.

        Args:
            buffer: one that exists here.
            indices: one for each of its dimensions.
        """
        place = self.flat(buffer, indices)
        has_lanes = self.lane in place.variables
        mask = self.mask if has_lanes else None
        return _Access(self.storages[buffer], place, self.lanes if has_lanes else 0, mask)

    def _load(self, expr: Load) -> ir.Value:
        access = self.access(expr.buffer, expr.indices)
        if access.exists:
            access = replace(access, mask=None)
        if self.mask is None or access.lanes or access.exists:
            memory = access.storage.memory
            version = self._versions.setdefault(memory, 0)
            key = (memory, version, access.place, access.lanes, access.mask)
            return self.once(key, lambda: self._read(access))
        # The same element for all lanes, which is there if it is wanted for any.
        zero = False if expr.dtype == BOOL else 0
        return self._chosen(
            self.any(self.mask),
            scalars.element(expr.dtype),
            lambda: self._read(access),
            lambda: self.constant(zero, expr.dtype),
        )

    def any(self, mask: ir.Value) -> ir.Value:
        """Whether any lane of a mask is true.

        Args:
            mask: a vector of bools.
        """
        kind = scalars.parsed_attribute("#vector.kind<or>")
        return self.once(
            ("any", mask),
            lambda: vector.ReductionOp(scalars.element(BOOL), kind, mask).result,
        )

    def _read(self, access: _Access) -> ir.Value:
        base, dtype = access.storage.memory, access.storage.dtype
        first, step = self._row(access)
        if not access.lanes:
            return scalars.from_memory(memref.LoadOp(base, [self.sum(first)]).result, dtype)
        type_ = scalars.memory_type(dtype, access.lanes)
        if step == 1 and access.mask is None:
            read = vector.LoadOp(
                type_, base, [self.sum(first)], alignment=_alignment(first, access.storage)
            ).result
        elif step == 1 and self.processor.is_llvm:
            nothing = scalars.filled(type_, 0)
            read = vector.MaskedLoadOp(type_, base, [self.sum(first)], access.mask, nothing).result
        elif not self.processor.is_gpu:
            places, mask = self.lanes_of(access.place), self._mask(access)
            nothing = scalars.filled(type_, 0)
            read = vector.GatherOp(type_, base, [self.number(0)], places, mask, nothing).result
        else:
            read = self._one_by_one(access, type_)
        return scalars.from_memory(read, dtype)

    def write(self, access: _Access, value: ir.Value) -> None:
        """Write elements to memory.

        Args:
            access: of the elements.
            value: a vector where the access has lanes, else a scalar.
        """
        base, dtype = access.storage.memory, access.storage.dtype
        value = scalars.to_memory(value, dtype)
        first, step = self._row(access)
        if not access.lanes:
            memref.StoreOp(value, base, [self.sum(first)])
        elif step == 1 and access.mask is None:
            alignment = _alignment(first, access.storage)
            vector.StoreOp(value, base, [self.sum(first)], alignment=alignment)
        elif step == 1 and access.storage.own and access.exists:
            # LLVM keeps in registers what is always stored as a whole.
            type_ = scalars.memory_type(dtype, access.lanes)
            alignment = _alignment(first, access.storage)
            old = vector.LoadOp(type_, base, [self.sum(first)], alignment=alignment)
            kept = arith.SelectOp(access.mask, value, old.result).result
            vector.StoreOp(kept, base, [self.sum(first)], alignment=alignment)
        elif step == 1 and self.processor.is_llvm:
            vector.MaskedStoreOp(base, [self.sum(first)], access.mask, value)
        elif not self.processor.is_gpu:
            places, mask = self.lanes_of(access.place), self._mask(access)
            vector.ScatterOp(None, base, [self.number(0)], places, mask, value)
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
        self.changed(base)

    def _row(self, access: _Access) -> tuple[Linear, int | None]:
        """The place of the first lane, and the step from one lane to the next."""
        if self.lane is None or not access.lanes:
            return access.place, 0
        step, first = access.place.step(self.lane)
        return first, step

    def _mask(self, access: _Access) -> ir.Value:
        return self.spread(self.constant(True, BOOL)) if access.mask is None else access.mask

    def _one_by_one(self, access: _Access, type_: ir.Type) -> ir.Value:
        base, read = access.storage.memory, scalars.filled(type_, 0)
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

    def _lanes(self, access: _Access) -> Iterator[tuple[int, ir.Value, ir.Value | None]]:
        """Each lane's number, its place, and whether it is wanted where that is not certain."""
        first, step = self._row(access)
        for lane in range(access.lanes):
            wanted = None
            if access.mask is not None:
                wanted = vector.ExtractOp(access.mask, [], [lane]).result
            if step is None:
                place = vector.ExtractOp(self.lanes_of(access.place), [], [lane]).result
            else:
                place = self.sum(first.plus(step * lane))
            yield lane, place, wanted


def _alignment(first: Linear, storage: Storage) -> int:
    """Bytes that the address of the first element is known to be a multiple of."""
    size = bits(storage.dtype) // 8
    step = gcd(first.constant, *first.terms.values())
    return max(size, gcd(step * size, storage.alignment))
