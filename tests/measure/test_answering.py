"""Requests that came from elsewhere: what one candidate tells of those behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.answering import Answering
from tilewright.measure.benchmark_worker import TimeReply, TimeRequest, VerifyRequest
from tilewright.measure.encoding import Files, make_entry
from tilewright.measure.inputs import random_inputs, write_outputs
from tilewright.measure.jobs import Job, Result
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.measure.verify import Comparison


class Pool:
    """Programs that take as long, and are as right, as they say themselves."""

    def __init__(self) -> None:
        self.best: list[float | None] = []

    def run(self, jobs: list[Job[Any, Any]]) -> list[Result[Any]]:
        (job,) = jobs
        seconds, right = Path(job.request.vmfb).read_text().split()
        if isinstance(job.request, VerifyRequest):
            return [Result(job, [Comparison(right == "right", (), 0.0, 0.0, 0.0, 0.0)])]
        self.best.append(job.request.best_s)
        return [Result(job, TimeReply(Measurement((float(seconds),) * 4), 1.0))]


def test_what_was_right_and_fastest_is_the_best_of_those_behind_it(tmp_path: Path) -> None:
    files, pool = Files(tmp_path / "files"), Pool()
    answering = Answering(pool, "local-sync", files, tmp_path)  # type: ignore[arg-type]
    inputs = random_inputs(tmp_path / "inputs", (ArgumentType("f32", (4,)),))
    write_outputs(tmp_path / "expected.npz", [])
    said = ["0.5 right", "0.2 wrong", "0.4 right", "0.3 right", "0.9 right"]
    for number, text in enumerate(said):
        (vmfb := tmp_path / f"{number}.vmfb").write_text(text)
        timing = TimeRequest(str(vmfb), inputs, TimingPolicy(), best_s=0.35 if number == 4 else 0.6)
        checking = VerifyRequest(str(vmfb), inputs, str(tmp_path / "expected.npz"), 1)
        answering.answer(make_entry(Job(tasks.time_program, timing), files))
        answering.answer(make_entry(Job(tasks.verify, checking), files))
    assert pool.best == [0.6, 0.5, 0.5, 0.4, 0.3]
