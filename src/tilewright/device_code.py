"""Reads workgroup sizes off compiled code for GPUs: PTX, AMD code objects, SPIR-V.

What a compiled module (.vmfb) or executable holds is searched for the formats' own marks; the code
is not decoded beyond that.
"""

from __future__ import annotations

import re
import struct

Size = tuple[int, int, int]

_PTX = re.compile(rb"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
# In the code object's metadata (MessagePack): a key, then an array of three or one integer.
_AMD_SIZES = b".reqd_workgroup_size"
_AMD_FLAT = b".max_flat_workgroup_size"

_SPIRV_MAGIC = 0x07230203
_SPIRV_HEADER_WORDS = 5
_OP_EXECUTION_MODE, _LOCAL_SIZE = 16, 17


def workgroup_sizes(code: bytes) -> list[Size]:
    """The sizes of the workgroups of all kernels in compiled code, x first.

    Of an AMD code object that only gives the number of threads, (threads, 1, 1).
    """
    found = [
        (int(x), int(y or 1), int(z or 1)) for x, y, z in (m.groups() for m in _PTX.finditer(code))
    ]
    found += _amd(code)
    found += _spirv(code)
    return found


def _amd(code: bytes) -> list[Size]:
    sizes: list[Size] = []
    at = code.find(_AMD_SIZES)
    while at >= 0:
        position = at + len(_AMD_SIZES)
        # 0x93: an array of three.
        if code[position : position + 1] == b"\x93":
            numbers, position = [], position + 1
            for _ in range(3):
                number, position = _packed_integer(code, position)
                numbers.append(number)
            sizes.append((numbers[0], numbers[1], numbers[2]))
        at = code.find(_AMD_SIZES, at + 1)
    if sizes:
        return sizes
    at = code.find(_AMD_FLAT)
    while at >= 0:
        number, _ = _packed_integer(code, at + len(_AMD_FLAT))
        sizes.append((number, 1, 1))
        at = code.find(_AMD_FLAT, at + 1)
    return sizes


def _packed_integer(code: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer of MessagePack, and the position behind it; 0 for another value."""
    kind = code[at] if at < len(code) else 0
    widths = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
    if kind < 0x80:
        return kind, at + 1
    if kind not in widths:
        return 0, at + 1
    form = widths[kind]
    size = struct.calcsize(form)
    return struct.unpack_from(form, code, at + 1)[0], at + 1 + size


def _spirv(code: bytes) -> list[Size]:
    sizes: list[Size] = []
    magic = struct.pack("<I", _SPIRV_MAGIC)
    at = code.find(magic)
    while at >= 0:
        sizes += _execution_modes(code, at)
        at = code.find(magic, at + 4)
    return sizes


def _execution_modes(code: bytes, at: int) -> list[Size]:
    """The LocalSize of each entry point of the SPIR-V module that begins here."""
    sizes: list[Size] = []
    position = at + 4 * _SPIRV_HEADER_WORDS
    while position + 4 <= len(code):
        (word,) = struct.unpack_from("<I", code, position)
        length, operation = word >> 16, word & 0xFFFF
        if length == 0:
            break
        if operation == _OP_EXECUTION_MODE and length == 6:
            _, mode, x, y, z = struct.unpack_from("<5I", code, position + 4)
            if mode == _LOCAL_SIZE:
                sizes.append((x, y, z))
        position += 4 * length
    return sizes
