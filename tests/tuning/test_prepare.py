"""From a program to tasks: equal workloads are one, and what is no task is said with its reason."""

from pathlib import Path

import pytest

import dispatch_corpus as corpus
from tilewright.errors import TilewrightError
from tilewright.ir.program import load_program
from tilewright.measure.jobs import Result, WorkerFailure, WorkerState
from tilewright.tuning.config_file import read_config
from tilewright.tuning.extract_tasks import ConfigureRequest
from tilewright.tuning.extraction import extract
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import read_tasks, take_apart
from tilewright.tuning.prepared_variant import nothing_to_tune
from tilewright.tuning.variants import BUILT_IN

MATRIX = "tensor<64x64xf32>"
PROGRAM = f"""
func.func @main(%a: {MATRIX}, %b: {MATRIX}, %d: tensor<?xf32>) -> ({MATRIX}, tensor<?xf32>) {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {MATRIX}
  %fill = linalg.fill ins(%zero : f32) outs(%empty : {MATRIX}) -> {MATRIX}
  %c = linalg.matmul ins(%a, %b : {MATRIX}, {MATRIX}) outs(%fill : {MATRIX}) -> {MATRIX}
  %x = math.exp %c : {MATRIX}
  %e = linalg.matmul ins(%x, %b : {MATRIX}, {MATRIX}) outs(%fill : {MATRIX}) -> {MATRIX}
  %y = math.exp %e : {MATRIX}
  %r = math.tanh %d : tensor<?xf32>
  return %y, %r : {MATRIX}, tensor<?xf32>
}}
"""


class Workers:
    """A pool whose tasks run here. `answer` may answer a request in their place."""

    def __init__(self, answer=lambda request: None):
        self.state, self.answer, self.asked = WorkerState(), answer, []

    def run(self, jobs):
        return [Result(job, self._done(job)) for job in jobs]

    def ask(self, task, request, timeout_s):
        return task(self.state, request)

    def _done(self, job):
        self.asked.append(job.request)
        try:
            return self.answer(job.request) or job.task(self.state, job.request)
        except TilewrightError as error:
            return WorkerFailure("error", str(error))


def opened(folder: Path, source: str = PROGRAM, *, workers=None, **options) -> OpenProgram:
    path = folder / "program.mlir"
    path.write_text(source)
    given = TuneOptions(output=folder / "out", **options)
    return OpenProgram(
        load_program(path, folder), corpus.TARGET, given, None, workers or Workers(), folder
    )


def test_equal_workloads_are_one_task(tmp_path):
    prepared = take_apart(opened(tmp_path))
    (task,) = prepared.tasks
    assert task.count == 2
    assert [str(a) for a in task.dispatch.arguments] == ["64x64xf32", "64x64xf32"]
    assert task.dispatch.output_types == ("f32",)
    assert task.space_points > 1
    assert prepared.kinds == {"contraction"}


def test_sites_that_one_dispatch_computes_are_tasks_of_different_names(tmp_path):
    # One with a constant added, two multiplied by one: the dispatch is the same.
    weights = [[float((i * j) % 7) for j in range(64)] for i in range(64)]
    two = f"{MATRIX}, {MATRIX}"
    layers = "".join(
        f"""
          %m{n} = linalg.matmul ins({x}, {w} : {two}) outs(%fill : {MATRIX}) -> {MATRIX}
          %s{n} = arith.addf %m{n}, {added} : {MATRIX}"""
        for n, (x, w, added) in enumerate(
            (("%a", "%b", "%w"), ("%s0", "%w", "%a"), ("%s1", "%w", "%b"))
        )
    )
    source = f"""
        func.func @main(%a: {MATRIX}, %b: {MATRIX}) -> {MATRIX} {{
          %w = arith.constant dense<{weights}> : {MATRIX}
          %zero = arith.constant 0.0 : f32
          %empty = tensor.empty() : {MATRIX}
          %fill = linalg.fill ins(%zero : f32) outs(%empty : {MATRIX}) -> {MATRIX}{layers}
          return %s2 : {MATRIX}
        }}"""
    prepared = take_apart(opened(tmp_path, source))
    tasks = prepared.tasks
    assert [(task.count, task.is_chain) for task in tasks] == [(3, False), (1, True)]
    assert tasks[1].name == f"{tasks[0].name}_2"
    # Of sites that are one dispatch, those that read most.
    assert prepared.constant_bytes == 2 * 64 * 64 * 4
    assert {task.beside for task in tasks} == {prepared.constant_bytes}


