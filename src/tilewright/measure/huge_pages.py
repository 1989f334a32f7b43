"""Memory in pages of 2 MiB for what a program that is loaded into this process reads in each call.

A network reads all of its weights in a call; where little is computed with each, looking up the
addresses of pages of 4 KiB takes the processor longer than reading them. A process that is started
for it has malloc ask for large pages (`DeviceOptions.environment`). One that runs already asks for
them itself, for memory that malloc hands out next.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from pathlib import Path

from tilewright.measure.device_options import MMAP_BYTES, TRIM_BYTES

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALLOWED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# The first glibc whose malloc asks for huge pages (its release notes, `glibc.malloc.hugetlb`).
_GLIBC_WITH_HUGE_PAGES = (2, 35)
_PAGE = 2 << 20
# From MMAP_BYTES on it would be memory of its own, which goes back to the system when it is freed.
_AT_ONCE = MMAP_BYTES // 2


def huge_pages_on_request() -> bool:
    """Whether a program of this machine gets huge pages by asking malloc for them: Linux that
    allows it (`madvise`, `always`) and a glibc that does."""
    version = platform.libc_ver()[1]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return huge_pages_allowed() and numbers >= _GLIBC_WITH_HUGE_PAGES


def huge_pages_allowed() -> bool:
    """Whether the system gives huge pages to who asks for them (Linux: `madvise`, `always`), and
    malloc is glibc's."""
    with contextlib.suppress(OSError):
        return "[never]" not in _ALLOWED.read_text() and platform.libc_ver()[0] == "glibc"
    return False


def keep_freed_memory() -> None:
    """Have malloc keep freed blocks for the next call, large ones too (glibc; elsewhere nothing).

    Results are allocated anew for every call. By default blocks over 32 MiB are returned to the
    system at once, and touching fresh pages costs more than many kernels: an elementwise add with
    a 32 MiB result takes 13.6 ms on local-sync instead of 1.9 ms, all of it page faults.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


def have_huge_pages(size: int) -> None:
    """Have what malloc hands out next to this thread lie in huge pages. They are taken from the
    system when they are written to, so that what is not used takes none.

    malloc keeps memory that is freed, once it is told to (`keep_freed_memory`); so it is asked
    for as much, whose pages are given back to the system to come as large ones, and gets it back.
    Where the system has no such pages, or malloc gets the memory elsewhere, nothing changes.

    Args:
        size: bytes that are needed, about.
    """
    if not huge_pages_allowed():
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    taken = []
    while size > 0:
        place = libc.malloc(now := min(size, _AT_ONCE))
        if not place:
            break
        taken.append(place)
        size -= now
        first, behind = -(-place // _PAGE) * _PAGE, (place + now) // _PAGE * _PAGE
        if first < behind:
            for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTNEED):
                libc.madvise(first, behind - first, advice)
    for place in taken:
        libc.free(place)
