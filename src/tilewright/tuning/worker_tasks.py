"""What compile workers do for a tuning run: read dispatches, make references, compile.

Everything that needs the MLIR bindings runs here, in worker processes: the process that leads a run
neither parses IR nor computes, and no program can take it down.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE, CompileError
from tilewright.measure.compile_worker import host_of, session
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.tiling import CompilationInfo

if TYPE_CHECKING:
    from tilewright.ir.program import Program
    from tilewright.ir.splice import SplicedTemplate


@dataclass(frozen=True)
class LoadRequest:
    """Read the user's program, and write what must be written to compile it into `folder`.

    `declaration`: the text of the device that it is compiled for, where no flag names it.
    """

    path: Path
    folder: Path
    function: str | None
    input_type: str | None = None
    declaration: str = ""


def read_user_program(state: WorkerState, request: LoadRequest) -> Program:
    """Task: see LoadRequest. Raises UserError.

    In a worker, since a malformed module can crash the parser.
    """
    from tilewright.ir.program import declare_device, load_program

    program = load_program(
        request.path, request.folder, function=request.function, input_type=request.input_type
    )
    if request.declaration:
        program = declare_device(program, request.folder, request.declaration)
    return program


_PROBE = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %a, %a : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def compile_probe(state: WorkerState, declaration: str) -> None:
    """Task: compile something small for a device. Raises CompileError where that is refused."""
    from iree.compiler import ir

    compiler = session(state, ())
    with compiler.context:
        module = ir.Module.parse(_PROBE, compiler.context)
        device = ir.Attribute.parse(declaration, compiler.context)
        module.operation.attributes["hal.device.targets"] = ir.ArrayAttr.get([device])
        compiler.compile(module.operation, compile_to="executable-targets")


def parse_module(compiler: Any, source: bytes | str) -> Any:
    """The module that a text or bytecode is, in the compiler's context."""
    from iree.compiler import ir

    context = compiler.context
    with context:
        return ir.Module.parse(source, context)


def preprocessed(state: WorkerState, program: Path, flags: tuple[str, ...]) -> bytes:
    """A program at the phase at which specs find it, as bytecode.

    Args:
        state: the worker's.
        program: its source.
        flags: of `iree-compile`, those of the variant included.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.ir.session import SITE_PHASE

    return session(state, flags).compile(
        program.read_bytes(),
        compile_to=SITE_PHASE,
        output="bytecode",
        name=program.name,
        verify=False,
    )


@dataclass(frozen=True)
class CandidateRequest:
    """Compile a configured dispatch with another configuration (None: the compiler's own).

    `splice`: many candidates of this dispatch are to come; what they share is compiled once.
    `programs`: a folder for what its candidates became, with `splice`: of one that becomes the same
    program as another before it only the digest is returned, and no vmfb is written. `rotations`:
    sets of arguments that `bench` takes.
    """

    configured: Path
    executable: str
    entry: str
    configuration: CompilationInfo | None
    repeats: int
    flags: tuple[str, ...]
    vmfb: Path
    keep: Path | None = None
    splice: bool = False
    programs: Path | None = None
    rotations: int = 1


def compile_candidate(state: WorkerState, request: CandidateRequest) -> str:
    """Task: see CandidateRequest. Returns a digest of the code. Raises CompileError.

    Args:
        request: which dispatch, configured how, and where the program goes.
    """
    from tilewright.ir.candidate import make_candidate
    from tilewright.ir.generated_code import NotSpliceable

    compiler = session(state, request.flags)

    def whole() -> Any:
        return make_candidate(
            _template(state, request.configured),
            compiler.context,
            request.executable,
            request.entry,
            request.configuration,
            request.repeats,
            rotations=request.rotations,
        ).operation

    if request.keep is not None:
        write_whole(request.keep, whole().get_asm().encode())
    if request.splice:
        with contextlib.suppress(NotSpliceable):
            return _spliced_candidate(state, request)
    return _written(request, compiler.compile(whole(), compile_from=CONFIGURED_PHASE))


def _written(request: CandidateRequest, vmfb: bytes) -> str:
    """Write a candidate's program and return its digest."""
    write_whole(request.vmfb, vmfb)
    return hashlib.sha256(vmfb).hexdigest()[:20]


def _spliced_candidate(state: WorkerState, request: CandidateRequest) -> str:
    """As `compile_candidate`, for those that share their host code. Raises NotSpliceable."""
    template = _spliced(state, request)
    code = template.generate(request.configuration)
    known = request.programs / code.digest() if request.programs is not None else None
    if known is not None and known.exists():
        return known.read_text()
    digest = _written(request, template.finish(code, request.vmfb.parent))
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, digest.encode())
    return digest


class _Templates(RecentlyUsed[Path, bytes]):
    """Configured dispatches, by their files."""

    def __init__(self) -> None:
        super().__init__(64)


class _Spliced(RecentlyUsed[tuple[object, ...], "SplicedTemplate | str"]):
    """What candidates' code is put into, or why it cannot be, by all that decides it."""

    def __init__(self) -> None:
        super().__init__(16)


def _spliced(state: WorkerState, request: CandidateRequest) -> SplicedTemplate:
    """The template that this candidate's code is put into, kept between candidates.

    Raises NotSpliceable where candidates must be compiled as a whole.
    """
    from tilewright.ir.generated_code import NotSpliceable
    from tilewright.ir.splice import SplicedTemplate

    key = (
        request.configured,
        request.executable,
        request.entry,
        request.repeats,
        request.rotations,
        request.flags,
    )

    def make() -> SplicedTemplate | str:
        try:
            compiler = session(state, request.flags)
            return SplicedTemplate(
                compiler,
                _template(state, request.configured),
                request.executable,
                request.entry,
                request.repeats,
                request.rotations,
                lambda calls: host_of(state, compiler, calls, guarded=False),
            )
        except (NotSpliceable, CompileError) as error:
            return str(error)

    found = state.get(_Spliced).get(key, make)
    if isinstance(found, str):
        raise NotSpliceable(found)
    return found


def _template(state: WorkerState, path: Path) -> bytes:
    """The configured dispatch, kept between candidates."""
    return state.get(_Templates).get(path, path.read_bytes)
