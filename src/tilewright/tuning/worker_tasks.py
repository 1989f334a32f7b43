"""What compile workers do for a tuning run: extract dispatches, make references, compile.

Everything that needs the MLIR bindings runs here, in worker processes: the process that leads a run
neither parses IR nor computes, and no program can take it down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.measure.compile_worker import session, write_whole
from tilewright.measure.inputs import ArgumentType, InputSet, random_inputs, write_outputs
from tilewright.tiling import DispatchConfiguration, DispatchTemplate
from tilewright.workload import Workload

if TYPE_CHECKING:
    from tilewright.ir.signature import Signature

_MODULE = "tilewright.tuning.worker_tasks"
LOAD, EXTRACT, CONVOLUTIONS, CONFIGURE, REFERENCE, CANDIDATE, SPEC, READ_APPLIED = (
    f"{_MODULE}:{name}"
    for name in (
        "load",
        "extract",
        "convolutions",
        "configure",
        "reference",
        "candidate",
        "spec",
        "read_applied",
    )
)

TUNER_FLAG = "--iree-codegen-add-tuner-attributes"
CONFIGURED = "executable-configurations"


@dataclass(frozen=True)
class LoadRequest:
    """Read the user's program, and write what must be written to compile it into `folder`."""

    path: Path
    folder: Path
    function: str | None
    input_type: str | None = None


def load(state: dict[str, Any], request: LoadRequest) -> Any:
    """Task: see LoadRequest; an `ir.program.Program`. Raises UserError.

    In a worker, since a malformed module can crash the parser.
    """
    from tilewright.ir.program import load_program

    return load_program(
        request.path, request.folder, function=request.function, input_type=request.input_type
    )


@dataclass(frozen=True)
class ExtractRequest:
    """Compile a program to the flow phase and take its dispatches apart into `folder`.

    `declared`: the signatures of its functions as the source declares them. `function`: the entry
    point whose run is counted; by default all of them.
    """

    program: Path
    flags: tuple[str, ...]
    folder: Path
    declared: Mapping[str, Signature] | None = None
    function: str | None = None


@dataclass(frozen=True)
class ExtractedDispatch:
    """A dispatch of a program. `isolated` is None when it cannot run alone; `reason` says why."""

    executable: str
    entry: str
    count: int
    initializer_count: int
    in_loop: bool
    isolated: Path | None
    encoded: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Extraction:
    """The dispatches of a program, the signatures of its entry points, and what the compiler knows
    of the processor."""

    dispatches: tuple[ExtractedDispatch, ...]
    signatures: dict[str, Any]
    processor: str = ""
    features: str = ""
    vector_bytes: int = 16


def extract(state: dict[str, Any], request: ExtractRequest) -> Extraction:
    """Task: see ExtractRequest. Raises CompileError when the program does not compile."""
    from tilewright.ir.dispatches import NotIsolatable, find_dispatches, isolate
    from tilewright.ir.signature import entry_points
    from tilewright.ir.target_info import target_info

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(), compile_to="flow", name=request.program.name
    )
    module = _module(compiler, text)
    found = []
    request.folder.mkdir(parents=True, exist_ok=True)
    for index, site in enumerate(find_dispatches(module, request.function)):
        path, encoded, reason = None, False, ""
        try:
            isolated = isolate(module, site)
            path = request.folder / f"{index:03d}_{site.entry[:80]}.mlir"
            write_whole(path, isolated.module.operation.get_asm().encode())
            encoded = isolated.encoded
        except NotIsolatable as error:
            reason = str(error)
        found.append(
            ExtractedDispatch(
                site.executable,
                site.entry,
                site.count,
                site.initializer_count,
                site.in_loop,
                path,
                encoded,
                reason,
            )
        )
    return Extraction(tuple(found), entry_points(module, request.declared), *target_info(module))


def _module(compiler: Any, source: bytes | str) -> Any:
    from iree.compiler import ir

    context = compiler.context
    with context:
        return ir.Module.parse(source, context)


@dataclass(frozen=True)
class ConvolutionsRequest:
    """Write specs that make sets of a program's convolutions matrix products."""

    program: Path
    flags: tuple[str, ...]
    folder: Path


