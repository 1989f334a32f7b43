"""Calls of functions from elsewhere, as intrinsics are declared by them: TVM's `decl_buffer`,
`ir_builder` and `call_extern`.

    def calls(ins, outs):
        ib = te.ir_builder.create()
        given = [outs[0].access_ptr("w"), ins[0].access_ptr("r"), 16]
        ib.emit(te.call_extern("int32", "gemv", *given))
        return ib.get()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Const, Expr, Var, as_expr, const
from tilewright.schedule.tensor import Tensor, shape_of
from tilewright.schedule.types import INDEX, canonical

_MASKS = {1: "r", 2: "w", 3: "rw"}
# Types of results that are no element types.
_NO_VALUE = ("handle", "void", "")


@dataclass(frozen=True, eq=False)
class DeclaredBuffer:
    """How a function wants an operand: a region of memory.

    strides: numbers, which the region's have to be, and variables, which become them; None for a
    region without gaps. offset_factor: of elements, that it begins at a multiple of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    given: tuple[int | Var, ...] | None = None
    offset_factor: int = 1

    @property
    def strides(self) -> tuple[int | Var, ...]:
        """The strides, those of a region without gaps where none were given."""
        if self.given is not None:
            return self.given
        steps: list[int | Var] = []
        step = 1
        for extent in reversed(self.shape):
            steps.append(step)
            step *= extent
        return tuple(reversed(steps))

    def access_ptr(
        self,
        access_mask: str | int = "r",
        ptr_type: str = "handle",
        content_lanes: int = 1,
        offset: int = 0,
        extent: Any = None,
    ) -> AccessPointer:
        """A pointer to the region, as an argument of a call.

        Args:
            access_mask: `r`, `w` or `rw`: what the function does with it.
            ptr_type, content_lanes, extent: accepted for TVM's sake.
            offset: elements behind the region's first one.

        Returns:
            The argument.

        Raises:
            ScheduleError: the mask is none of these, or the offset no number.
        """
        mask = _MASKS.get(access_mask, "") if isinstance(access_mask, int) else access_mask
        at = getattr(offset, "value", offset)
        if mask not in _MASKS.values():
            raise ScheduleError(
                f"access_ptr of buffer '{self.name}': mask {access_mask!r} (allowed: r, w, rw)"
            )
        if not isinstance(at, int):
            raise ScheduleError(f"access_ptr of buffer '{self.name}': offset {offset} is no number")
        return AccessPointer(self, mask, at)


@dataclass(frozen=True, eq=False)
class AccessPointer:
    """A pointer to a declared buffer, `offset` elements behind its first one."""

    buffer: DeclaredBuffer
    mask: str
    offset: int


CallArgument: TypeAlias = "AccessPointer | Expr"


@dataclass(frozen=True, eq=False)
class ExternCall:
    """A call of a function by its name. dtype: of its result, '' where it has none."""

    dtype: str
    name: str
    args: tuple[CallArgument, ...]


Calls: TypeAlias = tuple[ExternCall, ...]


def decl_buffer(
    shape: Any,
    dtype: Any = "f32",
    name: str = "buffer",
    data: Any = None,
    strides: Sequence[Any] | None = None,
    elem_offset: Any = None,
    scope: str = "",
    data_alignment: int = -1,
    offset_factor: int = 0,
    buffer_type: str = "",
) -> DeclaredBuffer:
    """Says how a function wants an operand.

    Args:
        shape: of the operand, as in the pattern.
        dtype: its element type.
        name: for messages.
        strides: a number or a `te.var` for each dimension; without them the region has no gaps.
        offset_factor: of elements, that it begins at a multiple of.
        data, elem_offset, scope, data_alignment, buffer_type: accepted for TVM's sake.

    Returns:
        The buffer.

    Raises:
        ScheduleError: the strides do not go with the shape.
    """
    sizes = shape_of(shape, f"decl_buffer '{name}'")
    given: tuple[int | Var, ...] | None = None
    if strides:
        values = [s if isinstance(s, Var) else getattr(s, "value", s) for s in strides]
        bad = [v for v in values if not isinstance(v, Var | int) or isinstance(v, bool)]
        if bad or len(values) != len(sizes):
            raise ScheduleError(
                f"decl_buffer '{name}': strides {list(strides)} of a shape of {len(sizes)} "
                "dimensions (allowed: a number or a te.var for each)"
            )
        given = tuple(values)
    return DeclaredBuffer(name, sizes, canonical(dtype), given, max(1, int(offset_factor)))


