"""Tasks that go wrong in every way a candidate can, run by the workers of the pool's tests."""

import ctypes
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from tilewright.measure.jobs import WorkerFailure


@dataclass
class Memory:
    """What a worker was told."""

    said: object = None


def echo(state, payload):
    return payload


def remember(state, payload):
    state.keep(Memory(payload))


def recall(state, payload):
    return state.get(Memory).said, os.getpid()


def raise_error(state, payload):
    raise ValueError("the tile does not fit\nsecond line")


def be_fragile(state, payload):
    state.fragile = True


def abort(state, payload):
    os.write(2, b"note: all is well\nLLVM ERROR: out of registers\nsome backtrace\n")
    os.abort()


def segfault(state, payload):
    ctypes.string_at(0)


def stack_overflow(state, payload):
    callback = ctypes.CFUNCTYPE(None)(lambda: callback())
    sys.setrecursionlimit(1 << 30)
    callback()


def leave(state, payload):
    sys.exit(7)


def hang(state, payload):
    while True:
        time.sleep(60)


def hang_in_native_code(state, payload):
    """Holds the interpreter's lock: no other thread of the worker can run."""
    ctypes.PyDLL(None).sleep(60)


def work(state, payload):
    """Uses seconds of processor time, and is stopped for some in the middle of them."""
    used, stopped = payload
    began = time.process_time()
    while time.process_time() - began < used / 2:
        pass
    subprocess.Popen(["sh", "-c", f"sleep {stopped}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    while time.process_time() - began < used:
        pass
    return "done"


def work_forever(state, payload):
    while True:
        pass


def hang_with_child(state, payload):
    child = subprocess.Popen(["sleep", "60"])
    with open(payload, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    child.wait()


def garbage_on_stdout(state, payload):
    os.write(1, b"twf1" + bytes(range(256)) * 1000)
    print("hello", flush=True)
    return payload


def flood(state, payload):
    """Prints for `payload` seconds; returns the bytes printed and those left in the log."""
    end, written = time.monotonic() + payload, 0
    while time.monotonic() < end:
        written += os.write(1, b"x" * 65536)
        time.sleep(0.001)
    return written, os.fstat(1).st_size


def garbage_on_the_channel(state, payload):
    for fd in range(3, 32):
        try:
            if os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:"):
                os.write(fd, b"\x00\xff garbage that is not a frame at all")
        except OSError:
            continue
    time.sleep(60)


def unpicklable(state, payload):
    return lambda: None


class OnlyThere:
    """A result whose unpickling fails in the parent."""

    def __reduce__(self):
        return int, ("not a number",)


def unreadable(state, payload):
    return OnlyThere()


def explode(state, payload):
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def late_crash(state, payload):
    """Innocent by itself: crashes only where an earlier job has left its mark."""
    if state.get(Memory).said == "poison":
        os.abort()
    return payload


def poison(state, payload):
    state.keep(Memory("poison"))


def crash_once(state, payload):
    """A setup that fails the first times: `payload` is a file that counts."""
    with open(payload, "a+") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) < 3:
            os.kill(os.getpid(), signal.SIGKILL)


def devices_of(state, driver):
    """Stands in for drivers whose libraries do not behave."""
    from tilewright.measure.devices import DeviceInfo

    if driver == "local-sync":
        os.abort()
    if driver == "local-task":
        time.sleep(60)
    return [DeviceInfo(driver, "fine")]


def fork_and_answer(state, payload):
    """Both processes go on as if nothing had happened."""
    os.fork()
    return payload


def leave_a_child(state, payload):
    """Answers as if nothing went on."""
    child = os.fork()
    if not child:
        time.sleep(600)
    return child


def leave_a_daemon(state, payload):
    """A process that has left the group, and its parent."""
    script = f"echo $$ > {payload}.part; mv {payload}.part {payload}; exec sleep 600"
    subprocess.Popen(["setsid", "--fork", "sh", "-c", script])
    while not os.path.exists(payload):
        time.sleep(0.01)
    os.abort()


def flood_holding_the_lock(state, payload):
    """Prints without letting the worker's other threads run."""
    end, data = time.monotonic() + payload, b"x" * (1 << 20)
    write = ctypes.PyDLL(None).write
    # No other thread is given the lock between two calls either.
    sys.setswitchinterval(1000)
    while time.monotonic() < end:
        write(1, data, len(data))
    return os.fstat(1).st_size


def fill_the_disk(state, payload):
    """Leaves a file behind and fails."""
    import tempfile

    handle, path = tempfile.mkstemp()
    os.write(handle, b"x" * 1000)
    raise OSError(28, f"no space left: {path}")


def kept_files(state, payload):
    import tempfile

    return os.getpid(), os.listdir(tempfile.gettempdir())


def _answer(data):
    """Write it to the socket behind the worker's back."""
    for fd in range(3, 32):
        try:
            if os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:"):
                os.write(fd, data)
        except OSError:
            continue


def garbage_as_error(state, payload):
    """An answer that is a frame, of an error that cannot be read."""
    from tilewright.measure.protocol import FrameKind, frame

    _answer(frame(FrameKind.ERROR, b"\x80\x05no pickle"))
    time.sleep(60)


def error_of_another_job(state, payload):
    from tilewright.measure.protocol import FrameKind, frame

    error = (1 << 40, "MemoryError", "", "", False, True)
    _answer(frame(FrameKind.ERROR, pickle.dumps(error)))
    time.sleep(60)


def remove_the_temporary_folder(state, payload):
    import tempfile

    shutil.rmtree(tempfile.gettempdir())
    raise OSError(2, "where is it?")


def done_alone(state, payload):
    if payload == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if payload == "hang":
        time.sleep(1000)
    if payload == "raise":
        raise ValueError("not this one")
    return "alone", payload


def done_together(state, payloads):
    made = []
    for payload in payloads:
        try:
            done_alone(state, payload)
            made.append(("together", payload))
        except ValueError as error:
            made.append(WorkerFailure.of(error))
    return made[1:] if "lose" in payloads else made
