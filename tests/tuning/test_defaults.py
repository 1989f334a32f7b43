"""Dispatches as the compiler configures them: timed, checked against a reference, ranked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from played_run import (
    RIGHT,
    WRONG,
    PlayedBenchmark,
    PlayedPool,
    played_context,
    played_task,
    played_variant,
)

from tilewright.argument import ArgumentType
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import InputSet, random_inputs, read_outputs
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.site import Site
from tilewright.store import Database
from tilewright.target import parse_target
from tilewright.toolchain import Toolchain
from tilewright.tuning import defaults
from tilewright.tuning.candidate_trial import Reference
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.default_programs import default_vmfb
from tilewright.tuning.defaults import measure_defaults
from tilewright.tuning.events import DispatchesRanked, Note
from tilewright.tuning.extract_tasks import ExtractRequest, extract_dispatches
from tilewright.tuning.independent import independent_reference
from tilewright.tuning.reference_tasks import (
    FLOAT64,
    SiteData,
    SiteDataRequest,
    compile_site_program,
    make_reference,
    make_site_data,
)
from tuned_samples import matmul


def measured(
    tmp_path: Path,
    benchmark: PlayedBenchmark,
    pool: PlayedPool | None = None,
    program_s: float = 1.0,
    compiles: bool = True,
) -> tuple[Any, PlayedPool, list[Any]]:
    pool = pool or PlayedPool()
    with Database.open(tmp_path / "t.db") as store:
        context, events = played_context(tmp_path, store, benchmark, pool)
        prepared = played_variant(*(played_task(tmp_path, name) for name in ("a", "b")))
        prepared.tasks[1].count = 3
        measure_defaults(context, prepared, program_s, compiles=compiles)
    return prepared, pool, events


def of(name: str, value: Any, other: Any) -> Any:
    return lambda path: value if f"/{name}/" in path else other


def test_tasks_are_ranked_by_share_of_the_program(tmp_path: Path) -> None:
    prepared, _, events = measured(tmp_path, PlayedBenchmark(of("a", 0.4, 0.05)))
    assert [(t.name, t.default_s, round(t.share, 3)) for t in prepared.tasks] == [
        ("a", 0.4, 0.4),
        ("b", 0.05, 0.15),
    ]
    assert all(t.compile_s == 0.5 and t.baseline is not None for t in prepared.tasks)
    (ranked,) = [e for e in events if isinstance(e, DispatchesRanked)]
    assert [row.name for row in ranked.rows] == ["a", "b"]


def test_dispatches_that_take_longer_alone_than_the_program_are_the_whole(tmp_path: Path) -> None:
    prepared, _, _ = measured(tmp_path, PlayedBenchmark(lambda path: 0.5), program_s=1.0)
    assert [round(t.share, 3) for t in prepared.tasks] == [0.75, 0.25]


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize(
    ("failure", "where"),
    [
        (WorkerFailure("error", "no vectors"), "compile"),
        (WorkerFailure("crashed", "the worker died"), "time"),
        (WorkerFailure("timeout", "no answer"), "verify"),
    ],
)
def test_a_default_that_fails_is_skipped_and_says_why(
    tmp_path: Path, failure: WorkerFailure, where: str, compiles: bool
) -> None:
    time = of("a", failure if where == "time" else 1e-3, 1e-3)
    verify = of("a", failure if where == "verify" else [RIGHT], [RIGHT])
    pool = PlayedPool({"a": failure} if where == "compile" else {})
    played = PlayedBenchmark(time, verify)
    prepared, _, _ = measured(tmp_path, played, pool, compiles=compiles)
    assert [t.name for t in prepared.tasks] == ["b"]
    (skipped,) = prepared.skipped
    assert (skipped.name, skipped.reason) == ("a", f"does not run alone: {failure.message}")
    # A kernel has to take the place of what does not compile, unless the program does.
    stuck = where == "compile" and not compiles
    assert [t.name for t in prepared.untimed] == (["a"] if stuck else [])
    assert prepared.is_stuck is stuck, "there is no kernel for it"


@pytest.mark.parametrize(
    ("limit_s", "within_s", "kept"), [(100.0, None, "cb"), (1000.0, 20.0, "c")]
)
def test_what_there_is_no_time_for_is_what_matters_least(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float,
    within_s: float | None,
    kept: str,
) -> None:
    """By the middle of the limit everything is to be measured, or earlier where its caller needs
    the time; each job takes 15 seconds."""
    monkeypatch.setattr(defaults, "_AT_ONCE", 1)
    pool = PlayedPool()
    with Database.open(tmp_path / "t.db") as store:
        context, events = played_context(tmp_path, store, PlayedBenchmark(lambda path: 1e-3), pool)
        context.deadlines = Deadlines(limit_s, 0.0, lambda: 15.0 * len(pool.jobs))
        prepared = played_variant(*(played_task(tmp_path, name) for name in "abc"))
        for count, task in enumerate(prepared.tasks):
            task.count = 1 + count
        measure_defaults(context, prepared, 1.0, within_s)
    assert [task.name for task in prepared.tasks] == list(kept)
    assert {one.name for one in prepared.skipped} == set("abc") - set(kept)
    assert all("--time-limit" in one.reason for one in prepared.skipped)
    assert {task.name for task in prepared.untimed} == set("abc") - set(kept)
    left = f"{3 - len(kept)} of 3 dispatches"
    assert any(left in event.text for event in events if isinstance(event, Note))


@pytest.mark.parametrize(("count", "kept"), [(1, "c"), (10, "cba")])
def test_in_a_hurry_what_is_next_to_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, kept: str
) -> None:
    """A quarter of the time has passed with the first, the others are 2 or 17% of the program."""
    monkeypatch.setattr(defaults, "_AT_ONCE", 1)
    pool = PlayedPool()
    with Database.open(tmp_path / "t.db") as store:
        context, _ = played_context(tmp_path, store, PlayedBenchmark(lambda path: 1e-3), pool)
        context.deadlines = Deadlines(1000.0, 0.0, lambda: 15.0 * len(pool.jobs))
        prepared = played_variant(*(played_task(tmp_path, name) for name in "abc"))
        for number, task in zip((count, count, 110), prepared.tasks, strict=True):
            task.count = number
        measure_defaults(context, prepared, 1.0, 100.0)
    assert {task.name for task in prepared.tasks} == set(kept)
    assert {one.name for one in prepared.skipped} == set("abc") - set(kept)


def test_a_default_that_is_wrong_is_not_tuned(tmp_path: Path) -> None:
    prepared, pool, _ = measured(tmp_path, PlayedBenchmark(verify=of("b", [WRONG], [RIGHT])))
    assert [t.name for t in prepared.tasks] == ["a"]
    assert "the compiler's default itself differs from the reference" in prepared.skipped[0].reason
    assert "1 of 8 elements differs" in prepared.skipped[0].reason
    # Before that is said, it is seen how much the data itself makes the results move.
    again = [
        j.request for j in pool.jobs if j.task is make_reference and j.request.with_sensitivity
    ]
    assert len(again) == 1


def test_ill_conditioned_data_is_given_its_allowance(tmp_path: Path) -> None:
    asked: list[str] = []

    def verify(path: str) -> Any:
        asked.append(path)
        return [WRONG] if "/a/" in path and asked.count(path) == 1 else [RIGHT]

    prepared, _, _ = measured(tmp_path, PlayedBenchmark(verify=verify))
    assert not prepared.skipped
    by_name = {t.name: t.verified_against for t in prepared.tasks}
    assert by_name == {"a": "float64 NumPy, sensitive", "b": "float64 NumPy"}


def test_sums_of_an_unknown_dispatch_are_as_long_as_its_reductions(tmp_path: Path) -> None:
    _, pool, _ = measured(tmp_path, PlayedBenchmark())
    requests = [j.request for j in pool.jobs if j.task is make_reference]
    assert [r.terms for r in requests] == [24, 24]


def isolated_for(name: str, folder: Path) -> tuple[Any, Any]:
    """The matmul of a program for a target, and a task of it that has no reference yet."""
    target = parse_target(name)
    program = folder / "program.mlir"
    program.write_text(matmul())
    request = ExtractRequest(program, target.flags, folder)
    (dispatch,) = extract_dispatches(WorkerState(), request).dispatches
    inputs = random_inputs(folder, (ArgumentType("f32", (64, 64)),) * 2, seed=0)
    reference = Reference(inputs, None, ("f32",), 64, unsupported="an op")
    task = SimpleNamespace(
        reference=reference,
        flags=target.flags,
        folder=folder,
        dispatch=dispatch,
        inputs=inputs,
        is_chain=False,
    )
    return target, task


class NoDevice:
    """A device that hands back what it is given, or must not be asked."""

    def __init__(self, allowed: bool = False) -> None:
        self.allowed = allowed

    def run(self, vmfb: str, inputs: Any, expected: Path, **more: Any) -> Any:
        assert self.allowed, "the GPU was asked for its own reference"
        return []


@pytest.mark.parametrize("name", ["cuda:sm_80", "vulkan:ampere"])
def test_the_reference_of_a_gpu_is_not_its_own_default(tmp_path: Path, name: str) -> None:
    target, task = isolated_for(name, tmp_path)
    context: Any = SimpleNamespace(target=target, toolchain=Toolchain(), benchmark=NoDevice())
    assert independent_reference(context, task) == ""
    assert task.reference.method == "an unoptimised compile for the processor (an op)"
    assert task.reference.reduction_length == 64
    a, b = (argument.load() for argument in task.inputs.arguments)
    (result,) = read_outputs(task.reference.expected)
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)


def test_where_the_processor_cannot_the_report_says_what_served(tmp_path: Path) -> None:
    target = parse_target("cuda:sm_80")
    flags: list[tuple[str, ...]] = []

    def compiled(source: Path, vmfb: Path, given: tuple[str, ...], timeout_s: float) -> Any:
        flags.append(given)
        return SimpleNamespace(ok=len(flags) > 1, error="no processor for that")

    context: Any = SimpleNamespace(
        target=target, toolchain=SimpleNamespace(compile=compiled), benchmark=NoDevice(True)
    )
    task: Any = SimpleNamespace(
        reference=Reference("inputs", None, unsupported="an op"),  # type: ignore[arg-type]
        flags=target.flags,
        folder=tmp_path,
        dispatch=SimpleNamespace(file=tmp_path / "d.mlir"),
        is_chain=False,
    )
    assert independent_reference(context, task) == ""
    assert task.reference.method == "the default itself (an op)"
    assert not set(target.flags) & set(flags[0])
    assert set(target.flags) <= set(flags[1])


def test_every_default_has_a_file_of_its_own(tmp_path: Path) -> None:
    tasks = [played_task(tmp_path, name) for name in ("a", "b")]
    assert len({default_vmfb(task) for task in tasks}) == 2


class SitePool(PlayedPool):
    """Also makes the data of sites, whose references are by a method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def _outcome(self, job: Any) -> Any:
        if job.task is make_site_data:
            expected = Path("expected.npz")
            reference = Reference("inputs", expected, ("f32",), method=self.method)  # type: ignore[arg-type]
            return SiteData(reference, Path("program.mlir"), InputSet(Path(), ()), Parameters(()))
        if job.task is compile_site_program:
            return job.request.vmfb
        if job.task is make_reference:
            return replace(super()._outcome(job), method=self.method)
        return super()._outcome(job)


