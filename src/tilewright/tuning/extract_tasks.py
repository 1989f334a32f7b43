"""What compile workers do to take a program apart: its dispatches, and its convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.argument import ArgumentType
from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE, ISOLATED_PHASE, CompileError, CompilerSession
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.site import Site
from tilewright.sketch.site_tasks import FindSitesRequest, find_on_the_way
from tilewright.tiling import DispatchTemplate
from tilewright.tuning.worker_tasks import parse_module, preprocessed
from tilewright.workload import Workload

if TYPE_CHECKING:
    from tilewright.ir.signature import Signature

ISOLATED_FLAG = f"--compile-from={ISOLATED_PHASE}"
"""What `iree-compile` needs beside a variant's flags to compile `ExtractedDispatch.isolated`."""

_TUNER_FLAG = "--iree-codegen-add-tuner-attributes"
# Of the compiler: one of these names the device, unless the program does.
_DEVICE_FLAGS = ("--iree-hal-target-device", "--iree-hal-target-backends")
# IREE 3.13 configures softmax in one of two ways, by chance, so that one dispatch may come out in
# another way than the program's. With this many attempts fewer than one in a thousand stays so.
_ATTEMPTS = 10


@dataclass(frozen=True)
class ExtractRequest:
    """Compile a program to the flow phase and take its dispatches apart into `folder`.

    `declared`: the signatures of its functions as the source declares them. `function`: the entry
    point whose run is counted; by default all of them. `arguments`: the shape or value of each of
    the function's arguments, for programs whose sizes are known at run time only. `sites`: a folder
    for the modules of its sites; None where these are not to be found. `verify`: whether what the
    compiler's passes make is verified, which finds what would crash it, and takes long; where sites
    are found it is not.
    """

    program: Path
    flags: tuple[str, ...]
    folder: Path
    declared: Mapping[str, Signature] | None = None
    function: str | None = None
    arguments: tuple[tuple[int, ...] | int | None, ...] = ()
    sites: Path | None = None
    verify: bool = True


