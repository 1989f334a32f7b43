"""The host's code of kernel candidates, compiled once for all that are called in the same way: it
takes longer to compile than a kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.schedule.nest import Buffer, LoopProgram
from tilewright.sketch.candidate import room, rounded
from tilewright.sketch.interface import SiteExpression

if TYPE_CHECKING:
    from tilewright.ir.splice import SplicedHost
    from tilewright.schedule.codegen.module import EmittedKernel


@dataclass(frozen=True)
class HostRequest:
    """Host code for a program.

    kernels: its kernels, of which the code is exchanged. shapes: in what shapes buffers are handed
    over. repeats, rotations: of its function `bench`. flags: of `iree-compile`. folder: where
    workers leave host code for each other; None where they do not.
    """

    program: LoopProgram
    kernels: Sequence[EmittedKernel]
    shapes: Mapping[Buffer, tuple[int, ...]]
    repeats: int
    rotations: int
    flags: tuple[str, ...]
    folder: Path | None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests of the same host code."""
        return self.flags, self.repeats, self.rotations, _signature(self)


def host_request(
    site: SiteExpression,
    program: LoopProgram,
    kernels: Sequence[EmittedKernel],
    *,
    repeats: int,
    rotations: int,
    flags: tuple[str, ...],
    folder: Path | None,
) -> HostRequest:
    """Host code for a site's kernel. Constants are handed over flat, in few sizes, and so is what
    is between kernels: kernels that are packed in another way have the same host code.

    Args:
        site: that the kernel computes.
        program: the kernel's loops.
        kernels: what was emitted for them.
        repeats: as in `HostRequest`.
        rotations: as there.
        flags: as there.
        folder: as there.
    """
    shapes: dict[Buffer, tuple[int, ...]] = {b: (rounded(b.size),) for b in program.temporaries}
    tensors = (*site.inputs, site.output)
    for position, (buffer, tensor) in enumerate(zip(program.arguments, tensors, strict=True)):
        shapes[buffer] = tensor.shape
        if position < len(site.inputs) and site.constant[position]:
            shapes[buffer] = (room(buffer.size, prod(tensor.shape)),)
    kernels = [
        replace(k, scratch=tuple((rounded(size), dtype) for size, dtype in k.scratch))
        for k in kernels
    ]
    return HostRequest(program, kernels, shapes, repeats, rotations, flags, folder)


class _Hosts(RecentlyUsed[tuple[object, ...], "SplicedHost"]):
    """Host code that kernels are put into, by all that decides it."""

    def __init__(self) -> None:
        super().__init__(64)


def host_of(state: WorkerState, compiler: CompilerSession, request: HostRequest) -> SplicedHost:
    """Host code, which is kept.

    Args:
        state: what the worker keeps.
        compiler: for the request's flags.
        request: what is wanted.

    Raises:
        CompileError: it does not compile.
        NotSpliceable: its kernels cannot be exchanged.
    """
    return state.get(_Hosts).get(request.key, lambda: _made(compiler, request))


def _made(compiler: CompilerSession, request: HostRequest) -> SplicedHost:
    from tilewright.ir.candidate import add_benchmark
    from tilewright.ir.splice import SplicedHost
    from tilewright.schedule.codegen import host_for

    known = None
    if request.folder is not None:
        name = hashlib.sha256(repr(request.key).encode()).hexdigest()[:20]
        known = request.folder / f"host_{name}.mlirbc"
        # Another worker may have made it.
        if known.exists():
            return SplicedHost.read(compiler, known)
    module = host_for(request.program, request.kernels, request.shapes, compiler.context)
    # Passes that form dispatches find nothing to do in a host, which only calls kernels.
    compiler.run(module.operation, None, "abi", verify=False)
    compiler.run(module.operation, "dispatch-creation", CONFIGURED_PHASE, verify=False)
    if max(request.repeats, request.rotations) > 1:
        add_benchmark(module, None, request.repeats, request.rotations)
    host = SplicedHost(compiler, module, [kernel.name for kernel in request.kernels])
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        host.write(known)
    return host


def _signature(request: HostRequest) -> tuple[object, ...]:
    """How a program's kernels are called: equal for programs with the same host code."""
    program, numbers = request.program, dict[Buffer, int]()
    for buffer in program.arguments:
        numbers.setdefault(buffer, len(numbers))
    for kernel in request.kernels:
        for buffer in (*kernel.reads, *kernel.writes):
            numbers.setdefault(buffer, len(numbers))
    return (
        tuple((b.dtype, request.shapes[b]) for b in numbers),
        tuple(numbers[b] for b in program.inputs),
        tuple(numbers[b] for b in program.outputs),
        tuple(
            (tuple(numbers[b] for b in k.reads), tuple(numbers[b] for b in k.writes), k.scratch)
            for k in request.kernels
        ),
    )