def test_what_a_loop_reads_again_is_beside_itself_alone(tmp_path):
    weights = [[[float((i * j + n) % 7) for j in range(64)] for i in range(64)] for n in range(2)]
    source = f"""
        func.func @main(%a: {MATRIX}) -> {MATRIX} {{
          %w = arith.constant dense<{weights[0]}> : {MATRIX}
          %v = arith.constant dense<{weights[1]}> : {MATRIX}
          %zero = arith.constant 0.0 : f32
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c9 = arith.constant 9 : index
          %empty = tensor.empty() : {MATRIX}
          %fill = linalg.fill ins(%zero : f32) outs(%empty : {MATRIX}) -> {MATRIX}
          %r = scf.for %i = %c0 to %c9 step %c1 iter_args(%s = %a) -> ({MATRIX}) {{
            %p = linalg.matmul ins(%s, %w : {MATRIX}, {MATRIX}) outs(%fill : {MATRIX}) -> {MATRIX}
            scf.yield %p : {MATRIX}
          }}
          %q = linalg.matmul ins(%r, %v : {MATRIX}, {MATRIX}) outs(%fill : {MATRIX}) -> {MATRIX}
          %y = math.exp %q : {MATRIX}
          return %y : {MATRIX}
        }}"""
    prepared = take_apart(opened(tmp_path, source))
    size = 64 * 64 * 4
    # Once each, however often the loop reads its own.
    assert prepared.constant_bytes == 2 * size
    beside = {task.count: task.beside for task in prepared.tasks if not task.is_chain}
    assert beside[9] == size
    assert beside[1] == 2 * size


MATVECS = """
func.func @main(%x: tensor<1x512xf32>) -> tensor<1x512xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x512xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x512xf32>) -> tensor<1x512xf32>
  {layers}
  return %y3 : tensor<1x512xf32>
}}
"""


@pytest.mark.parametrize(("variant", "sets", "beside"), [("default", 4, 4), ("data-tiling", 1, 0)])
def test_what_reads_little_but_constants_is_timed_on_those_of_a_whole_call(
    tmp_path, variant, sets, beside
):
    """A product of one row waits for its weights: on one set of them, that a cache keeps, the
    compiler's code would look faster than any kernel on several. Where the program packs them
    itself, both are timed on one."""
    kind, type_ = "#flow.parameter.named", "tensor<512x512xf32>"
    held = "\n".join(
        f'util.global private @w{i} = {kind}<"model"::"w{i}"> : {type_}' for i in range(4)
    )
    layers = "\n".join(
        f"%w{i} = util.global.load @w{i} : {type_}\n%y{i} = linalg.matmul ins(%{x}, %w{i} : "
        f"tensor<1x512xf32>, {type_}) outs(%fill : tensor<1x512xf32>) -> tensor<1x512xf32>"
        for i, x in enumerate(("x", "y0", "y1", "y2"))
    )
    source = held + MATVECS.format(layers=layers)
    prepared = take_apart(opened(tmp_path, source), BUILT_IN[variant])
    task = max(prepared.tasks, key=lambda one: one.workload.flops)
    assert (task.rotations, task.beside) == (sets, beside * 512 * 512 * 4)
    assert task.repeats >= task.rotations


def test_what_cannot_be_isolated_is_said(tmp_path):
    prepared = take_apart(opened(tmp_path))
    (skipped,) = prepared.skipped
    assert "known at run time only: tensor<?xf32>" in skipped.reason
    assert skipped.count == 1


def test_sizes_of_the_run_make_it_a_task(tmp_path):
    program = opened(tmp_path)
    program.arguments = ((64, 64), (64, 64), (4096,))
    prepared = take_apart(program)
    assert not prepared.skipped
    dynamic = next(t for t in prepared.tasks if t.workload.kind == "elementwise")
    assert (4096,) in [a.shape for a in dynamic.dispatch.arguments]
    assert 4096 in dict(dynamic.dispatch.values).values()


def test_what_only_leaves_out(tmp_path):
    program = opened(tmp_path, only="tanh")
    prepared = take_apart(program)
    assert not prepared.tasks
    assert "left out by --only" in [one.reason for one in prepared.skipped]


