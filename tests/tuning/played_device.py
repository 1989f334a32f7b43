"""A device that is played: answers what a run asks another machine for, with numbers made up.

The compiler's own choice, which a run asks for first, is slow, everything else fast, and results
are right: so everything on the side of the compiler can be tested for devices that are not there.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.measure.benchmark_worker import (
    CompareRequest,
    RunRequest,
    TimeReply,
    TimeRequest,
    VerifyRequest,
)
from tilewright.measure.encoding import decode, encode
from tilewright.measure.exchange import OUTPUTS, Exchange
from tilewright.measure.inputs import write_outputs
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.verify import Comparison

SLOW_S, FAST_S = 2e-4, 1e-4


class PlayedDevice(threading.Thread):
    """Answers in a folder until it is told to end. `asked` counts requests by kind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.exchange = Exchange(folder)
        self.ended = threading.Event()
        self.asked: dict[str, int] = {}
        self.first: dict[int, str] = {}

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for batch in self.exchange.batches():
                done = batch.results()
                for entry in batch.entries:
                    if entry.key not in done:
                        batch.add_result(self._answered(batch, entry))

    def _answered(self, batch, entry):
        """An answer in any case: a run must not wait for one that never comes."""
        try:
            return self.answer(batch, entry)
        except Exception as error:
            failure = WorkerFailure("error", f"the played device: {error!r}")
            return {"key": entry.key, "failure": encode(failure, None)}

    def answer(self, batch, entry):
        payload = decode(entry.payload, self.exchange.files)
        kind = type(payload).__name__
        self.asked[kind] = self.asked.get(kind, 0) + 1
        data = {"key": entry.key, "seconds": 0.0, "device": "played"}
        if isinstance(payload, RunRequest):
            a, b = (argument.load().astype(np.float32) for argument in payload.inputs.arguments)
            (batch.folder / OUTPUTS).mkdir(exist_ok=True)
            payload = replace(payload, outputs=f"{entry.key}.npz")
            write_outputs(batch.folder / OUTPUTS / payload.outputs, [a @ b])
            return {**data, "value": payload.outputs}
        if isinstance(payload, TimeRequest):
            first = self.first.setdefault(payload.repeats, payload.vmfb)
            value = TimeReply(Measurement((SLOW_S if payload.vmfb == first else FAST_S,) * 8))
        elif isinstance(payload, VerifyRequest):
            value = [Comparison(True, (), 0.0, 0.0, 0.0, 0.0)]
        else:
            assert isinstance(payload, CompareRequest)
            rounds = np.random.default_rng(0).normal(1, 0.001, payload.policy.rounds)
            value = [
                Measurement(tuple(float((FAST_S if i else SLOW_S) * r) for r in rounds))
                for i, _ in enumerate(payload.vmfbs)
            ]
        return {**data, "value": encode(value, None)}
