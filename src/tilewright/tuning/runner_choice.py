"""Where a run measures: a device of this machine, or another machine's."""

from __future__ import annotations

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.runtime import DeviceOptions
from tilewright.target import Target
from tilewright.tuning.options import TuneOptions


def open_benchmark(target: Target, options: TuneOptions) -> Benchmark:
    """What measures for a run. Raises UserError for a runner that there is not."""
    if options.compile_only:
        # Nothing is measured; the device of the target need not be there.
        return Benchmark(DeviceOptions("local-sync"))
    if options.device is not None:
        return Benchmark(DeviceOptions(options.device))
    if target.is_gpu:
        return Benchmark(DeviceOptions(target.device))
    return Benchmark(DeviceOptions.cpu(target.cores))
