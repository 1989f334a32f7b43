"""What CONTRIBUTING.md shows works: a kind of kernel and a provider, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.compare import CompareOptions, Provider, ProviderOutcome, compare, find_workloads
from tilewright.ir.reference import evaluate
from tilewright.ir.session import CompilerSession
from tilewright.kernels import OperationKind, make_operation
from tilewright.kernels.worker_tasks import build_program
from tilewright.measure.inputs import random_array
from tilewright.targets import parse_target

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def block(words: str) -> str:
    """The block of Python under the heading with these words."""
    section = PAGE.read_text().partition(f"## {words}")[2].partition("\n## ")[0]
    (found,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(found)


def test_the_kind_of_kernel() -> None:
    names: dict[str, object] = {"__name__": "shown"}
    exec(compile(block("A kind of kernel"), str(PAGE), "exec"), names)
    (kind,) = names["KINDS"]  # type: ignore[attr-defined]
    assert isinstance(kind, OperationKind)
    operation = make_operation(kind, {"m": 5, "k": 12}, kind.types("")[0], "t", "")
    (values,) = (random_array(a, 1, i) for i, a in enumerate(operation.arguments))
    expected = kind.reference(operation, [values.astype(np.float64)])
    (computed,) = evaluate(build_program(operation, CompilerSession().context), "main", [values])
    np.testing.assert_allclose(computed, expected, rtol=1e-6)


def test_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown_provider.py").write_text(block("A provider of comparisons"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (shown,) = __import__("shown_provider").PROVIDERS
    assert issubclass(shown, Provider)
    options = CompareOptions(parse_target("cpu", 1), peak=False, rounds=6, min_sample_s=0.001)
    (row,) = compare(find_workloads([], ["8x4x6"]), [shown()], options).rows
    assert row.outcome is ProviderOutcome.OK, row.reason
