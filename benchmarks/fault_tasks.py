"""What compile workers do for candidates that do harm: the harm itself.

Each kind goes wrong where a compiler can go wrong, or makes a program that goes wrong when it is
run: it calls a function in C that computes the product, and then does something else.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright import te
from tilewright.files import write_whole
from tilewright.measure.jobs import WorkerState
from tilewright.measure.protocol import FrameKind, frame
from tilewright.schedule.build_tasks import (
    ScheduleFileRequest,
    ScheduleRequest,
    compile_schedule_file,
    with_processor,
)
from tilewright.target import Target
from tilewright.tuning.worker_tasks import CandidateRequest, compile_candidate


@dataclass(frozen=True)
class HarmRequest:
    """A candidate that does harm: `kind` says which, `good` is what it would be without it.
    `number` tells it from the others, `shape` (m, n, k) is of the product that it should compute,
    `place` says where in the result it does harm; `made`: see `OnceRequest`."""

    kind: str
    number: int
    good: CandidateRequest
    made: Path
    target: Target
    shape: tuple[int, int, int]
    place: int

    @property
    def vmfb(self) -> Path:
        """Where its program goes."""
        return self.good.vmfb


@dataclass(frozen=True)
class OnceRequest:
    """A candidate as it should be. `made` has the programs of candidates that were compiled before,
    which are not compiled again."""

    good: CandidateRequest
    made: Path

    @property
    def vmfb(self) -> Path:
        """Where its program goes."""
        return self.good.vmfb


def compile_once(state: WorkerState, request: OnceRequest) -> str:
    """Task: compile a candidate, if no run before has."""
    good = request.good
    what = (good.configuration, good.flags, good.executable, good.entry, good.repeats)
    known = _place(request.made, good.configured.read_bytes(), repr((*what, good.rotations)))
    if known.exists():
        data = known.read_bytes()
        write_whole(good.vmfb, data)
        return hashlib.sha256(data).hexdigest()[:20]
    digest = compile_candidate(state, replace(good, programs=None))
    write_whole(known, good.vmfb.read_bytes())
    return digest


def _place(made: Path, content: bytes, more: str) -> Path:
    """Where the program is kept that this becomes."""
    return made / f"{hashlib.sha256(content + more.encode()).hexdigest()[:32]}.vmfb"


# -- programs that go wrong when they are run ------------------------------------------------------

_C = """
static long call(long n, long a, long b, long c) {
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
#elif defined(__aarch64__)
  register long r __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x8 __asm__("x8") = n;
  __asm__ volatile("svc 0" : "+r"(r) : "r"(x1), "r"(x2), "r"(x8) : "memory");
  return r;
#else
#error "no system calls are known here"
#endif
}
#if defined(__x86_64__)
enum { WRITE = 1, CLOSE = 3, GETPID = 39, FORK = 57, KILL = 62, LEAVE = 231 };
#define fork() call(FORK, 0, 0, 0)
#else
enum { WRITE = 64, CLOSE = 57, GETPID = 172, CLONE = 220, KILL = 129, LEAVE = 94 };
#define fork() call(CLONE, 17, 0, 0)
#endif
static int deep(volatile int n) {
  volatile char room[4096];
  room[n & 4095] = (char)n;
  return deep(n + 1) + room[n & 4095];
}
int harm(float *c, const float *a, const float *b, int m, int n, int k) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += a[i * k + l] * b[l * n + j];
      c[i * n + j] = sum;
    }
  volatile float *place = c + PLACE % (m * n);
  (void)place;
  BODY;
  return 0;
}
"""
BODIES = {
    "wrong in one element": "*place += 1.0f",
    "wrong in the last row": "for (int j = 0; j < n; ++j) c[(m - 1) * n + j] = 0",
    "NaN in one element": '*place = __builtin_nanf("")',
    "infinity in one element": "*place = __builtin_inff()",
    "all zeros": "for (int i = 0; i < m * n; ++i) c[i] = 0",
    "writes behind its result": "for (int i = 0; i < 16; ++i) ((volatile float *)c)[m * n + i] = 7",
    "writes far away": "for (long i = 0; i < 64; ++i) ((volatile float *)c)[(i + 1) << 20] = 7",
    "writes before its result": "for (int i = 1; i < 4096; ++i) ((volatile float *)c)[-i] = 7",
    "reads at zero": "*(volatile int *)(long)(PLACE & 4095)",
    "illegal instruction": "__builtin_trap()",
    "stack overflow": "c[0] += deep(PLACE)",
    "spins for ever": "for (volatile int go = 1; go;) {}",
    "forks": "fork()",
    "forks and stays": "if (fork() == 0) for (;;) {}",
    "leaves": "call(LEAVE, 0, 0, 0)",
    "kills itself": "call(KILL, call(GETPID, 0, 0, 0), 9, 0)",
    "closes all files": "for (int i = 3; i < 256; ++i) call(CLOSE, i, 0, 0)",
    "prints gigabytes": "for (long i = 0; i < (2L << 30); i += 4096) call(WRITE, 1, (long)a, 4096)",
}


def _product(a: Any, b: Any) -> Any:
    k = te.reduce_axis(a.shape[1], "k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")


def _call(m: int, n: int, k: int) -> te.TensorIntrinsic:
    made = _product(te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b"))

    def calls(ins: Any, outs: Any) -> Any:
        pointers = (outs[0].access_ptr("rw"), *(one.access_ptr("r") for one in ins))
        ib = te.ir_builder.create()
        ib.emit(te.call_extern("int32", "harm", *pointers, m, n, k))
        return ib.get()

    return te.decl_tensor_intrin(made.op, calls, name=f"harm_{m}_{n}_{k}")


def _runs_wrong(state: WorkerState, request: HarmRequest) -> str:
    """A program that goes wrong when it is run."""
    m, n, k = request.shape
    source = _C.replace("PLACE", str(request.place)).replace("BODY", BODIES[request.kind])
    known = _place(request.made, source.encode(), repr(request.shape))
    if known.exists():
        return _write(request, known.read_bytes())
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    made = _product(a, b)
    schedule = te.create_schedule(made)
    outer, inner = schedule[made].split(made.op.axis[0], m)
    schedule[made].tensorize(inner, _call(m, n, k))
    schedule[made].pragma(outer, "import_c", source)
    program = te.lower(schedule, [a, b, made]).program
    asked = ScheduleRequest(program, with_processor(state, request.target))
    compile_schedule_file(state, ScheduleFileRequest(asked, request.vmfb))
    write_whole(known, request.vmfb.read_bytes())
    return f"harm {request.number}"


# -- compilers that go wrong -----------------------------------------------------------------------


def _segfault(_state: WorkerState, _request: HarmRequest) -> Any:
    ctypes.string_at(0)


def _abort(_state: WorkerState, _request: HarmRequest) -> Any:
    os.write(2, b"LLVM ERROR: Cannot select: intrinsic %llvm.nothing\n")
    os.abort()


def _deep(state: WorkerState, request: HarmRequest) -> Any:
    """The parser's own recursion."""
    from iree.compiler import ir

    from tilewright.measure.compile_worker import session

    with session(state, request.good.flags).context:
        ir.Module.parse("module {" * 200_000)


