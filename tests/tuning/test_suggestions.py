"""A run that begins with what others found: specs, libraries, and what an update leaves alone."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.spec.evidence import EntryEvidence
from tilewright.spec.merge import merge_specs
from tilewright.spec.read import check_spec, with_evidence
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.outputs import read_manifest
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession
from tilewright.tuning.spec_library import push
from tilewright.tuning.update import update_request
from tuned_samples import matmul, write_halved_spec


def tuned(program: Path, output: Path, **given: object) -> TuneResult:
    values = {"effort": "quick", "max_trials": 1, "threads": 1, "kernels": "off", **given}
    values["variants"] = TuneOptions().chosen_variants[:1]
    options = TuneOptions(output=output, db=output.with_suffix(".db"), **values)  # type: ignore[arg-type]
    result = TuningSession(program, options).run()
    assert isinstance(result, TuneResult)
    return result


def trials(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, another's spec for it, and a run that began with that spec and with IREE's own."""
    folder = tmp_path_factory.mktemp("suggestions")
    (folder / "matmul.mlir").write_text(matmul(256, 256, 256))
    halved = ("distribution", "cache_parallel")
    write_halved_spec(matmul(256, 256, 256), folder / "spec.mlir", levels_halved=halved)
    given = (str(folder / "spec.mlir"), "iree")
    tuned(folder / "matmul.mlir", folder / "first", start_spec=given)
    return folder


@pytest.fixture(scope="module")
def known(work: Path) -> str:
    """The spec, with what that run knows of its entry."""
    summary = json.loads((work / "first" / "summary.json").read_text())
    texts = {
        "operator": summary["dispatches"][0]["key"],
        "configuration": trials(work / "first")[0]["knobs"],
        "target": str(read_manifest(work / "first")["target"]),
        "measured_on": json.dumps(read_manifest(work / "first")["measured_on"]),
        "compiler": "3.12.0",
    }
    evidence = {"halved_0": EntryEvidence.of(texts), "gone": EntryEvidence.of(texts)}
    return with_evidence((work / "spec.mlir").read_text(), "spec", evidence)


def test_anothers_spec_is_read_by_what_it_does(work: Path) -> None:
    notes = json.loads((work / "first" / "summary.json").read_text())["notes"]
    assert any("1 entry, of which 1 for this program" in note for note in notes)
    assert any("IREE's own specs configure 0 workloads here" in note for note in notes)
    knobs = json.loads(trials(work / "first")[0]["knobs"])
    # The compiler's own choice has tiles of 64 there.
    assert knobs["distribution_n"] == 32


def test_what_is_known_of_entries_goes_where_the_spec_goes(known: str) -> None:
    found = check_spec(known, "spec").evidence
    assert set(found) == {"halved_0"}
    assert found["halved_0"].compiler == "3.12.0"
    merged = merge_specs([known, known])
    assert merged.duplicates_dropped == ("halved_0",)
    assert check_spec(merged.text, "merged").evidence == found


def test_a_library_is_looked_up_and_tells_how_it_fits(work: Path, known: str) -> None:
    push(work / "library", [(known.encode(), check_spec(known, "spec"), "")])
    result = tuned(work / "matmul.mlir", work / "looked", library=str(work / "library"))
    assert any(note.endswith("of 1 workload 1 for this processor") for note in result.notes)
    assert trials(work / "looked")[0]["knobs"] == trials(work / "first")[0]["knobs"]


def test_an_update_measures_what_is_known_and_searches_nothing(work: Path, known: str) -> None:
    shutil.copytree(work / "first", work / "old")
    (work / "old" / "tuning_spec.mlir").write_text(known)
    given = {"output": str(work / "new"), "max_trials": "50", "db": str(work / "new.db")}
    request = update_request(work / "old", None, given)
    assert [str(one) for one in request.options.variants or ()] == ["default"]
    assert request.options.kernels == "off"
    result = TuningSession(request.program, request.options).run()
    assert isinstance(result, TuneResult)
    assert result.program.verified
    (trial,) = trials(work / "new")
    assert trial["knobs"] == trials(work / "first")[0]["knobs"]


def test_mistakes_are_told(work: Path) -> None:
    with pytest.raises(UserError, match="there is no such spec or result folder"):
        tuned(work / "matmul.mlir", work / "wrong", start_spec=("nowhere",))
    with pytest.raises(UserError, match="give the result folder that it is about"):
        tuned(work / "matmul.mlir", work / "wrong", keep_start=True)
