"""What the parts of a run hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.tuning.company import Company
from tilewright.tuning.confirm import Confirmed
from tilewright.tuning.prepare import PreparedVariant
from tilewright.tuning.programs import Build
from tilewright.tuning.variants import Variant

RUN_TIMEOUT_S = 600.0


@dataclass
class MeasuredVariant:
    """A variant with its plain program and the seconds that one run of that takes."""

    variant: Variant
    build: Build
    time_s: float


@dataclass
class Outcome:
    """What the parts of a run leave for the result."""

    default: Build
    default_s: float
    variants: dict[str, float | str] = field(default_factory=dict)
    prepared: list[PreparedVariant] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    companies: list[Company] = field(default_factory=list)