def _spin(_state: WorkerState, _request: HarmRequest) -> Any:
    while True:
        pass


def _sleep(_state: WorkerState, _request: HarmRequest) -> Any:
    ctypes.PyDLL(None).sleep(3600)


def _eat(_state: WorkerState, _request: HarmRequest) -> Any:
    kept = []
    while True:
        kept.append(bytearray(1 << 26))


def _eat_natively(_state: WorkerState, _request: HarmRequest) -> Any:
    """As C++ that throws what nobody catches."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while libc.malloc(ctypes.c_size_t(1 << 26)):
        pass
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def _write(request: HarmRequest, data: bytes) -> str:
    request.vmfb.write_bytes(data)
    return f"harm {request.number}"


def _garbage(_state: WorkerState, request: HarmRequest) -> Any:
    chance = random.Random(request.number)
    return _write(request, chance.randbytes(chance.choice((0, 1, 64, 100_000))))


def _good(state: WorkerState, request: HarmRequest) -> tuple[random.Random, bytearray]:
    compile_once(state, OnceRequest(request.good, request.made))
    return random.Random(request.number), bytearray(request.vmfb.read_bytes())


def _truncated(state: WorkerState, request: HarmRequest) -> Any:
    chance, data = _good(state, request)
    # Behind the program is a directory for who unpacks it, which nobody needs who runs it.
    end = data.find(b"PK\x01\x02")
    return _write(request, bytes(data[: chance.randrange(end if end > 0 else len(data))]))


def _flipped(state: WorkerState, request: HarmRequest) -> Any:
    chance, data = _good(state, request)
    for _ in range(chance.choice((1, 8, 64))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return _write(request, bytes(data))


def _nothing(_state: WorkerState, request: HarmRequest) -> Any:
    request.vmfb.unlink(missing_ok=True)
    return f"harm {request.number}"


class _Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def _unreadable(_state: WorkerState, _request: HarmRequest) -> Any:
    return _Unreadable()


def _channel() -> list[int]:
    found = []
    for fd in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                found.append(fd)
        except OSError:
            continue
    return found


def _noise(_state: WorkerState, request: HarmRequest) -> Any:
    chance = random.Random(request.number)
    data = chance.choice(
        (
            chance.randbytes(100),
            frame(FrameKind.RESULT, b"\xff" * 40),
            frame(FrameKind.ERROR, b"\x80\x05"),
            frame(FrameKind.READY, b""),
            frame(FrameKind.RESULT, b"")[:8] + (1 << 62).to_bytes(8, "little"),
            frame(FrameKind.ERROR, pickle.dumps((0, "a", "b", "c", False, False))),
        )
    )
    for fd in _channel():
        os.write(fd, data)
    time.sleep(3600)


def _closes(_state: WorkerState, _request: HarmRequest) -> Any:
    for fd in _channel():
        os.close(fd)
    time.sleep(3600)


def _exits(_state: WorkerState, _request: HarmRequest) -> Any:
    sys.exit(0)


def _forks(state: WorkerState, request: HarmRequest) -> Any:
    os.fork()
    return _garbage(state, request)


def _daemon(_state: WorkerState, _request: HarmRequest) -> Any:
    """Leaves a process behind that is in no group of the worker's."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _floods(_state: WorkerState, _request: HarmRequest) -> Any:
    data, end = b"x" * (1 << 20), time.monotonic() + 3600
    write = ctypes.PyDLL(None).write
    while time.monotonic() < end:
        write(1, data, len(data))


