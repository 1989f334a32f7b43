"""Specs with what is known of their entries: written when a run ends."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.files import read_text, write_whole
from tilewright.measure.jobs import WorkerState
from tilewright.spec.evidence import EntryEvidence
from tilewright.store.column_values import configuration_to_json
from tilewright.toolchain import installed_version
from tilewright.tuning.company import Company
from tilewright.tuning.confirm import entry_of
from tilewright.tuning.context import RunContext
from tilewright.tuning.result import DispatchSummary


def entry_evidence(
    context: RunContext, company: Company | None, rows: Sequence[DispatchSummary]
) -> dict[str, EntryEvidence]:
    """What is known of each entry of the program that is handed back.

    Args:
        context: the run.
        company: the program's choices; None for the compiler's own program.
        rows: of the run's summary.

    Returns:
        Evidence by the entry's name.
    """
    if company is None:
        return {}
    known = {row.entry: row for row in rows if row.entry}
    measured_on = context.measured_on
    where = "" if measured_on is None else json.dumps(measured_on.to_json(), sort_keys=True)
    found = {}
    for task in company.prepared.choosable:
        choice = company.choices.get(task.identity)
        if choice is None or (row := known.get(entry_of(task, choice).name)) is None:
            continue
        low, high = row.speedup_ci or ("", "")
        found[row.entry] = EntryEvidence(
            operator=row.key,
            workload=row.workload,
            configuration=json.dumps(configuration_to_json(choice), sort_keys=True),
            variant=row.variant,
            target=context.target.key,
            measured_on=where,
            compiler=context.compiler_version,
            tilewright=installed_version("tilewright"),
            default_ms="" if row.default_ms is None else f"{row.default_ms:.6g}",
            tuned_ms="" if row.tuned_ms is None else f"{row.tuned_ms:.6g}",
            low=f"{low:.4g}" if low else "",
            high=f"{high:.4g}" if high else "",
            verified=row.verification,
            date=time.strftime("%Y-%m-%d"),
        )
    return found


# In the workers


@dataclass(frozen=True)
class EvidenceRequest:
    """Write a spec once more, with evidence by the names of its entries, and a first line."""

    spec: Path
    output: Path
    evidence: Mapping[str, EntryEvidence]
    first_line: str = ""


def write_evidence(state: WorkerState, request: EvidenceRequest) -> Path:
    """Task: see EvidenceRequest. What a spec does is as before.

    Args:
        state: the worker's.
        request: which spec.

    Returns:
        The file that was written.

    Raises:
        UserError: it is no spec.
    """
    from tilewright.spec.read import with_evidence

    text = read_text(request.spec, "spec")
    written = with_evidence(text, str(request.spec), request.evidence)
    return write_whole(request.output, (request.first_line + written).encode())