def as_chain(task: Any, pads: bool, **runs: int) -> None:
    """Make a task one of a site that these dispatches compute, as often in two runs of it."""
    site = Site("c", tuple(runs), 2, Path(), (), (), None, runs=tuple(runs.values()))
    padded = pads and len(runs) == 1
    task.template = None
    task.site = SimpleNamespace(digest=task.name, site=site, pads=pads, is_padded_dispatch=padded)


def test_what_pads_is_in_the_time_of_sites_that_pad(tmp_path: Path) -> None:
    times = {"a": 0.1, "b": 0.3, "padded": 0.25}
    device = PlayedBenchmark(lambda path: times[Path(path).parent.name])
    pool = SitePool(FLOAT64)
    with Database.open(tmp_path / "t.db") as store:
        context, _ = played_context(tmp_path, store, device, pool)
        names = ("a", "b", "padded", "both", "plain")
        tasks = [played_task(tmp_path, name) for name in names]
        padded, both, plain = tasks[2:]
        as_chain(padded, pads=True, a=2)
        as_chain(both, pads=True, a=2, b=2)
        as_chain(plain, pads=False, a=2, b=2)
        measure_defaults(context, played_variant(*tasks), 1.0)
    (compiled,) = [job for job in pool.jobs if job.task is compile_site_program]
    assert compiled.tag is padded, "the others' times follow from it and from the dispatches'"
    assert padded.default_s == pytest.approx(0.25)
    assert both.default_s == pytest.approx(0.25 + 0.3)
    assert plain.default_s == pytest.approx(0.1 + 0.3)


