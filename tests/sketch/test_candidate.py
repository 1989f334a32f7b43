"""Kernel candidates, from a choice to a program that is checked and timed like any other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_sketches import (
    INSIDE,
    OUTSIDE,
    compile_sample,
    compile_samples,
    harmful,
    panels,
    product,
    use_other_compilers,
)

from tilewright import te
from tilewright.argument import ArgumentType
from tilewright.ir.session import CompileError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputSet, load_arguments, random_inputs, write_outputs
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.measure.pool import WorkerPool
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.site import KernelChoice
from tilewright.sketch import candidate_tasks
from tilewright.sketch.candidate import (
    CompiledKernel,
    KernelRequest,
    SketchError,
    check_kernel,
    packed_inputs,
    stored,
)
from tilewright.sketch.interface import SiteExpression, SketchedKernel
from tilewright.sketch.loops import LoopsSketch
from tilewright.sketch.packing import Packing
from tilewright.target import parse_target
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import CandidateTester, Reference

TARGET = parse_target("cpu", 1)
ROWS, COLUMNS, DEPTH = 24, 32, 40
QUICK = TimingPolicy(max_s=0.05, max_samples=8, drop_factor=None)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with compile_pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Benchmark]:
    with Benchmark(DeviceOptions.cpu(1), policy=QUICK, timeout_s=10) as benchmark:
        yield benchmark


@pytest.fixture(scope="module")
def site() -> SiteExpression:
    return product(ROWS, COLUMNS, DEPTH)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Inputs of the site, and what it makes of them."""
    folder = tmp_path_factory.mktemp("reference")
    types = [ArgumentType("f32", (ROWS, DEPTH)), ArgumentType("f32", (DEPTH, COLUMNS))]
    inputs = random_inputs(folder, types)
    a, b = (np.asarray(one, np.float64) for one in load_arguments(inputs))
    write_outputs(folder / "expected.npz", [a @ b])
    return Reference(inputs, folder / "expected.npz", ("f32",), DEPTH)


def compiled(
    pool: WorkerPool,
    site: SiteExpression,
    choice: KernelChoice,
    inputs: InputSet,
    folder: Path,
    **more: Any,
) -> Any:
    """What a worker answers for a choice; the program is `folder/kernel.vmfb`."""
    given = {"repeats": 6, **more}
    timeout = given.pop("timeout_s", 60)
    request = KernelRequest(
        stored(site),
        choice,
        TARGET,
        TARGET.flags,
        vmfb=folder / "kernel.vmfb",
        inputs=inputs,
        packed=folder / "packed",
        **given,
    )
    return pool.ask(compile_sample, request, timeout)


@pytest.mark.parametrize("rotations", [1, 3])
@pytest.mark.parametrize("packed", [OUTSIDE, INSIDE])
def test_a_kernel_is_checked_and_timed_as_any_candidate(
    pool: WorkerPool,
    benchmark: Benchmark,
    site: SiteExpression,
    reference: Reference,
    tmp_path: Path,
    packed: str,
    rotations: int,
) -> None:
    for columns in (8, 16):
        found = compiled(
            pool, site, panels(columns, 4, packed), reference.inputs, tmp_path, rotations=rotations
        )
        assert isinstance(found, CompiledKernel), found
        assert found.inputs is not None
        tester = CandidateTester(
            benchmark, Reference(found.inputs, reference.expected, ("f32",), DEPTH), repeats=6
        )
        tested = tester.test(tmp_path / "kernel.vmfb", QUICK)
        assert tested.ok, tested.message
        assert isinstance(tested.measurement, Measurement)
        # What is timed computes the same.
        again = CandidateTester(
            benchmark,
            Reference(
                InputSet(found.inputs.key, found.inputs.arguments * rotations),
                reference.expected,
                ("f32",),
                DEPTH,
            ),
            function="bench",
        )
        assert again.check(tmp_path / "kernel.vmfb").ok


