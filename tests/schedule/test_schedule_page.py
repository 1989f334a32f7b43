"""docs/schedule.md: its code runs, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tilewright import te

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedule.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs() -> None:
    text = PAGE.read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(code) >= 5
    names: dict[str, Any] = {}
    for block in code:
        exec(block, names)
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert str(te.lower(names["s"], [names[x] for x in "ABC"])) == shown.strip()
