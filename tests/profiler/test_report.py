"""What is said of outcomes: numbers, blocks, tables, CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.kernels.kinds import parse_operation
from tilewright.kernels.operation import ElementTypes
from tilewright.measure.statistics import Measurement
from tilewright.measure.verify import Comparison
from tilewright.profiler import ProfileOutcome, Selected, Verification
from tilewright.profiler.folder import CompileRecord, DispatchEntry, OperationFolder
from tilewright.profiler.report import (
    COLUMNS,
    ProfileCsv,
    block_lines,
    csv_row,
    numbers,
    outcomes_table,
    parse_tags,
)
from tilewright.trial import Status

CONFIGURATION = "tile_config_64x128x0_vp8x32x0_vr0x0x4_DoubleTilingExpert_peel"
SAMPLES = (1.0e-3, 1.1e-3, 0.9e-3, 1.0e-3, 1.0e-3, 1.2e-3, 0.8e-3)


class HalfOf:
    """Peaks of which everything seen is the half."""

    def gflops(self, types: ElementTypes, seen: float, verified: bool) -> float | None:
        return 2 * seen


class Third(HalfOf):
    """Peaks of which everything seen is three times as much."""

    def gflops(self, types: ElementTypes, seen: float, verified: bool) -> float | None:
        assert not verified
        return seen / 3


def outcome(
    name: str = "matmul_768x512x1024_f16t_f16t_f16t",
    configuration: str = CONFIGURATION,
    **more: object,
) -> ProfileOutcome:
    folder = OperationFolder(Path("generated"), parse_operation(name))
    compiled = CompileRecord("key", Status.OK, seconds=0.5)
    folder.dispatches[configuration] = DispatchEntry(compiled=compiled)
    return ProfileOutcome(Selected(folder, configuration), Status.OK, **more)  # type: ignore[arg-type]


RIGHT = outcome(verification=Verification.SUCCESS, measurement=Measurement(SAMPLES))
WRONG = ProfileOutcome(
    RIGHT.dispatch,
    Status.WRONG_RESULT,
    "1 of 4 elements are out of tolerance; worst at [2, 3]: 1 where 5 is expected",
    Verification.FAILED,
    Comparison(False, (2, 3), 1.0, 5.0, 4.0, 0.1, "1 of 4"),
)


def test_numbers() -> None:
    found = numbers(RIGHT, HalfOf())  # type: ignore[arg-type]
    assert found is not None
    assert found.runtime_ms == pytest.approx(1.0)
    assert found.low_ms <= found.runtime_ms <= found.high_ms
    flops = 2 * 768 * 512 * 1024
    assert found.gflops == pytest.approx(flops / 1e-3 / 1e9)
    assert found.gbytes_per_s == pytest.approx(
        2 * (768 * 1024 + 1024 * 512 + 768 * 512) / 1e-3 / 1e9
    )
    assert found.percent == pytest.approx(50)
    assert numbers(WRONG, None) is None


def test_numbers_of_few_samples_span_all_of_them() -> None:
    few = outcome(measurement=Measurement((1e-3, 2e-3, 3e-3)))
    found = numbers(few, None)
    assert found is not None
    assert (found.low_ms, found.high_ms) == pytest.approx((1.0, 3.0))
    assert found.percent is None


def test_no_kernel_is_reported_above_the_peak() -> None:
    unchecked = outcome(measurement=Measurement(SAMPLES))
    found = numbers(unchecked, Third())  # type: ignore[arg-type]
    assert found is not None
    assert found.percent is None
    assert "that were measured: verify it" in "\n".join(block_lines(unchecked, found))
    assert csv_row(unchecked, found, "avx2")["Peak(%)"] == ""
    assert outcomes_table([(unchecked, found)]).rows[0][-1] == "-"


def test_a_block_has_every_line() -> None:
    lines = block_lines(RIGHT, numbers(RIGHT, HalfOf()))  # type: ignore[arg-type]
    split = " " * 16 + "--split_k_mode=N/A --split_k_slices=N/A"
    written = "\n".join(lines).splitlines()[1:]
    assert written.index(split) == 6, "as the first profiler breaks the line"
    written.remove(split)
    labels = [line.partition(":")[0].strip() for line in written]
    assert labels == [
        *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments"),
        *("Verification", "Runtime(ms)", "GFLOPs", "Bytes", "GB/s", "Peak"),
    ]
    text = "\n".join(lines)
    assert "OperationKind.Matmul" in text
    shown = "--batch_count=1 --m=768 --n=512 --k=1024 --lhs=f16t --rhs=f16t --result=f16t\n"
    assert shown in text
    assert "SUCCESS" in text
    assert "1 (0.9 to 1.1, 7 samples)" in text or "7 samples" in text
    assert "50.0% of" in text


def test_a_block_of_a_wrong_result() -> None:
    text = " ".join(" ".join(block_lines(WRONG, None)).split())
    assert "Verification : FAILED" in text
    assert "Runtime(ms) : Not profiled" in text
    assert "worst at [2, 3]: 1 where 5 is expected" in text


def test_table_rows_have_a_cell_for_every_column() -> None:
    table = outcomes_table((one, numbers(one, None)) for one in (RIGHT, WRONG))
    assert [len(row) for row in table.rows] == [len(table.columns)] * 2
    assert table.rows[0][2] == "1"
    assert table.rows[1][2:5] == ("-", "-", "-")


def test_csv_rows_have_every_column() -> None:
    row = csv_row(RIGHT, numbers(RIGHT, HalfOf()), "avx512")  # type: ignore[arg-type]
    assert set(row) == set(COLUMNS)
    assert {key: row[key] for key in COLUMNS[:14]} == {
        "Provider": "IREE Codegen",
        "op_kind": "matmul",
        "Operation": "matmul_768x512x1024_f16t_f16t_f16t",
        "bytes": 2 * (768 * 1024 + 1024 * 512 + 768 * 512),
        "flops": 2 * 768 * 512 * 1024,
        "batch_count": 1,
        "m": 768,
        "n": 512,
        "k": 1024,
        "lhs": "f16t",
        "rhs": "f16t",
        "result": "f16t",
        "split_k_mode": "N/A",
        "split_k_slices": "N/A",
    }
    assert row["Tile config"] == "64x128x0_vp8x32x0_vr0x0x4"
    assert row["Core class"] == "cpu"
    assert row["Instruction class"] == "avx512"
    assert row["Pipeline"] == "DoubleTilingExpert enable_loop_peeling"
    assert row["Verification"] == "SUCCESS"
    assert row["Runtime(ms)"] == "1"
    wrong = csv_row(WRONG, None, "avx512")
    assert (wrong["Verification"], wrong["Runtime(ms)"]) == ("FAILED", "")
    assert (wrong["Worst index"], wrong["Worst actual"], wrong["Worst expected"]) == (
        "2x3",
        "1.0",
        "5.0",
    )


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        (
            "matmul_splitk_8x4x6_splitk3_f32t_f32t_f32t",
            {"split_k_mode": "parallel", "split_k_slices": 3},
        ),
        ("batch_matmul_7x8x4x6_f32t_f32n_f32t", {"batch_count": 7, "rhs": "f32n"}),
        ("softmax_8x9_f32t_f32t", {"lhs": "f32t", "rhs": "N/A", "k": "N/A", "n": 9}),
    ],
)
def test_cells_of_other_kinds(name: str, cells: dict[str, object]) -> None:
    row = csv_row(outcome(name, "tile_config_default"), None, "avx512")
    assert {key: row[key] for key in cells} == cells
    assert row["Tile config"] == row["Core class"] == row["Instruction class"] == "Default"


def test_tags() -> None:
    assert parse_tags("cpu:laptop, run:a:b") == {"cpu": "laptop", "run": "a:b"}
    for text in ("", "cpu", "cpu:", ":x", "a:b,,c:d", "a:b,a:c", "m:3"):
        with pytest.raises(UserError, match="--tags"):
            parse_tags(text)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_grow_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    with ProfileCsv(path, {"cpu": "x"}) as report:
        report.add(csv_row(RIGHT, None, ""))
        assert [row["cpu"] for row in rows(path)] == ["x"], "there while the sweep goes on"
    with ProfileCsv(path, {"cpu": "y"}, append=True) as report:
        report.add(csv_row(WRONG, None, ""))
    assert [(row["cpu"], row["Verification"]) for row in rows(path)] == [
        ("x", "SUCCESS"),
        ("y", "FAILED"),
    ]
    with ProfileCsv(path, {}) as report:
        report.add(csv_row(RIGHT, None, ""))
    assert len(rows(path)) == 1, "without --append the file begins anew"


def test_a_file_of_other_columns_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    with ProfileCsv(path, {"cpu": "x"}) as report:
        report.add(csv_row(RIGHT, None, ""))
    with pytest.raises(UserError, match=r"--append: .* other columns"):
        ProfileCsv(path, {}, append=True)
    with ProfileCsv(tmp_path / "new.csv", {}, append=True) as report:
        report.add(csv_row(RIGHT, None, ""))
    assert len(rows(tmp_path / "new.csv")) == 1


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write it"):
        ProfileCsv(tmp_path / "none" / "data.csv", {})
