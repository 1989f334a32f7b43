"""Kernels in a process that may not use the matrix unit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def without_the_unit(module: str, code: str) -> None:
    """Run code in a process that Linux refuses the unit, as it has too small a stack for its
    signals.

    Args:
        module: of tests that the code imports from.
        code: that fails where its numbers are wrong.
    """
    text = f"""
import ctypes, sys
import numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tilewright import te
libc = ctypes.CDLL(None)
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
assert libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0
assert libc.syscall(158, 0x1023, 18) != 0, "it was granted"
from {module} import *
{code}"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
