"""Loads and stores to operations: of one element, of a row of lanes, of lanes anywhere.

What memory is kept in registers over loops is LLVM's to decide, which is told that buffers do not
overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import gcd

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from tilewright.ir.hand_written import ALIGNMENT
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.sums import SumEmitter
from tilewright.schedule.expr import Binary, Const, Expr
from tilewright.schedule.linear import Linear, add_terms, number
from tilewright.schedule.nest import Buffer, Load
from tilewright.schedule.types import BOOL, INDEX, bits

_NOTHING = number(0)
# Index expressions, how often each is in a sum, and the constant beside them.
_Parts = tuple[list[tuple[Expr, int]], int]
# Elements from one lane's to the next one's up to which what is between them is read as well.
_NEAR = 4


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


class MemoryEmitter(SumEmitter):
    """Emits reads and writes of the buffers in `storages`.

    processor: what code is made for.
    """

    def __init__(self, processor: Processor) -> None:
        super().__init__(processor)
        self.storages: dict[Buffer, Storage] = {}
        self._versions: dict[ir.Value, int] = {}
        # What places in buffers are sums of, by the buffer and its indices.
        self._places: dict[tuple[Buffer, tuple[Expr, ...]], _Parts] = {}

    def changed(self, *written: ir.Value) -> None:
        """Memory has been written: what was read is out of date.

        Args:
            written: the memrefs; all memory without any.
        """
        for memory in written or list(self._versions):
            self._versions[memory] = self._versions.get(memory, 0) + 1

    def flat(self, buffer: Buffer, indices: Iterable[Expr]) -> Linear:
        """The place of an element in its storage.

        Args:
            buffer: one that exists here.
            indices: one for each of its dimensions.
        """
        storage = self.storages[buffer]
        parts, constant = self._parts(buffer, tuple(indices))
        terms = dict(storage.lane.terms)
        constant = storage.lane.constant + constant * storage.spread
        for part, weight in parts:
            value, weight = self.linear(part), weight * storage.spread
            constant += value.constant * weight
            add_terms(terms, value, weight)
        place = Linear(terms, constant)
        # Axes that were fused are one again where their elements are neighbours. (On GPUs LLVM
        # then writes out loops with barriers.)
        return place if self.processor.is_gpu else self.sums.combined("add", place, _NOTHING)

    def _parts(self, buffer: Buffer, indices: tuple[Expr, ...]) -> _Parts:
        """What the place of an element is a sum of, with its multiples, and a constant: unrolled
        loops ask for the same places over and over, with other values of their variables."""
        known = self._places.get((buffer, indices))
        if known is None:
            parts: list[tuple[Expr, int]] = []
            constant = 0
            todo = list(zip(indices, buffer.layout, strict=True))[::-1]
            while todo:
                expr, weight = todo.pop()
                match expr:
                    case Const():
                        constant += int(expr.value) * weight
                    case Binary() if expr.op in ("add", "sub") and not self.processor.is_gpu:
                        other = weight if expr.op == "add" else -weight
                        todo += [(expr.b, other), (expr.a, weight)]
                    case Binary(op="mul", b=Const() as factor) if not self.processor.is_gpu:
                        todo.append((expr.a, int(factor.value) * weight))
                    case _:
                        parts.append((expr, weight))
            known = self._places[buffer, indices] = parts, constant
        return known

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
        if access.mask is not None and access.exists:
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
        elif self._is_near(access, step):
            read = self._every(access, first, step or 1)
        elif (up_to := self._up_to_an_end(access, type_)) is not None:
            read = up_to
        else:
            read = self._one_by_one(access, type_)
        return scalars.from_memory(read, dtype)

    def _up_to_an_end(self, access: _Access, type_: ir.Type) -> ir.Value | None:
        """Elements side by side up to the last that there is, which all further lanes have, as
        where a dimension is made larger: no elements one by one. None for other lanes."""
        mine = [one for one in access.place.terms.items() if self.lane in one[0].variables]
        if access.mask is not None or not self.processor.is_llvm or len(mine) != 1:
            return None
        ((atom, factor),) = mine
        if atom.kind != "min" or factor != 1:
            return None
        along, end = sorted(atom.args, key=lambda one: self.lane not in one.variables)
        step, first = along.step(self.lane)
        if step != 1 or self.lane in end.variables:
            return None
        base, around = access.storage.memory, access.place.plus(Linear({atom: 1}, 0), -1)
        mask = vector.CreateMaskOp(
            ir.VectorType.get([access.lanes], scalars.element(BOOL)),
            [self.sum(end.plus(first, -1).plus(1))],
        ).result
        # What the last lane reads is there; an element at an end behind it need not be.
        ends = [self.sum(first.plus(access.lanes - 1)), self.sum(end)]
        nearer = scalars.operation("min", ends, INDEX, not end.terms)
        place = arith.AddIOp(self.sum(around), nearer).result
        last = self.spread(memref.LoadOp(base, [place]).result)
        begin = [self.sum(around.plus(first))]
        return vector.MaskedLoadOp(type_, base, begin, mask, last).result

    def _is_near(self, access: _Access, step: int | None) -> bool:
        """Whether lanes read elements so near to each other that all in between are read too."""
        near = step is not None and 1 < step <= _NEAR and access.mask is None
        return near and access.lanes > 1 and self.processor.is_llvm

    def _every(self, access: _Access, first: Linear, step: int) -> ir.Value:
        """Every `step`th element: of vectors side by side, the last of which ends with the last
        element that is read, so that nothing behind it is touched."""
        lanes, storage = access.lanes, access.storage
        type_ = scalars.memory_type(storage.dtype, lanes)
        last = step * (lanes - 1) + 1 - lanes
        starts = [min(lanes * part, last) for part in range(step)]
        vectors = [
            vector.LoadOp(
                type_,
                storage.memory,
                [self.sum(first.plus(start))],
                alignment=_alignment(first.plus(start), storage),
            ).result
            for start in starts
        ]
        read = vectors[0]
        # Lanes that have their element by now come from the vectors so far.
        for part in range(1, step):
            mask = []
            for lane in range(lanes):
                place = lane * step
                if place >= starts[part]:
                    mask.append(lanes + min(place - starts[part], lanes - 1))
                else:
                    mask.append(place if part == 1 else lane)
            read = vector.ShuffleOp(read, vectors[part], mask).result
        return read

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

    def _one_by_one(self, access: _Access, type_: ir.Type) -> ir.Value:
        """A vector of single elements: of `vector.gather` the compiler makes as much, on processors
        with such an instruction too, and a branch for each lane, even of a constant mask."""
        base = access.storage.memory
        if access.mask is None:
            found = [memref.LoadOp(base, [place]).result for _, place, _ in self._lanes(access)]
            return vector.FromElementsOp(type_, found).result
        read = scalars.filled(type_, 0)
        element = ir.VectorType(type_).element_type
        for lane, place, wanted in self._lanes(access):
            branch = scf.IfOp(wanted, [element], has_else=True)
            with ir.InsertionPoint(branch.then_block):
                scf.YieldOp([memref.LoadOp(base, [place]).result])
            with ir.InsertionPoint(branch.else_block):
                scf.YieldOp([vector.ExtractOp(read, [], [lane]).result])
            read = vector.InsertOp(branch.results[0], read, [], [lane]).result
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
