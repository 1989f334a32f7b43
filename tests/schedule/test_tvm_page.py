"""docs/tvm.md: its code runs, and prints what it shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tvm.md"


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler of C")
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    text = PAGE.read_text()
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "gemv_update(C[" in printed
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert shown in printed
    for word in ("bar.sync", "ld.shared", "st.shared", ".maxntid 16, 1, 1"):
        assert word in names["ptx"]
