"""A module that is ready to run: compiled if need be, its functions known, a worker to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright import scratch
from tilewright.errors import UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.pool import WorkerFailure
from tilewright.modules.compiling import CompiledModule, compiled_program, module_target
from tilewright.modules.functions import ModuleFunction, list_functions, takes_integers
from tilewright.modules.module_source import ModuleOptions
from tilewright.toolchain import check_versions

_LIST_TIMEOUT_S = 60.0
# A vmfb is a flatbuffer behind its length, by itself or as the first entry of a zip archive.
_ZIP_MAGIC = b"PK\x03\x04"
_FLATBUFFER_NAME, _NAME_PLACE = b"IREE", 8


@dataclass(frozen=True)
class OpenModule:
    """A compiled module with a worker that runs it.

    path: what the user gave. functions: those that can be called, by name. compiled: how it was
    made, None for one that was given compiled. folder: for the arguments and results of calls.
    """

    path: Path
    vmfb: Path
    functions: Mapping[str, ModuleFunction]
    benchmark: Benchmark
    device: DeviceOptions
    parameters: Parameters
    folder: Path
    timeout_s: float
    compiled: CompiledModule | None = None

    def limits(self, function: str) -> Mapping[int, int]:
        """By position, what integers of this function must stay below.

        Args:
            function: its name.
        """
        return self.compiled.limits.get(function, {}) if self.compiled else {}

    def failure(self, function: str, failure: WorkerFailure, given: bool = True) -> UserError:
        """The error that says why a call failed.

        Args:
            function: its name.
            failure: the worker's.
            given: whether the user gave the arguments.
        """
        if failure.kind == "timeout":
            return UserError(
                f"{self.path}: '{function}' gave {failure.message}; "
                "give it longer with --timeout, or other inputs"
            )
        indices = takes_integers(self.functions[function].signature)
        hint = "; the integers passed are random: are they indices? give --input" if indices else ""
        what = "crashed" if failure.kind == "crashed" else "failed"
        return UserError(
            f"{self.path}: '{function}' {what}: {failure.message}{'' if given else hint}"
        )


@contextmanager
def open_module(
    path: Path, options: ModuleOptions, *, with_limits: bool = True
) -> Iterator[OpenModule]:
    """Open a compiled module, or compile a program. The worker and all files are gone at the end.

    Args:
        path: the module or the program.
        options: the user's.
        with_limits: see `compiled_program`.

    Returns:
        As a context: the module.

    Raises:
        UserError: it cannot be read, compiled, or run on the device that the options name.
    """
    check_versions()
    if is_compiled(path):
        options.check_compiled(path)
        with scratch.folder() as folder:
            yield from _opened(path, path.absolute(), options, folder, None)
        return
    if options.device is not None and not options.device.startswith("local-"):
        raise UserError(
            f"--device: a program is compiled for this CPU, which is not '{options.device}'; give "
            "a module that is compiled for it"
        )
    with (
        scratch.folder() as folder,
        compiled_program(path, options, with_limits=with_limits) as compiled,
    ):
        assert compiled.vmfb is not None
        yield from _opened(path, compiled.vmfb, options, folder, compiled)


def is_compiled(path: Path) -> bool:
    """Whether a file is, or calls itself, a compiled module.

    Args:
        path: the file.

    Raises:
        UserError: it cannot be read, or is called so and is none.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_NAME_PLACE + len(_FLATBUFFER_NAME))
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; give a program or a .vmfb file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the module ({error.strerror})") from error
    looks = start.startswith(_ZIP_MAGIC) or start[_NAME_PLACE:] == _FLATBUFFER_NAME
    if path.suffix.lower() == ".vmfb" and not looks:
        raise UserError(f"{path}: not a compiled module: it is no file that iree-compile makes")
    return looks


def _opened(
    path: Path, vmfb: Path, options: ModuleOptions, folder: Path, compiled: CompiledModule | None
) -> Iterator[OpenModule]:
    imported = [(scope, str(file)) for scope, file in (compiled.parameters if compiled else ())]
    given = [(one.scope, str(one.path)) for one in options.parameters]
    device = _device(options)
    with Benchmark(device, timeout_s=options.timeout_s) as benchmark:
        listed = benchmark.ask(list_functions, str(vmfb), _LIST_TIMEOUT_S)
        if isinstance(listed, WorkerFailure):
            place = "" if listed.is_user_error else f"{path}: the module cannot be loaded: "
            raise UserError(place + listed.message)
        functions = {one.name: one for one in listed}
        yield OpenModule(
            path,
            vmfb,
            functions,
            benchmark,
            device,
            Parameters(tuple(imported + given)),
            folder,
            options.timeout_s,
            compiled,
        )


def _device(options: ModuleOptions) -> DeviceOptions:
    if options.device is not None:
        return DeviceOptions(options.device, options.threads)
    return DeviceOptions.cpu(module_target(options).cores)
