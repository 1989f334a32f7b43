"""Messages between the pool and its workers: frames of a magic number, a kind, a length, a pickle.

The frames travel on a socket of their own, so nothing that the compiler, LLVM or a candidate
prints can get between them; the magic number tells a worker whose memory a candidate has overrun
from one that answers.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<4sB3xQ")
_MAGIC = b"twf1"
# No result comes near this (what is large travels as files); a length beyond it is not a length,
# and would have who reads it fill its memory.
_MAX_BODY = 1 << 31

# A JOB and its RESULT begin with the job's number, little-endian.
NUMBER_BYTES = 8


class FrameKind(enum.IntEnum):
    """What a frame carries."""

    INIT = 1  # to the worker: setup task and its payload
    READY = 2  # from the worker: setup is done
    JOB = 3  # to the worker: job number, task, payload
    RESULT = 4  # from the worker: the job's number and value
    ERROR = 5  # from the worker: the job's number and a description of the exception


class ProtocolError(Exception):
    """What came over the socket is not a frame."""


def frame(kind: FrameKind, body: bytes) -> bytes:
    """A message as it travels.

    Args:
        kind: what it carries.
        body: its content.
    """
    return _HEADER.pack(_MAGIC, kind, len(body)) + body


class FrameReader:
    """Puts frames together from whatever pieces arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Take bytes in.

        Args:
            data: as they arrived.

        Yields:
            The frames that they complete.

        Raises:
            ProtocolError: they are no frames.
        """
        self._data += data
        while len(self._data) >= _HEADER.size:
            magic, kind, length = _HEADER.unpack_from(self._data)
            if magic != _MAGIC or kind not in set(FrameKind) or length > _MAX_BODY:
                raise ProtocolError(f"bytes that are no frame: {bytes(self._data[:16])!r}")
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_HEADER.size : end])
            del self._data[:end]
            yield FrameKind(kind), body
