"""A task of compile workers that goes wrong for loops that have a certain number in them."""

from __future__ import annotations

import os
import signal

from tilewright.measure.jobs import WorkerState
from tilewright.schedule.build_tasks import ScheduleFileRequest, compile_schedule_file
from tilewright.schedule.nest import LoopProgram
from tilewright.schedule.printer import show

CRASHES, HANGS, REFUSED, GARBAGE = 13, 17, 19, 23


def faulty(state: WorkerState, request: ScheduleFileRequest) -> str:
    """As the task itself, but for loops that multiply by one of the numbers above."""
    assert isinstance(request.schedule.source, LoopProgram)
    text = show(request.schedule.source)
    if f"{CRASHES}.0" in text:
        os.kill(os.getpid(), signal.SIGSEGV)
    while f"{HANGS}.0" in text:
        pass
    if f"{REFUSED}.0" in text:
        raise ValueError("the compiler does not take it")
    if f"{GARBAGE}.0" in text:
        request.vmfb.write_bytes(b"no module")
        return "garbage"
    return compile_schedule_file(state, request)
