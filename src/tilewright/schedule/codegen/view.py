"""What the emitter of an intrinsic is given: its operands, and where to put code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, memref, scf, vector

from tilewright.ir.hand_written import index
from tilewright.ir.walk import string_attribute
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.values import ValueEmitter
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.types import bits

T = TypeVar("T")


def part_of(
    flat: ir.Value, offset: ir.Value, shape: Sequence[int], strides: Sequence[int] = (1,)
) -> ir.Value:
    """A region of a memref of one dimension, from an element on, as a strided memref.

    Args:
        flat: the memref.
        offset: the first element, an `index`.
        shape: elements in each dimension.
        strides: from one element to the next, in each dimension.
    """
    whole = ir.MemRefType(flat.type)
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    type_ = ir.MemRefType.get(
        list(shape),
        whole.element_type,
        layout=ir.StridedLayoutAttr.get(dynamic, list(strides)),
        memory_space=whole.memory_space,
    )
    return memref.ReinterpretCastOp(
        type_, flat, [offset], [], [], [dynamic], list(shape), list(strides)
    ).result


def _start_of(flat: ir.Value) -> ir.Value | None:
    """Where a memref that `part_of` made begins in what it was made of."""
    made = flat.owner
    if isinstance(made, ir.Block):
        return None
    if made.name == "memref.distinct_objects":
        return _start_of(made.operands[ir.OpResult(flat).result_number])
    return made.operands[1] if made.name == "memref.reinterpret_cast" else None


@dataclass(frozen=True)
class BufferView:
    """A region of a buffer.

    flat: the memref of one dimension that it lies in. offset: its first element there (a value of
    type index). shape, strides: elements in each dimension, and from one to the next.
    """

    flat: ir.Value
    offset: ir.Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def memref(self) -> ir.Value:
        """The region as a strided memref of its shape."""
        return self.part(self.offset, self.shape, self.strides)

    def part(self, offset: ir.Value, shape: Sequence[int], strides: Sequence[int]) -> ir.Value:
        """A region of the memory that it lies in, as a strided memref.

        Args:
            offset: its first element.
            shape: elements in each dimension.
            strides: from one element to the next, in each dimension.
        """
        return part_of(self.flat, self._allocated(offset), list(shape), list(strides))

    def _allocated(self, place: ir.Value) -> ir.Value:
        """Where an element is in what was allocated: memrefs that are made of others, and pointers
        of memrefs, count from there, wherever a memref's own first element is."""
        start = _start_of(self.flat)
        return place if start is None else arith.AddIOp(place, start).result

    def at(self, *indices: int | ir.Value) -> ir.Value:
        """The position in `flat` of an element; leading indices that are left out are 0.

        Args:
            indices: numbers, or values of type `index`.
        """
        strides = self.strides[len(self.strides) - len(indices) :]
        fixed, place = 0, self.offset
        for at, stride in zip(indices, strides, strict=True):
            if isinstance(at, int):
                fixed += at * stride
            else:
                place = arith.AddIOp(place, arith.MulIOp(at, index(stride)).result).result
        return arith.AddIOp(place, index(fixed)).result if fixed else place

    def from_(self, *indices: int | ir.Value, rank: int = 0) -> BufferView:
        """The region that begins at an element; it ends where this one does.

        Args:
            indices: of the element; leading ones that are left out are 0.
            rank: its dimensions, the last ones of this region; 0: as many.
        """
        kept = rank or len(self.strides)
        return replace(
            self,
            offset=self.at(*indices),
            shape=self.shape[len(self.shape) - kept :],
            strides=self.strides[len(self.strides) - kept :],
        )

    def pointer(self, *indices: int | ir.Value) -> ir.Value:
        """A pointer to an element.

        Args:
            indices: of the element; leading ones that are left out are 0.
        """
        base = memref.ExtractAlignedPointerAsIndexOp(self.flat).result
        place = self._allocated(self.at(*indices))
        size = index(max(1, bits(self.dtype) // 8))
        address = arith.AddIOp(base, arith.MulIOp(place, size).result).result
        word = arith.IndexCastOp(ir.IntegerType.get_signless(64), address).result
        return llvm.IntToPtrOp(llvm.PointerType.get(), word).result

    def load(self, *indices: int | ir.Value, lanes: int = 0) -> ir.Value:
        """An element, or as many as `lanes` from it on, which must lie next to each other.

        Args:
            indices: of the (first) element; leading ones that are left out are 0.
            lanes: 0 for a scalar.

        Returns:
            A scalar or a vector, as it is in memory.
        """
        place = [self.at(*indices)]
        if not lanes:
            return memref.LoadOp(self.flat, place).result
        type_ = scalars.memory_type(self.dtype, lanes)
        return vector.LoadOp(type_, self.flat, place).result

    def store(self, value: ir.Value, *indices: int | ir.Value) -> None:
        """Write an element, or the lanes of a vector from it on.

        Args:
            value: a scalar or a vector, as it is in memory.
            indices: of the (first) element; leading ones that are left out are 0.
        """
        place = [self.at(*indices)]
        if isinstance(value.type, ir.VectorType):
            vector.StoreOp(value, self.flat, place)
        else:
            memref.StoreOp(value, self.flat, place)


@dataclass
class KernelStart:
    """What is done once, when a kernel begins and when it ends.

    entry: an operation of its function, before which that is done. made: by what it is known.
    ends: emit what is done at the end.
    """

    entry: ir.Operation
    made: dict[Hashable, Any] = field(default_factory=dict)
    ends: list[Callable[[], None]] = field(default_factory=list)

    def value(self, key: Hashable, make: Callable[[], T]) -> T:
        """See :meth:`IntrinsicBuilder.at_first`.

        Args:
            key: what it is known by.
            make: emits it.
        """
        if key not in self.made:
            with ir.InsertionPoint(self.entry):
                self.made[key] = make()
        found: T = self.made[key]
        return found

    def at_end(self, emit: Callable[[], None]) -> None:
        """See :meth:`IntrinsicBuilder.at_end`.

        Args:
            emit: emits it.
        """
        self.ends.append(emit)

    def finish(self) -> None:
        """Emit what is done at the end, at the insertion point, behind all else."""
        for emit in self.ends:
            emit()

    def global_word(self, name: str) -> str:
        """See :meth:`IntrinsicBuilder.global_word`.

        Args:
            name: of it.
        """
        module = self.entry
        while module.name != "builtin.module":
            module = module.parent
        body = module.regions[0].blocks[0]
        if all(string_attribute(op, "sym_name") != name for op in body):
            word = ir.IntegerType.get_signless(64)
            with ir.InsertionPoint.at_block_begin(body):
                llvm.GlobalOp(
                    ir.TypeAttr.get(word),
                    name,
                    ir.Attribute.parse("#llvm.linkage<internal>"),
                    value=ir.IntegerAttr.get(word, 0),
                )
        return name


class IntrinsicBuilder:
    """Helps emitters of intrinsics.

    The MLIR context, location and insertion point are set while an emitter runs, so that the
    operations of the bindings can be made directly as well.

    machine: what code is made for. block: threads of a workgroup in each dimension, by tag.
    """

    def __init__(
        self,
        emitter: ValueEmitter,
        machine: Processor,
        block: Mapping[str, int],
        start: KernelStart,
    ) -> None:
        self._emitter = emitter
        self._start = start
        self.machine = machine
        self.block = block

    def index(self, value: int) -> ir.Value:
        """A constant of type index.

        Args:
            value: any integer.
        """
        return self._emitter.number(value)

    def constant(self, value: float | int | bool, dtype: str, lanes: int = 0) -> ir.Value:
        """A constant, or a vector of it.

        Args:
            value: the number.
            dtype: a short type name.
            lanes: 0 for a scalar.
        """
        one = scalars.constant(dtype, value)
        if not lanes:
            return one
        return vector.BroadcastOp(scalars.type_of(dtype, lanes), one).result

    def vector_type(self, dtype: str, lanes: int) -> ir.Type:
        """The type of a vector.

        Args:
            dtype: of the elements.
            lanes: one at least.
        """
        return scalars.type_of(dtype, lanes)

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A vector of a scalar.

        Args:
            value: the scalar.
            lanes: one at least.
        """
        return vector.BroadcastOp(ir.VectorType.get([lanes], value.type), value).result

    def cast(self, value: ir.Value, source: str, target: str) -> ir.Value:
        """A scalar or vector in another element type.

        Args:
            value: a scalar or vector.
            source: its type.
            target: the type that it gets.
        """
        return scalars.cast(value, source, target)

    def add(self, a: ir.Value, b: ir.Value, dtype: str) -> ir.Value:
        """The sum of two values.

        Args:
            a: a scalar or vector.
            b: another of the same type.
            dtype: of both.
        """
        return scalars.operation("add", [a, b], dtype, False)

    def multiply(self, a: ir.Value, b: ir.Value, dtype: str) -> ir.Value:
        """The product of two values; with a sum of it, LLVM makes one operation.

        Args:
            a: a scalar or vector.
            b: another of the same type.
            dtype: of both.
        """
        return scalars.operation("mul", [a, b], dtype, False)

    def loop(
        self,
        extent: int,
        step: int,
        carried: Sequence[ir.Value],
        body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
    ) -> list[ir.Value]:
        """A loop from 0 on, with values that go from one iteration to the next.

        Args:
            extent: where it ends.
            step: by which its variable grows.
            carried: the values at first.
            body: given the loop's variable and the values, emits an iteration and returns the next
                ones.

        Returns:
            The values after the last iteration.
        """
        made = scf.ForOp(self.index(0), self.index(extent), self.index(step), list(carried))
        with self._emitter.block(made.body):
            scf.YieldOp(list(body(made.induction_variable, list(made.inner_iter_args))))
        return list(made.results)

    def branch(
        self, condition: ir.Value, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """One of two ways.

        Args:
            condition: an i1.
            then, otherwise: emit what is done where it holds, and where not.
        """
        made = scf.IfOp(condition, has_else=True)
        for block, emit in ((made.then_block, then), (made.else_block, otherwise)):
            with self._emitter.block(block):
                emit()
                scf.YieldOp([])

    def at_first(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is made once, when the kernel begins.

        Args:
            key: what it is known by in this kernel.
            make: emits it; without values of this builder's, which may be those of a loop.
        """
        return self._start.value(key, make)

    def at_end(self, emit: Callable[[], None]) -> None:
        """Have something done when the kernel ends.

        Args:
            emit: emits it, of what is there from the kernel's beginning on.
        """
        self._start.at_end(emit)

    def global_word(self, name: str) -> str:
        """A word of 64 bits that all calls of the kernel in a process share, 0 at first.

        Args:
            name: of it, in the kernel's module.

        Returns:
            The name of its symbol.
        """
        return self._start.global_word(name)

    def unsupported(self, intrinsic: str, needs: str) -> ScheduleError:
        """The error for a target that lacks what the intrinsic needs.

        Args:
            intrinsic: its name.
            needs: what it needs, for the message.
        """
        return ScheduleError(
            f"tensorize: intrinsic '{intrinsic}' needs {needs}, which {self.machine.name} does not "
            "have; leave the loops as they are, or use another intrinsic"
        )
