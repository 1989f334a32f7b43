"""Verifying and timing: broken kernels are found, whatever they do, and end no sweep."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from profiled import (
    COMPILE,
    FAULTS,
    HANGS,
    NO_PROGRAM,
    SQUARE,
    VERIFY,
    compiled,
    dispatches,
    make,
    sabotage,
    square,
)
from profiler_faults import die_on_matmul
from small_kernels import SMALL

from tilewright.errors import UserError
from tilewright.kernels import KINDS, OperationKind, make_operation
from tilewright.measure.inputs import InputFile
from tilewright.profiler import (
    GeneratedFolder,
    ProfileOutcome,
    RunOptions,
    Verification,
    compile_dispatches,
    run_dispatches,
)
from tilewright.profiler.running import check_compiled, make_references
from tilewright.trial import Status

QUICK = RunOptions(repetitions=2)


def run_all(generated: GeneratedFolder, options: RunOptions = VERIFY) -> list[ProfileOutcome]:
    return list(run_dispatches(compiled(generated), options))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProfileOutcome]:
    """One sweep over kernels broken in all ways, by what is wrong with them."""
    generated = make(tmp_path_factory.mktemp("broken"), *(square(n) for n, _ in FAULTS.values()))
    for size, program in FAULTS.values():
        sabotage(generated, square(size), program)
    return dict(zip(FAULTS, run_all(generated, QUICK), strict=True))


def test_a_right_kernel(outcomes: dict[str, ProfileOutcome]) -> None:
    outcome = outcomes["nothing"]
    assert outcome.verification is Verification.SUCCESS
    assert outcome.status is Status.OK
    assert outcome.measurement is not None
    assert len(outcome.measurement.samples) == 2
    assert 0 < outcome.measurement.median_s < 0.1
    assert not outcome.is_fault


@pytest.mark.parametrize("fault", ["operands swapped", "one wrong tile", "one unwritten row"])
def test_broken_kernels_are_found_and_the_sweep_goes_on(
    outcomes: dict[str, ProfileOutcome], fault: str
) -> None:
    broken = outcomes[fault]
    assert broken.verification is Verification.FAILED
    assert broken.status is Status.WRONG_RESULT
    assert broken.is_fault
    assert broken.measurement is None, "a wrong kernel has no time"


def test_a_wrong_result_names_its_worst_element(outcomes: dict[str, ProfileOutcome]) -> None:
    outcome = outcomes["one wrong tile"]
    worst = outcome.comparison
    assert worst is not None
    row, column = worst.worst_index
    assert 8 <= row < 16 <= column < 24, "the worst element is in the wrong tile"
    with np.load(outcome.dispatch.folder.reference / "expected.npz") as file:
        assert worst.expected == file["output_0"][row, column]
    assert worst.actual == pytest.approx(-worst.expected, rel=1e-4)
    assert "64 of 900 elements" in outcome.message
    assert f"worst at [{row}, {column}]" in outcome.message
    assert f"{worst.expected:.6g} is expected" in outcome.message


def test_an_unwritten_row_is_where_the_worst_element_is(
    outcomes: dict[str, ProfileOutcome],
) -> None:
    worst = outcomes["one unwritten row"].comparison
    assert worst is not None
    assert (worst.worst_index[0], worst.actual) == (23, 0.0)


def test_a_run_time_error_is_a_row(outcomes: dict[str, ProfileOutcome]) -> None:
    bad = outcomes["another signature"]
    assert bad.status is Status.RUN_ERROR
    assert bad.message


@pytest.mark.slow
def test_a_hang_is_a_row(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, HANGS)
    hung, right = run_all(pair, replace(VERIFY, timeout_s=3.0))
    assert hung.status is Status.RUN_TIMEOUT
    assert hung.verification is Verification.NOT_VERIFIED
    assert hung.is_fault
    assert right.verification is Verification.SUCCESS


def test_a_crash_is_a_row(pair: GeneratedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.measure import benchmark_worker

    selected = dispatches(pair)
    monkeypatch.setattr(benchmark_worker, "verify", die_on_matmul)
    crashed, right = run_dispatches(selected, VERIFY)
    assert crashed.status is Status.CRASHED
    assert crashed.is_fault
    assert right.verification is Verification.SUCCESS


def test_a_file_that_is_no_program_is_a_row(pair: GeneratedFolder) -> None:
    selected = dispatches(pair)
    selected[0].vmfb.write_bytes(b"no program")
    bad, right = run_dispatches(selected, VERIFY)
    assert bad.status is Status.RUN_ERROR
    assert right.verification is Verification.SUCCESS


def test_what_is_not_compiled_is_a_row(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, NO_PROGRAM)
    selected = dispatches(pair)
    compile_dispatches(pair, selected[:1], COMPILE)
    selected[1].vmfb.unlink()
    check_compiled(selected)
    failed, missing = run_dispatches(selected, VERIFY)
    with pytest.raises(UserError, match="none of the 1 dispatches is compiled"):
        check_compiled(selected[1:])
    assert failed.status is Status.COMPILE_ERROR
    assert missing.status is Status.INVALID
    assert "not compiled" in missing.message
    assert not failed.is_fault
    assert not missing.is_fault


def test_operations_too_large_for_the_machine_are_rows(pair: GeneratedFolder) -> None:
    huge = "matmul_2000000x2000000x8_f32t_f32t_f32t"
    make(pair.root.parent, huge)
    right, big, _ = dispatches(pair)
    assert big.folder.operation.name == huge
    big.entry.compiled = right.entry.compiled
    shutil.copy(right.vmfb, big.vmfb)
    outcome, fine = run_dispatches([big, right], VERIFY)
    assert outcome.status is Status.INVALID
    assert "no inputs or reference: out of memory" in outcome.message
    assert fine.verification is Verification.SUCCESS


def test_without_verification(pair: GeneratedFolder) -> None:
    (outcome,) = run_dispatches(dispatches(pair)[:1], replace(QUICK, verify=False))
    assert outcome.verification is Verification.NOT_VERIFIED
    assert outcome.measurement is not None


def test_references_are_computed_once(pair: GeneratedFolder) -> None:
    selected = dispatches(pair)[:1]
    folder = selected[0].folder.reference
    shutil.rmtree(folder)
    make_references(selected, replace(VERIFY, verify=False))
    assert not (folder / "expected.npz").exists(), "not needed for timing alone"
    first = make_references(selected, VERIFY)
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert make_references(selected, VERIFY) == first
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
    other = make_references(selected, replace(VERIFY, seed=7))
    assert other != first, "another seed, other data"
    (folder / "expected.npz").unlink()
    again = make_references(selected, replace(VERIFY, seed=7))
    assert (folder / "expected.npz").is_file()
    assert again == other


def test_operands_differ(pair: GeneratedFolder) -> None:
    data = make_references(dispatches(pair), VERIFY)[SQUARE]
    lhs, rhs = (a.load() for a in data.inputs.arguments if isinstance(a, InputFile))  # type: ignore[union-attr]
    assert lhs.shape == rhs.shape
    assert (lhs != rhs).mean() > 0.99
    assert np.abs(lhs - lhs.T).max() > 0.1


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> list[ProfileOutcome]:
    """A product in f64, and one that is split along k."""
    split = "matmul_splitk_16x16x64_splitk4_f32t_f32t_f32t"
    generated = make(tmp_path_factory.mktemp("special"), SQUARE.replace("f32", "f64"), split)
    return run_all(generated, QUICK)


def test_split_sums_are_timed_as_a_whole(special: list[ProfileOutcome]) -> None:
    """A program of two dispatches: its benchmark repeats both, and computes the same."""
    _, outcome = special
    dispatch = outcome.dispatch
    text = dispatch.configured.read_text()
    assert dispatch.entry.compiled is not None
    repeats = dispatch.entry.compiled.repeats
    assert repeats > 1
    calls = text.count("stream.cmd.dispatch @") + text.count("stream.cmd.dispatch {")
    assert calls == 2 * (repeats + 1), "main runs both once, bench each this often"
    assert outcome.verification is Verification.SUCCESS


def test_f64_is_not_computed_in_f32(special: list[ProfileOutcome]) -> None:
    outcome, _ = special
    assert outcome.verification is Verification.SUCCESS
    assert outcome.comparison is not None
    assert outcome.comparison.error < 1e-13


# What IREE 3.13 does not compile, as the documentation lists it: words in the name, and in the
# message. The last only on processors that have no arithmetic on f16.
NOT_COMPILED = (
    (("f64", "add_gelu"), "math.erf"),
    (("f64", "bias_gelu"), "math.erf"),
    (("f16", "softmax"), "fmaxf"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_variant_type_and_layout(tmp_path: Path, kind: OperationKind) -> None:
    dims = {d.name: SMALL[d.name] for d in kind.dimensions}
    operations = [
        make_operation(kind, dims, types, layout, variant)
        for variant in kind.variants
        for types in kind.types(variant)
        for layout in kind.layouts
    ]
    generated = make(tmp_path, *(operation.name for operation in operations), jobs=2)
    selected = dispatches(generated)
    compile_dispatches(generated, selected, replace(COMPILE, jobs=2))
    outcomes = list(run_dispatches(selected, VERIFY))
    assert len(outcomes) == len(operations) > 0
    for outcome in outcomes:
        name = outcome.dispatch.name
        if outcome.status is Status.COMPILE_ERROR:
            assert any(
                all(word in name for word in words) and message in outcome.message
                for words, message in NOT_COMPILED
            ), f"{name}: {outcome.message}"
        else:
            assert outcome.verification is Verification.SUCCESS, f"{name}: {outcome.message}"
