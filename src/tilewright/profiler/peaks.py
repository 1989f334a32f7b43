"""What this machine reaches at most, to judge kernels by."""

from __future__ import annotations

from tilewright.kernels.operation import ElementTypes
from tilewright.measure.machine import describe
from tilewright.measure.peak import Peak, machine_peak
from tilewright.target import Target

# Vector instructions by the feature that shows them, widest first.
_INSTRUCTIONS = {
    "avx512f": "avx512",
    "avx2": "avx2",
    "avx": "avx",
    "sse2": "sse",
    "sve": "sve",
    "asimd": "neon",
}


# What a kernel may be above the measured peak, by the noise of both.
TOLERANCE = 1.03


class Peaks:
    """The measured peaks of this machine with a number of threads.

    Measured before anything is timed, unless it has been before. A kernel that is faster shows that
    the machine was busy then: its type is measured once more. If it is still faster and its result
    is right, then its own rate is the highest that was seen, and the peak from then on.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._peak: Peak = machine_peak(threads)
        self._again: set[str] = set()
        self._seen: dict[str, float] = {}

    def gflops(self, types: ElementTypes, seen: float, verified: bool = True) -> float | None:
        """GFLOP/s at most on operands of these types.

        Args:
            types: of the kernel.
            seen: GFLOP/s of a kernel just now.
            verified: whether its result was found right.

        Returns:
            None where it cannot be measured.
        """
        name = types.operand
        known = self._known(name)
        if known is not None and seen > known and name not in self._again:
            self._again.add(name)
            self._peak = machine_peak(self._threads, at_least={name: seen})
            known = self._known(name)
        if known is not None and seen > TOLERANCE * known and verified:
            self._seen[name] = known = seen
        return known

    def _known(self, name: str) -> float | None:
        measured = self._peak.compute.get(name)
        return None if measured is None else max(measured, self._seen.get(name, 0.0))


def vector_instructions(target: Target) -> str:
    """The vector instructions of the processor that code is made for, as far as it is this one;
    else the processor's name.

    Args:
        target: what code is made for.

    Returns:
        Such as `avx2`.
    """
    if target.cpu != "host":
        return target.cpu
    machine = describe()
    features = set(machine.features)
    return next((v for k, v in _INSTRUCTIONS.items() if k in features), machine.architecture)
