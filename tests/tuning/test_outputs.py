"""The end of a run: what is handed back was proven, and there is always something handed back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_programs import PlayedRun

from tilewright.errors import UserError
from tilewright.trial import Configuration
from tilewright.tuning import outputs
from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, build_companies, try_in_company
from tilewright.tuning.confirm import Confirmed, FinalCandidate, entry_name
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.outputs import check_writable, finish, read_manifest
from tilewright.tuning.prepared_variant import PreparedVariant, Skipped
from tilewright.tuning.result import TuneResult
from tilewright.tuning.variants import Variant

CHOICE = Configuration.of({"tile": 8})


@pytest.fixture
def run(tmp_path: Path) -> PlayedRun:
    return PlayedRun(tmp_path)


def tuned(run: PlayedRun, *names: str, seconds: float = 0.5) -> Company:
    """A company of tasks with a winner each, in a program that takes so long."""
    run.seconds["default_company_0"] = seconds
    winners = [
        Confirmed(run.task(n), [FinalCandidate(CHOICE, run.context.work)], 1.0) for n in names
    ]
    company = try_in_company(run.programs, winners, Company(run.prepared, run.default))
    run.outcome.confirmed += winners
    run.outcome.companies.append(company)
    return company


def plain_variant(run: PlayedRun, name: str, seconds: float) -> Company:
    """A variant whose winners did not hold up."""
    run.seconds[name] = seconds
    company = Company(run.prepared, run.programs.build(Build(name, Variant(name, ("--v",)))))
    run.outcome.companies.append(company)
    return company


def finished(run: PlayedRun) -> tuple[TuneResult, dict[str, Any], Path]:
    """The result, the summary, the folder."""
    result = finish(run.programs, run.outcome, 0.0)
    folder = run.context.options.output
    assert {p.name for p in folder.iterdir()} == {
        "command.txt",
        "manifest.json",
        "program.vmfb",
        "run.log",
        "summary.json",
        "trials.csv",
        "tuning_spec.mlir",
    }
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(f".{folder.name}")]
    return result, json.loads((folder / "summary.json").read_text()), folder


def is_default(run: PlayedRun, result: TuneResult, folder: Path) -> bool:
    """Whether the compiler's own program is handed back, and the summary says so."""
    assert result.program.speedup == 1.0
    assert result.changed == ()
    assert (folder / "tuning_spec.mlir").read_text() == ""
    assert all(d.status != "tuned" for d in result.dispatches)
    return (folder / "program.vmfb").read_text() == "default.vmfb"


def test_what_is_handed_back_is_what_was_compared(run: PlayedRun) -> None:
    company = tuned(run, "a", "b")
    made = list(run.compiled)
    result, summary, folder = finished(run)
    assert (folder / "program.vmfb").read_text() == "default_company_0.vmfb"
    assert (folder / "tuning_spec.mlir").read_text() == company.build.spec.read_text()
    # The proof compiles to where dispatches are configured; no program is made once more.
    assert run.compiled[len(made) :] == ["proof.before.mlir", "proof.after.mlir"]
    names = [entry_name(task) for task in run.prepared.tasks]
    assert result.changed == tuple(f"{name}_dispatch" for name in names)
    assert summary["program"]["speedup"] == pytest.approx(2.0)
    assert summary["program"]["verified"] is True
    assert (summary["program"]["largest_error"], summary["program"]["allowed_error"]) == (0.25, 0.5)
    assert summary["program"]["constant_work"] == {}
    assert [d["status"] for d in summary["dispatches"]] == ["tuned", "tuned"]
    assert f"{folder / 'tuning_spec.mlir'}" in (folder / "command.txt").read_text()
    assert read_manifest(folder)["variant"] == "default"


@pytest.mark.parametrize(
    ("fail", "told"),
    [
        (lambda run: run.fails.update({"proof.after.mlir": "it hangs"}), "it hangs"),
        (lambda run: run.fails.update({"proof.before.mlir": "no memory"}), "no memory"),
        (lambda run: setattr(run, "reading_fails", "the worker died"), "the worker died"),
        (lambda run: run.wrong.add("default_company_0"), "is wrong"),
        (
            lambda run: run.missed.update(entry_name(t) for t in run.prepared.tasks),
            "the spec did not apply",
        ),
        (lambda run: setattr(run, "comparing_fails", "the device is gone"), "device is gone"),
    ],
    ids=["compile with", "compile without", "reading", "results", "not applied", "comparing"],
)
def test_where_the_proof_fails_the_default_is_handed_back(
    run: PlayedRun, fail: Any, told: str
) -> None:
    tuned(run, "a", "b")
    fail(run)
    result, summary, folder = finished(run)
    assert is_default(run, result, folder)
    assert summary["program"]["verified"] is True
    assert told in run.notes


