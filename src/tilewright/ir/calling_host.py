"""Host code that makes certain calls, of code that is compiled once for all calls of their form."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.generated_code import FunctionCode
from tilewright.ir.hand_written import ALIGNMENT
from tilewright.ir.kernel_calls import KernelCalls
from tilewright.ir.splice import SplicedHost


class CallingHost:
    """Host code that makes certain calls: of their form, which others share, with the names and
    sizes of these in it.

    made: host code of the calls' form, which exchanges the `sizes_of` that.
    calls: whose names the kernels have that `finish` is given.
    """

    def __init__(self, made: SplicedHost, calls: KernelCalls) -> None:
        self._made = made
        form = calls.form()
        self._names = dict(zip(calls.kernels, form.kernels, strict=True))
        self._sizes = dict(zip(sizes_of(form), sizes_of(calls), strict=True))

    def finish(self, binaries: Mapping[str, FunctionCode]) -> bytes:
        """See `SplicedHost.finish`."""
        return self._made.finish(self._renamed(binaries), self._sizes)

    def with_code(self, binaries: Mapping[str, FunctionCode]) -> Any:
        """See `SplicedHost.with_code`."""
        return self._made.with_code(self._renamed(binaries), self._sizes)

    def _renamed(self, binaries: Mapping[str, FunctionCode]) -> dict[str, FunctionCode]:
        return {self._names[name]: binary for name, binary in binaries.items()}


def sizes_of(calls: KernelCalls) -> list[int]:
    """The sizes that the host's code of calls has in it.

    Args:
        calls: what it does.

    Returns:
        Bytes, places in memory and dimensions, in the same order for all calls of a form, and how
        often `bench` makes the calls.
    """
    found: list[int] = []
    for results in (calls.results, tuple(result.guarded() for result in calls.results)):
        size = HostSizes.of(replace(calls, results=results), 1)
        found += [*size.taken, *size.allocated, *itertools.chain.from_iterable(size.parts)]
        found += [n for result in results for n in (result.bytes, *result.shape)]
    return [*found, calls.often]


@dataclass(frozen=True)
class HostSizes:
    """What a function's kernels are given: buffers of so many bytes, in their order.

    taken: all sets of its inputs. allocated: its results with memory of their own, then one that
    all between kernels is in. parts: offset and bytes of each of these in it. inputs: of a set.
    """

    taken: tuple[int, ...]
    allocated: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    inputs: int

    @classmethod
    def of(cls, calls: KernelCalls, sets: int) -> HostSizes:
        """The sizes of calls.

        Args:
            calls: what the function does.
            sets: of inputs, that it takes one after the other.
        """
        parts, end = [], 0
        for bytes_ in calls.between:
            parts.append((end, bytes_))
            end += -(-bytes_ // ALIGNMENT) * ALIGNMENT
        results = tuple(result.bytes for result in calls.results if result.input is None)
        return cls(
            calls.inputs * sets,
            (*results, end) if end else results,
            tuple(parts),
            len(calls.inputs),
        )

    def place(self, buffer: int) -> tuple[int, int, int]:
        """Where a buffer is found, an input in the first set.

        Args:
            buffer: its number, as `KernelCalls` counts.

        Returns:
            Which of those given it is in, offset and bytes in that.
        """
        if buffer < self.inputs:
            return buffer, 0, self.taken[buffer]
        given = len(self.taken) + len(self.allocated) - bool(self.parts)
        number = len(self.taken) + buffer - self.inputs
        if number < given:
            return number, 0, self.allocated[buffer - self.inputs]
        return given, *self.parts[number - given]
