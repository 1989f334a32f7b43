"""Dispatches of every kind: what they are read as, and that reading loses nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.candidate import make_candidate
from tilewright.ir.classify import digest
from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.session import CONFIGURED_PHASE, ISOLATED_PHASE, CompilerSession
from tilewright.ir.template import compute_ops, find_function, read_dispatch
from tilewright.measure.jobs import WorkerState
from tilewright.space.generators import dispatch_space
from tilewright.target import SPEC_FLAG
from tilewright.tuning.entries import ConfigurationEntry
from tilewright.workload import KINDS, ROLES, Workload

PRODUCTS = (
    "contraction",
    "convolution",
    "depthwise_convolution",
    "grouped_convolution",
    "mmt4d",
)


@pytest.mark.parametrize("name", corpus.CASES)
def test_kinds_and_roles(name):
    case, found = corpus.CASES[name], corpus.dispatches(name)
    assert tuple(d.workload.kind for d in found) == case.kinds
    assert " ".join(d.role for d in found[-1].workload.dims) == case.roles


@pytest.mark.parametrize("name", corpus.CASES)
def test_workloads_are_complete(name):
    for dispatch in corpus.dispatches(name):
        workload = dispatch.workload
        assert workload.kind in KINDS
        assert workload.is_static
        assert all(d.role in ROLES and d.size >= 1 for d in workload.dims)
        assert len(set(workload.loop_names)) == len(workload.dims)
        assert workload.bytes > 0
        assert Workload.from_json(workload.to_json()) == workload
        if workload.kind in PRODUCTS:
            assert workload.flops == 2 * math.prod(workload.sizes)


@pytest.mark.parametrize("name", corpus.CASES)
def test_the_compilers_tiling_carries_over_as_the_compiler_does_it(name):
    templates = [dispatch.template for dispatch in corpus.dispatches(name)]
    assert templates
    for template in templates:
        own = template.root_op.tiling
        assert own is not None
        assert template.configure(own, template.translation) == template.default


@pytest.mark.parametrize("name", corpus.CASES)
def test_the_compilers_choice_is_written_back_as_it_was(name):
    for dispatch in corpus.dispatches(name):
        own = dispatch.with_configuration(None)
        written = dispatch.with_configuration(dispatch.template.default)
        assert written.get_asm() == own.get_asm()


def test_programs_with_encodings_are_told_apart():
    assert corpus.last("matmul_data_tiled").encoded
    assert not corpus.last("mmt4d").encoded


def test_flops_and_bytes_of_a_matmul():
    workload = corpus.last("matmul_nn_f16_f32").workload
    assert workload.flops == 2 * 64 * 96 * 128
    assert workload.bytes == 2 * (64 * 128 + 128 * 96) + 4 * 64 * 96
    assert workload.element_types == ("f16", "f16", "f32")


def test_flops_of_attention_count_both_products():
    assert corpus.last("attention").workload.flops == 2 * 4 * 128 * 96 * (64 + 32)


def test_bytes_of_a_copy_between_buffers():
    assert corpus.last("pad").workload.bytes == 2 * 4 * 62 * 126


def test_layouts_are_different_workloads_and_names_are_not():
    keys = {corpus.last(f"matmul_{layout}_f32_f32").workload.key for layout in ("nn", "nt", "tn")}
    assert len(keys) == 3
    source = corpus.CASES["matmul_nn_f32_f32"].source
    module = corpus.flow_module(source.replace("@main", "@another"))
    (site,) = corpus.find_dispatches(module)
    other = corpus.read(module, site, corpus.session())
    assert other.entry != corpus.last("matmul_nn_f32_f32").entry
    assert other.workload == corpus.last("matmul_nn_f32_f32").workload


def test_the_body_is_part_of_the_workload():
    relu = corpus.CASES["add_relu"].source
    module = corpus.flow_module(relu.replace("arith.maximumf", "arith.minimumf"))
    (site,) = corpus.find_dispatches(module)
    other = corpus.read(module, site, corpus.session()).workload
    own = corpus.last("add_relu").workload
    assert other.key != own.key
    assert replace(other, body="") == replace(own, body="")


def test_the_digest_ignores_configurations():
    dispatch = corpus.last("matmul_bias_relu")
    default = dispatch.template.default
    other = replace(default, tilings=tuple((i, t) for i, t in default.tilings if i == 1))
    digests = set()
    for configuration in (default, other):
        module = dispatch.with_configuration(configuration)
        with dispatch.session.context:
            parsed = ir.Module.parse(module.get_asm())
            read = read_dispatch(parsed, dispatch.executable, dispatch.entry)
            digests.add(digest(read.function))
    assert digests == {dispatch.workload.body}


# A case for each kind of workload, and each pipeline that dispatches of the kind go through.
EACH = (
    *("matmul_bias_relu", "strided_maps", "batch_matmul", "matvec"),
    *("conv_nhwc", "conv_nhwc_n2", "conv_1d", "depthwise_nchw", "depthwise_strided_n2"),
    *("grouped_ngchw", "pool_max", "softmax", "layernorm", "attention", "add_relu", "pad"),
    *("transpose", "topk", "pack", "unpack", "mmt4d"),
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A compiler with a spec that configures each case otherwise than it does, and the entries."""
    folder = tmp_path_factory.mktemp("configuring")
    entries = []
    for name in EACH:
        one = corpus.last(name)
        space = dispatch_space(one.template, one.workload, corpus.TARGET)
        drawn = map(space.lower, space.space.sample(np.random.default_rng(0), 8))
        other = next(found for found in drawn if found != one.template.default)
        (folder / name).write_bytes(one.configured)
        entries.append(ConfigurationEntry(name, folder / name, one.executable, one.entry, other))
    text = ConfigurationEntry.write(entries, WorkerState(), corpus.FLAGS, {})
    (folder / "spec.mlir").write_text(text)
    yield CompilerSession((*corpus.FLAGS, f"{SPEC_FLAG}{folder / 'spec.mlir'}")), entries
    # Flags of the compiler outlive their session.
    CompilerSession((SPEC_FLAG,))


def attributes(module, one):
    """What the dispatch is configured by, as text."""
    function = find_function(module, one.executable, one.entry)
    found = DispatchAttributes.read(function, compute_ops(function))
    return [str(found.translation_info), *((i, n, str(a)) for i, n, a in found.ops)]


@pytest.mark.parametrize("name", EACH)
def test_a_candidate_has_what_a_spec_puts_on_its_dispatch(spec, name):
    compiler, entries = spec
    one, entry = corpus.last(name), next(e for e in entries if e.name == name)
    candidate, default = (
        make_candidate(one.configured, compiler.context, one.executable, one.entry, configuration)
        for configuration in (entry.configuration, None)
    )
    configured = compiler.compile(one.isolated, ISOLATED_PHASE, CONFIGURED_PHASE)
    with compiler.context:
        shipped = ir.Module.parse(configured)
    assert ConfigurationEntry.reached(shipped) == {name: (one.entry,)}
    assert attributes(candidate, one) == attributes(shipped, one)
    assert attributes(candidate, one) != attributes(default, one)
