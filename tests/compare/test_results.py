"""Results: what rows say together, and the files they are kept in."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import M32, M64, MOMENT, STATE, row, run

from tilewright.compare import ProviderOutcome, read_runs, write_run
from tilewright.compare.results import (
    COLUMNS,
    check_output,
    default_base,
    latest,
    mean_speedup,
    speedup,
)
from tilewright.compare.tables import means_table, rows_table, wide_table
from tilewright.errors import UserError

FAST = run(
    row(provider="iree", seconds=2e-3),
    row(provider="numpy", seconds=1e-3, seed=1),
    row(M32, "iree", 2e-3, seed=2),
    row(M32, "numpy", outcome=ProviderOutcome.FAILED, reason="wrong numbers"),
)


def check(path: Path, append: bool, threads: int = 1, target: str = "cpu") -> None:
    check_output(path, append, threads, target, gpu=target != "cpu")


def test_what_is_added_is_of_the_same_kind(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_run(path, replace(FAST, settings={"target": "cpu"}))
    check(path, append=True)
    check(path, append=False, threads=2)
    with pytest.raises(UserError, match="of cpu with 1 threads, and these would be of cpu with 2"):
        check(path, append=True, threads=2)
    with pytest.raises(UserError, match="vulkan:ampere"):
        check(path, append=True, target="vulkan:ampere")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    progress = row(progress=((1.0, 2, 3e-3),), cores=0.99, note="64 trials")
    first = run(progress, row(M32, outcome=ProviderOutcome.SKIPPED, reason="pip install it"))
    write_run(path, first)
    assert read_runs(path) == [first]
    write_run(path, FAST, append=True)
    assert read_runs(path) == [first, FAST]
    write_run(path, FAST)
    assert read_runs(path) == [FAST]


def test_the_newest_of_each_row_counts() -> None:
    new = run(row(provider="iree", seconds=5e-3))
    together = latest([FAST, new])
    assert len(together.rows) == len(FAST.rows)
    found = together.row(M64, "iree")
    assert found is not None
    assert found.time.value == pytest.approx(5e-3, rel=0.05)


def test_csv_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    check(path, append=True)
    write_run(path, FAST, append=True)
    check(path, append=True)
    write_run(path, FAST, append=True)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(FAST.rows)
    assert float(rows[1]["median_ms"]) == pytest.approx(1.0, rel=0.05)
    assert rows[3]["outcome"] == "FAILED"
    assert rows[3]["gflops"] == ""
    assert tuple(rows[0]) == COLUMNS


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (other := tmp_path / "a.json").write_text('{"what": "other"}')
    with pytest.raises(UserError, match="not results"):
        read_runs(other)
    (empty := tmp_path / "empty.json").write_text(
        '{"what": "tilewright comparison", "format": 1, "runs": []}'
    )
    with pytest.raises(UserError, match="no run in it"):
        read_runs(empty)
    with pytest.raises(UserError, match="not results"):
        check(other, append=True)
    (columns := tmp_path / "a.csv").write_text("x,y\n")
    with pytest.raises(UserError, match="other columns"):
        check(columns, append=True)
    with pytest.raises(UserError, match=r"\.json or \.csv"):
        check(tmp_path / "a.txt", append=False)


def test_speedups_leave_out_what_failed() -> None:
    found = speedup(FAST, M64, "numpy", "iree")
    assert found is not None
    assert found.value == pytest.approx(2.0, rel=0.05)
    assert found.low <= found.value <= found.high
    assert speedup(FAST, M32, "numpy", "iree") is None
    mean, count = mean_speedup(FAST, "numpy", "iree")
    assert count == 1
    assert mean == pytest.approx(found.value)


def test_the_base() -> None:
    assert default_base(FAST) == "iree"
    assert default_base(FAST, "numpy") == "numpy"
    with pytest.raises(UserError, match="nump"):
        default_base(FAST, "nump")
    skipped = run(row(provider="torch", outcome=ProviderOutcome.SKIPPED), row(provider="numpy"))
    assert default_base(skipped) == "numpy"


def test_tables_say_what_failed_and_why() -> None:
    table = rows_table(FAST, "iree")
    failed = next(cells for cells in table.rows if cells[0] == M32 and cells[1] == "numpy")
    assert failed[-1] == "FAILED: wrong numbers"
    assert failed[2] == "-"
    means = means_table(FAST, "iree")
    numpy = next(cells for cells in means.rows if cells[0] == "numpy")
    assert numpy[2] == "1"
    assert numpy[3] == "1 FAILED"
    text = wide_table(FAST).markdown()
    assert "| FAILED |" in text
    assert text.count("\n") == 3


def test_a_peak_that_moved_is_told() -> None:
    after = replace(MOMENT, gflops=80.0)
    state = replace(STATE, after=after)
    assert any("moved by 20%" in warning for warning in state.warnings())
    assert STATE.warnings() == ()
    assert replace(STATE, after=replace(MOMENT, gflops=None)).gflops == 100.0
