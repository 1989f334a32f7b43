"""A candidate made by exchanging a dispatch's code is the program that compiling it whole gives."""

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.candidate import isolated_function, make_candidate
from tilewright.ir.dispatches import entry_function, find_dispatches, isolate
from tilewright.ir.generated_code import GeneratedCode, NotSpliceable
from tilewright.ir.kernel_calls import calls_of
from tilewright.ir.session import CONFIGURED_PHASE, ISOLATED_PHASE, CompileError, CompilerSession
from tilewright.ir.sizes import SizeEvaluator
from tilewright.ir.splice import SplicedTemplate
from tilewright.ir.walk import string_attribute, walk
from tilewright.measure.compile_worker import host_of
from tilewright.measure.inputs import random_array
from tilewright.measure.jobs import WorkerState
from tilewright.space.generators import dispatch_space

HOST = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-codegen-add-tuner-attributes",
)
ENCODED = (*HOST, "--iree-opt-data-tiling")
CASES = [
    ("matmul_bias_relu", HOST),
    pytest.param("matmul_odd", HOST, marks=pytest.mark.slow),
    ("matmul_bias_relu", ENCODED),
    ("softmax", HOST),
    ("conv_nhwc", HOST),
    pytest.param("sum", HOST, marks=pytest.mark.slow),
]


def dispatch_of(name, flags):
    session = CompilerSession(flags)
    text = session.compile(corpus.CASES[name].source, compile_to="flow")
    module = ir.Module.parse(text, session.context)
    return corpus.read(module, find_dispatches(module)[-1], session)


def places(module):
    """The code of every executable, and the workgroups of every dispatch."""
    code, counts = [], []
    for op in walk(module.operation):
        if op.name == "vm.rodata" and string_attribute(op, "mime_type") == "application/x-elf":
            code.append(bytes(np.array(op.attributes["value"]).astype(np.uint8)))
        elif op.name == "vm.call.variadic" and "dispatch" in str(op.attributes["callee"]):
            counts.append(
                [str(v.owner.operation.attributes.get("value", 0)) for v in op.operands][3:6]
            )
    return code, counts


def workgroups(value):
    op = value.owner.operation
    return 0 if op.name == "vm.const.i32.zero" else ir.IntegerAttr(op.attributes["value"]).value


def run(vmfb, inputs):
    config = rt.Config("local-sync")
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb), config)
    return module["main"](*inputs).to_host()


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_equal_to_a_whole_compile(name, flags):
    d = dispatch_of(name, flags)
    spliced = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 3)
    space = dispatch_space(d.template, d.workload, corpus.TARGET)
    inputs = [random_array(t, 1, i) for i, t in enumerate(d.arguments)]
    drawn = space.space.sample(np.random.default_rng(5), 6)
    tried = 0
    for configuration in [space.default, *drawn]:
        lowered = space.lower(configuration)
        whole = make_candidate(d.configured, d.session.context, d.executable, d.entry, lowered, 3)
        try:
            expected = d.session.compile(whole.operation, compile_from=CONFIGURED_PHASE)
        except CompileError:
            with pytest.raises(CompileError):
                spliced.compile(lowered)
            continue
        made = spliced.compile(lowered)
        assert len(made) == pytest.approx(len(expected), abs=1024)
        np.testing.assert_array_equal(run(made, inputs), run(expected, inputs))
        tried += 1
        if tried == 2:
            break
    assert tried == 2


def calling(session):
    """What makes host code that is written, and the calls that it was asked for."""
    state, asked = WorkerState(), []

    def make(calls):
        asked.append(calls)
        return host_of(state, session, calls, guarded=False)

    return make, asked


@pytest.mark.parametrize("name", ["matmul_bias_relu", "softmax", "conv_nhwc"])
def test_a_host_that_is_written_calls_it_alike(name):
    d = dispatch_of(name, HOST)
    host, written = calling(d.session)
    spliced = SplicedTemplate(
        d.session, d.configured, d.executable, d.entry, 3, rotations=2, host_of=host
    )
    plain = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 3)
    inputs = [random_array(t, 1, i) for i, t in enumerate(d.arguments)]
    (calls,) = written
    assert list(calls.inputs) == [value.nbytes for value in inputs]
    assert (calls.repeats, calls.rotations) == (3, 2)
    made, expected = spliced.compile(None), plain.compile(None)
    assert exported(made) == ["bench", "main"]
    np.testing.assert_array_equal(run(made, inputs), run(expected, inputs))


