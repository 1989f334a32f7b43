"""Intrinsics: instructions and micro-kernels that `tensorize` puts in place of loops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import did_you_mean
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.extern_calls import Calls, DeclaredBuffer, as_phases, declared
from tilewright.schedule.tensor import ComputeOp, PlaceholderOp, Reduce, Tensor, TensorOp

BODY = "body"
RESET = "reset"
UPDATE = "update"
PHASES = (BODY, RESET, UPDATE)

_REGISTERED: dict[str, TensorIntrinsic] = {}


class TensorIntrinsic:
    """What an intrinsic computes, and the code that it becomes.

    op: the pattern: a computation of placeholders, of the shape that the intrinsic handles.
    inputs, outputs: the pattern's tensors, inputs in the order in which its body reads them.
    emit: writes the code: `emit(builder, phase, inputs, outputs)`, see
        :func:`decl_tensor_intrin`.
    phases: what it can do of a reduction: `body`, `reset`, `update`.
    collective: whether all threads of `threadIdx.x` do it together, as one.
    """

    def __init__(
        self,
        name: str,
        op: ComputeOp,
        emit: Callable[..., Any],
        phases: Sequence[str],
        collective: bool = False,
    ) -> None:
        self.collective = collective
        self.name = name
        self.op = op
        self.emit = emit
        self.phases = tuple(phases)
        self.outputs = op.outputs
        self.inputs = op.input_tensors

    def __repr__(self) -> str:
        return f"TensorIntrinsic({self.name})"

    @property
    def reduction(self) -> Reduce | None:
        """The pattern's reduction, if it is one."""
        return self.op.reduction


class CallIntrinsic(TensorIntrinsic):
    """An intrinsic that is calls of functions from elsewhere.

    calls: by phase. tensors: which tensor of the pattern each buffer is. Of a reduction `body`
    finds the result started: a function may add to it, or store.
    """

    def __init__(
        self,
        name: str,
        op: ComputeOp,
        calls: Mapping[str, Calls],
        tensors: Mapping[DeclaredBuffer, Tensor],
    ) -> None:
        super().__init__(name, op, _no_code, tuple(calls))
        self.calls = dict(calls)
        self.tensors = dict(tensors)


def _no_code(*_: Any) -> None:
    raise AssertionError("calls are emitted as such")


def decl_tensor_intrin(
    op: TensorOp | Tensor,
    emit: Callable[..., Any],
    name: str = "tensor_intrin",
    phases: Sequence[str] = PHASES,
    collective: bool = False,
    *,
    binds: Mapping[Tensor, DeclaredBuffer] | None = None,
    scalar_params: Any = None,
    default_buffer_params: Any = None,
) -> TensorIntrinsic:
    """Declares an intrinsic for :meth:`Stage.tensorize`: code, or calls of functions as TVM does.

    Args:
        op: what it computes: the operation (or the tensor) of a `te.compute` over placeholders.
        emit: called as `emit(builder, phase, inputs, outputs)` when code is written, with an MLIR
            context and insertion point in force; `inputs` and `outputs` have a `memref` (a strided
            view of the region), `shape` and `dtype` each. Or called now as `emit(ins, outs)` with
            buffers (TVM's form): it gives calls (`te.ir_builder`, `te.call_extern`), or a tuple of
            those for `body`, `reset` and `update` with None for what there is not. The functions
            come with the pragma `import_c`, `import_llvm`, `import_mlir` or `import_object`.
        name: by which traces know it; of several with one name the last counts.
        phases: for a reduction, what `emit` can do: `body` (start and compute), `reset` (store the
            start; it gets no inputs), `update` (add to what is there).
        collective: whether all threads of `threadIdx.x` run it together (subgroup matrices), rather
            than each for itself.
        binds: in TVM's form, how the functions want some of the pattern's tensors
            (`te.decl_buffer`).
        scalar_params, default_buffer_params: accepted for TVM's sake.
        def emit(builder, phase, inputs, outputs): ...
        gemv = te.decl_tensor_intrin(c.op, emit, name="gemv"):

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: the pattern is no computation of placeholders, or a phase is unknown.
    """
    if isinstance(op, Tensor):
        op = op.op
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"decl_tensor_intrin '{name}': {op!r} is no computation")
    for tensor in op.input_tensors:
        if not isinstance(tensor.op, PlaceholderOp):
            raise ScheduleError(
                f"decl_tensor_intrin '{name}': the pattern reads '{tensor.name}', which is "
                "computed; it may read placeholders only"
            )
    unknown = [p for p in phases if p not in PHASES]
    if unknown or not phases:
        raise ScheduleError(
            f"decl_tensor_intrin '{name}': phases {list(phases)} (allowed: {', '.join(PHASES)})"
        )
    if binds is not None or len(inspect.signature(emit).parameters) == 2:
        where = f"decl_tensor_intrin '{name}'"
        tensors, given = declared(emit, binds, op.input_tensors, op.outputs, where)
        calling = CallIntrinsic(name, op, as_phases(given, PHASES, where), tensors)
        _REGISTERED[name] = calling
        return calling
    if op.reduction is None:
        phases = (BODY,)
    made = TensorIntrinsic(name, op, emit, phases, collective)
    _REGISTERED[name] = made
    return made


def registered(name: str) -> TensorIntrinsic:
    """The intrinsic declared last under a name (for schedules loaded from a file).

    Args:
        name: as declared.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: there is none of that name.
    """
    if name not in _REGISTERED:
        raise ScheduleError(
            f"intrinsic '{name}' is not declared{did_you_mean(name, list(_REGISTERED))}; declare "
            "it with te.decl_tensor_intrin before the schedule is applied"
        )
    return _REGISTERED[name]