def test_where_the_proof_of_the_fastest_fails_the_next_is_handed_back(run: PlayedRun) -> None:
    tuned(run, "a")
    plain_variant(run, "other", 0.8)
    plain_variant(run, "third", 0.9)
    run.fails["proof.after.mlir"] = "it hangs"
    result, summary, folder = finished(run)
    assert (folder / "program.vmfb").read_text() == "other.vmfb"
    assert summary["program"]["variant"] == "other"
    assert result.program.speedup == pytest.approx(1.25)
    assert result.changed == ()


def test_what_is_not_faster_is_not_handed_back(run: PlayedRun) -> None:
    tuned(run, "a")
    plain_variant(run, "other", 1.0)
    run.seconds["default_company_0"] = 1.1
    result, _, folder = finished(run)
    assert is_default(run, result, folder)
    assert "no tuned program beats the compiler's default" in run.notes


def test_what_was_not_timed_alone_is_told_as_that(run: PlayedRun) -> None:
    measured, unknown = run.task("a"), run.task("b")
    run.prepared.tasks.remove(unknown)
    run.prepared.untimed.append(unknown)
    run.prepared.skipped.append(Skipped(unknown.name, 1, "no time"))
    unknown.default_s = None
    run.prepared.guesses = {task.identity: (CHOICE, 1e-3) for task in (measured, unknown)}
    choices = dict.fromkeys(run.prepared.guesses, CHOICE)
    run.outcome.companies += build_companies(run.programs, run.prepared, [choices], "start")
    run.seconds["default_start_0"] = 0.5
    result, summary, folder = finished(run)
    rows = [(d["name"], d["status"], d["tuned_ms"]) for d in summary["dispatches"]]
    assert rows == [(one.name, "not timed alone", None) for one in (measured, unknown)]
    assert [d["default_ms"] is None for d in summary["dispatches"]] == [False, True]
    assert [d["verification"] for d in summary["dispatches"]] == ["", ""]
    assert result.program.speedup == pytest.approx(2.0)
    assert len(result.changed) == 2
    assert (folder / "program.vmfb").read_text() == "default_start_0.vmfb"


def test_an_entry_that_applies_nowhere_is_not_called_tuned(run: PlayedRun) -> None:
    tuned(run, "a", "b")
    first, second = run.prepared.tasks
    run.missed.add(entry_name(first))
    result, summary, _ = finished(run)
    assert [d["status"] for d in summary["dispatches"]] == ["dropped in company", "tuned"]
    assert result.changed == (f"{entry_name(second)}_dispatch",)
    assert "its entry applies to no dispatch" in run.notes


def test_a_default_that_differs_from_itself_is_not_called_verified(run: PlayedRun) -> None:
    run.wrong.add("default")
    result, summary, folder = finished(run)
    assert is_default(run, result, folder)
    assert summary["program"]["verified"] is False
    assert "does not give its first results again" in run.notes


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("tilewright.tuning.outputs.install_folder", full)
    with pytest.raises(UserError, match=r"--output: cannot write somewhere \(No space left"):
        finish(run.programs, run.outcome, 0.0)
    folder = run.context.options.output
    assert not folder.exists()
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(f".{folder.name}")]


def test_folders_that_are_refused_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "deep")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        check_writable(tmp_path / "file")
    with pytest.raises(UserError, match="something else"):
        check_writable(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    check_writable(tmp_path)
    with pytest.raises(UserError, match="not a result folder"):
        read_manifest(tmp_path / "new")


def test_the_dispatches_of_a_variant_that_was_not_searched_are_named(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    company = plain_variant(run, "other", 0.5)
    company.prepared = PreparedVariant(company.build.variant, ())
    dispatches = [
        ExtractedDispatch("", name, count, Path()) for name, count in (("a", 2), ("b", 0))
    ]
    found = SimpleNamespace(dispatches=dispatches)
    monkeypatch.setattr(outputs, "extract", lambda context, variant: found)
    result, _, folder = finished(run)
    assert (folder / "program.vmfb").read_text() == "other.vmfb"
    assert result.program.variant == "other"
    assert [(one.name, one.count) for one in result.dispatches] == [("a", 2)]
    assert result.dispatches[0].status.startswith("skipped: its variant was compared as a whole")
