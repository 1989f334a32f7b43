"""What a run compiles for, and where it measures: a device of this machine, or another's."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.gpu_target import fallback_of
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.pool import WorkerPool
from tilewright.measure.remote import parse_runner
from tilewright.measure.runtime import DeviceOptions
from tilewright.measure.several import SeveralDevices
from tilewright.target import Target
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.worker_tasks import compile_probe

_NO_DEVICE = (
    "; without such a device here, --runner measures on another machine and --compile-only "
    "measures nothing"
)


def open_benchmark(
    target: Target, options: TuneOptions, announce: Callable[[str], None] = lambda text: None
) -> Benchmark:
    """What measures for a run. Raises UserError for a runner that there is not.

    Args:
        target: what is measured was compiled for it.
        options: `runner`, `device` and `compile_only` decide.
        announce: told what is waited for.

    Returns:
        A device of this machine, several, or another machine's.
    """
    if options.compile_only:
        # The device of the target need not be there.
        return Benchmark(DeviceOptions("local-sync"))
    if options.runner is not None:
        device = options.device or target.device
        return parse_runner(options.runner, announce, device)
    if options.device is not None:
        devices = [DeviceOptions(uri.strip()) for uri in options.device.split(",")]
        return Benchmark(devices[0]) if len(devices) == 1 else SeveralDevices(devices)
    if target.is_gpu:
        return Benchmark(DeviceOptions(target.device, advice=_NO_DEVICE))
    return Benchmark(DeviceOptions.cpu(target.cores))


def accepted_target(target: Target, compilers: WorkerPool) -> tuple[Target, str]:
    """The target, or the one nearest to it where the compiler refuses a target that it has no name
    for; and a note on that, '' for none.

    Args:
        target: as the user named it.
        compilers: one of them tries it.
    """
    other = fallback_of(target)
    if other is None:
        return target, ""
    refused = compilers.ask(compile_probe, target.declaration, 60.0)
    if refused is None:
        return target, ""
    return other, (
        f"the compiler refuses {target.name} ({refused.message}); code is made for "
        f"{other.name}, which runs there as well"
    )