def test_what_pads_is_measured_though_others_have_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "_AT_ONCE", 2)
    pool = SitePool(FLOAT64)
    with Database.open(tmp_path / "t.db") as store:
        context, _ = played_context(tmp_path, store, PlayedBenchmark(lambda path: 1e-3), pool)
        # A convolution and the site of it with its padding take four jobs, all of the time.
        context.deadlines = Deadlines(100.0, 0.0, lambda: 13.0 * len(pool.jobs))
        tasks = [played_task(tmp_path, name) for name in ("little", "convolution", "padded")]
        little, convolution, padded = tasks
        as_chain(padded, pads=True, convolution=2)
        convolution.count = padded.count = 2
        prepared = played_variant(*tasks)
        measure_defaults(context, prepared, 1.0)
    assert {one.name for one in prepared.tasks} == {convolution.name, padded.name}
    assert padded.default_s == pytest.approx(1e-3)
    assert [one.name for one in prepared.skipped] == [little.name]


@pytest.mark.parametrize(("dispatch_s", "padded_s"), [(0.1, 0.1), (1e-6, 0.25)])
def test_what_pads_is_left_out_where_it_is_next_to_nothing(
    tmp_path: Path, dispatch_s: float, padded_s: float
) -> None:
    """The compiler's code takes many times what it should: 0.1 s, beside which padding is little;
    of a dispatch that takes a microsecond that is not known."""
    device, pool = PlayedBenchmark(of("a", dispatch_s, 0.25)), SitePool(FLOAT64)
    with Database.open(tmp_path / "t.db") as store:
        context, _ = played_context(tmp_path, store, device, pool)
        context.deadlines.took("running the program by default", 1.0)
        plain, padded = (played_task(tmp_path, name) for name in ("a", "padded"))
        as_chain(padded, pads=True, a=2)
        padded.workload = replace(padded.workload, bytes=1000)
        measure_defaults(context, played_variant(plain, padded), 1.0)
    compiled = [job.tag for job in pool.jobs if job.task is compile_site_program]
    assert compiled == ([] if dispatch_s == padded_s else [padded])
    assert padded.default_s == pytest.approx(padded_s)


