"""Dispatches of a program: counts, and one alone as a program of its own."""

from pathlib import Path

import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.dispatches import NotIsolatable, find_dispatches, isolate
from tilewright.ir.session import ISOLATED_PHASE
from tilewright.ir.signature import entry_points
from tilewright.ir.walk import string_attribute
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.extract_tasks import ExtractRequest, extract_dispatches

MATRIX = "tensor<64x64xf32>"


def matmul(result, a, b):
    return f"""
  %z{result} = arith.constant 0.0 : f32
  %e{result} = tensor.empty() : {MATRIX}
  %f{result} = linalg.fill ins(%z{result} : f32) outs(%e{result} : {MATRIX}) -> {MATRIX}
  %{result} = linalg.matmul ins(%{a}, %{b} : {MATRIX}, {MATRIX})
      outs(%f{result} : {MATRIX}) -> {MATRIX}
"""


# `square` is called by both entry points, five times by one; `other` loops as often as it is told.
FUNCTIONS = f"""
func.func private @square(%a: {MATRIX}) -> {MATRIX} attributes {{noinline}} {{
  {matmul("p", "a", "a")}
  return %p : {MATRIX}
}}
func.func @main(%a: {MATRIX}) -> {MATRIX} {{
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c9 = arith.constant 9 : index
  %r = scf.for %i = %c0 to %c9 step %c2 iter_args(%x = %a) -> {MATRIX} {{
    %y = func.call @square(%x) : ({MATRIX}) -> {MATRIX}
    scf.yield %y : {MATRIX}
  }}
  return %r : {MATRIX}
}}
func.func @other(%a: {MATRIX}, %n: index) -> {MATRIX} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%x = %a) -> {MATRIX} {{
    %y = math.exp %x : {MATRIX}
    scf.yield %y : {MATRIX}
  }}
  %s = func.call @square(%r) : ({MATRIX}) -> {MATRIX}
  return %s : {MATRIX}
}}
"""
TWICE = f"""
func.func @main(%a: {MATRIX}, %b: {MATRIX}) -> {MATRIX} {{
  {matmul("p", "a", "b")} {matmul("q", "p", "b")}
  return %q : {MATRIX}
}}
"""
# A result computed at load time, from data that the compiler does not know.
INITIALIZER = f"""
util.global private @w = #flow.parameter.named<"model"::"w"> : {MATRIX}
util.global private @v = #flow.parameter.named<"model"::"v"> : {MATRIX}
util.global private @ready : {MATRIX}
util.initializer {{
  %w = util.global.load @w : {MATRIX}
  %v = util.global.load @v : {MATRIX}
  {matmul("p", "w", "v")}
  util.global.store %p, @ready : {MATRIX}
  util.return
}}
func.func @main(%a: {MATRIX}) -> {MATRIX} {{
  %w = util.global.load @ready : {MATRIX}
  {matmul("p", "w", "a")} {matmul("q", "p", "w")}
  return %q : {MATRIX}
}}
"""
# Branches between blocks that go round until the first element is large.
BRANCHES = f"""
func.func @main(%a: {MATRIX}) -> {MATRIX} {{
  %c0 = arith.constant 0 : index
  %big = arith.constant 100.0 : f32
  cf.br ^again(%a : {MATRIX})
^again(%x: {MATRIX}):
  {matmul("p", "x", "x")}
  %v = tensor.extract %p[%c0, %c0] : {MATRIX}
  %c = arith.cmpf olt, %v, %big : f32
  cf.cond_br %c, ^again(%p : {MATRIX}), ^done
^done:
  %r = math.exp %p : {MATRIX}
  return %r : {MATRIX}
}}
"""
DYNAMIC = """
func.func @main(%a: tensor<?x256xf32>, %w: tensor<256x128xf32>) -> tensor<?x128xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %a, %c0 : tensor<?x256xf32>
  %e = tensor.empty(%n) : tensor<?x128xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x128xf32>) -> tensor<?x128xf32>
  %p = linalg.matmul ins(%a, %w : tensor<?x256xf32>, tensor<256x128xf32>)
      outs(%f : tensor<?x128xf32>) -> tensor<?x128xf32>
  return %p : tensor<?x128xf32>
}
"""
OWN_CODE = """
#layout = #hal.pipeline.layout<bindings = [
  #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>
hal.executable.source private @mine {
  hal.executable.export public @copy ordinal(0) layout(#layout)
      count(%device: !hal.device) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    hal.return %c1, %c1, %c1 : index, index, index
  }
  builtin.module { func.func @copy() { return } }
}
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = flow.dispatch @mine::@copy(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def counts(source, function=None, flags=()):
    """How often every kind of work is dispatched."""
    found = find_dispatches(corpus.flow_module(source, flags), function)
    return {"matmul" if "matmul" in d.entry else "other": d.count for d in found}


class TestCounts:
    @pytest.mark.parametrize("flags", [(), ("--iree-execution-model=async-external",)])
    def test_of_one_function_and_what_it_calls(self, flags):
        assert counts(FUNCTIONS, "main", flags) == {"matmul": 5, "other": 0}
        assert counts(FUNCTIONS, "other", flags) == {"matmul": 1, "other": 1}

    @pytest.mark.parametrize("flags", [(), ("--iree-execution-model=async-external",)])
    def test_of_every_public_function(self, flags):
        assert counts(FUNCTIONS, None, flags) == {"matmul": 6, "other": 1}

    def test_of_a_function_that_is_not_there(self):
        assert set(counts(FUNCTIONS, "nothing").values()) == {0}

    def test_of_several_calls(self):
        assert counts(TWICE) == {"matmul": 2}
        (site,) = find_dispatches(corpus.flow_module(TWICE))
        assert len(site.calls) == 2

    def test_at_load_time_they_do_not_count(self):
        assert counts(INITIALIZER, "main") == {"matmul": 2}

    def test_loops_of_branches_count_once(self):
        assert counts(BRANCHES) == {"matmul": 1, "other": 1}

    def test_loops_that_never_run_or_step_nowhere(self):
        source = FUNCTIONS.replace("%c9 = arith.constant 9", "%c9 = arith.constant 0")
        # The compiler may drop the loop altogether.
        assert counts(source, "main").get("matmul", 0) == 0

    def test_recursion_is_counted_once(self):
        module = corpus.flow_module(FUNCTIONS)
        (square,) = (
            op
            for op in module.body.operations
            if op.operation.name == "util.func" and string_attribute(op, "sym_name") == "square"
        )
        with module.context, ir.Location.unknown():
            block = square.regions[0].blocks[0]
            name = ir.FlatSymbolRefAttr.get("square")
            ir.Operation.create(
                "util.call",
                [square.operation.regions[0].blocks[0].arguments[0].type],
                [block.arguments[0]],
                {"callee": name},
                ip=ir.InsertionPoint.at_block_begin(block),
            )
        assert sorted(d.count for d in find_dispatches(module, "main")) == [0, 5]

    def test_a_program_without_dispatches(self):
        source = f"func.func @main(%a: {MATRIX}) -> {MATRIX} {{ return %a : {MATRIX} }}"
        assert find_dispatches(corpus.flow_module(source)) == []


class TestIsolation:
    def test_takes_the_operands_and_gives_the_results(self):
        module = corpus.flow_module(TWICE)
        (site,) = find_dispatches(module)
        alone = isolate(corpus.session(), module, site)
        signature = entry_points(alone.module)["main"]
        assert str(signature) == "(64x64xf32, 64x64xf32) -> (64x64xf32)"
        assert (signature.inputs, signature.outputs) == (alone.arguments, alone.outputs)
        assert not alone.encoded
        assert corpus.session().compile(alone.module.operation.get_asm(), ISOLATED_PHASE)

    @pytest.mark.parametrize(
        "flag", ["--iree-input-type=onnx", "--iree-execution-model=async-external"]
    )
    def test_flags_for_what_the_program_is_read_from_or_how_it_is_called(self, flag):
        compiler = corpus.session((flag,))
        with compiler.context:
            module = ir.Module.parse(corpus.flow_module(TWICE).operation.get_asm())
        site, *_ = find_dispatches(module)
        alone = isolate(compiler, module, site)
        assert len(entry_points(alone.module)["main"].inputs) == 2
        assert compiler.compile(alone.module.operation, ISOLATED_PHASE)

    def test_leaves_the_program_as_it_was(self):
        module = corpus.flow_module(TWICE)
        before = module.operation.get_asm()
        isolate(corpus.session(), module, find_dispatches(module)[0])
        assert module.operation.get_asm() == before

    def test_prefers_the_call_of_the_run_to_the_one_at_load_time(self):
        module = corpus.flow_module(INITIALIZER)
        (site,) = find_dispatches(module, "main")
        parents = [call.parent.name for call in site.calls]
        assert parents == ["util.func", "util.func", "util.initializer"]

    def test_code_of_the_programs_own(self):
        module = corpus.flow_module(OWN_CODE)
        (site,) = find_dispatches(module)
        with pytest.raises(NotIsolatable, match="brings the code"):
            isolate(corpus.session(), module, site)

    def test_sizes_known_at_run_time_only(self):
        module = corpus.flow_module(DYNAMIC)
        (site,) = find_dispatches(module)
        with pytest.raises(NotIsolatable, match=r"run time only: tensor<\?x256xf32>"):
            isolate(corpus.session(), module, site)


@pytest.mark.parametrize(
    ("source", "reason"),
    [(DYNAMIC, "tensor<?x256xf32>"), (OWN_CODE, "brings the code of this dispatch itself")],
)
def test_extraction_names_what_it_skips(tmp_path: Path, source, reason):
    program = tmp_path / "program.mlir"
    program.write_text(source)
    request = ExtractRequest(program, corpus.FLAGS, tmp_path / "out", function="main")
    found = extract_dispatches(WorkerState(), request)
    (dispatch,) = found.dispatches
    assert dispatch.isolated is None
    assert dispatch.count == 1
    assert reason in dispatch.reason
    assert "\n" not in dispatch.reason


def test_extraction_counts_what_the_function_runs(tmp_path: Path):
    program = tmp_path / "program.mlir"
    program.write_text(FUNCTIONS)
    state = WorkerState()
    found = {}
    for function in ("main", "other", None):
        request = ExtractRequest(program, corpus.FLAGS, tmp_path / "out", function=function)
        extraction = extract_dispatches(state, request)
        assert extraction.processor[::2] == ("znver4", 64)
        found[function] = {"matmul" in d.entry: d.count for d in extraction.dispatches}
    assert found == {
        "main": {True: 5, False: 0},
        "other": {True: 1, False: 1},
        None: {True: 6, False: 1},
    }