@dataclass(frozen=True)
class ExtractedDispatch:
    """A dispatch of a program, alone in a file. `isolated` is None when it cannot run alone;
    `reason` says why.

    `program` is a file with the executable as the compiler configures it in the program. The other
    fields as in `ir.dispatches.Isolated`.
    """

    executable: str
    entry: str
    count: int
    isolated: Path | None
    program: Path | None = None
    reason: str = ""
    encoded: bool = False
    arguments: tuple[ArgumentType, ...] = ()
    outputs: tuple[ArgumentType, ...] = ()
    values: tuple[tuple[int, int], ...] = ()
    workload: tuple[int | None, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()

    @property
    def file(self) -> Path:
        """`isolated` of a dispatch that can run alone."""
        assert self.isolated is not None
        return self.isolated

    @property
    def configured(self) -> Path:
        """Where the dispatch is when the compiler has configured it."""
        return self.file.with_suffix(".configured.mlir")

    @property
    def output_types(self) -> tuple[str, ...]:
        """The element types of its results."""
        return tuple(one.element_type for one in self.outputs)


@dataclass(frozen=True)
class Extraction:
    """The dispatches of a program, the signatures of its entry points, and what the compiler knows
    of the processor (see `ir.target_info`).

    `configured`: a file with the program as the compiler configures its dispatches. `limits`: the
    arguments of the function, by position, that are used as indices, and how large these may be.
    `sites`: None where they were not asked for. `rounds`: whether it rounds numbers to integers, as
    quantised programs do.
    """

    dispatches: tuple[ExtractedDispatch, ...]
    signatures: dict[str, Any]
    configured: Path
    processor: tuple[str, str, int] = ("", "", 16)
    limits: Mapping[int, int] = field(default_factory=dict)
    sites: tuple[Site, ...] | None = None
    rounds: bool = False


def extract_dispatches(state: WorkerState, request: ExtractRequest) -> Extraction:
    """Task: take a program apart.

    Args:
        state: the worker's.
        request: see ExtractRequest.

    Returns:
        The program's dispatches, also those that cannot run alone.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.ir.dispatches import (
        NotIsolatable,
        entry_function,
        find_dispatches,
        isolate,
    )
    from tilewright.ir.index_bounds import program_limits
    from tilewright.ir.roundings import rounds_numbers
    from tilewright.ir.signature import entry_points
    from tilewright.ir.sizes import SizeEvaluator
    from tilewright.ir.target_info import target_info
    from tilewright.ir.template import executables

    compiler, name = session(state, request.flags), request.program.name
    text, sites = _to_dispatches(state, request)
    module = parse_module(compiler, text)
    text = compiler.compile(
        text, ISOLATED_PHASE, CONFIGURED_PHASE, name=name, verify=request.verify
    )
    program_code = parse_module(compiler, text)  # lives as long as its executables are used
    configured = executables(program_code)
    signatures = entry_points(module, request.declared)
    body = entry_function(module, request.function or next(iter(signatures), ""))
    sizes = SizeEvaluator() if body is None else SizeEvaluator.of_entry(body, request.arguments)
    found = []
    request.folder.mkdir(parents=True, exist_ok=True)
    whole = write_whole(request.folder / "configured.mlir", text)
    keep_device = not any(flag.startswith(_DEVICE_FLAGS) for flag in request.flags)
    for index, site in enumerate(find_dispatches(module, request.function)):
        try:
            known = isolate(compiler, module, site, sizes, keep_device)
            if site.executable not in configured:
                raise NotIsolatable("the compiler makes another dispatch do what it does")
        except NotIsolatable as error:
            found.append(
                ExtractedDispatch(site.executable, site.entry, site.count, None, reason=str(error))
            )
            continue
        path = request.folder / f"{index:03d}_{site.entry[:80]}.mlir"
        program = path.with_suffix(".program.mlir")
        write_whole(path, known.module.operation.get_asm().encode())
        # Names of the whole module's would be looked for anew for each: 5 s of a DenseNet's 16.
        alone = configured[site.executable].get_asm(use_local_scope=True)
        write_whole(program, alone.encode())
        found.append(
            ExtractedDispatch(
                site.executable,
                site.entry,
                site.count,
                path,
                program,
                encoded=known.encoded,
                arguments=known.arguments,
                outputs=known.outputs,
                values=known.values,
                workload=known.workload,
                limits=known.limits,
            )
        )
    limits = program_limits(module, body) if body is not None else {}
    rounds = rounds_numbers(module)
    return Extraction(tuple(found), signatures, whole, target_info(module), limits, sites, rounds)


def _to_dispatches(
    state: WorkerState, request: ExtractRequest
) -> tuple[bytes, tuple[Site, ...] | None]:
    """The program at the flow phase, and its sites where they are asked for."""
    if request.sites is None:
        source, name = request.program.read_bytes(), request.program.name
        compiler = session(state, request.flags)
        text = compiler.compile(source, compile_to=ISOLATED_PHASE, name=name, verify=request.verify)
        return text, None
    wanted = FindSitesRequest(request.program, request.flags, request.sites, request.function)
    sites, module = find_on_the_way(state, wanted)
    return bytes(module.get_asm(binary=True)), sites


@dataclass(frozen=True)
class ConfigureRequest:
    """Compile an isolated dispatch to where the compiler has configured it, and read that.

    `constraints`: the compiler states those of its pipelines, for backends that have some.
    """

    dispatch: ExtractedDispatch
    flags: tuple[str, ...]
    constraints: bool = False


@dataclass(frozen=True)
class DispatchFacts:
    """A dispatch as the compiler configures it; `reason` says why there is no template.

    `differs`: alone it is other code than in its program, so there is no template either.
    """

    workload: Workload | None
    template: DispatchTemplate | None
    processor: tuple[str, str, int]
    reason: str = ""
    differs: bool = False


def configure_dispatch(state: WorkerState, request: ConfigureRequest) -> DispatchFacts:
    """Task: configure a dispatch alone, compare it with the program's, and read it.

    Args:
        state: the worker's.
        request: see ConfigureRequest.

    Returns:
        What was read; no template where the two differ.

    Raises:
        CompileError: the dispatch does not compile alone.
    """
    return _read_configured(_configuring(state, request), request.dispatch, None)


def configure_dispatches(
    state: WorkerState, requests: Sequence[ConfigureRequest]
) -> list[DispatchFacts | WorkerFailure]:
    """Task: configure several dispatches, which the compiler gets together.

    Args:
        state: the worker's.
        requests: which.

    Returns:
        For each of them what `configure_dispatch` returns, or what it raises.

    Raises:
        CompileError: one of those that were compiled together does not compile.
        MLIRError: one cannot be read.
    """
    from tilewright.ir.configured_together import configure_together, joinable

    made: dict[int, Any] = {}
    alike: dict[CompilerSession, list[int]] = {}
    for number, request in enumerate(requests):
        alike.setdefault(_configuring(state, request), []).append(number)
    for compiler, numbers in alike.items():
        modules = [
            parse_module(compiler, requests[number].dispatch.file.read_bytes())
            for number in numbers
        ]
        places = joinable(modules)
        if len(places) > 1:
            together = configure_together(compiler, [modules[place] for place in places])
            made |= {numbers[place]: one for place, one in zip(places, together, strict=True)}
    found: list[DispatchFacts | WorkerFailure] = []
    for number, request in enumerate(requests):
        try:
            compiler = _configuring(state, request)
            found.append(_read_configured(compiler, request.dispatch, made.get(number)))
        except CompileError as error:
            found.append(WorkerFailure.of(error))
    return found


def _configuring(state: WorkerState, request: ConfigureRequest) -> CompilerSession:
    """What a dispatch is configured with."""
    from tilewright.ir.gpu_constraints import EMIT_CONSTRAINTS

    stated = (EMIT_CONSTRAINTS,) if request.constraints else ()
    return session(state, (*request.flags, _TUNER_FLAG, *stated))


def _read_configured(
    compiler: CompilerSession, dispatch: ExtractedDispatch, made: Any
) -> DispatchFacts:
    """See `configure_dispatch`; `made` as `_as_in_program` takes it."""
    from tilewright.ir.lowering import UnreadableConfiguration
    from tilewright.ir.target_info import target_info
    from tilewright.ir.template import read_dispatch

    module, other = _as_in_program(compiler, dispatch, made)
    facts = target_info(module)
    if other:
        return DispatchFacts(None, None, facts, f"alone it is other code: {other}", differs=True)
    try:
        found = read_dispatch(module, dispatch.executable, dispatch.entry, dispatch.workload)
    except UnreadableConfiguration as error:
        return DispatchFacts(None, None, facts, str(error))
    return DispatchFacts(found.workload, found.template, facts)


def _as_in_program(
    compiler: CompilerSession, dispatch: ExtractedDispatch, made: Any
) -> tuple[Any, str]:
    """The dispatch alone at the executable-configurations phase, also written to its file, and in
    what it is not what the program has there ('': in nothing).

    made: it there, compiled together with others; None where it was not, and where it is not what
    the program has it is compiled by itself.
    """
    from tilewright.ir.difference import difference
    from tilewright.ir.template import executables

    assert dispatch.program is not None
    source, name = dispatch.file.read_bytes(), dispatch.file.name
    program = parse_module(compiler, dispatch.program.read_bytes())
    (wanted,) = executables(program).values()
    if made is not None:
        # What is not written, such as that a symbol is public, is no difference.
        text = made.operation.get_asm(use_local_scope=True).encode()
        module = parse_module(compiler, text)
        if not difference(executables(module)[dispatch.executable], wanted):
            write_whole(dispatch.configured, text)
            return module, ""
    for _ in range(_ATTEMPTS):
        text = compiler.compile(source, ISOLATED_PHASE, CONFIGURED_PHASE, name=name)
        module = parse_module(compiler, text)
        alone = executables(module)[dispatch.executable]
        other = difference(alone, wanted)
        if not other or difference(alone, wanted, configuration=False):
            break
    write_whole(dispatch.configured, text)
    return module, other


@dataclass(frozen=True)
class ConvolutionsRequest:
    """Write specs that make sets of a program's convolutions matrix products."""

    program: Path
    flags: tuple[str, ...]
    folder: Path


def list_convolutions(state: WorkerState, request: ConvolutionsRequest) -> dict[str, Path]:
    """Task: write specs for sets of convolutions.

    Args:
        state: the worker's.
        request: see ConvolutionsRequest.

    Returns:
        The specs' paths by the names of the sets.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.spec import preprocessing

    compiler = session(state, request.flags)
    text = preprocessed(state, request.program, request.flags)
    sites = preprocessing.conv_sites(parse_module(compiler, text))
    request.folder.mkdir(parents=True, exist_ok=True)
    return {
        name: write_whole(
            request.folder / f"{name}.im2col.mlir",
            preprocessing.write_im2col_spec(chosen).encode(),
        )
        for name, chosen in preprocessing.choices(sites).items()
    }
