"""Candidates: another configuration is other code for the same results."""

from dataclasses import replace

import dispatch_corpus as corpus
import iree.runtime as rt
import numpy as np
import pytest

from tilewright.ir.candidate import BENCHMARK_FUNCTION, COMPILE_FROM, make_candidate
from tilewright.ir.dispatches import find_dispatches
from tilewright.ir.lowering import UnreadableConfiguration
from tilewright.ir.session import CompilerSession
from tilewright.ir.template import find_function
from tilewright.ir.walk import walk
from tilewright.tiling import PEELING, Tiling

HOST = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-codegen-add-tuner-attributes",
)
OTHER = Tiling.of(
    {
        "distribution": (32, 96, 0),
        "cache_parallel": (16, 48, 0),
        "vector_common_parallel": (4, 16, 0),
        "vector_reduction": (0, 0, 4),
    }
)


@pytest.fixture(scope="module")
def dispatch():
    """A matmul with bias and relu for this machine."""
    session = CompilerSession(HOST)
    text = session.compile(corpus.CASES["matmul_bias_relu"].source, compile_to="flow")
    module = session.parse(text)
    (site,) = find_dispatches(corpus.ir.Module.parse(text, session.context))
    del module
    return corpus.read(corpus.ir.Module.parse(text, session.context), site, session)


def build(dispatch, configuration, repeats=1):
    candidate = make_candidate(
        dispatch.configured,
        dispatch.session.context,
        dispatch.executable,
        dispatch.entry,
        configuration,
        repeats,
    )
    return dispatch.session.compile(candidate.operation, compile_from=COMPILE_FROM)


def run(vmfb, function, *inputs):
    config = rt.Config("local-sync")
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb), config)
    return module[function](*inputs).to_host()


def test_another_configuration_is_other_code_for_the_same_results(dispatch):
    template = dispatch.template
    peeled = replace(template.translation, options=(PEELING,))
    configurations = {
        "default": template.default,
        "tiles": template.configure(OTHER, template.translation),
        "peeled": template.configure(OTHER, peeled),
    }
    built = {name: build(dispatch, c) for name, c in configurations.items()}
    assert built["default"] == build(dispatch, None)
    assert built["tiles"] != built["default"]
    rng = np.random.default_rng(0)
    a, b, bias = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (128, 96), (96,))
    )
    expected = np.maximum(a.astype(np.float64) @ b + bias, 0)
    by_type = {v.shape: v for v in (a, b, bias)}
    order = [by_type[shape] for shape in shapes(dispatch)]
    for name, vmfb in built.items():
        got = run(vmfb, "main", *order)
        assert np.allclose(got, expected, atol=1e-4), name


def shapes(dispatch):
    """Shapes of the isolated function's arguments."""
    module = dispatch.session.parse(dispatch.isolated)
    (main,) = (op for op in walk(module) if op.name == "func.func" and "main" in str(op.name_main))
    return main


def test_the_benchmark_repeats_the_dispatch(dispatch):
    candidate = make_candidate(
        dispatch.configured,
        dispatch.session.context,
        dispatch.executable,
        dispatch.entry,
        dispatch.template.default,
        repeats=5,
    )
    found = {
        corpus.string_attribute(f, "sym_name"): sum(
            op.name == "stream.cmd.dispatch" for op in walk(f)
        )
        for f in walk(candidate.operation)
        if f.name == "util.func"
    }
    assert found == {"main": 1, BENCHMARK_FUNCTION: 5}


def test_the_template_is_left_as_it_was(dispatch):
    before = dispatch.configured
    build(dispatch, dispatch.template.configure(OTHER, dispatch.template.translation), 3)
    assert dispatch.configured == before
    assert build(dispatch, None) == build(dispatch, dispatch.template.default)


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("wrong", ["executable", "entry"])
def test_wrong_names(dispatch, wrong, configured):
    other = replace(dispatch, **{wrong: "nothing"})
    with pytest.raises(UnreadableConfiguration, match="nothing"):
        build(other, dispatch.template.default if configured else None, repeats=2)


def test_a_configuration_of_another_dispatch(dispatch):
    default = dispatch.template.default
    foreign = replace(default, tilings=(*default.tilings, (7, Tiling())))
    with pytest.raises(UnreadableConfiguration, match="op 7"):
        build(dispatch, foreign)


def test_functions_are_found_by_the_names_of_the_program(dispatch):
    module = dispatch.session.parse(dispatch.configured)
    whole = corpus.ir.Module.parse(dispatch.configured, dispatch.session.context)
    # Compiling a dispatch alone lengthens the name.
    found = find_function(whole, dispatch.executable, dispatch.entry)
    assert corpus.string_attribute(found, "sym_name").startswith(dispatch.entry)
    del module