def convolutions(state: dict[str, Any], request: ConvolutionsRequest) -> dict[str, Path]:
    """Task: see ConvolutionsRequest. The specs' paths by the names of the sets."""
    from tilewright.spec import preprocessing

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(), compile_to=preprocessing.PHASE, name=request.program.name
    )
    sites = preprocessing.conv_sites(_module(compiler, text))
    request.folder.mkdir(parents=True, exist_ok=True)
    return {
        name: write_whole(
            request.folder / f"{name}.im2col.mlir",
            preprocessing.write_im2col_spec(chosen).encode(),
        )
        for name, chosen in preprocessing.choices(sites).items()
    }


def _isolated_main(module: Any) -> Any:
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.walk import string_attribute

    return next(
        op.operation
        for op in module.body.operations
        if string_attribute(op.operation, "sym_name") == ISOLATED_FUNCTION
    )


@dataclass(frozen=True)
class ConfigureRequest:
    """Compile an isolated dispatch to where the compiler has configured it, and read that."""

    isolated: Path
    executable: str
    entry: str
    flags: tuple[str, ...]
    configured: Path


@dataclass(frozen=True)
class ConfiguredInfo:
    """A dispatch as the compiler configures it; `reason` says why there is no template."""

    workload: Workload | None
    template: DispatchTemplate | None
    arguments: tuple[ArgumentType, ...]
    outputs: tuple[ArgumentType, ...]
    processor: str
    features: str
    vector_bytes: int
    reason: str = ""


def configure(state: dict[str, Any], request: ConfigureRequest) -> ConfiguredInfo:
    """Task: see ConfigureRequest. Raises CompileError when the dispatch does not compile alone."""
    from tilewright.ir.lowering import UnreadableConfiguration
    from tilewright.ir.signature import declared_signature
    from tilewright.ir.target_info import target_info
    from tilewright.ir.template import read_dispatch

    compiler = session(state, (*request.flags, TUNER_FLAG))
    source = request.isolated.read_bytes()
    text = compiler.compile(source, compile_to=CONFIGURED, name=request.isolated.name)
    write_whole(request.configured, text)
    module = _module(compiler, text)
    processor, features, vector_bytes = target_info(module)
    signature = declared_signature(_isolated_main(_module(compiler, source)))
    workload = template = None
    reason = ""
    try:
        found = read_dispatch(module, request.executable, request.entry)
        workload, template = found.workload, found.template
    except UnreadableConfiguration as error:
        reason = str(error)
    return ConfiguredInfo(
        workload,
        template,
        signature.inputs,
        signature.outputs,
        processor,
        features,
        vector_bytes,
        reason,
    )


@dataclass(frozen=True)
class ReferenceRequest:
    """Make random inputs of a dispatch and compute its results in float64.

    `outputs`: element types of the results. `with_sensitivity`: find out as well how much each
    result moves with the inputs' last digit, which takes a few evaluations more.
    """

    isolated: Path
    arguments: tuple[ArgumentType, ...]
    outputs: tuple[str, ...]
    flags: tuple[str, ...]
    seed: int
    folder: Path
    with_sensitivity: bool = False


@dataclass(frozen=True)
class Reference:
    """What a dispatch must compute, and how closely; see `measure.verify`.

    `expected` and `sensitivity` are .npz files. `method` says how the results were computed:
    `float64 NumPy`, or what else. `expected` is None where the interpreter does not know the
    dispatch (`unsupported` says which op), and another compile must serve.
    """

    inputs: InputSet
    expected: Path | None
    element_types: tuple[str, ...]
    reduction_length: int = 1
    accumulation_type: str | None = None
    integer_slack: int = 0
    sensitivity: Path | None = None
    method: str = ""
    unsupported: str = ""


def reference(state: dict[str, Any], request: ReferenceRequest) -> Reference:
    """Task: see ReferenceRequest."""
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.reference import Unsupported, accuracy, evaluate, sensitivity
    from tilewright.measure.inputs import InputFile, ScalarInput
    from tilewright.measure.verify import is_float_type

    request.folder.mkdir(parents=True, exist_ok=True)
    inputs = random_inputs(request.folder, request.arguments, seed=request.seed)
    compiler = session(state, request.flags)
    module = _module(compiler, request.isolated.read_bytes())
    values: list[Any] = []
    for argument in inputs.arguments:
        if isinstance(argument, InputFile):
            values.append(argument.load())
        elif isinstance(argument, ScalarInput):
            values.append(argument.value)
    try:
        limits = accuracy(module, ISOLATED_FUNCTION)
        expected = evaluate(module, ISOLATED_FUNCTION, values)
    except Unsupported as error:
        return Reference(inputs, None, request.outputs, unsupported=str(error))
    # A result of floats is as coarse as the coarsest format that the program rounds to inside.
    types = tuple(
        (limits.working_type or own) if is_float_type(own) else own for own in request.outputs
    )
    path = request.folder / "expected.npz"
    write_outputs(path, expected)
    moves: Path | None = None
    if request.with_sensitivity:
        moves = request.folder / "sensitivity.npz"
        widest = next((t for t in types if is_float_type(t)), "f32")
        write_outputs(moves, sensitivity(module, ISOLATED_FUNCTION, values, widest))
    return Reference(
        inputs,
        path,
        types,
        limits.reduction_length,
        limits.accumulation_type or None,
        int(limits.rounds_to_integer),
        moves,
        "float64 NumPy",
    )