class TestDifferences:
    """A dispatch that is not what its program has is noted, and is no task."""

    def tampered(self, folder, before, after, kernels="off"):
        program = opened(folder, kernels=kernels)
        extraction = extract(program)
        changed = 0
        for dispatch in extraction.dispatches:
            if dispatch.program is not None:
                text = dispatch.program.read_text()
                changed += before in text
                dispatch.program.write_text(text.replace(before, after))
        assert changed
        return program, read_tasks(program, extraction)

    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            ("math.exp", "math.sin", "math.exp where the program has math.sin"),
            ("DoubleTilingExpert", "Default", "translation_info"),
        ],
    )
    def test_said_and_not_tuned(self, tmp_path, before, after, said):
        program, prepared = self.tampered(tmp_path, before, after)
        assert not prepared.tasks
        differing = [s for s in prepared.skipped if s.reason.startswith("alone it is other code")]
        assert sum(s.count for s in differing) == 2
        assert all(said in s.reason for s in differing)
        assert any("is not tuned" in note and said in note for note in program.notes)

    def test_its_site_is_still_one_for_kernels(self, tmp_path):
        _, prepared = self.tampered(tmp_path, "math.exp", "math.sin", kernels="on")
        (task,) = prepared.tasks
        assert task.is_chain
        assert all(
            name.startswith("kernel-") for name in (m.name for m in task.space.space.members)
        )

    def test_names_are_none(self, tmp_path):
        program, prepared = self.tampered(tmp_path, "_matmul_64x64x64_f32", "_other")
        assert len(prepared.tasks) == 1
        assert not program.notes


def test_a_dispatch_that_does_not_compile_alone(tmp_path):
    def answer(request):
        if isinstance(request, ConfigureRequest):
            return WorkerFailure("error", "no such thing")
        return None

    prepared = take_apart(opened(tmp_path, workers=Workers(answer), kernels="off"))
    assert not prepared.tasks
    assert "does not compile alone: no such thing" in [s.reason for s in prepared.skipped]


@pytest.mark.parametrize("kind", ["crashed", "timeout"])
def test_constraints_that_crash_the_compiler_are_done_without(tmp_path, kind):
    """Only after a crash: what takes too long with them does so without."""

    def answer(request):
        stated = isinstance(request, ConfigureRequest) and request.constraints
        return WorkerFailure(kind, "gone") if stated else None

    workers = Workers(answer)
    program = opened(tmp_path, workers=workers)
    extraction = extract(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(program.target), "is_gpu", True)
        patch.setattr("tilewright.tuning.prepare.dispatch_space", lambda *_: None)
        prepared = read_tasks(program, extraction)
    asked = [r.constraints for r in workers.asked if isinstance(r, ConfigureRequest)]
    failed = [s for s in prepared.skipped if "gone" in s.reason]
    if kind == "crashed":
        assert asked == [True, False]
        assert not failed
    else:
        assert asked == [True]
        assert len(failed) == 1


def test_a_configuration_file_narrows_the_space(tmp_path):
    config = tmp_path / "old.cfg"
    config.write_text("[SearchSpace]\ntile_m = [16, 32, 4096]\n")
    program = opened(tmp_path, config=read_config(config, known_tuners=(), need_input=False))
    (task,) = take_apart(program).tasks
    (knob,) = [k for k in task.restricted.knobs if k.name == "distribution_m"]
    assert set(knob.values) <= {16, 32}
    (note,) = [note for note in program.notes if "tile_m" in note]
    assert note.startswith(
        f"{config}: [SearchSpace] tile_m = 4096 has no effect on main_dispatch_0"
    )
    assert "it does not fit its loop" in note


class TestNothingToTune:
    def test_a_program_without_kernels(self, tmp_path):
        source = f"func.func @main(%a: {MATRIX}) -> {MATRIX} {{ return %a : {MATRIX} }}"
        prepared = take_apart(opened(tmp_path, source))
        assert "runs no kernels" in str(nothing_to_tune(Path("p"), [prepared], None))

    def test_a_name_that_is_in_none(self, tmp_path):
        source = f"""func.func @main(%a: {MATRIX}) -> {MATRIX} {{
          %x = math.exp %a : {MATRIX}
          return %x : {MATRIX}
        }}"""
        prepared = take_apart(opened(tmp_path, source, only="nothing"))
        said = str(nothing_to_tune(Path("p"), [prepared], "nothing"))
        assert "'nothing' is in no dispatch's name" in said
        assert prepared.skipped[0].name in said
