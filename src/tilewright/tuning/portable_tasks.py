"""What compile workers of a cluster are asked for a run: candidates of dispatches, and kernels.

A kernel's expression does not travel: what it was read from does, and is read again, once for each
site and worker.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.cluster.portable import PortableTask
from tilewright.errors import UserError
from tilewright.gpu import GpuCompilationInfo
from tilewright.measure.compile_worker import session
from tilewright.measure.encoding import Files, decode, encode
from tilewright.measure.jobs import RecentlyUsed, WorkerState, WorkerTask
from tilewright.plain_data import tupled
from tilewright.site import KernelChoice
from tilewright.sketch.candidate import CompiledKernel, KernelRequest, stored
from tilewright.sketch.candidate_tasks import compile_kernel
from tilewright.target import GpuTarget, Target
from tilewright.tiling import CompilationInfo
from tilewright.trial import Configuration
from tilewright.tuning.worker_tasks import CandidateRequest, compile_candidate, parse_module

_numbers = itertools.count()


class PortableCandidate(PortableTask):
    """A configured dispatch with another configuration: `compile_candidate`."""

    name = "candidate"

    @property
    def task(self) -> WorkerTask[Any, Any]:
        return compile_candidate

    def pack(self, request: CandidateRequest, files: Files) -> dict[str, Any] | None:
        # What is kept beside the results is made here.
        info = request.configuration
        if request.keep is not None or type(info) not in (*_INFOS.values(), type(None)):
            return None
        shared = {
            "configured": files.put(str(request.configured), ".mlir"),
            "executable": request.executable,
            "entry": request.entry,
            "repeats": request.repeats,
            "rotations": request.rotations,
            "splice": request.splice,
            "known": request.programs is not None,
            "flags": _pack_flags(request.flags, files),
        }
        kind = next((name for name, one in _INFOS.items() if type(info) is one), "")
        own = info.to_json() if info is not None else None
        return {"group": _digest(shared), "shared": shared, "kind": kind, "configuration": own}

    def unpack(self, data: Mapping[str, Any], files: Files, folder: Path) -> CandidateRequest:
        shared = data["shared"]
        place = _place(folder, shared)
        info = None
        if data["kind"]:
            info = _INFOS[data["kind"]].from_json(data["configuration"])
        return CandidateRequest(
            configured=files.path(shared["configured"]),
            executable=shared["executable"],
            entry=shared["entry"],
            configuration=info,
            repeats=shared["repeats"],
            rotations=shared["rotations"],
            flags=_unpack_flags(shared["flags"], files),
            vmfb=place / f"{next(_numbers)}.vmfb",
            splice=shared["splice"],
            programs=place / "programs" if shared["known"] else None,
        )

    def pack_reply(self, request: CandidateRequest, reply: str, files: Files) -> dict[str, Any]:
        return {"digest": reply, "vmfb": _handed_in(request.vmfb, files)}

    def unpack_reply(self, request: CandidateRequest, data: Mapping[str, Any], files: Files) -> str:
        _take(data["vmfb"], request.vmfb, files)
        return str(data["digest"])


class PortableKernel(PortableTask):
    """A kernel of our own for a site: `compile_kernel`."""

    name = "kernel"

    @property
    def task(self) -> WorkerTask[Any, Any]:
        return compile_kernel

    def pack(self, request: KernelRequest, files: Files) -> dict[str, Any] | None:
        # What is kept beside the results is made here.
        site = request.site
        if request.keep is not None or site is None:
            return None
        shared = {
            "site": files.put(str(site.module), ".mlir"),
            "constant": list(site.constant),
            "gpu": request.target.is_gpu,
            "target": request.target.to_json(),
            "repeats": request.repeats,
            "rotations": request.rotations,
            "known": request.programs is not None,
            "beside": request.beside,
            "flags": _pack_flags(request.flags, files),
            "inputs": encode(request.inputs, files),
        }
        choice = [request.choice.sketch, [list(item) for item in request.choice.knobs.items]]
        return {"group": _digest(shared), "shared": shared, "choice": choice}

    def unpack(self, data: Mapping[str, Any], files: Files, folder: Path) -> TravelledKernel:
        shared = data["shared"]
        place = _place(folder, shared)
        sketch, knobs = data["choice"]
        target: Target = (GpuTarget if shared["gpu"] else Target).from_json(
            tupled(shared["target"])
        )
        kernel = KernelRequest(
            b"",
            KernelChoice(str(sketch), Configuration(tupled(knobs))),
            target,
            _unpack_flags(shared["flags"], files),
            shared["repeats"],
            place / f"{next(_numbers)}.vmfb",
            rotations=shared["rotations"],
            programs=place / "programs" if shared["known"] else None,
            inputs=decode(shared["inputs"], files),
            packed=place / "packed",
            beside=shared["beside"],
        )
        constant = tuple(bool(one) for one in shared["constant"])
        return TravelledKernel(kernel, files.path(shared["site"]), constant)

    @property
    def done_by(self) -> WorkerTask[Any, Any]:
        # The expression is read first.
        return compile_travelled_kernel

    def pack_reply(
        self, request: TravelledKernel, reply: CompiledKernel, files: Files
    ) -> dict[str, Any]:
        return {
            "digest": reply.digest,
            "vmfb": _handed_in(request.kernel.vmfb, files),
            "inputs": encode(reply.inputs, files),
            "phase_s": dict(reply.phase_s),
        }

    def unpack_reply(
        self, request: KernelRequest, data: Mapping[str, Any], files: Files
    ) -> CompiledKernel:
        _take(data["vmfb"], request.vmfb, files)
        phases = {str(name): float(seconds) for name, seconds in data["phase_s"].items()}
        return CompiledKernel(str(data["digest"]), decode(data["inputs"], files), phases)


PORTABLE = (PortableCandidate(), PortableKernel())

_INFOS: Mapping[str, type[CompilationInfo] | type[GpuCompilationInfo]] = {
    "cpu": CompilationInfo,
    "gpu": GpuCompilationInfo,
}


# In the workers


@dataclass(frozen=True)
class TravelledKernel:
    """A kernel to be compiled whose expression has yet to be read from its site's module."""

    kernel: KernelRequest
    module: Path
    constant: tuple[bool, ...]


