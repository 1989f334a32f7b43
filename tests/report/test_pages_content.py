"""What the pages say, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from result_folders import make_result_folder

from tilewright.errors import UserError
from tilewright.report.importance import importance
from tilewright.report.page import _breakable, log_axis
from tilewright.report.result_folder import read_result_folder
from tilewright.report.time_figures import without_prefix
from tilewright.report.tuning import tuning_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tuning_page(read_result_folder(make_result_folder(tmp_path_factory.mktemp("a") / "out")))


def visible(page: str) -> str:
    """Without scripts and styles."""
    return re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)


def test_it_says_what_was_found(page: str) -> None:
    text = visible(page)
    assert "1.50 times as fast: from 3.00 ms to 2.00 ms (95% interval 1.40 to 1.60)" in text
    assert "main_dispatch_0_matmul_16x512x1024_f32" in text
    assert "DoubleTilingExpert: distribution 64,64,0" in text
    assert "exceeded stack allocation limit" in text
    assert "180 trials in 60 s" in text
    assert "tilewright tune /somewhere/net.mlir --effort quick" in text
    assert "iree-compile net.mlir -o net.vmfb" in text
    assert "# 1 ms: runs it" not in text
    assert "local-task (advised)" in text
    assert "iree-benchmark-module --device=local-sync" in text
    assert "__kernel_config" in text


def test_it_says_what_outputs_were_compared_with(page: str, tmp_path: Path) -> None:
    assert "outputs equal" in visible(page)
    folder = read_result_folder(make_result_folder(tmp_path / "out"))
    folder.summary["program"]["compared_with"] = "float64 NumPy"
    text = visible(tuning_page(folder))
    assert "outputs as right, by float64 NumPy" in text
    assert "outputs equal" not in text


def test_what_comes_from_outside_is_escaped(page: str) -> None:
    text = visible(page)
    assert "A processor &lt;with&gt; &#34;odd&#34; &amp; letters" in text
    assert "a note with &lt;/script&gt; in it" in text


def test_nothing_is_fetched(page: str) -> None:
    text = visible(page)
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text


def test_the_knob_that_decides_is_named(page: str) -> None:
    assert "level_0_dim0 alone explains" in visible(page)


def test_without_a_peak_there_is_no_roofline(page: str) -> None:
    assert "Roofline" not in visible(page)


def test_trials_are_read_by_dispatch(tmp_path: Path) -> None:
    result = read_result_folder(make_result_folder(tmp_path / "out", dispatches=2, trials=40))
    assert len(result.trials) == 2
    one = next(iter(result.trials.values()))
    assert one.count == 40
    assert one.ok.sum() == 36
    assert one.failures == (("compile_error", "exceeded stack allocation limit", 4),)
    assert one.spent_s[-1] == pytest.approx(40 * 0.3)
    values, codes = one.knobs["level_0_dim0"]
    assert [int(v) for v in values] == sorted(int(v) for v in values)
    assert codes.max() < len(values)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a result folder"):
        read_result_folder(tmp_path)
    folder = make_result_folder(tmp_path / "out")
    (folder / "summary.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_result_folder(folder)


def test_importance() -> None:
    rng = np.random.default_rng(0)
    decides, noise = rng.integers(0, 5, 400), rng.integers(0, 50, 400)
    times = np.exp(decides + rng.normal(0, 0.1, 400))
    first, second = importance([decides, noise], times)
    assert first > 0.95
    assert second < 0.1
    assert importance([decides], np.ones(400)) == [0.0]
    assert importance([decides[:3]], times[:3]) == [0.0]


def test_parts_of_a_bar_leave_out_what_all_names_begin_with() -> None:
    names = ["net_dispatch_1_conv_3x3", "net_dispatch_0_matmul_4x4", "net_dispatch_12_add_4"]
    found = without_prefix(names)
    assert list(found.values()) == ["1_conv_3x3", "0_matmul_4x4", "12_add_4"]
    assert without_prefix(["net_dispatch_0"]) == {"net_dispatch_0": "net_dispatch_0"}
    assert list(without_prefix(["a", "a_b"]).values()) == ["a", "a_b"]


def test_numbers_on_a_logarithmic_axis_are_whole() -> None:
    axis = log_axis("GFLOP/s", [15.0, 230.0])
    assert {"20", "50", "100", "200", "500"} <= set(axis["ticktext"])
    assert axis["tickvals"] == sorted(axis["tickvals"])
    assert set(log_axis("ms", [1e-3, 1e4])["ticktext"]) >= {"0.01", "1", "1,000"}
    assert log_axis("ms", [])["tickvals"]


def test_long_names_may_be_broken_and_stay_escaped(page: str) -> None:
    assert "main_<wbr>dispatch_<wbr>0_<wbr>matmul_<wbr>16x512x1024_<wbr>f32" in page
    assert _breakable("<b>_c") == "&lt;b&gt;_<wbr>c"