def call_extern(dtype: Any, name: str, *args: Any) -> ExternCall:
    """A call of a function from elsewhere, by C's convention.

    Args:
        dtype: of its result, which nothing uses.
        name: of the function.
        args: pointers (`buffer.access_ptr`), numbers, strides of buffers.

    Returns:
        The call, for `ir_builder`'s `emit`.

    Raises:
        ScheduleError: an argument is nothing of these.
    """
    given: list[CallArgument] = []
    for arg in args:
        if isinstance(arg, DeclaredBuffer):
            raise ScheduleError(
                f"call_extern '{name}': buffer '{arg.name}' is handed over as "
                f"{arg.name}.access_ptr('r')"
            )
        given.append(arg if isinstance(arg, AccessPointer) else as_expr(arg))
    return ExternCall("" if dtype in _NO_VALUE else canonical(dtype), name, tuple(given))


class CallBuilder:
    """Collects calls in their order (TVM's `ir_builder`)."""

    def __init__(self) -> None:
        self._calls: list[ExternCall] = []

    def emit(self, statement: ExternCall | Sequence[ExternCall]) -> None:
        """Add a call.

        Args:
            statement: what `call_extern` gave, or several of it.

        Raises:
            ScheduleError: it is something else.
        """
        self._calls.extend(as_calls(statement, "ir_builder.emit"))

    def get(self) -> Calls:
        """The calls so far."""
        return tuple(self._calls)


class CallBuilderMaker:
    """`te.ir_builder`: has `create`."""

    @staticmethod
    def create() -> CallBuilder:
        """A builder without calls."""
        return CallBuilder()


ir_builder = CallBuilderMaker()


def as_calls(value: Any, where: str) -> Calls:
    """Calls, given one by one or several.

    Args:
        value: what the user gave.
        where: for the message.

    Returns:
        The calls.

    Raises:
        ScheduleError: there is something else among them.
    """
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    for call in given:
        if not isinstance(call, ExternCall):
            raise ScheduleError(f"{where}: {call!r} is no call (made by call_extern)")
    return given


def as_phases(made: Any, phases: Sequence[str], where: str) -> dict[str, Calls]:
    """The calls of each phase, of what a declaring function gave.

    Args:
        made: calls of the first phase, or a tuple with those of each phase (None for none).
        phases: in TVM's order.
        where: for messages.

    Returns:
        Calls by phase.

    Raises:
        ScheduleError: something is no call, or there is none.
    """
    # Calls of one phase are a tuple of calls; phases are a tuple of those.
    parts = [made]
    if isinstance(made, tuple | list) and not all(isinstance(p, ExternCall) for p in made):
        parts = list(made)
    if len(parts) > len(phases):
        raise ScheduleError(
            f"{where}: {len(parts)} parts (allowed: {len(phases)}, for {', '.join(phases)})"
        )
    found = {
        phase: as_calls(part, where)
        for phase, part in zip(phases, parts, strict=False)
        if part is not None
    }
    if not any(found.values()):
        raise ScheduleError(f"{where}: it gave no call")
    return found


def declared(
    calls: Callable[..., Any],
    binds: Mapping[Tensor, DeclaredBuffer] | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    where: str,
) -> tuple[dict[DeclaredBuffer, Tensor], Any]:
    """What a declaring function makes of its buffers.

    Args:
        calls: the function, given the inputs' buffers and the outputs'.
        binds: a buffer for some of the tensors; others have regions without gaps.
        inputs, outputs: of the pattern.
        where: for messages.

    Returns:
        The tensor of each buffer, and what the function gave.

    Raises:
        ScheduleError: a buffer has another shape or type than its tensor.
    """
    buffers = {}
    for tensor in (*inputs, *outputs):
        made = (binds or {}).get(tensor) or decl_buffer(tensor.shape, tensor.dtype, tensor.name)
        if made.shape != tensor.shape or made.dtype != tensor.dtype:
            raise ScheduleError(
                f"{where}: buffer '{made.name}' is {made.dtype}{list(made.shape)}, the tensor "
                f"'{tensor.name}' that it is bound to {tensor.dtype}{list(tensor.shape)}"
            )
        buffers[tensor] = made
    given = calls([buffers[t] for t in inputs], [buffers[t] for t in outputs])
    return {buffer: tensor for tensor, buffer in buffers.items()}, given


def number_of(expr: Expr, strides: Mapping[Var, int], where: str) -> Const:
    """An argument of a call as a constant.

    Args:
        expr: a number, or a variable that stands for a stride.
        strides: the variables' values.
        where: for the message.

    Returns:
        The constant; integers are 32 bits wide unless they have another type of their own.

    Raises:
        ScheduleError: it is neither.
    """
    if isinstance(expr, Var) and expr in strides:
        return const(strides[expr], "i32" if expr.dtype == INDEX else expr.dtype)
    if isinstance(expr, Const):
        return const(expr.value, "i32") if expr.dtype == INDEX else expr
    raise ScheduleError(f"{where}: argument '{expr}' is neither a number nor a buffer's stride")