def _fills(_state: WorkerState, _request: HarmRequest) -> Any:
    """Writes until there is no room, or nearly."""
    handle, _ = tempfile.mkstemp()
    for _ in range(256):
        os.write(handle, b"x" * (1 << 20))
    raise OSError(28, "No space left on device")


COMPILERS: dict[str, Callable[[WorkerState, HarmRequest], Any]] = {
    "the compiler crashes": _segfault,
    "the compiler aborts": _abort,
    "the compiler's stack overflows": _deep,
    "the compiler spins": _spin,
    "the compiler sleeps, holding the lock": _sleep,
    "the compiler eats memory": _eat,
    "the compiler eats memory natively": _eat_natively,
    "garbage for a program": _garbage,
    "a program cut off": _truncated,
    "a program with flipped bits": _flipped,
    "no program": _nothing,
    "an answer that cannot be read": _unreadable,
    "noise for an answer": _noise,
    "the worker closes its connection": _closes,
    "the worker exits": _exits,
    "the worker forks": _forks,
    "the worker leaves a process behind": _daemon,
    "the compiler prints gigabytes": _floods,
    "the compiler fills the disk": _fills,
}


def do_harm(state: WorkerState, request: HarmRequest) -> Any:
    """Task: compile a candidate that does harm."""
    made = COMPILERS.get(request.kind, _runs_wrong)
    return made(state, request)