@dataclass(frozen=True)
class CandidateRequest:
    """Compile a configured dispatch with another configuration (None: the compiler's own)."""

    configured: Path
    executable: str
    entry: str
    configuration: DispatchConfiguration | None
    repeats: int
    flags: tuple[str, ...]
    vmfb: Path
    keep: Path | None = None


def candidate(state: dict[str, Any], request: CandidateRequest) -> str:
    """Task: see CandidateRequest. Returns a digest of the code. Raises CompileError."""
    from tilewright.ir.candidate import COMPILE_FROM, make_candidate

    compiler = session(state, request.flags)
    module = make_candidate(
        _template(state, request.configured),
        compiler.context,
        request.executable,
        request.entry,
        request.configuration,
        request.repeats,
    )
    if request.keep is not None:
        write_whole(request.keep, module.operation.get_asm().encode())
    vmfb = compiler.compile(module.operation, compile_from=COMPILE_FROM)
    write_whole(request.vmfb, vmfb)
    return hashlib.sha256(vmfb).hexdigest()[:20]


def _template(state: dict[str, Any], path: Path) -> bytes:
    """The configured dispatch, kept between candidates."""
    kept: dict[Path, bytes] = state.setdefault("tilewright.templates", {})
    if path not in kept:
        if len(kept) >= 64:
            kept.clear()
        kept[path] = path.read_bytes()
    return kept[path]


@dataclass(frozen=True)
class SpecEntryRequest:
    """One entry of a spec: the configured dispatch that it is for, and what it sets."""

    name: str
    configured: Path
    executable: str
    entry: str
    configuration: DispatchConfiguration


@dataclass(frozen=True)
class SpecRequest:
    entries: tuple[SpecEntryRequest, ...]
    path: Path
    flags: tuple[str, ...]
    header: tuple[tuple[str, str], ...] = ()


def spec(state: dict[str, Any], request: SpecRequest) -> Path:
    """Task: write a tuning spec for configured dispatches. Raises UserError or CompileError."""
    from tilewright.ir.template import find_function
    from tilewright.spec import OpConfig, SpecEntry, write_spec

    compiler = session(state, request.flags)
    modules, entries = [], []
    with compiler.context:
        for one in request.entries:
            module = _module(compiler, _template(state, one.configured))
            modules.append(module)  # the functions live as long as their modules
            entries.append(
                SpecEntry(
                    name=one.name,
                    function=find_function(module, one.executable, one.entry),
                    translation_info=one.configuration.translation.to_attribute(),
                    op_configs=tuple(
                        OpConfig(index, tiling.to_attribute())
                        for index, tiling in one.configuration.tilings
                    ),
                )
            )
        text = write_spec(entries, header=dict(request.header))
    return write_whole(request.path, text.encode())


@dataclass(frozen=True)
class AppliedRequest:
    """Which dispatches of a configured program a spec changed, and how."""

    before: Path
    after: Path
    flags: tuple[str, ...]


@dataclass(frozen=True)
class AppliedChange:
    function: str
    before: str
    after: str
    entry: str


def read_applied(state: dict[str, Any], request: AppliedRequest) -> tuple[AppliedChange, ...]:
    """Task: see AppliedRequest; both files are programs at the executable-configurations phase."""
    from tilewright.spec import changed_configurations

    compiler = session(state, request.flags)
    before = _module(compiler, request.before.read_bytes())
    after = _module(compiler, request.after.read_bytes())
    return tuple(
        AppliedChange(c.function, str(c.before), str(c.after), c.entry or "")
        for c in changed_configurations(before, after)
    )
