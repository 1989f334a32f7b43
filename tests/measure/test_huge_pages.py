"""Memory that malloc hands out next lies in huge pages, where the system has them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.measure import huge_pages

# What is allocated, and whether the system is asked for large pages for all of it: a process of its
# own, whose memory nothing else has touched.
ALLOCATES = """
import ctypes, re, sys, threading
from tilewright.measure.huge_pages import have_huge_pages
from tilewright.measure.runtime import Device
from tilewright.measure.device_options import DeviceOptions

device = Device(DeviceOptions("local-sync"), shared=False)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
have_huge_pages(int(sys.argv[1]) << 20)
place = libc.malloc(32 << 20)
ctypes.memset(place, 7, 32 << 20)
asked = False
for line in open("/proc/self/smaps"):
    span = re.match("([0-9a-f]+)-([0-9a-f]+) ", line)
    if span:
        begin, end = (int(part, 16) for part in span.groups())
        inside = begin <= place + (16 << 20) < end
    elif line.startswith("VmFlags:") and inside:
        asked = "hg" in line.split()
print(asked, ctypes.string_at(place + (32 << 20) - 1, 1) == bytes([7]))
"""


@pytest.mark.skipif(not huge_pages.huge_pages_allowed(), reason="the system has no huge pages")
@pytest.mark.parametrize(("mib", "asked"), [(0, "False"), (64, "True"), (1500, "True")])
def test_what_malloc_hands_out_next_lies_in_huge_pages(mib: int, asked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATES, str(mib)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [asked, "True"]


@pytest.mark.parametrize(
    ("system", "library", "given"),
    [
        ("always [madvise] never", ("glibc", "2.36"), True),
        ("[always] madvise never", ("glibc", "2.35.1"), True),
        ("always madvise [never]", ("glibc", "2.36"), False),
        ("always [madvise] never", ("glibc", "2.31"), False),
        ("always [madvise] never", ("", ""), False),
        (None, ("glibc", "2.36"), False),
    ],
)
def test_where_there_are_huge_pages(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str | None,
    library: tuple[str, str],
    given: bool,
) -> None:
    file = tmp_path / "enabled"
    if system is not None:
        file.write_text(system + "\n")
    monkeypatch.setattr(huge_pages, "_ALLOWED", file)
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: library)
    assert huge_pages.huge_pages_on_request() is given


@pytest.mark.parametrize("allowed", ["always madvise [never]", None])
def test_a_system_without_them_is_left_alone(
    allowed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if allowed is not None:
        (tmp_path / "enabled").write_text(allowed)
    monkeypatch.setattr(huge_pages, "_ALLOWED", tmp_path / "enabled")
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", None)
    huge_pages.have_huge_pages(1 << 30)