class _Expressions(RecentlyUsed[tuple[Path, tuple[bool, ...]], bytes]):
    """Expressions, by where they were read."""

    def __init__(self) -> None:
        super().__init__(32)


def compile_travelled_kernel(state: WorkerState, request: TravelledKernel) -> CompiledKernel:
    """Task: read a site's expression, and compile a kernel for it.

    Args:
        state: what the worker keeps.
        request: which kernel, and where the site is.

    Raises:
        UserError: the site cannot be read as an expression here.
    """
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.sketch.translate import translate
    from tilewright.sketch.untranslatable import Untranslatable

    def make() -> bytes:
        module = parse_module(session(state, request.kernel.flags), request.module.read_bytes())
        try:
            return stored(translate(module, ISOLATED_FUNCTION, request.constant))
        except Untranslatable as error:
            raise UserError(f"the site cannot be read here: {error}") from None

    expression = state.get(_Expressions).get((request.module, request.constant), make)
    return compile_kernel(state, replace(request.kernel, expression=expression))


# On the way


def _digest(shared: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]


def _place(folder: Path, shared: Mapping[str, Any]) -> Path:
    """The folder of candidates that differ in their configuration alone."""
    place = folder / _digest(shared)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _handed_in(vmfb: Path, files: Files) -> str | None:
    """A program as it is stored; None where the task wrote none, as it is that of an earlier
    candidate."""
    if not vmfb.exists():
        return None
    name = files.put(str(vmfb), ".vmfb")
    vmfb.unlink()
    return name


def _take(name: str | None, vmfb: Path, files: Files) -> None:
    """Put a program that was handed in where the run looks for it."""
    if name is None:
        return
    vmfb.parent.mkdir(parents=True, exist_ok=True)
    vmfb.unlink(missing_ok=True)
    found = files.path(str(name))
    try:
        os.link(found, vmfb)
    except OSError:
        shutil.copyfile(found, vmfb)


def _pack_flags(flags: Sequence[str], files: Files) -> list[Any]:
    """Flags; of those that name a file the file travels, too."""
    packed: list[Any] = []
    for flag in flags:
        name, equals, value = flag.partition("=")
        path = Path(value)
        if equals and path.is_absolute() and path.is_file():
            packed.append([f"{name}=", files.put(value, path.suffix or ".txt")])
        else:
            packed.append(flag)
    return packed


def _unpack_flags(packed: Sequence[Any], files: Files) -> tuple[str, ...]:
    return tuple(
        one if isinstance(one, str) else f"{one[0]}{files.path(str(one[1]))}" for one in packed
    )
