"""What a spec is, as data: read by :mod:`tilewright.spec.read`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.spec.evidence import EntryEvidence


@dataclass(frozen=True)
class SpecRow:
    """One entry of a spec in words: what it fits, and what it sets.

    An entry of ours is named by its id, one of another's spec by its matcher.
    """

    name: str
    matches: str
    pipeline: str
    configuration: str


@dataclass(frozen=True)
class SpecReport:
    """What a spec is: its entries, whether we wrote it, and the notes it carries.

    is_preprocessing: whether it acts on programs before dispatches are formed, and not on these.
    kernels: of ours that it has, each as texts (`spec.kernels.StoredKernel`); entries too.
    evidence: what is known of entries, by their names. sequences: the names of kernels that are
    one dispatch where they follow each other.
    """

    entries: tuple[SpecRow, ...]
    ours: bool
    header: Mapping[str, str]
    is_preprocessing: bool = False
    kernels: tuple[Mapping[str, str], ...] = ()
    evidence: Mapping[str, EntryEvidence] = field(default_factory=dict)
    sequences: tuple[tuple[str, ...], ...] = ()
