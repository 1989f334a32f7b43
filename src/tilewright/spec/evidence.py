"""What a spec knows of its entries: what each was tuned for, on what, with what result, as texts.

It stands on the spec's module (`tilewright.evidence`), so it goes wherever the spec goes: through
merging, and through `iree-compile`, which does not look at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tilewright.files import parse_json
from tilewright.measure.measurement_key import MeasurementKey


@dataclass(frozen=True)
class EntryEvidence:
    """One entry of a spec: what it is about, and what showed that it is worth having.

    operator: the workload's key. workload: in words. configuration: knobs of the space, as JSON.
    target: its key. measured_on: the `MeasurementKey` as JSON, '' where nobody knows the machine.
    compiler, tilewright: versions. default_ms, tuned_ms: of one execution; low, high: the interval
    of their ratio, '' where it was judged in the whole program alone. verified: what the results
    were compared with.
    """

    operator: str
    workload: str
    configuration: str
    variant: str
    target: str
    measured_on: str
    compiler: str
    tilewright: str
    default_ms: str
    tuned_ms: str
    low: str
    high: str
    verified: str
    date: str

    @staticmethod
    def of(texts: Mapping[str, str]) -> EntryEvidence:
        """What texts say; what they do not say is '', and what they say besides is left out.

        Args:
            texts: by the names of the fields.
        """
        return EntryEvidence(**{one.name: texts.get(one.name, "") for one in fields(EntryEvidence)})

    def texts(self) -> dict[str, str]:
        """The fields by name."""
        return asdict(self)

    def knobs(self) -> dict[str, Any]:
        """The configuration as JSON has it; empty where it cannot be read.

        Returns:
            Values by knob.
        """
        return _dictionary(self.configuration)

    @property
    def machine(self) -> MeasurementKey | None:
        """Under what it was measured; None where it does not say."""
        found = _dictionary(self.measured_on)
        return MeasurementKey.from_json(found) if found else None

    @property
    def processor(self) -> str:
        """The name of the processor or GPU that it was measured on, '' where it does not say."""
        key = self.machine or MeasurementKey()
        return key.gpu or key.processor


def _dictionary(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