def test_kernels_that_are_compiled_together_are_right_and_one_that_fails_costs_no_other(
    pool: WorkerPool,
    benchmark: Benchmark,
    site: SiteExpression,
    reference: Reference,
    tmp_path: Path,
) -> None:
    """Of several kernels each; one is the same program as another, one is so for another site."""
    choices = [
        panels(8, 4, OUTSIDE),
        harmful("error"),
        panels(16, 4, INSIDE),
        panels(8, 2, OUTSIDE),
        panels(8, 4, OUTSIDE),
        panels(8, 4, OUTSIDE),
    ]
    requests = [
        KernelRequest(
            stored(site),
            choice,
            TARGET,
            TARGET.flags,
            6,
            tmp_path / f"{number}.vmfb",
            programs=tmp_path / ("others" if number == 5 else "programs"),
            inputs=reference.inputs,
            packed=tmp_path / "packed",
        )
        for number, choice in enumerate(choices)
    ]
    jobs = [Job(compile_sample, one, 60, together=compile_samples) for one in requests]
    found = [result.outcome for result in pool.run(jobs)]
    assert isinstance(found[1], WorkerFailure)
    assert found[1].error_type == "ValueError"
    digests = []
    for number in (0, 2, 3, 5):
        one = found[number]
        assert isinstance(one, CompiledKernel), one
        assert one.inputs is not None
        assert {"schedule", "emit", "targets", "code"} <= set(one.phase_s)
        tester = CandidateTester(
            benchmark, Reference(one.inputs, reference.expected, ("f32",), DEPTH), repeats=6
        )
        tested = tester.test(tmp_path / f"{number}.vmfb", QUICK)
        assert tested.ok, tested.message
        digests.append(one.digest)
    assert len(set(digests)) == 3
    assert digests[3] == digests[0]
    assert isinstance(found[4], CompiledKernel)
    assert found[4].digest == digests[0]
    assert not (tmp_path / "4.vmfb").exists()


