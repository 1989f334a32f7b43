"""What compile workers do for kernel candidates: write schedules, emit code, compile."""

from __future__ import annotations

import hashlib
import pickle
import time
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.schedule.build_tasks import SCHEDULE_FLAGS, with_processor
from tilewright.schedule.nest import Buffer, LoopProgram
from tilewright.site import KernelChoice
from tilewright.sketch import generators
from tilewright.sketch.candidate import (
    CompiledKernel,
    KernelRequest,
    SketchError,
    check_kernel,
    packed_inputs,
    room,
    rounded,
)
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.loops import LoopsSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import Target

if TYPE_CHECKING:
    from iree.compiler import ir

    from tilewright.ir.splice import SplicedHost
    from tilewright.schedule.codegen.module import EmittedKernel


def compile_kernel(state: WorkerState, request: KernelRequest) -> CompiledKernel:
    """Task: see KernelRequest.

    Args:
        state: what the worker keeps.
        request: which kernel, and where the program goes.

    Raises:
        ScheduleError: the schedule cannot be carried out.
        SketchError: the sketch is not there, or its kernel is not one for the site.
        CompileError: the compiler does not take the code.
    """
    from tilewright.ir.splice import GeneratedCode, digest_of
    from tilewright.schedule.codegen import executables_for, module_for
    from tilewright.schedule.codegen.machine import machine_for
    from tilewright.schedule.codegen.size import check_size

    clock = _Phases()
    site, kernel = sketched(state, request.expression, request.choice, request.target)
    check_kernel(site, kernel)
    clock.end("schedule")
    program = kernel.lower().program
    clock.end("lower")
    inputs = request.inputs
    if inputs is not None and request.packed is not None:
        inputs = packed_inputs(
            inputs, site.constant, kernel.packings, request.packed, request.beside
        )
    clock.end("pack")
    target = with_processor(state, request.target)
    check_size(program, machine_for(target).widths)
    if request.keep is not None:
        write_whole(request.keep, str(module_for(program, target)).encode())
    flags = compile_flags(request.flags)
    compiler = session(state, flags)
    module, kernels = executables_for(
        program, target, target_of(state, flags), kernel.unaligned(program)
    )
    packings = sorted(kernel.packings.items())
    digest = hashlib.sha256(f"{digest_of(module)} {packings}".encode()).hexdigest()[:20]
    clock.end("emit")
    known = request.programs / digest if request.programs is not None else None
    if known is not None and known.exists():
        return CompiledKernel(digest, inputs, clock.seconds)
    turns = max(request.rotations, 1 if inputs is None else inputs.turns)
    request = replace(request, rotations=turns)
    host = _host(state, request, program, kernels, _shapes(site, kernel, program))
    clock.end("host")
    compiler.run(module.operation, "executable-sources", "executable-targets", verify=False)
    clock.end("targets")
    write_whole(request.vmfb, host.finish(GeneratedCode.of(module), request.vmfb.parent))
    clock.end("code")
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, digest.encode())
    return CompiledKernel(digest, inputs, clock.seconds)


class _Phases:
    """Seconds from one phase's end to the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def compile_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of a kernel's compiler.

    Args:
        flags: of the program that the kernel is for.
    """
    names = {flag.partition("=")[0] for flag in flags}
    return (*flags, *(f for f in SCHEDULE_FLAGS if f.partition("=")[0] not in names))


# -- sketches and their kernels --------------------------------------------------------------------


class _Sites(RecentlyUsed[bytes, SiteExpression]):
    """Expressions, by what they are stored as."""

    def __init__(self) -> None:
        super().__init__(32)


class _Sketches(RecentlyUsed[tuple[bytes, Target, str], Sketch]):
    """Sketches of expressions, by name."""

    def __init__(self) -> None:
        super().__init__(64)


def sketched(
    state: WorkerState, expression: bytes, choice: KernelChoice, target: Target
) -> tuple[SiteExpression, SketchedKernel]:
    """The expression of a site, and the schedule that a sketch writes for it.

    Args:
        state: what the worker keeps.
        expression: as it was stored.
        choice: sketch and knobs.
        target: what it is for.

    Raises:
        SketchError: the sketch is not for this site.
        ScheduleError: these knobs make no schedule.
    """
    site = state.get(_Sites).get(expression, lambda: pickle.loads(expression))

    def make() -> Sketch:
        rules: list[type[Sketch]] = [*generators.SKETCHES, LoopsSketch]
        known = {rule.name: rule for rule in rules}
        if choice.sketch not in known:
            raise SketchError(f"no sketch '{choice.sketch}' (there are: {', '.join(known)})")
        try:
            return known[choice.sketch](site, target)
        except Unfit as error:
            raise SketchError(f"sketch '{choice.sketch}' is not for this site: {error}") from None

    sketch = state.get(_Sketches).get((expression, target, choice.sketch), make)
    return site, sketch.schedule(choice.knobs)


