"""What compile workers do for kernel candidates: write schedules, emit code, compile."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.files import write_whole
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.measure.compile_worker import host_of, session
from tilewright.measure.jobs import RecentlyUsed, WorkerFailure, WorkerState
from tilewright.schedule.build_tasks import SCHEDULE_FLAGS, with_processor
from tilewright.site import KernelChoice
from tilewright.sketch import generators
from tilewright.sketch.candidate import (
    CompiledKernel,
    KernelRequest,
    SketchError,
    check_kernel,
    packed_inputs,
)
from tilewright.sketch.candidate_calls import kernel_calls
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.loops import LoopsSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import Target

if TYPE_CHECKING:
    from pathlib import Path

    from iree.compiler import ir

    from tilewright.ir.kernel_calls import KernelCalls


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
    emitted = _emitted(state, request)
    if not emitted.is_known:
        _finish(state, [emitted])
    return emitted.compiled


def compile_kernels(
    state: WorkerState, requests: Sequence[KernelRequest]
) -> list[CompiledKernel | WorkerFailure]:
    """Task: compile several kernels, whose code the compiler gets together.

    Args:
        state: what the worker keeps.
        requests: which kernels; those of equal flags are compiled together.

    Returns:
        For each of them what `compile_kernel` returns, or what it raises.
    """
    made: dict[int, _Emitted | WorkerFailure] = {}
    groups: dict[CompilerSession, dict[_Key, _Emitted]] = {}
    for number, request in enumerate(requests):
        try:
            emitted = made[number] = _emitted(state, request)
        except Exception as error:
            made[number] = _failure(error)
            continue
        if not emitted.is_known:
            groups.setdefault(emitted.compiler, {}).setdefault(emitted.key, emitted)
    failures: dict[_Key, WorkerFailure] = {}
    for group in groups.values():
        failures |= _finish_each(state, list(group.values()))
    return [
        one if isinstance(one, WorkerFailure) else failures.get(one.key, one.compiled)
        for one in (made[number] for number in range(len(requests)))
    ]


def _failure(error: Exception) -> WorkerFailure:
    """What a kernel's failure is for those who are compiled with it: theirs only where it is the
    worker's."""
    if isinstance(error, MemoryError):
        raise error
    return WorkerFailure.of(error)


def _finish_each(state: WorkerState, emitted: Sequence[_Emitted]) -> dict[_Key, WorkerFailure]:
    """Write the programs of kernels; why there is none of some."""
    from tilewright.ir.generated_code import NotJoinable, NotSpliceable

    try:
        _finish(state, emitted)
    except (CompileError, NotJoinable, NotSpliceable) as error:
        if len(emitted) == 1:
            return {emitted[0].key: _failure(error)}
        # One that the compiler does not take shall not cost the others.
        found: dict[_Key, WorkerFailure] = {}
        for one in emitted:
            try:
                found |= _finish_each(state, [_emitted(state, one.request)])
            except Exception as error:
                found[one.key] = _failure(error)
        return found
    return {}


# What is written once: by where it is looked for, and the digest.
_Key = tuple["Path", str]


@dataclass
class _Emitted:
    """A kernel whose code is emitted.

    compiler: in whose context the code is. calls: what its host does. known: a file that is there
    once the program has been made. is_known: it has been, for another kernel before it.
    """

    request: KernelRequest
    compiler: CompilerSession
    module: ir.Module
    calls: KernelCalls
    compiled: CompiledKernel
    known: Path | None
    is_known: bool

    @property
    def key(self) -> _Key:
        """Equal for those of which one program is written: kernels of other sites can have the same
        code."""
        return self.request.programs or self.request.vmfb, self.compiled.digest


def _emitted(state: WorkerState, request: KernelRequest) -> _Emitted:
    """See `compile_kernel`."""
    from tilewright.ir.generated_code import digest_of
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
    compiler = session(state, compile_flags(request.flags))
    module, kernels = executables_for(
        program, target, target_of(state, compiler), kernel.unaligned(program)
    )
    packings = sorted(kernel.packings.items())
    digest = hashlib.sha256(f"{digest_of(module)} {packings}".encode()).hexdigest()[:20]
    clock.end("emit")
    rotations = max(request.rotations, 1 if inputs is None else inputs.turns)
    calls = kernel_calls(site, program, kernels, request.repeats, rotations)
    known = request.programs / digest if request.programs is not None else None
    compiled = CompiledKernel(digest, inputs, clock.seconds)
    is_known = known is not None and known.exists()
    return _Emitted(request, compiler, module, calls, compiled, known, is_known)


def _finish(state: WorkerState, emitted: Sequence[_Emitted]) -> None:
    """Write the programs of kernels that are compiled with the same flags.

    Raises CompileError, and NotJoinable where there are several.
    """
    from tilewright.ir.generated_code import generated

    clock = _Phases(len(emitted))
    compiler = emitted[0].compiler
    code = generated(compiler, [one.module for one in emitted])
    clock.end("targets")
    binaries = code.compiled(compiler, emitted[0].request.vmfb.parent)
    clock.end("code")
    hosts = [host_of(state, compiler, one.calls) for one in emitted]
    clock.end("host")
    for one, host, theirs in zip(emitted, hosts, binaries, strict=True):
        write_whole(one.request.vmfb, host.finish(theirs))
        if one.known is not None:
            one.known.parent.mkdir(parents=True, exist_ok=True)
            write_whole(one.known, one.compiled.digest.encode())
    clock.end("program")
    for one in emitted:
        one.compiled = replace(one.compiled, phase_s={**one.compiled.phase_s, **clock.seconds})


class _Phases:
    """Seconds from one phase's end to the next, of each of so many kernels."""

    def __init__(self, kernels: int = 1) -> None:
        self.seconds: dict[str, float] = {}
        self._kernels = kernels
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = (now - self._last) / self._kernels
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


# -- what is compiled for --------------------------------------------------------------------------


class _Targets(RecentlyUsed[CompilerSession, Any]):
    """IREE's attributes of targets, by the compilers for them, in whose contexts they are."""

    def __init__(self) -> None:
        super().__init__(8)


_PROBE = "func.func @main(%a: tensor<1xi8>) -> tensor<1xi8> { return %a : tensor<1xi8> }"


def target_of(state: WorkerState, compiler: CompilerSession) -> ir.Attribute:
    """IREE's attribute of what is compiled for, in the compiler's context.

    Args:
        state: what the worker keeps.
        compiler: the worker's.
    """
    from iree.compiler import ir

    from tilewright.ir.target_info import executable_target

    def make() -> ir.Attribute:
        module = ir.Module.parse(_PROBE, compiler.context)
        # Behind what reads the program: these flags say which dialect that is of.
        compiler.run(module.operation, "input", "flow")
        return executable_target(module)

    found: ir.Attribute = state.get(_Targets).get(compiler, make)
    return found
