"""What the runtime can run programs on, and what the compiler can make them for.

Drivers load libraries of the system, which may hang or crash: each is asked in a worker process.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.measure.compile_worker import compile_pool, session
from tilewright.measure.jobs import WorkerState
from tilewright.measure.pool import Job, WorkerFailure, WorkerPool
from tilewright.measure.processor import processor
from tilewright.target import parse_target

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class DeviceInfo:
    """A device: what `--device` takes for it, and its name as the driver gives it."""

    uri: str
    name: str


@dataclass(frozen=True)
class Driver:
    """A driver of the runtime and its devices; `error` says why it has none here."""

    name: str
    devices: tuple[DeviceInfo, ...]
    error: str = ""


@dataclass(frozen=True)
class CompilerTargets:
    """What this compiler makes code for: its backends, and this machine's processor as LLVM names
    it, with its features and the bytes of its vectors."""

    backends: tuple[str, ...]
    processor: str
    features: tuple[str, ...]
    vector_bytes: int


def drivers() -> tuple[Driver, ...]:
    """The drivers of the installed runtime, with what each finds on this machine."""
    with WorkerPool(1, timeout_s=_TIMEOUT_S) as pool:
        names = pool.ask(driver_names, None)
        if isinstance(names, WorkerFailure):
            return (Driver("runtime", (), names.message),)
        results = pool.run([Job(driver_devices, name) for name in names])
    return tuple(
        Driver(name, (), result.failure.message)
        if result.failure
        else Driver(name, tuple(result.value))
        for name, result in zip(names, results, strict=True)
    )


def devices(driver: str) -> tuple[DeviceInfo, ...]:
    """What one driver finds on this machine; nothing where it finds none or is not there.

    Args:
        driver: its name, such as `cuda`.
    """
    with WorkerPool(1, timeout_s=_TIMEOUT_S) as pool:
        found = pool.ask(driver_devices, driver)
    return () if isinstance(found, WorkerFailure) else tuple(found)


def targets() -> CompilerTargets | str:
    """What the installed compiler knows, or why it cannot be asked."""
    with compile_pool(1, timeout_s=_TIMEOUT_S) as pool:
        found = pool.ask(compiler_targets, parse_target("cpu").flags)
    return found.message if isinstance(found, WorkerFailure) else found


# In the workers


def driver_names(_state: WorkerState, _payload: None) -> list[str]:
    """Task: the drivers that the runtime was built with.

    Args:
        _state: what the worker keeps.
        _payload: nothing.
    """
    import iree.runtime as runtime

    return sorted(runtime.query_available_drivers())


def driver_devices(_state: WorkerState, driver: str) -> list[DeviceInfo]:
    """Task: the devices of a driver.

    Args:
        _state: what the worker keeps.
        driver: its name.

    Raises:
        RuntimeError: it cannot be loaded.
    """
    import iree.runtime as runtime

    try:
        found = runtime.get_driver(driver).query_available_devices()
    except (RuntimeError, ValueError) as error:
        # The place in the runtime's sources and the code are for its developers.
        text = str(error).partition("; ")[2] or str(error)
        raise RuntimeError(text.splitlines()[0].rstrip(": ")) from None
    return [
        DeviceInfo(f"{driver}://{device['path']}" if device["path"] else driver, device["name"])
        for device in found
    ]


def compiler_targets(state: WorkerState, flags: tuple[str, ...]) -> CompilerTargets:
    """Task: see CompilerTargets.

    Args:
        state: what the worker keeps.
        flags: of the compiler, for this processor.
    """
    from tilewright.ir.session import target_backends

    session(state, flags)
    name, features, vector_bytes = processor(state, flags)
    enabled = tuple(f[1:] for f in features.split(",") if f.startswith("+"))
    return CompilerTargets(target_backends(), name, enabled, vector_bytes)
