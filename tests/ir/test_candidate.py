"""Candidates: another configuration is other code for the same results."""

from dataclasses import replace

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.candidate import BENCHMARK_FUNCTION, make_candidate
from tilewright.ir.dispatches import find_dispatches
from tilewright.ir.lowering import UnreadableConfiguration
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.template import find_function
from tilewright.ir.walk import string_attribute, walk
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
    module = ir.Module.parse(text, session.context)
    (site,) = find_dispatches(module)
    return corpus.read(module, site, session)


def build(dispatch, configuration, repeats=1):
    candidate = make_candidate(
        dispatch.configured,
        dispatch.session.context,
        dispatch.executable,
        dispatch.entry,
        configuration,
        repeats,
    )
    return dispatch.session.compile(candidate.operation, compile_from=CONFIGURED_PHASE)


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
    for name, vmfb in built.items():
        assert np.allclose(run(vmfb, "main", a, b, bias), expected, atol=1e-4), name


def test_the_benchmark_function_gives_the_same_results(dispatch):
    vmfb = build(dispatch, dispatch.template.default, repeats=3)
    rng = np.random.default_rng(1)
    a, b, bias = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (128, 96), (96,))
    )
    assert np.array_equal(run(vmfb, "main", a, b, bias), run(vmfb, "bench", a, b, bias))


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
        string_attribute(f, "sym_name"): sum(op.name == "stream.cmd.dispatch" for op in walk(f))
        for f in walk(candidate.operation)
        if f.name == "util.func"
    }
    assert found == {"main": 1, BENCHMARK_FUNCTION: 5}


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
    module = ir.Module.parse(dispatch.configured, dispatch.session.context)
    found = find_function(module, dispatch.executable, dispatch.entry)
    # Compiling a dispatch alone lengthens the name.
    assert string_attribute(found, "sym_name").startswith(dispatch.entry)
