"""Several devices of this machine at once: each has a worker of its own, and takes the next of what
is asked for together.

Rounds are those of measuring on another machine (`remote`), with both sides in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import scratch
from tilewright.measure.exchange import Batch, Exchange
from tilewright.measure.jobs import Job
from tilewright.measure.remote import RemoteBenchmark, Stopped, Transport
from tilewright.measure.runtime import DeviceOptions
from tilewright.measure.station import Station
from tilewright.measure.timing import TimingPolicy


class _Here(Transport):
    """Measures a batch on devices of this machine."""

    def __init__(self, exchange: Exchange, devices: Sequence[DeviceOptions]) -> None:
        super().__init__(exchange)
        self.station = Station(exchange, devices)

    def measure(self, batch: Batch, keys: Sequence[str], stop: Callable[[], bool]) -> None:
        self.station.measure([batch])


class SeveralDevices(RemoteBenchmark):
    """A benchmark on several devices. What compares programs with one another runs on one of them.

    Raises WorkerStartError, at the first request, for a device that cannot be opened.
    """

    def __init__(
        self, devices: Sequence[DeviceOptions], policy: TimingPolicy | None = None
    ) -> None:
        self._folder = scratch.create()
        self._here = _Here(Exchange(self._folder), devices)
        super().__init__(self._here, policy)

    def prefetch(self, jobs: Sequence[Job[Any, Any]], label: str = "") -> None:
        """As there; what a stop leaves out of a round is measured when it is asked for again.

        Args:
            jobs: what will be asked for.
            label: what it is for, in words.
        """
        self._here.station.stop = self.stop
        try:
            with contextlib.suppress(Stopped):
                super().prefetch(jobs, label)
        finally:
            self._here.station.stop = lambda: False

    def close(self) -> None:
        """End the devices' workers."""
        self._here.station.close()
        scratch.remove(self._folder)