def test_a_dispatch_that_writes_into_an_input():
    """What another dispatch has padded, say."""
    session = CompilerSession(HOST)
    source = """
    func.func @main(%a: tensor<16x32xf32>, %b: tensor<32x24xf32>) -> tensor<18x26xf32> {
      %z = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<16x24xf32>
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<16x24xf32>) -> tensor<16x24xf32>
      %r = linalg.matmul ins(%a, %b : tensor<16x32xf32>, tensor<32x24xf32>)
        outs(%f : tensor<16x24xf32>) -> tensor<16x24xf32>
      %p = tensor.pad %r low[1, 1] high[1, 1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %z : f32
      } : tensor<16x24xf32> to tensor<18x26xf32>
      return %p : tensor<18x26xf32>
    }"""
    module = ir.Module.parse(session.compile(source, compile_to="flow"), session.context)
    d = corpus.read(module, find_dispatches(module)[-1], session)
    host, written = calling(session)
    spliced = SplicedTemplate(session, d.configured, d.executable, d.entry, 2, host_of=host)
    (calls,) = written
    assert [result.input is not None for result in calls.results] == [True]
    inputs = [random_array(t, 1, i) for i, t in enumerate(d.arguments)]
    expected = run(
        SplicedTemplate(session, d.configured, d.executable, d.entry, 2).compile(None), inputs
    )
    np.testing.assert_array_equal(run(spliced.compile(None), inputs), expected)


def exported(vmfb):
    """Names of the functions that can be called, but for what the runtime calls."""
    module = rt.VmModule.copy_buffer(rt.VmInstance(), vmfb)
    return sorted(name for name in module.function_names if not name.startswith("__"))


MORE_THAN_A_CALL = {
    "sizes at run time": """
    func.func @main(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
      %0 = math.exp %a : tensor<?x64xf32>
      return %0 : tensor<?x64xf32>
    }""",
    "two dispatches": """
    func.func @main(%a: tensor<8x64xf32>) -> tensor<8xf32> {
      %c = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<8xf32>
      %f = linalg.fill ins(%c : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
      %s = linalg.reduce ins(%a : tensor<8x64xf32>) outs(%f : tensor<8xf32>) dimensions = [1]
        (%x: f32, %y: f32) { %z = arith.addf %x, %y : f32 linalg.yield %z : f32 }
      %t = linalg.softmax dimension(0) ins(%s : tensor<8xf32>) outs(%e : tensor<8xf32>)
        -> tensor<8xf32>
      return %t : tensor<8xf32>
    }""",
    "a result that is returned twice": """
    func.func @main(%a: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
      %0 = math.exp %a : tensor<8x64xf32>
      return %0, %0 : tensor<8x64xf32>, tensor<8x64xf32>
    }""",
    "an argument that is returned": """
    func.func @main(%a: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
      %0 = math.exp %a : tensor<8x64xf32>
      return %0, %a : tensor<8x64xf32>, tensor<8x64xf32>
    }""",
}


@pytest.mark.parametrize("source", MORE_THAN_A_CALL.values(), ids=MORE_THAN_A_CALL)
def test_what_is_more_than_a_call_is_left_to_the_compiler(source):
    session = CompilerSession(HOST)
    module = ir.Module.parse(source, session.context)
    session.run(module.operation, None, CONFIGURED_PHASE)
    assert calls_of(isolated_function(module)) is None


def test_its_code_and_its_workgroups_are_those_of_the_whole():
    d = dispatch_of("matmul_bias_relu", HOST)
    spliced = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 2)
    space = dispatch_space(d.template, d.workload, corpus.TARGET)
    seen = set()
    for configuration in space.space.sample(np.random.default_rng(1), 5):
        lowered = space.lower(configuration)
        whole = make_candidate(d.configured, d.session.context, d.executable, d.entry, lowered, 2)
        try:
            d.session.run(whole.operation, CONFIGURED_PHASE, "vm")
        except CompileError:
            continue
        (code,), counts = places(whole)
        (made,), made_counts = places(
            spliced.host.with_code(*spliced.generate(lowered).compiled(d.session))
        )
        assert made == code
        assert made_counts == counts
        seen.add(str(counts))
        if len(seen) == 2:
            break
    assert len(seen) == 2


