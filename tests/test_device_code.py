"""Workgroup sizes in compiled code, in the formats' own bytes."""

import struct

from tilewright.device_code import workgroup_sizes


def test_ptx():
    code = b"\0FBF\0.visible .entry k(.param .u64 a)\n.maxntid 128, 2, 1\n{ ret; }\n.reqntid 64\n{"
    assert workgroup_sizes(code) == [(128, 2, 1), (64, 1, 1)]


def test_amd_metadata():
    sizes = b"\xb4.reqd_workgroup_size".replace(b"\xb4", b"") + b"\x93\xcd\x01\x00\x01\x01"
    assert workgroup_sizes(b"\x7fELF" + sizes) == [(256, 1, 1)]
    flat = b".max_flat_workgroup_size\xcc\x80"
    assert workgroup_sizes(b"\x7fELF" + flat) == [(128, 1, 1)]


def test_spirv():
    def instruction(operation, *operands):
        return struct.pack(
            f"<{1 + len(operands)}I", (1 + len(operands)) << 16 | operation, *operands
        )

    module = struct.pack("<5I", 0x07230203, 0x10600, 0, 8, 0)
    module += instruction(17, 1) + instruction(16, 4, 17, 32, 8, 1) + instruction(16, 5, 7)
    assert workgroup_sizes(b"odd" + module) == [(32, 8, 1)]


def test_nothing_there():
    assert workgroup_sizes(b"") == []
    assert workgroup_sizes(struct.pack("<I", 0x07230203)) == []
