"""What compile workers do to take a program apart: its dispatches, and its convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.files import write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.worker_state import WorkerState
from tilewright.tuning.worker_tasks import parse_module

if TYPE_CHECKING:
    from tilewright.ir.signature import Signature

# Of the compiler: one of these names the device, unless the program does.
_DEVICE_FLAGS = ("--iree-hal-target-device", "--iree-hal-target-backends")


@dataclass(frozen=True)
class ExtractRequest:
    """Compile a program to the flow phase and take its dispatches apart into `folder`.

    `declared`: the signatures of its functions as the source declares them. `function`: the entry
    point whose run is counted; by default all of them. `arguments`: the shape or value of each of
    the function's arguments, for programs whose sizes are known at run time only.
    """

    program: Path
    flags: tuple[str, ...]
    folder: Path
    declared: Mapping[str, Signature] | None = None
    function: str | None = None
    arguments: tuple[tuple[int, ...] | int | None, ...] = ()


@dataclass(frozen=True)
class ExtractedDispatch:
    """A dispatch of a program. `isolated` is None when it cannot run alone; `reason` says why.

    `arguments`, `workload` and `limits` as in `ir.dispatches.Isolated`.
    """

    executable: str
    entry: str
    count: int
    initializer_count: int
    in_loop: bool
    isolated: Path | None
    encoded: bool = False
    reason: str = ""
    arguments: tuple[tuple[int, ...] | int | None, ...] = ()
    workload: tuple[int | None, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Extraction:
    """The dispatches of a program, the signatures of its entry points, and what the compiler knows
    of the processor.

    `limits`: the arguments of the function, by position, that are used as indices, and how large
    these may be.
    """

    dispatches: tuple[ExtractedDispatch, ...]
    signatures: dict[str, Any]
    processor: str = ""
    features: str = ""
    vector_bytes: int = 16
    limits: Mapping[int, int] = field(default_factory=dict)


def extract_dispatches(state: WorkerState, request: ExtractRequest) -> Extraction:
    """Task: see ExtractRequest. Raises CompileError when the program does not compile."""
    from tilewright.ir.dispatches import (
        Isolated,
        NotIsolatable,
        entry_function,
        find_dispatches,
        isolate,
    )
    from tilewright.ir.index_bounds import program_limits
    from tilewright.ir.signature import entry_points
    from tilewright.ir.sizes import SizeEvaluator
    from tilewright.ir.target_info import target_info

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(), compile_to="flow", name=request.program.name
    )
    module = parse_module(compiler, text)
    signatures = entry_points(module, request.declared)
    body = entry_function(module, request.function or next(iter(signatures), ""))
    sizes = SizeEvaluator() if body is None else SizeEvaluator.of_entry(body, request.arguments)
    found = []
    request.folder.mkdir(parents=True, exist_ok=True)
    keep_device = not any(flag.startswith(_DEVICE_FLAGS) for flag in request.flags)
    for index, site in enumerate(find_dispatches(module, request.function)):
        path, reason = None, ""
        known: Isolated | None = None
        try:
            known = isolate(module, site, sizes, keep_device)
            path = request.folder / f"{index:03d}_{site.entry[:80]}.mlir"
            write_whole(path, known.module.operation.get_asm().encode())
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
                known is not None and known.encoded,
                reason,
                known.arguments if known else (),
                known.workload if known else (),
                known.limits if known else (),
            )
        )
    limits = program_limits(module, body) if body is not None else {}
    return Extraction(tuple(found), signatures, *target_info(module), limits)


@dataclass(frozen=True)
class ConvolutionsRequest:
    """Write specs that make sets of a program's convolutions matrix products."""

    program: Path
    flags: tuple[str, ...]
    folder: Path


def list_convolutions(state: WorkerState, request: ConvolutionsRequest) -> dict[str, Path]:
    """Task: see ConvolutionsRequest. The specs' paths by the names of the sets."""
    from tilewright.spec import preprocessing

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(), compile_to=preprocessing.PHASE, name=request.program.name
    )
    sites = preprocessing.conv_sites(parse_module(compiler, text))
    request.folder.mkdir(parents=True, exist_ok=True)
    return {
        name: write_whole(
            request.folder / f"{name}.im2col.mlir",
            preprocessing.write_im2col_spec(chosen).encode(),
        )
        for name, chosen in preprocessing.choices(sites).items()
    }