def test_code_that_the_compiler_does_not_take_costs_no_other_kernel(
    site: SiteExpression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, finish = panels(16, 4, INSIDE), candidate_tasks._finish

    def fussy(state: WorkerState, emitted: Any) -> None:
        if any(one.request.choice == bad for one in emitted):
            raise CompileError("it does not like this one")
        finish(state, emitted)

    monkeypatch.setattr(candidate_tasks, "_finish", fussy)
    choices = [panels(8, 4, OUTSIDE), bad, panels(8, 2, OUTSIDE)]
    requests = [
        KernelRequest(stored(site), choice, TARGET, TARGET.flags, 6, tmp_path / f"{number}.vmfb")
        for number, choice in enumerate(choices)
    ]
    found = compile_samples(WorkerState(), requests)
    assert [type(one) for one in found] == [CompiledKernel, WorkerFailure, CompiledKernel]
    assert isinstance(found[1], WorkerFailure)
    assert found[1].error_type == "CompileError"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.vmfb", "2.vmfb"]


@pytest.mark.parametrize("repeats", [1, 6])
def test_a_kernel_is_timed_on_constants_of_a_whole_program(
    pool: WorkerPool, benchmark: Benchmark, tmp_path: Path, repeats: int
) -> None:
    """Each of as many sets as it reads in a call is used in turn, by whatever programs come."""
    site = product(ROWS, 256, 512)
    types = [ArgumentType("f32", (ROWS, 512)), ArgumentType("f32", (512, 256))]
    inputs = random_inputs(tmp_path, types)
    a, b = (np.asarray(one, np.float64) for one in load_arguments(inputs))
    write_outputs(tmp_path / "expected.npz", [a @ b])
    for columns in (8, 16):
        found = compiled(
            pool,
            site,
            panels(columns, 4, OUTSIDE),
            inputs,
            tmp_path,
            repeats=repeats,
            beside=4 * types[1].bytes,
        )
        assert isinstance(found, CompiledKernel), found
        assert found.inputs is not None
        assert found.inputs.turns == 4
        reference = Reference(found.inputs, tmp_path / "expected.npz", ("f32",), 512)
        tested = CandidateTester(benchmark, reference, repeats=repeats).test(
            tmp_path / "kernel.vmfb", QUICK
        )
        assert tested.ok, tested.message
        # What is timed takes all of them, and computes the same.
        four = InputSet(found.inputs.key, found.inputs.arguments * 4)
        again = CandidateTester(benchmark, replace(reference, inputs=four), function="bench")
        assert again.check(tmp_path / "kernel.vmfb").ok


def test_equal_programs_are_made_once(
    pool: WorkerPool, site: SiteExpression, reference: Reference, tmp_path: Path
) -> None:
    answers = []
    for name, rows in (("first", 2), ("second", 4), ("third", 2)):
        folder = tmp_path / name
        folder.mkdir()
        answers.append(
            compiled(
                pool,
                site,
                panels(16, rows, OUTSIDE),
                reference.inputs,
                folder,
                programs=tmp_path / "programs",
            )
        )
    assert answers[0].digest == answers[2].digest != answers[1].digest
    written = [(tmp_path / name / "kernel.vmfb").exists() for name in ("first", "second", "third")]
    assert written == [True, True, False]


def test_a_compiler_that_was_dropped_is_made_anew(
    pool: WorkerPool, site: SiteExpression, reference: Reference, tmp_path: Path
) -> None:
    """Nothing is taken from the one before: it belongs to another context."""
    choice = panels(16, 4, INSIDE)
    first = compiled(pool, site, choice, reference.inputs, tmp_path)
    assert pool.ask(use_other_compilers, TARGET.flags, 60) is None
    again = compiled(pool, site, choice, reference.inputs, tmp_path)
    assert isinstance(again, CompiledKernel), again
    assert again.digest == first.digest


def test_a_sketch_that_does_not_fit_is_said(
    pool: WorkerPool, site: SiteExpression, reference: Reference, tmp_path: Path
) -> None:
    choice = KernelChoice("elementwise", panels(16, 4, OUTSIDE).knobs)
    failure = compiled(pool, site, choice, reference.inputs, tmp_path)
    assert failure.compile_status is Status.COMPILE_ERROR
    assert "sketch 'elementwise' is not for this site: it reduces" in failure.message


@pytest.mark.parametrize(
    ("harm", "status", "message"),
    [
        ("crash", Status.CRASHED, "SIGSEGV"),
        ("hang", Status.COMPILE_TIMEOUT, "no answer within"),
        ("error", Status.COMPILE_ERROR, "a mistake in a sketch"),
        ("refused", Status.INVALID, "split"),
        ("shape", Status.COMPILE_ERROR, r"the result is f32[32, 24] instead of f32[24, 32]"),
        ("code", Status.INVALID, "operations are written out; allowed: 4096"),
    ],
)
def test_kernels_that_cannot_be_compiled_are_statuses(
    pool: WorkerPool,
    site: SiteExpression,
    reference: Reference,
    tmp_path: Path,
    harm: str,
    status: Status,
    message: str,
) -> None:
    timeout_s = 2 if harm == "hang" else 60
    inputs = reference.inputs
    failure = compiled(pool, site, harmful(harm), inputs, tmp_path, timeout_s=timeout_s)
    assert (failure.compile_status, message in failure.message) == (status, True), failure
    assert not (tmp_path / "kernel.vmfb").exists()
    again = compiled(pool, site, panels(8, 2, OUTSIDE), reference.inputs, tmp_path)
    assert isinstance(again, CompiledKernel)


@pytest.mark.parametrize(
    ("harm", "status", "message"),
    [
        ("wrong", Status.WRONG_RESULT, "768 of 768 elements are out of tolerance"),
        ("behind", Status.WRONG_RESULT, "1 elements behind its 768 are written to"),
        ("far", Status.CRASHED, "SIGSEGV"),
        ("endless", Status.RUN_TIMEOUT, "no answer within"),
    ],
)
def test_kernels_that_do_harm_are_statuses(
    pool: WorkerPool,
    benchmark: Benchmark,
    site: SiteExpression,
    reference: Reference,
    tmp_path: Path,
    harm: str,
    status: Status,
    message: str,
) -> None:
    found = compiled(pool, site, harmful(harm), reference.inputs, tmp_path, repeats=1)
    assert isinstance(found, CompiledKernel), found
    assert found.inputs is not None
    tester = CandidateTester(benchmark, replace(reference, inputs=found.inputs), timeout_s=2)
    # Timed before, one that writes behind its result may have damaged what ends its worker first.
    judge = tester.check if harm == "behind" else partial(tester.test, policy=QUICK)
    tested = judge(tmp_path / "kernel.vmfb")
    assert (tested.status, message in tested.message) == (status, True), tested
    good = compiled(pool, site, panels(8, 2, OUTSIDE), reference.inputs, tmp_path, repeats=1)
    right = CandidateTester(benchmark, replace(reference, inputs=good.inputs))
    assert right.test(tmp_path / "kernel.vmfb", QUICK).ok


def test_inputs_are_packed_once(tmp_path: Path) -> None:
    types = [ArgumentType("bf16", (3, 4)), ArgumentType("f32", (2,)), ArgumentType("f32", (2, 2))]
    inputs = random_inputs(tmp_path, types)
    packing = Packing((0, 2), ((3,), (2, 3)), (1, 0, 2))
    constant = (True, False, True)
    made = packed_inputs(inputs, constant, {0: packing}, tmp_path / "packed")
    (before,) = (tmp_path / "packed").iterdir()
    stamp = before.stat().st_mtime_ns
    assert packed_inputs(inputs, constant, {0: packing}, tmp_path / "packed") == made
    assert [p.stat().st_mtime_ns for p in (tmp_path / "packed").iterdir()] == [stamp]
    plain, other, square = load_arguments(inputs)
    flat, same, row = load_arguments(made)
    assert np.array_equal(flat, packing.of(plain).ravel())
    assert np.array_equal(same, other)
    assert np.array_equal(row, square.ravel())
    assert made.key != inputs.key
    assert packed_inputs(inputs, (False,) * 3, {}, tmp_path) is inputs


def test_what_a_kernel_must_be_for_its_site(site: SiteExpression) -> None:
    other = product(ROWS, COLUMNS, DEPTH + 1)
    schedule: Any = None
    a, b = site.inputs
    with pytest.raises(SketchError, match=r"argument 1 is f32\[41, 32\] instead of f32\[40, 32\]"):
        check_kernel(site, SketchedKernel(schedule, (a, other.inputs[1], site.output)))
    with pytest.raises(SketchError, match=r"the result is f32\[24, 40\] instead of f32\[24, 32\]"):
        check_kernel(site, SketchedKernel(schedule, (a, b, a)))
    with pytest.raises(SketchError, match="2 arguments instead of 3"):
        check_kernel(site, SketchedKernel(schedule, (a, b)))
    packing = Packing((0, 0), ((ROWS,), (DEPTH,)), (0, 1))
    with pytest.raises(SketchError, match="argument 0 is packed and is no constant"):
        check_kernel(site, SketchedKernel(schedule, (a, b, site.output), {0: packing}))


def test_kernels_that_are_called_alike_stay_apart(
    pool: WorkerPool, benchmark: Benchmark, tmp_path: Path
) -> None:
    """Two sums of the rows of one matrix: the host calls both in the same way."""
    x = te.placeholder((6, 16), "f32", name="x")
    k, m = te.reduce_axis(16, "k"), te.reduce_axis(16, "m")
    total = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="total")
    squares = te.compute((6,), lambda i: te.sum(x[i, m] * x[i, m], axis=m), name="squares")
    y = te.compute((6, 16), lambda i, j: x[i, j] * total[i] + squares[i], name="y")
    site = SiteExpression((x,), (False,), y)
    inputs = random_inputs(tmp_path, [ArgumentType("f32", (6, 16))])
    choice = KernelChoice(LoopsSketch.name, LoopsSketch(site, TARGET).space.default)
    made = compiled(pool, site, choice, inputs, tmp_path)
    assert isinstance(made, CompiledKernel), made
    (a,) = load_arguments(inputs)
    expected = a * a.sum(axis=1, keepdims=True) + (a * a).sum(axis=1, keepdims=True)
    found = benchmark.run(str(tmp_path / "kernel.vmfb"), inputs, tmp_path / "outputs.npz")
    assert isinstance(found, list), found
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


@pytest.mark.parametrize(("pad", "said"), [(65536, ""), (65537, "grows by 134219776 bytes")])
def test_packing_that_the_compiler_would_not_do_ahead_is_refused(pad: int, said: str) -> None:
    site = product(4, 520, 512)
    packing = Packing((0, pad), ((512,), (520 + pad,)), (1, 0))
    a, w = site.inputs[0], te.placeholder(packing.shape, "f32", name="w")
    k = te.reduce_axis(512, "k")
    c = te.compute((4, 520), lambda i, j: te.sum(a[i, k] * w[j, k], axis=k), name="c")
    kernel = SketchedKernel(te.create_schedule(c), (a, w, c), {1: packing})
    with pytest.raises(SketchError, match=said) if said else contextlib.nullcontext():
        check_kernel(site, kernel)