# -- the host's code -------------------------------------------------------------------------------


class _Hosts(RecentlyUsed[tuple[object, ...], "SplicedHost"]):
    """Host code that kernels are put into, by all that decides it."""

    def __init__(self) -> None:
        super().__init__(64)


class _Targets(RecentlyUsed[tuple[str, ...], Any]):
    """IREE's attributes of targets, by the flags that select them."""

    def __init__(self) -> None:
        super().__init__(8)


_PROBE = "func.func @main(%a: tensor<1xi8>) -> tensor<1xi8> { return %a : tensor<1xi8> }"


def target_of(state: WorkerState, flags: tuple[str, ...]) -> ir.Attribute:
    """IREE's attribute of what is compiled for, in the context of the compiler for these flags.

    Args:
        state: what the worker keeps.
        flags: of `iree-compile`.
    """
    from iree.compiler import ir

    from tilewright.ir.target_info import executable_target

    def make() -> ir.Attribute:
        compiler = session(state, flags)
        module = ir.Module.parse(_PROBE, compiler.context)
        # Behind what reads the program: these flags say which dialect that is of.
        compiler.run(module.operation, "input", "flow")
        return executable_target(module)

    found: ir.Attribute = state.get(_Targets).get(flags, make)
    return found


def _shapes(
    site: SiteExpression, kernel: SketchedKernel, program: LoopProgram
) -> dict[Buffer, tuple[int, ...]]:
    """In what shapes buffers are handed over: constants flat, in few sizes, and so is what is
    between kernels; so that kernels that are packed in another way share their host code."""
    shapes: dict[Buffer, tuple[int, ...]] = {b: (rounded(b.size),) for b in program.temporaries}
    tensors = (*site.inputs, site.output)
    for position, (buffer, tensor) in enumerate(zip(program.arguments, tensors, strict=True)):
        shapes[buffer] = tensor.shape
        if position < len(site.inputs) and site.constant[position]:
            shapes[buffer] = (room(buffer.size, prod(tensor.shape)),)
    return shapes


def _host(
    state: WorkerState,
    request: KernelRequest,
    program: LoopProgram,
    kernels: list[EmittedKernel],
    shapes: dict[Buffer, tuple[int, ...]],
) -> SplicedHost:
    """The host code of a kernel, kept for others that are called in the same way."""
    from tilewright.ir.candidate import add_benchmark
    from tilewright.ir.splice import SplicedHost
    from tilewright.schedule.codegen import host_for

    flags = compile_flags(request.flags)
    kernels = [
        replace(k, scratch=tuple((rounded(size), dtype) for size, dtype in k.scratch))
        for k in kernels
    ]

    compiler = session(state, flags)
    names = [kernel.name for kernel in kernels]
    called = flags, request.repeats, request.rotations, _signature(program, kernels, shapes)

    def make() -> SplicedHost:
        known = None
        if request.programs is not None:
            name = hashlib.sha256(repr(called).encode()).hexdigest()[:20]
            known = request.programs / f"host_{name}.mlirbc"
            # Another worker may have made it; compiling it takes longer than a kernel does.
            if known.exists():
                return SplicedHost.read(compiler, known)
        module = host_for(program, kernels, shapes, compiler.context)
        # Passes that form dispatches find nothing to do in a host, which only calls kernels.
        compiler.run(module.operation, None, "abi", verify=False)
        compiler.run(module.operation, "dispatch-creation", CONFIGURED_PHASE, verify=False)
        if max(request.repeats, request.rotations) > 1:
            add_benchmark(module, None, request.repeats, request.rotations)
        host = SplicedHost(compiler, module, names)
        if known is not None:
            known.parent.mkdir(parents=True, exist_ok=True)
            host.write(known)
        return host

    return state.get(_Hosts).get(called, make)


def _signature(
    program: LoopProgram, kernels: list[EmittedKernel], shapes: dict[Buffer, tuple[int, ...]]
) -> tuple[object, ...]:
    """How a program's kernels are called: equal for programs with the same host code."""
    numbers: dict[Buffer, int] = {}
    for buffer in program.arguments:
        numbers.setdefault(buffer, len(numbers))
    for kernel in kernels:
        for buffer in (*kernel.reads, *kernel.writes):
            numbers.setdefault(buffer, len(numbers))
    return (
        tuple((b.dtype, shapes[b]) for b in numbers),
        tuple(numbers[b] for b in program.inputs),
        tuple(numbers[b] for b in program.outputs),
        tuple(
            (tuple(numbers[b] for b in k.reads), tuple(numbers[b] for b in k.writes), k.scratch)
            for k in kernels
        ),
    )