@pytest.mark.parametrize("pads", [True, False])
def test_sites_that_there_is_no_time_to_compile_take_what_is_known_of_their_dispatches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pads: bool
) -> None:
    """A convolution beside which its padding may not be little, and one behind a copy that was left
    out for want of time: the convolution's time is theirs, and neither is without kernels."""
    monkeypatch.setattr(defaults, "_AT_ONCE", 1)
    pool = SitePool(FLOAT64)
    with Database.open(tmp_path / "t.db") as store:
        context, events = played_context(tmp_path, store, PlayedBenchmark(lambda _: 1e-6), pool)
        # The convolution takes two jobs, the site's data one: all of the time.
        context.deadlines = Deadlines(100.0, 0.0, lambda: 50.0 / 3 * len(pool.jobs))
        context.deadlines.took("running the program by default", 1.0)
        copy, convolution, site = (played_task(tmp_path, name) for name in ("copy", "conv", "site"))
        convolution.count, site.count = 3, 2
        as_chain(site, pads, **({"conv": 2} if pads else {"copy": 2, "conv": 2}))
        prepared = played_variant(copy, convolution, site)
        measure_defaults(context, prepared, 1.0)
    assert len(pool.jobs) == 3, "no program was compiled for the site"
    assert {one.name for one in prepared.tasks} == {"conv", "site"}
    assert site.default_s == pytest.approx(1e-6)
    assert [one.name for one in prepared.skipped] == ["copy"]
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert note.startswith("1 of 3 dispatches and sites")


