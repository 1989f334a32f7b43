"""What the emitter of an intrinsic is given: its operands, and where to put code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from tilewright.schedule.codegen import scalars

if TYPE_CHECKING:
    from tilewright.schedule.codegen.machine import Machine
    from tilewright.schedule.codegen.values import ValueEmitter


class View:
    """A region of a buffer.

    flat: the memref of one dimension that it lies in. offset: its first element there (a value of
    type index). shape, strides: elements in each dimension, and from one to the next.
    """

    def __init__(
        self,
        flat: ir.Value,
        offset: ir.Value,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: str,
    ) -> None:
        self.flat = flat
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype

    @property
    def memref(self) -> ir.Value:
        """The region as a strided memref of its shape."""
        space = ir.MemRefType(self.flat.type).memory_space
        offset = ir.ShapedType.get_dynamic_stride_or_offset()
        type_ = ir.MemRefType.get(
            list(self.shape),
            scalars.memory_element(self.dtype),
            layout=ir.StridedLayoutAttr.get(offset, list(self.strides)),
            memory_space=space,
        )
        return memref.ReinterpretCastOp(
            type_, self.flat, [self.offset], [], [], [offset], list(self.shape), list(self.strides)
        ).result

    def at(self, *indices: int) -> ir.Value:
        """The position in `flat` of an element with constant indices."""
        step = sum(i * s for i, s in zip(indices, self.strides, strict=True))
        if not step:
            return self.offset
        return arith.AddIOp(self.offset, arith.ConstantOp(ir.IndexType.get(), step)).result

    def load(self, *indices: int, lanes: int = 0) -> ir.Value:
        """An element, or as many as `lanes` from it on, which must lie next to each other."""
        place = [self.at(*indices)]
        if not lanes:
            return memref.LoadOp(self.flat, place).result
        type_ = scalars.memory_type(self.dtype, lanes)
        return vector.LoadOp(type_, self.flat, place).result

    def store(self, value: ir.Value, *indices: int) -> None:
        """Write an element, or the lanes of a vector from it on."""
        place = [self.at(*indices)]
        if isinstance(value.type, ir.VectorType):
            vector.StoreOp(value, self.flat, place)
        else:
            memref.StoreOp(value, self.flat, place)


class Builder:
    """Helps emitters of intrinsics: constants, and what the target has.

    The MLIR context, location and insertion point are set while an emitter runs, so that the
    operations of the bindings can be made directly as well.
    """

    def __init__(self, emitter: ValueEmitter, machine: Machine) -> None:
        self._emitter = emitter
        self.machine = machine

    def index(self, value: int) -> ir.Value:
        """A constant of type index."""
        return self._emitter.number(value)

    def constant(self, value: float | int | bool, dtype: str, lanes: int = 0) -> ir.Value:
        """A constant, or a vector of it."""
        one = scalars.constant(dtype, value)
        if not lanes:
            return one
        return vector.BroadcastOp(scalars.type_of(dtype, lanes), one).result

    def vector_type(self, dtype: str, *shape: int) -> ir.Type:
        return ir.VectorType.get(list(shape), scalars.element(dtype))
