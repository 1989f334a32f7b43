"""docs/tvm.md: its code runs."""

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
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    assert "gemv_update(C[" in capsys.readouterr().out
