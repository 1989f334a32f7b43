"""Sites of programs: which ops, which inputs, how often; alone they compute what they do there."""

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from iree import runtime
from iree.compiler import ir

import convolution_networks as networks
import dispatch_corpus as corpus
from tilewright.ir.dispatches import find_dispatches
from tilewright.ir.reference.interpreter import evaluate
from tilewright.ir.session import CompilerSession
from tilewright.ir.site_dispatches import SITE_PHASE
from tilewright.ir.site_module import isolate_value
from tilewright.ir.sites import find_program_sites
from tilewright.ir.walk import walk

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    **{path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.mlir"))},
    **{f"network {layout}": networks.network(layout) for layout in networks.LAYOUTS},
    **{name: case.source for name, case in corpus.CASES.items() if not case.flags},
}
# What a site need not have: the compiler's own code for these has no op of the program's.
SETTING = ("arith.constant", "linalg.fill", "tensor.empty")


@pytest.fixture(scope="module")
def compiler():
    return CompilerSession(corpus.FLAGS)


def sites_of(compiler, source, function=None):
    module = compiler.parse(source)
    compiler.run(module, None, SITE_PHASE)
    return module, find_program_sites(compiler, module, function)


def computed(site):
    """The names of a site's ops."""
    (function,) = walk(site.alone.module.operation, lambda _: False)
    names = [op.name for op in walk(function, lambda _: False)]
    return [name for name in names if name not in (*SETTING, "util.return")]


def dispatches_of(compiler, source, function=None):
    text = compiler.compile(source, compile_to="flow")
    with compiler.context:
        module = ir.Module.parse(text)
        return {site.entry: site.count for site in find_dispatches(module, function) if site.count}


def is_single(site):
    """Of one dispatch each time."""
    return sum(site.dispatches.values()) == site.count


def runs_of(sites):
    found = Counter()
    for site in sites:
        found.update(site.dispatches)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_dispatches_are_those_of_the_program_as_often_as_it_runs_them(compiler, name):
    """Locations change no name; every dispatch is a site, or there is a reason."""
    wanted = dispatches_of(compiler, PROGRAMS[name])
    _, found = sites_of(compiler, PROGRAMS[name])
    assert runs_of(filter(is_single, found)) == wanted
    assert all(bool(site.reason) or site.alone is not None for site in found)


@pytest.mark.parametrize("name", [name for name, case in corpus.CASES.items() if case.flags])
def test_of_several_dispatches_for_one_op_there_is_one_site(name):
    """Data tiling packs in dispatches of their own, im2col copies."""
    case = corpus.CASES[name]
    compiler = CompilerSession((*corpus.FLAGS, *case.flags))
    wanted = dispatches_of(compiler, case.source)
    _, found = sites_of(compiler, case.source)
    assert set(runs_of(found)) == set(wanted)


HERE = [
    *(flag for flag in corpus.FLAGS if "target-cpu" not in flag),
    "--iree-llvmcpu-target-cpu=host",
]


@cache
def here():
    return CompilerSession(HERE)


def compiled(module, arrays):
    """By plain IREE, with a compiler of its own."""
    vmfb = here().compile(str(module))
    config = runtime.Config("local-sync")
    loaded = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, vmfb), config)
    (name,) = (one for one in loaded.vm_module.function_names if not one.startswith("__"))
    return np.asarray(loaded[name](*arrays).to_host())


def interpreted(module, arrays):
    with here().context:
        return evaluate(ir.Module.parse(str(module)), "main", arrays)[0]


CHAINED = [
    ("bottleneck", False, compiled),
    ("layernorm", False, compiled),
    ("layernorm", True, compiled),
    *(
        (f"network {layout}", on, interpreted)
        for layout in networks.LAYOUTS
        for on in (False, True)
    ),
]


@pytest.mark.parametrize(("name", "merged", "run"), CHAINED)
def test_sites_one_after_the_other_compute_what_the_program_does(compiler, name, merged, run):
    """Each alone, by plain IREE; views and what is computed ahead are in no site."""
    rng = np.random.default_rng(0)
    module, found = sites_of(compiler, PROGRAMS[name])
    used = [site for site in found if site.alone is not None and (merged or is_single(site))]
    makers = {site.alone.result: site for site in used}
    values, arguments = {}, {}

    def value_of(value):
        if value in values:
            return values[value]
        if value in makers:
            alone = makers[value].alone
        elif value.owner.operation.name == "hal.tensor.import":
            values[value] = rng.standard_normal(value.type.shape, np.float32)
            arguments[value.owner.operands[0].arg_number] = values[value]
            return values[value]
        else:
            alone = isolate_value(value, lambda op: op == value.owner or op.name in SETTING)
        values[value] = run(alone.module, [value_of(one) for one in alone.inputs])
        return values[value]

    (exported,) = (op for op in walk(module) if op.name == "hal.tensor.export")
    result = value_of(exported.operands[0])
    assert all(site.alone.result in values for site in used if is_single(site) != merged)
    inputs = [array for _, array in sorted(arguments.items())]
    assert len(inputs) == len(exported.block.arguments)
    wanted = run(PROGRAMS[name], inputs)
    np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