@pytest.mark.parametrize("sets", [1, 6])
@pytest.mark.parametrize("method", [FLOAT64, "an unoptimised compile"])
def test_a_site_of_several_dispatches_takes_what_they_take(
    tmp_path: Path, method: str, sets: int
) -> None:
    device, pool = PlayedBenchmark(of("b", 0.3, 0.1)), SitePool(method)
    with Database.open(tmp_path / "t.db") as store:
        context, _ = played_context(tmp_path, store, device, pool)
        first, second, chain = (played_task(tmp_path, name) for name in "abc")
        as_chain(chain, pads=False, a=2, b=6)
        second.repeats, second.rotations, chain.repeats = 6, sets, 2
        measure_defaults(context, played_variant(first, second, chain), 1.0)
    compiled = [job for job in pool.jobs if job.task is compile_site_program]
    if method != FLOAT64:
        assert len(compiled) == 1, "what else is needed, the program of the default says"
        assert chain.default_s == pytest.approx(0.1)
        return
    assert compiled == []
    assert chain.default_s == pytest.approx(0.1 + 3 * 0.3)
    assert chain.compile_s == pytest.approx(1.0)
    assert chain.baseline is not None
    assert chain.baseline.vmfb == str(default_vmfb(second))
    # Executions that its program does, by those that it is taken to do: its sets at least, whether
    # or not it has them.
    assert chain.repeats == max(2, sets)
    assert chain.baseline.reference_s == pytest.approx(0.3 * 6 / max(2, sets))


ROUNDED = """
#id = affine_map<(i) -> (i)>
util.func public @dispatch(%x: tensor<65536xf32>) -> tensor<65536xi8> {{
  %s = arith.constant 0.3 : f32
  %t = arith.constant {finer} : f32
  %e = tensor.empty() : tensor<65536xi8>
  %r = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel"]}}
      ins(%x : tensor<65536xf32>) outs(%e : tensor<65536xi8>) {{
  ^bb0(%v: f32, %o: i8):
    %a = arith.divf %v, %s : f32
    %q = math.roundeven %a : f32
    %b = arith.mulf %q, %s : f32
    %c = arith.divf %b, %t : f32
    %d = {again} %c : f32
    %i = arith.fptosi %d : f32 to i8
    linalg.yield %i : i8
  }} -> tensor<65536xi8>
  util.return %r : tensor<65536xi8>
}}
"""


@pytest.mark.parametrize(
    ("again", "finer", "slack"),
    [("math.roundeven", 0.11, 3), ("math.roundeven", 0.6, 1), ("math.absf", 0.11, 1)],
)
def test_what_is_rounded_twice_may_be_several_steps_off(
    tmp_path: Path, again: str, finer: float, slack: int
) -> None:
    """A step of 0.3 is three of 0.11, one of 0.6; rounded once it is one, whatever the scale."""
    from tilewright.ir.dispatches import ISOLATED_FUNCTION

    text = ROUNDED.format(again=again, finer=finer).replace("@dispatch", f"@{ISOLATED_FUNCTION}")
    module = tmp_path / "site.mlir"
    module.write_text(text)
    inputs, output = (ArgumentType("f32", (65536,)),), ArgumentType("i8", (65536,))
    site = Site("rounded", ("rounded",), 1, module, inputs, (False,), output)
    request = SiteDataRequest(site, parse_target("cpu", 1).flags, 0, tmp_path, 1)
    data = make_site_data(WorkerState(), request)
    assert data.reference.integer_slack == slack
