"""Pictures: drawn without a display, whatever there is to draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import M32, M64, MOMENT, STATE, row, run

from tilewright.compare import ComparisonRun, ProviderOutcome
from tilewright.compare.charts import short_name
from tilewright.compare.plots import check_plots, write_plots
from tilewright.errors import UserError


def pictures(folder: Path, result: ComparisonRun) -> set[str]:
    pytest.importorskip("matplotlib")
    files = write_plots(folder, result, "iree")
    assert all(file.stat().st_size > 1000 for file in files)
    return {file.name for file in files}


def test_all_of_them(tmp_path: Path) -> None:
    progress = ((1.0, 1, 2e-3), (2.0, 2, 1e-3))
    made = pictures(
        tmp_path,
        run(row(M64, "iree"), row(M64, "numpy", 2e-3), row(M64, "tvm", progress=progress),
            row(M32, "iree"), row(M32, "numpy", outcome=ProviderOutcome.FAILED)),
    )  # fmt: skip
    names = ("bars", "speedup", "roofline", "quality")
    assert made == {f"{n}{s}" for n in names for s in (".png", ".svg")}


def test_forty_shapes(tmp_path: Path) -> None:
    names = [f"matmul_{i}x64x64_f32t_f32t_f32t" for i in range(1, 41)]
    rows = [row(n, p, seed=i) for i, n in enumerate(names) for p in ("iree", "numpy", "torch")]
    assert "bars.png" in pictures(tmp_path, run(*rows))


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    blind = replace(MOMENT, gflops=None, gbytes_per_s=None)
    state = replace(STATE, before=blind, after=blind)
    assert pictures(tmp_path, run(row(M64, "iree"), state=state)) == {"bars.png", "bars.svg"}
    assert pictures(tmp_path / "b", run(row(M64, "iree", outcome=ProviderOutcome.FAILED))) == set()


def test_names_on_an_axis() -> None:
    assert short_name(M64) == "matmul 64x64x64 f32"
    assert "f32n" in short_name("matmul_4x4x4_f32t_f32n_f32t")
    assert short_name("net.mlir") == "net.mlir"


def test_a_place_that_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        check_plots(tmp_path / "file")
