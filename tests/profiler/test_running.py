"""Verifying and timing: broken kernels are found, whatever they do, and end no sweep."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from profiled import (
    BROKEN,
    COMPILE,
    HANGS,
    NO_PROGRAM,
    OTHER_SIGNATURE,
    RIGHT,
    SMALL,
    SQUARE,
    compiled,
    dispatches,
    make,
    sabotage,
)

from tilewright.measure.inputs import InputFile
from tilewright.profiler import (
    KINDS,
    GeneratedFolder,
    Kind,
    Outcome,
    RunOptions,
    Verification,
    compile_dispatches,
    make_operation,
    run_dispatches,
)
from tilewright.profiler.running import make_references
from tilewright.trial import Status

QUICK = RunOptions(repetitions=2)
VERIFY = RunOptions(profile=False)
OTHER = "softmax_16x32_f32t_f32t"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product and a softmax, compiled, with their references."""
    folder = tmp_path_factory.mktemp("ready")
    make_references(compiled(make(folder, SQUARE, OTHER)), VERIFY)
    return folder


@pytest.fixture
def pair(ready: Path, tmp_path: Path) -> GeneratedFolder:
    """The two, to be tampered with."""
    shutil.copytree(ready / "generated", tmp_path / "generated")
    return GeneratedFolder(tmp_path)


def run_all(generated: GeneratedFolder, options: RunOptions = VERIFY) -> list[Outcome]:
    return list(run_dispatches(compiled(generated), options))


def test_a_right_kernel(pair: GeneratedFolder) -> None:
    outcome, _ = run_all(pair, QUICK)
    assert outcome.verification is Verification.SUCCESS
    assert outcome.status is Status.OK
    assert outcome.measurement is not None
    assert len(outcome.measurement.samples) == 2
    assert 0 < outcome.measurement.median_s < 0.1
    assert not outcome.is_fault


def test_the_program_that_is_broken_below_is_right_otherwise(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, RIGHT)
    outcome, _ = run_all(pair)
    assert outcome.verification is Verification.SUCCESS


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_kernels_are_found_and_the_sweep_goes_on(pair: GeneratedFolder, fault: str) -> None:
    sabotage(pair, SQUARE, BROKEN[fault])
    broken, right = run_all(pair, QUICK)
    assert broken.verification is Verification.FAILED
    assert broken.status is Status.WRONG_RESULT
    assert broken.is_fault
    assert broken.measurement is None, "a wrong kernel has no time"
    assert right.verification is Verification.SUCCESS


def test_a_wrong_result_names_its_worst_element(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, BROKEN["one wrong tile"])
    outcome, _ = run_all(pair)
    worst = outcome.comparison
    assert worst is not None
    row, column = worst.worst_index
    assert 8 <= row < 16 <= column < 24, "the worst element is in the wrong tile"
    data = make_references(dispatches(pair), VERIFY)[SQUARE]
    assert data.expected is not None  # type: ignore[union-attr]
    with np.load(data.expected) as file:  # type: ignore[union-attr]
        assert worst.expected == file["output_0"][row, column]
    assert worst.actual == pytest.approx(-worst.expected, rel=1e-4)
    assert "64 of 576 elements" in outcome.message
    assert f"worst at [{row}, {column}]" in outcome.message
    assert f"{worst.expected:.6g} is expected" in outcome.message


@pytest.mark.slow
def test_a_hang_is_a_row(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, HANGS)
    hung, right = run_all(pair, replace(VERIFY, timeout_s=3.0))
    assert hung.status is Status.RUN_TIMEOUT
    assert hung.verification is Verification.NOT_VERIFIED
    assert hung.is_fault
    assert right.verification is Verification.SUCCESS


def test_a_run_time_error_is_a_row(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, OTHER_SIGNATURE)
    bad, right = run_all(pair)
    assert bad.status is Status.RUN_ERROR
    assert bad.message
    assert right.verification is Verification.SUCCESS


def test_a_crash_is_a_row(pair: GeneratedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.measure import benchmark_worker

    selected = dispatches(pair)
    monkeypatch.setattr(benchmark_worker, "VERIFY", "profiler_faults:die_on_matmul")
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


def test_what_is_not_compiled_is_a_row(tmp_path: Path) -> None:
    generated = make(tmp_path, SQUARE, OTHER)
    sabotage(generated, SQUARE, NO_PROGRAM)
    selected = dispatches(generated)
    compile_dispatches(generated, selected[:1], COMPILE)
    failed, missing = run_dispatches(selected, VERIFY)
    assert failed.status is Status.COMPILE_ERROR
    assert missing.status is Status.INVALID
    assert "not compiled" in missing.message
    assert not failed.is_fault
    assert not missing.is_fault


def test_operations_too_large_for_the_machine_are_rows(pair: GeneratedFolder) -> None:
    huge = "matmul_2000000x2000000x8_f32t_f32t_f32t"
    make(pair.root.parent, huge)
    big, right, _ = dispatches(pair)
    assert big.folder.operation.name == huge
    big.entry.compiled = right.entry.compiled
    shutil.copy(right.vmfb, big.vmfb)
    outcome, fine = run_dispatches([big, right], VERIFY)
    assert outcome.status is Status.INVALID
    assert "no inputs or reference: out of memory" in outcome.message
    assert fine.verification is Verification.SUCCESS


def test_without_verification(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, BROKEN["operands swapped"])
    outcome, _ = run_all(pair, replace(QUICK, verify=False))
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


def test_split_sums_are_timed_as_a_whole(tmp_path: Path) -> None:
    """A program of two dispatches: its benchmark repeats both, and computes the same."""
    name = "matmul_splitk_16x16x64_splitk4_f32t_f32t_f32t"
    generated = make(tmp_path, name)
    (dispatch,) = compiled(generated)
    text = dispatch.folder.configured(dispatch.configuration).read_text()
    assert dispatch.entry.compiled is not None
    repeats = dispatch.entry.compiled.repeats
    assert repeats > 1
    calls = text.count("stream.cmd.dispatch @") + text.count("stream.cmd.dispatch {")
    assert calls == 2 * (repeats + 1), "main runs both once, bench each this often"
    (outcome,) = run_dispatches([dispatch], QUICK)
    assert outcome.verification is Verification.SUCCESS


def test_f64_is_not_computed_in_f32(tmp_path: Path) -> None:
    (outcome,) = run_all(make(tmp_path, SQUARE.replace("f32", "f64")))
    assert outcome.verification is Verification.SUCCESS
    assert outcome.comparison is not None
    assert outcome.comparison.error < 1e-13


# What IREE 3.13 does not compile, as the documentation lists it.
NOT_COMPILED = ("add_gelu", "bias_gelu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_variant_type_and_layout(tmp_path: Path, kind: Kind) -> None:
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
    for outcome in run_dispatches(selected, VERIFY):
        name = outcome.dispatch.name
        if "f64" in name and any(word in name for word in NOT_COMPILED):
            assert outcome.status is Status.COMPILE_ERROR
            assert "math.erf" in outcome.message
        else:
            assert outcome.verification is Verification.SUCCESS, f"{name}: {outcome.message}"
