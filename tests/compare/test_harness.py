"""The harness, with providers that behave and providers that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers import KNOWN

from tilewright.compare import (
    CompareOptions,
    ComparisonRow,
    ComparisonRun,
    ProviderOutcome,
    compare,
    find_providers,
    find_workloads,
)
from tilewright.errors import UserError
from tilewright.target import parse_target

OPTIONS = CompareOptions(
    parse_target("cpu", 1), rounds=6, min_sample_s=0.002, peak=False, timeout_s=5.0
)
SMALL = "24x24x24"


@pytest.fixture(scope="module")
def result() -> ComparisonRun:
    """All of them on one workload, once."""
    providers = [*find_providers(",".join(KNOWN), KNOWN), *find_providers("iree,numpy")]
    return compare(find_workloads([], [SMALL]), providers, OPTIONS)


def of(result: ComparisonRun, provider: str) -> ComparisonRow:
    (row,) = (r for r in result.rows if r.provider == provider)
    return row


@pytest.mark.parametrize("provider", ["right", "iree", "numpy"])
def test_those_that_are_right(result: ComparisonRun, provider: str) -> None:
    row = of(result, provider)
    assert row.outcome is ProviderOutcome.OK, row.reason
    assert len(row.samples) == 6
    assert 0 < row.time.low <= row.time.value <= row.time.high < 1
    assert row.gflops is not None
    assert row.gflops.low <= row.gflops.value <= row.gflops.high
    assert row.reference == "NumPy in float64"
    assert row.version
    assert row.worst is not None
    assert row.worst < 1


@pytest.mark.parametrize("provider", ["right", "iree", "numpy"])
def test_one_thread_uses_one_core(result: ComparisonRun, provider: str) -> None:
    row = of(result, provider)
    assert row.cores is not None
    assert row.cores <= 1.15
    assert row.threads.endswith("= 1")


@pytest.mark.parametrize(
    ("provider", "outcome", "says"),
    [
        ("wrong", ProviderOutcome.FAILED, "wrong numbers: 1 of 576"),
        ("late-wrong", ProviderOutcome.FAILED, "wrong numbers"),
        ("crashing", ProviderOutcome.CRASHED, "SIGSEGV"),
        ("late-crashing", ProviderOutcome.CRASHED, "SIGSEGV"),
        ("hanging", ProviderOutcome.TIMEOUT, "no answer"),
        ("raising", ProviderOutcome.ERROR, "does not compile"),
        ("unopened", ProviderOutcome.ERROR, "the library is broken"),
        ("missing", ProviderOutcome.SKIPPED, "pip install no-such-library"),
        ("elsewhere", ProviderOutcome.ABSENT, "something else"),
    ],
)
def test_those_that_are_not(
    result: ComparisonRun, provider: str, outcome: ProviderOutcome, says: str
) -> None:
    row = of(result, provider)
    assert row.outcome is outcome
    assert says in row.reason
    assert row.samples == ()


def test_more_threads_than_allowed_fail(result: ComparisonRun) -> None:
    """Where there is a second core that it can take."""
    row = of(result, "greedy")
    if row.outcome is ProviderOutcome.OK:
        assert row.cores is not None
        pytest.skip(f"this machine let it have {row.cores:.2f} cores")
    assert row.outcome is ProviderOutcome.FAILED
    assert "cores where 1" in row.reason


def test_the_machine_is_recorded(result: ComparisonRun) -> None:
    assert result.threads == 1
    assert result.state.machine["cpu"]
    assert result.state.before.load is not None
    assert result.versions["tilewright"]


def test_a_program(tmp_path: Path) -> None:
    program = tmp_path / "net.mlir"
    program.write_text(
        """func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %r = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x4xf32>)
    outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %r : tensor<8x4xf32>
}
"""
    )
    providers = find_providers("iree-variant:data-tiling,numpy")
    iree, numpy = compare(find_workloads([str(program)]), providers, OPTIONS).rows
    assert iree.outcome is ProviderOutcome.OK
    assert iree.reference == "the program evaluated in float64"
    assert iree.gflops is None
    assert numpy.outcome is ProviderOutcome.ABSENT


def test_a_program_that_cannot_be_read(tmp_path: Path) -> None:
    (program := tmp_path / "net.mlir").write_text("this is none")
    (row,) = compare(find_workloads([str(program)]), find_providers("iree"), OPTIONS).rows
    assert row.outcome is ProviderOutcome.ERROR
    assert "net.mlir" in row.reason


def test_pinning_needs_processors() -> None:
    options = CompareOptions(parse_target("cpu", 1000), pin=True)
    with pytest.raises(UserError, match="--pin: 1000 threads"):
        options.cpus()
