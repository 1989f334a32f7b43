"""docs/schedule-code.md: its code runs, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedule-code.md"


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert shown.strip() in capsys.readouterr().out