def test_its_code_is_that_of_the_linker_if_it_needs_none(tmp_path):
    d = dispatch_of("softmax", HOST)
    spliced = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 2)
    inputs = [random_array(t, 1, i) for i, t in enumerate(d.arguments)]
    whole = spliced.finish(spliced.generate(None))
    quick = spliced.finish(spliced.generate(None), tmp_path)
    assert quick != whole
    np.testing.assert_array_equal(run(quick, inputs), run(whole, inputs))
    assert list(tmp_path.iterdir()) == []


def test_code_that_calls_a_library_is_linked(tmp_path, monkeypatch):
    """And the shorter way is not tried again for its dispatch."""
    session = CompilerSession(HOST)
    source = """
    func.func @main(%a: tensor<8x64xf32>) -> tensor<8x64xf32> {
      %0 = arith.remf %a, %a : tensor<8x64xf32>
      return %0 : tensor<8x64xf32>
    }"""
    module = ir.Module.parse(session.compile(source, compile_to="flow"), session.context)
    d = corpus.read(module, find_dispatches(module)[-1], session)
    spliced = SplicedTemplate(session, d.configured, d.executable, d.entry, 2)
    whole = spliced.finish(spliced.generate(None))
    assert spliced.finish(spliced.generate(None), tmp_path) == whole
    monkeypatch.setattr(GeneratedCode, "objects", None)
    assert spliced.finish(spliced.generate(None), tmp_path) == whole


def test_equal_code_is_known_before_it_is_compiled():
    d = dispatch_of("matmul_bias_relu", HOST)
    spliced = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 2)
    space = dispatch_space(d.template, d.workload, corpus.TARGET)
    programs = {}
    for configuration in [space.default, *space.space.sample(np.random.default_rng(3), 4)]:
        lowered = space.lower(configuration)
        try:
            code, again = spliced.generate(lowered), spliced.generate(lowered)
        except CompileError:
            continue
        assert code.digest() == again.digest()
        programs[code.digest()] = spliced.finish(again)
        if len(programs) == 3:
            break
    assert len(programs) == 3
    assert len(set(programs.values())) == len(programs)


def test_the_template_stays_as_it_is():
    d = dispatch_of("matmul_bias_relu", HOST)
    spliced = SplicedTemplate(d.session, d.configured, d.executable, d.entry, 2)
    first = spliced.compile(None)
    space = dispatch_space(d.template, d.workload, corpus.TARGET)
    spliced.compile(space.lower(space.default))
    assert spliced.compile(None) == first


def test_a_name_that_is_no_identifier():
    session = CompilerSession(HOST)
    source = corpus.CASES["sum"].source.replace("@main", "@main$async")
    text = session.compile(source, compile_to="flow")
    module = ir.Module.parse(text, session.context)
    d = corpus.read(module, find_dispatches(module)[-1], session)
    assert "$" in d.executable
    spliced = SplicedTemplate(session, d.configured, d.executable, d.entry, 2)
    (made,), counts = places(spliced.host.with_code(*spliced.generate(None).compiled(session)))
    whole = make_candidate(d.configured, session.context, d.executable, d.entry, None, 2)
    session.run(whole.operation, CONFIGURED_PHASE, "vm")
    (code,), expected = places(whole)
    assert made == code
    assert counts == expected


def test_run_time_sizes_are_compiled_whole():
    session = CompilerSession(HOST)
    source = """
    func.func @main(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
      %0 = math.exp %a : tensor<?x64xf32>
      return %0 : tensor<?x64xf32>
    }"""
    text = session.compile(source, compile_to="flow")
    module = ir.Module.parse(text, session.context)
    (site,) = find_dispatches(module)
    sizes = SizeEvaluator.of_entry(entry_function(module, "main"), [(32, 64)])
    alone = isolate(session, module, site, sizes).module.operation
    configured = session.compile(alone, ISOLATED_PHASE, corpus.CONFIGURED)
    with pytest.raises(NotSpliceable, match="run time"):
        SplicedTemplate(session, configured, site.executable, site.entry, 2)
