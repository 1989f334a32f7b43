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
import site_programs
from tilewright.ir.dispatches import find_dispatches
from tilewright.ir.reference.interpreter import evaluate
from tilewright.ir.session import SITE_PHASE, CompilerSession
from tilewright.ir.site_module import isolate_value
from tilewright.ir.sites import find_program_sites
from tilewright.ir.walk import walk
from tilewright.tuning.variants import BUILT_IN

ROOT = Path(__file__).parents[2]
# Real models, where there are some beside the checkout.
MODELS = sorted((ROOT.parent / "shared" / "models").glob("*.mlir"))
PROGRAMS = {
    **{path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.mlir"))},
    **{f"network {layout}": networks.network(layout) for layout in networks.LAYOUTS},
    **{name: source for name, (source, _) in site_programs.PROGRAMS.items()},
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


@pytest.mark.slow
@pytest.mark.skipif(not MODELS, reason="the models are not beside the checkout")
@pytest.mark.parametrize("variant", BUILT_IN)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_under_every_variant(path, variant):
    compiler = CompilerSession((*corpus.FLAGS, *corpus.STABLEHLO, *BUILT_IN[variant].flags))
    wanted = dispatches_of(compiler, path.read_text())
    _, found = sites_of(compiler, path.read_text())
    assert set(runs_of(found)) == set(wanted)
    if variant == "default":
        assert runs_of(filter(is_single, found)) == wanted


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


@pytest.mark.parametrize("name", site_programs.PROGRAMS)
def test_dispatches_that_belong_together(compiler, name):
    """One more site, beside those of the parts."""
    source, wanted = site_programs.PROGRAMS[name]
    _, found = sites_of(compiler, source)
    merged = [len(site.dispatches) for site in found if not is_single(site)]
    assert sorted(merged) == wanted
    assert all(not site.reason for site in found if not is_single(site))


WEIGHTS = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<48x96xf32>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<48xf32>
util.global private mutable @state = dense<1.0> : tensor<32x48xf32>
func.func @main(%x: tensor<32x96xf32>) -> tensor<32x48xf32> {
  %w = util.global.load @w : tensor<48x96xf32>
  %b = util.global.load @b : tensor<48xf32>
  %s = util.global.load @state : tensor<32x48xf32>
  %z = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : tensor<32x48xf32>
  %et = tensor.empty() : tensor<96x48xf32>
  %t = linalg.transpose ins(%w : tensor<48x96xf32>) outs(%et : tensor<96x48xf32>)
      permutation = [1, 0]
  %e = tensor.empty() : tensor<32x48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<32x48xf32>) -> tensor<32x48xf32>
  %p = linalg.matmul ins(%x, %t : tensor<32x96xf32>, tensor<96x48xf32>)
      outs(%f : tensor<32x48xf32>) -> tensor<32x48xf32>
  %c = linalg.broadcast ins(%b : tensor<48xf32>) outs(%e : tensor<32x48xf32>) dimensions = [0]
  %0 = arith.addf %p, %c : tensor<32x48xf32>
  %1 = arith.addf %0, %s : tensor<32x48xf32>
  %2 = arith.mulf %1, %half : tensor<32x48xf32>
  return %2 : tensor<32x48xf32>
}
"""


def test_what_is_known_before_a_run(compiler):
    """Transposed ahead; what would be larger than it is is made inside; a state is not known."""
    _, (site,) = sites_of(compiler, WEIGHTS)
    known = dict(zip(map(str, site.alone.arguments), site.constant, strict=True))
    assert known == {"32x96xf32": False, "96x48xf32": True, "48xf32": True, "32x48xf32": False}
    assert computed(site)[0] == "linalg.matmul"
    assert "linalg.transpose" not in computed(site)


PLACES = """
util.global private @places = #flow.parameter.named<"model"::"places"> : tensor<32x3xf32>
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<3x48xf32>
func.func @main(%x: tensor<32x48xf32>) -> tensor<32x48xf32> {
  %p = util.global.load @places : tensor<32x3xf32>
  %w = util.global.load @w : tensor<3x48xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<32x48xf32>) -> tensor<32x48xf32>
  %q = linalg.matmul ins(%p, %w : tensor<32x3xf32>, tensor<3x48xf32>)
      outs(%f : tensor<32x48xf32>) -> tensor<32x48xf32>
  %0 = arith.addf %x, %q : tensor<32x48xf32>
  return %0 : tensor<32x48xf32>
}
"""


def test_products_of_constants_are_computed_ahead(compiler):
    """What a network computes of its places is larger than they are; a site takes the result."""
    _, (site,) = sites_of(compiler, PLACES)
    assert list(map(str, site.alone.arguments)) == ["32x48xf32", "32x48xf32"]
    assert sorted(site.constant) == [False, True]
    assert computed(site) == ["arith.addf"]


BIASES = """
util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<4x31xf32>
util.global private @places = #flow.parameter.named<"model"::"places"> : tensor<32x48xi32>
func.func @main(%x: tensor<4x32x48xf32>) -> tensor<4x32x48xf32> {
  %t = util.global.load @table : tensor<4x31xf32>
  %p = util.global.load @places : tensor<32x48xi32>
  %e = tensor.empty() : tensor<4x32x48xf32>
  %b = linalg.generic {
      indexing_maps = [affine_map<(h, i, j) -> (i, j)>, affine_map<(h, i, j) -> (h, i, j)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p : tensor<32x48xi32>) outs(%e : tensor<4x32x48xf32>) {
  ^bb0(%k: i32, %y: f32):
    %n = arith.index_cast %k : i32 to index
    %h = linalg.index 0 : index
    %v = tensor.extract %t[%h, %n] : tensor<4x31xf32>
    linalg.yield %v : f32
  } -> tensor<4x32x48xf32>
  %c = arith.addf %b, %b : tensor<4x32x48xf32>
  %0 = arith.addf %x, %c : tensor<4x32x48xf32>
  return %0 : tensor<4x32x48xf32>
}
"""


def test_biases_that_a_table_has_are_looked_up_ahead(compiler):
    """Of an attention by how far apart two places are: an index for each pair, a table of few."""
    _, (site,) = sites_of(compiler, BIASES)
    assert not site.reason
    assert sorted(site.constant) == [False, True]
    assert set(computed(site)) == {"arith.addf"}


SHARED = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>, %c: tensor<64x64xf32>)
    -> tensor<64xf32> {
  %z = arith.constant 0.0 : f32
  %six = arith.constant dense<6.0> : tensor<64x64xf32>
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %p = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x64xf32>)
      outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  %q = arith.addf %p, %c : tensor<64x64xf32>
  %g = arith.minimumf %q, %six : tensor<64x64xf32>
  %h = arith.mulf %g, %q : tensor<64x64xf32>
  %r = tensor.empty() : tensor<64xf32>
  %s = linalg.fill ins(%z : f32) outs(%r : tensor<64xf32>) -> tensor<64xf32>
  %t = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%h : tensor<64x64xf32>) outs(%s : tensor<64xf32>) {
  ^bb0(%x: f32, %y: f32):
    %m = arith.addf %y, %x : f32
    linalg.yield %m : f32
  } -> tensor<64xf32>
  return %t : tensor<64xf32>
}
"""


def test_elementwise_ops_of_a_result_are_computed_where_they_are_used(compiler):
    """IREE stores a product twice where its clamped value is fused with it; a kernel has one."""
    _, found = sites_of(compiler, SHARED)
    assert all(not site.reason for site in found)
    first, last = found[:2]
    assert [str(one) for one in last.alone.arguments] == ["64x64xf32"]
    assert computed(first) == ["linalg.matmul", "arith.addf"]
    text = compiler.compile(SHARED, compile_to="flow").decode()
    assert ":2 = flow.dispatch" in text


def test_bytes_are_handed_on_between_the_layers_of_a_quantised_network(compiler):
    """A layer's site takes bytes, makes them numbers, adds its padding and makes bytes again."""
    _, found = sites_of(compiler, networks.quantised_network())
    assert all(not site.reason for site in found)
    layers = [one for one in found if any("conv" in name for name in computed(one))]
    whole = [one for one in layers if "tensor.pad" in computed(one)]
    assert len(whole) == 3, "two of 3x3, one depthwise; the strided 1x1 is not padded"
    for site in layers:
        assert {str(type_)[-2:] for type_ in site.alone.arguments[:2]} <= {"i8", "32"}
        assert computed(site).count("iree_linalg_ext.dequantize_affine") >= 1
    for site in whole:
        assert str(site.alone.arguments[0]).endswith("xi8")


QUANTISED_ONCE = """
#id = affine_map<(i, j) -> (i, j)>
func.func @main(%x: tensor<64x32xf32>, %a: tensor<32x48xi8>, %b: tensor<32x40xi8>)
    -> (tensor<64x48xi64>, tensor<64x40xi64>) {
  %zero = arith.constant 0 : i64
  %s = arith.constant 9.0 : f32
  %q0 = tensor.empty() : tensor<64x32xi8>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<64x32xf32>) outs(%q0 : tensor<64x32xi8>) {
  ^bb0(%v: f32, %o: i8):
    %m = arith.mulf %v, %s : f32
    %r = arith.fptosi %m : f32 to i8
    linalg.yield %r : i8
  } -> tensor<64x32xi8>
  %w0 = tensor.empty() : tensor<64x32xi32>
  %w = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%q : tensor<64x32xi8>) outs(%w0 : tensor<64x32xi32>) {
  ^bb0(%v: i8, %o: i32):
    %r = arith.extui %v : i8 to i32
    linalg.yield %r : i32
  } -> tensor<64x32xi32>
  %c = arith.extsi %a : tensor<32x48xi8> to tensor<32x48xi32>
  %d = arith.extsi %b : tensor<32x40xi8> to tensor<32x40xi32>
  %e0 = tensor.empty() : tensor<64x48xi64>
  %e1 = linalg.fill ins(%zero : i64) outs(%e0 : tensor<64x48xi64>) -> tensor<64x48xi64>
  %e = linalg.matmul ins(%w, %c : tensor<64x32xi32>, tensor<32x48xi32>)
      outs(%e1 : tensor<64x48xi64>) -> tensor<64x48xi64>
  %f0 = tensor.empty() : tensor<64x40xi64>
  %f1 = linalg.fill ins(%zero : i64) outs(%f0 : tensor<64x40xi64>) -> tensor<64x40xi64>
  %f = linalg.matmul ins(%w, %d : tensor<64x32xi32>, tensor<32x40xi32>)
      outs(%f1 : tensor<64x40xi64>) -> tensor<64x40xi64>
  return %e, %f : tensor<64x48xi64>, tensor<64x40xi64>
}
"""


def test_bytes_that_several_products_read_are_made_wider_by_each(compiler):
    """IREE makes words of them where it makes the bytes; products of bytes are to read bytes."""
    _, found = sites_of(compiler, QUANTISED_ONCE)
    single = [site for site in found if is_single(site) and not site.reason]
    results = {str(site.alone.result.type): site for site in single}
    assert "tensor<64x32xi8>" in results
    assert "tensor<64x32xi32>" not in results
    for result in ("tensor<64x48xi64>", "tensor<64x40xi64>"):
        sites = [one for one in found if one.alone and str(one.alone.result.type) == result]
        assert sites
        assert {str(one.alone.arguments[0]) for one in sites} == {"64x32xi8"}
    text = compiler.compile(QUANTISED_ONCE, compile_to="flow").decode()
    assert "tensor<64x32xi32>" in text, "the compiler's own dispatches hand on words"


QUANTISED_POOL = """
#in = affine_map<(n, h, w, c) -> (n, h, w, c)>
#s = affine_map<(n, h, w, c) -> ()>
func.func @main(%x: tensor<1x18x18x8xf32>, %w: tensor<3x3x8x16xf32>) -> tensor<1x8x8x16xf32> {
  %z = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %s = arith.constant 0.1 : f32
  %zp = arith.constant 3 : i8
  %e = tensor.empty() : tensor<1x16x16x16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  %c = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x18x18x8xf32>, tensor<3x3x8x16xf32>)
      outs(%f : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  %q0 = tensor.empty() : tensor<1x16x16x16xi8>
  %q = iree_linalg_ext.quantize_affine <indexing_maps = [#in, #s, #s, #in], quant_min = -128,
      quant_max = 127> ins(%c, %s, %zp : tensor<1x16x16x16xf32>, f32, i8)
      outs(%q0 : tensor<1x16x16x16xi8>) -> tensor<1x16x16x16xi8>
  %d = iree_linalg_ext.dequantize_affine <indexing_maps = [#in, #s, #s, #in], quant_min = -128,
      quant_max = 127> ins(%q, %s, %zp : tensor<1x16x16x16xi8>, f32, i8)
      outs(%e : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  %k = tensor.empty() : tensor<2x2xf32>
  %p0 = tensor.empty() : tensor<1x8x8x16xf32>
  %p1 = linalg.fill ins(%low : f32) outs(%p0 : tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
  %p = linalg.pooling_nhwc_max {strides = dense<2> : vector<2xi64>}
      ins(%d, %k : tensor<1x16x16x16xf32>, tensor<2x2xf32>)
      outs(%p1 : tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
  return %p : tensor<1x8x8x16xf32>
}
"""


def test_bytes_between_layers_are_read_by_who_takes_them_for_numbers(compiler):
    """The compiler stores the numbers that a pooling reads, which are four times as much."""
    _, found = sites_of(compiler, QUANTISED_POOL)
    results = [str(site.alone.result.type) for site in found if not site.reason]
    assert results[:2] == ["tensor<1x16x16x16xi8>", "tensor<1x8x8x16xf32>"]
    assert "iree_linalg_ext.dequantize_affine" in computed(found[1])


UPSAMPLED = """
#id = affine_map<(n, c, h, w) -> (n, c, h, w)>
func.func @main(%x: tensor<1x16x14x14xf32>, %w: tensor<24x16x3x3xf32>, %v: tensor<8x24x2x2xf32>)
    -> tensor<1x8x24x24xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x24x12x12xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x24x12x12xf32>) -> tensor<1x24x12x12xf32>
  %p = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x16x14x14xf32>, tensor<24x16x3x3xf32>)
      outs(%f : tensor<1x24x12x12xf32>) -> tensor<1x24x12x12xf32>
  %r = linalg.generic {indexing_maps = [#id, #id],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%p : tensor<1x24x12x12xf32>) outs(%e : tensor<1x24x12x12xf32>) {
  ^bb0(%a: f32, %b: f32):
    %m = arith.maximumf %a, %z : f32
    linalg.yield %m : f32
  } -> tensor<1x24x12x12xf32>
  %ei = tensor.empty() : tensor<1x24x25x25xf32>
  %fi = linalg.fill ins(%z : f32) outs(%ei : tensor<1x24x25x25xf32>) -> tensor<1x24x25x25xf32>
  %i = tensor.insert_slice %r into %fi[0, 0, 1, 1] [1, 24, 12, 12] [1, 1, 2, 2]
      : tensor<1x24x12x12xf32> into tensor<1x24x25x25xf32>
  %eo = tensor.empty() : tensor<1x8x24x24xf32>
  %fo = linalg.fill ins(%z : f32) outs(%eo : tensor<1x8x24x24xf32>) -> tensor<1x8x24x24xf32>
  %q = linalg.conv_2d_nchw_fchw ins(%i, %v : tensor<1x24x25x25xf32>, tensor<8x24x2x2xf32>)
      outs(%fo : tensor<1x8x24x24xf32>) -> tensor<1x8x24x24xf32>
  return %q : tensor<1x8x24x24xf32>
}
"""


# What is inserted was computed in another shape.
RESHAPED = (
    UPSAMPLED.replace("(n, c, h, w)", "(c, h, w)")
    .replace('"parallel", "parallel", "parallel", "parallel"', '"parallel", "parallel", "parallel"')
    .replace(
        "  %r = ",
        "  %s = tensor.collapse_shape %p [[0, 1], [2], [3]]"
        " : tensor<1x24x12x12xf32> into tensor<24x12x12xf32>\n"
        "  %t = tensor.empty() : tensor<24x12x12xf32>\n  %u = ",
    )
    .replace(
        "ins(%p : tensor<1x24x12x12xf32>) outs(%e :", "ins(%s : tensor<24x12x12xf32>) outs(%t :"
    )
    .replace(
        "  %ei = ",
        "  %r = tensor.expand_shape %u [[0, 1], [2], [3]] output_shape [1, 24, 12, 12]"
        " : tensor<24x12x12xf32> into tensor<1x24x12x12xf32>\n  %ei = ",
    )
    .replace("outs(%t : tensor<1x24x12x12xf32>)", "outs(%t : tensor<24x12x12xf32>)")
    .replace("  } -> tensor<1x24x12x12xf32>", "  } -> tensor<24x12x12xf32>")
)


@pytest.mark.parametrize("program", [UPSAMPLED, RESHAPED])
def test_zeros_between_elements_belong_to_the_transposed_convolution(compiler, program):
    _, found = sites_of(compiler, program)
    first, second = (site for site in found if is_single(site))
    assert [n for n in computed(first) if "shape" not in n] == [
        "linalg.conv_2d_nchw_fchw",
        "linalg.generic",
    ]
    assert computed(second) == ["tensor.insert_slice", "linalg.conv_2d_nchw_fchw"]


# Nothing computes what is put apart.
GIVEN = """
func.func @main(%x: tensor<1x24x12x12xf32>, %v: tensor<8x24x2x2xf32>) -> tensor<1x8x24x24xf32> {
  %z = arith.constant 0.0 : f32
""" + UPSAMPLED[UPSAMPLED.index("  %ei = ") :].replace("insert_slice %r", "insert_slice %x")


def test_zeros_between_elements_that_are_a_dispatch_of_their_own_are_joined(compiler):
    _, found = sites_of(compiler, GIVEN)
    (joined,) = (site for site in found if len(site.dispatches) > 1)
    assert computed(joined) == ["tensor.insert_slice", "linalg.conv_2d_nchw_fchw"]


PART, WHOLE = "tensor<1x4x8x8xf32>", "tensor<1x8x8x8xf32>"
JOINED = f"""
func.func @main(%a: {PART}, %b: {PART}, %w: tensor<6x8x3x3xf32>)
    -> (tensor<1x6x8x8xf32>RETURNS) {{
  %z = arith.constant 0.0 : f32
  %x = math.exp %a : {PART}
  %y = math.exp %b : {PART}
  %c = tensor.concat dim(1) %x, %y : ({PART}, {PART}) -> {WHOLE}
  %p = tensor.pad %c low[0, 0, 1, 1] high[0, 0, 1, 1] {{
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %z : f32
  }} : {WHOLE} to tensor<1x8x10x10xf32>
  %e = tensor.empty() : tensor<1x6x8x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x6x8x8xf32>) -> tensor<1x6x8x8xf32>
  %q = linalg.conv_2d_nchw_fchw ins(%p, %w : tensor<1x8x10x10xf32>, tensor<6x8x3x3xf32>)
      outs(%f : tensor<1x6x8x8xf32>) -> tensor<1x6x8x8xf32>
  return %qVALUES : tensor<1x6x8x8xf32>RETURNS
}}
"""


@pytest.mark.parametrize("shared", [False, True])
def test_parts_of_a_concatenation_are_read_where_they_are_if_nobody_else_reads_it(compiler, shared):
    returns, values = (f", {WHOLE}", ", %c") if shared else ("", "")
    _, found = sites_of(compiler, JOINED.replace("RETURNS", returns).replace("VALUES", values))
    (site,) = (
        site
        for site in found
        if "linalg.conv_2d_nchw_fchw" in computed(site) and not is_single(site)
    )
    assert ("tensor.concat" in computed(site)) is not shared


MATRIX = "tensor<64x64xf32>"
FUNCTIONS = f"""
func.func private @square(%a: {MATRIX}) -> {MATRIX} attributes {{noinline}} {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {MATRIX}
  %f = linalg.fill ins(%z : f32) outs(%e : {MATRIX}) -> {MATRIX}
  %p = linalg.matmul ins(%a, %a : {MATRIX}, {MATRIX}) outs(%f : {MATRIX}) -> {MATRIX}
  return %p : {MATRIX}
}}
func.func @main(%a: {MATRIX}) -> {MATRIX} {{
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c9 = arith.constant 9 : index
  %r = scf.for %i = %c0 to %c9 step %c2 iter_args(%x = %a) -> {MATRIX} {{
    %y = func.call @square(%x) : ({MATRIX}) -> {MATRIX}
    %e = math.exp %y : {MATRIX}
    scf.yield %e : {MATRIX}
  }}
  return %r : {MATRIX}
}}
func.func @other(%a: {MATRIX}) -> {MATRIX} {{
  %s = func.call @square(%a) : ({MATRIX}) -> {MATRIX}
  return %s : {MATRIX}
}}
"""


@pytest.mark.parametrize(("function", "counts"), [(None, [6, 5]), ("main", [5, 5]), ("other", [1])])
def test_loops_and_functions_are_counted(compiler, function, counts):
    _, found = sites_of(compiler, FUNCTIONS, function)
    assert [site.count for site in found] == counts
    assert runs_of(found) == dispatches_of(compiler, FUNCTIONS, function)
    product = next(site for site in found if "linalg.matmul" in computed(site))
    # One value for both operands is one input.
    assert [str(one) for one in product.alone.arguments] == ["64x64xf32"]


STEPS = """
func.func @main(%x: tensor<6x4x32xf32>, %h: tensor<4x32xf32>, %w: tensor<32x32xf32>)
    -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %e = tensor.empty() : tensor<4x32xf32>
  %r = scf.for %i = %c0 to %c6 step %c1 iter_args(%s = %h) -> (tensor<4x32xf32>) {
    %t = tensor.extract_slice %x[%i, 0, 0] [1, 4, 32] [1, 1, 1]
        : tensor<6x4x32xf32> to tensor<4x32xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x32xf32>) -> tensor<4x32xf32>
    %p = linalg.matmul ins(%s, %w : tensor<4x32xf32>, tensor<32x32xf32>)
        outs(%f : tensor<4x32xf32>) -> tensor<4x32xf32>
    %y = arith.addf %p, %t : tensor<4x32xf32>
    scf.yield %y : tensor<4x32xf32>
  }
  return %r : tensor<4x32xf32>
}
"""


def test_what_a_step_of_a_loop_reads_of_a_sequence_is_an_input(compiler):
    _, found = sites_of(compiler, STEPS)
    (site,) = found
    assert site.reason == ""
    assert site.count == 6
    assert Counter(str(one) for one in site.alone.arguments) == Counter(
        {"4x32xf32": 2, "32x32xf32": 1}
    )
    assert not any("extract_slice" in name for name in computed(site))


def looped(*products, around=""):
    """A loop of products one after the other, each with the weights of that name; `around`: of one
    behind it."""
    small = "tensor<8x8xf32>"
    names = sorted({*products, *around})
    weights = "".join(
        f"""
  %{name} = arith.constant dense<{[[float(n + i * j) for i in range(8)] for j in range(8)]}>
      : {small}"""
        for n, name in enumerate(names)
    )

    def product(name, value, weight):
        return f"""
    %f{name} = linalg.fill ins(%zero : f32) outs(%e : {small}) -> {small}
    %{name} = linalg.matmul ins({value}, %{weight} : {small}, {small})
        outs(%f{name} : {small}) -> {small}"""

    inside = "".join(
        product(f"p{n}", f"%p{n - 1}" if n else "%s", one) for n, one in enumerate(products)
    )
    behind = "".join(product("q", "%r", one) for one in around)
    return f"""
func.func @main(%x: {small}) -> {small} {{
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %e = tensor.empty() : {small}{weights}
  %r = scf.for %i = %c0 to %c6 step %c1 iter_args(%s = %x) -> ({small}) {{{inside}
    scf.yield %p{len(products) - 1} : {small}
  }}{behind}
  return {"%q" if around else "%r"} : {small}
}}
"""


@pytest.mark.parametrize(
    ("source", "count", "again"),
    [
        (looped("w"), 6, 1),
        (looped("w", "w"), 12, 1),
        (looped("w", "v"), 12, 2),
        (looped("w", "v", around="u"), 13, 0),
    ],
)
def test_what_each_time_around_a_loop_reads_again_is_counted(compiler, source, count, again):
    _, found = sites_of(compiler, source)
    (site,) = found
    assert (site.count, site.again) == (count, again)


def test_a_function_of_each_element_is_no_part_of_the_product_that_reads_it(compiler):
    # As the states of an LSTM: two results of one dispatch, one made of the other.
    source = f"""
func.func @main(%x: {MATRIX}, %v: {MATRIX}) -> ({MATRIX}, {MATRIX}) {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {MATRIX}
  %f = linalg.fill ins(%z : f32) outs(%e : {MATRIX}) -> {MATRIX}
  %c = math.tanh %x : {MATRIX}
  %g = math.exp %c : {MATRIX}
  %h = arith.mulf %g, %x : {MATRIX}
  %p = linalg.matmul ins(%h, %v : {MATRIX}, {MATRIX}) outs(%f : {MATRIX}) -> {MATRIX}
  %q = linalg.matmul ins(%c, %v : {MATRIX}, {MATRIX}) outs(%f : {MATRIX}) -> {MATRIX}
  return %p, %q : {MATRIX}, {MATRIX}
}}
"""
    _, found = sites_of(compiler, source)
    alone = [site for site in found if len(site.dispatches) == 1]
    assert sorted(name for site in alone for name in computed(site) if "." in name) == [
        "linalg.matmul",
        "math.tanh",
    ]


def test_a_product_that_is_needed_besides_is_in_no_chain(compiler):
    # As the gates of an LSTM: one half is for the state, the other for what is computed of that,
    # which is of no site. A kernel for product and state would not spare the product.
    gates = "tensor<48x128xf32>"
    half = "tensor<48x64xf32>"
    source = f"""
func.func @main(%x: {half}, %w: tensor<64x128xf32>, %v: tensor<64x64xf32>) -> ({half}, {half}) {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {gates}
  %f = linalg.fill ins(%z : f32) outs(%e : {gates}) -> {gates}
  %y = linalg.matmul ins(%x, %w : {half}, tensor<64x128xf32>) outs(%f : {gates}) -> {gates}
  %i = tensor.extract_slice %y[0, 0] [48, 64] [1, 1] : {gates} to {half}
  %o = tensor.extract_slice %y[0, 64] [48, 64] [1, 1] : {gates} to {half}
  %c = math.tanh %i : {half}
  %g = math.exp %c : {half}
  %h = arith.mulf %g, %o : {half}
  %e2 = tensor.empty() : {half}
  %f2 = linalg.fill ins(%z : f32) outs(%e2 : {half}) -> {half}
  %p = linalg.matmul ins(%h, %v : {half}, tensor<64x64xf32>) outs(%f2 : {half}) -> {half}
  %q = linalg.matmul ins(%c, %v : {half}, tensor<64x64xf32>) outs(%f2 : {half}) -> {half}
  return %p, %q : {half}, {half}
}}
"""
    _, found = sites_of(compiler, source)
    assert any("math.tanh" in computed(site) for site in found)
    assert all(len(site.dispatches) == 1 for site in found)


@pytest.mark.parametrize("count", [4, 8])
def test_steps_that_are_written_out_are_one_site(compiler, count):
    # As PyTorch exports recurrent layers: each takes its part of what was computed for all, and
    # transposes the weights for itself.
    state, whole, weights = "tensor<1x64xf32>", f"tensor<{count}x64xf32>", "tensor<64x64xf32>"
    steps = "".join(
        f"""
  %e{n} = tensor.empty() : {weights}
  %w{n} = linalg.transpose ins(%w : {weights}) outs(%e{n} : {weights}) permutation = [1, 0]
  %i{n} = tensor.extract_slice %x[{n}, 0] [1, 64] [1, 1] : {whole} to {state}
  %p{n} = linalg.matmul ins(%h{n}, %w{n} : {state}, {weights}) outs(%i{n} : {state}) -> {state}
  %h{n + 1} = math.tanh %p{n} : {state}"""
        for n in range(count)
    )
    source = f"""
util.global private @weights : {weights} = #util.uninitialized : {weights}
func.func @main(%x: {whole}, %h0: {state}) -> {state} {{
  %w = util.global.load @weights : {weights}{steps}
  return %h{count} : {state}
}}
"""
    _, found = sites_of(compiler, source)
    products = [site for site in found if "linalg.matmul" in computed(site)]
    assert len(products) == (1 if count == 8 else count)
    assert sum(site.count for site in products) == count
    # The next step finds them in a cache.
    assert all(site.again == (1 if count == 8 else 0) for site in products)


RUN_TIME = {
    "it has sizes that are known at run time only": """
func.func @main(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %y = math.exp %x : tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}""",
    "it uses a number that is known at run time only (f32)": """
func.func @main(%x: tensor<64xf32>, %n: f32) -> tensor<64xf32> {
  %e = tensor.empty() : tensor<64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.mulf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<64xf32>
  return %y : tensor<64xf32>
}""",
    "it only takes a part from a place that is known at run time only": """
func.func @main(%x: tensor<6x8x32xf32>, %i: index) -> tensor<8x16xf32> {
  %y = tensor.extract_slice %x[%i, 0, 3] [1, 8, 16] [1, 1, 1]
      : tensor<6x8x32xf32> to tensor<8x16xf32>
  return %y : tensor<8x16xf32>
}""",
    "it computes the same in every run": """
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %e = tensor.empty() : tensor<64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} outs(%e : tensor<64xf32>) {
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    %j = arith.index_cast %i : index to i32
    %f = arith.sitofp %j : i32 to f32
    linalg.yield %f : f32
  } -> tensor<64xf32>
  return %y : tensor<64xf32>
}""",
}


@pytest.mark.parametrize("reason", RUN_TIME)
def test_what_no_kernel_is_made_for_has_a_reason(compiler, reason):
    _, found = sites_of(compiler, RUN_TIME[reason])
    assert [site.reason for site in found] == [reason]
    assert runs_of(found) == dispatches_of(compiler, RUN_TIME[reason])


def test_a_program_whose_dispatches_are_formed_has_no_sites(compiler):
    text = compiler.compile(PROGRAMS["layernorm"], compile_to="flow").decode()
    _, found = sites_of(compiler, text)
    assert found
    assert {site.reason for site in found} == {"the program has it as a dispatch already"}


def test_the_program_is_left_as_it_is(compiler):
    module = compiler.parse(PROGRAMS["layernorm"])
    compiler.run(module, None, SITE_PHASE)
    before = module.operation.get_asm(enable_debug_info=True)
    find_program_sites(compiler, module)
    assert module.operation.get_asm(enable_debug_info=True) == before


EXPANDED, IMAGE, RESULT = "tensor<36x16xf32>", "tensor<1x6x6x16xf32>", "tensor<1xHxHx16xf32>"
BAND = f"""
func.func @main(%x: tensor<36x4xf32>, %w: tensor<4x16xf32>, %f: tensor<KxKx16xf32>)
    -> ({RESULT}RETURNS) {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {EXPANDED}
  %fill = linalg.fill ins(%z : f32) outs(%e : {EXPANDED}) -> {EXPANDED}
  %m = linalg.matmul ins(%x, %w : tensor<36x4xf32>, tensor<4x16xf32>)
      outs(%fill : {EXPANDED}) -> {EXPANDED}
  %r = tensor.expand_shape %m [[0, 1, 2], [3]] output_shape [1, 6, 6, 16]
      : {EXPANDED} into {IMAGE}
  %p = tensor.pad %r low[0, 1, 1, 0] high[0, 1, 1, 0] {{
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %z : f32
  }} : {IMAGE} to tensor<1x8x8x16xf32>
  %o = tensor.empty() : {RESULT}
  %q = linalg.fill ins(%z : f32) outs(%o : {RESULT}) -> {RESULT}
  %d = linalg.depthwise_conv_2d_nhwc_hwc ins(%p, %f : tensor<1x8x8x16xf32>, tensor<KxKx16xf32>)
      outs(%q : {RESULT}) -> {RESULT}
  return %dVALUES : {RESULT}RETURNS
}}
"""


@pytest.mark.parametrize(
    ("kernel", "shared", "joined"),
    [(3, False, True), (3, True, False), (1, False, False), (8, False, False)],
    ids=["windows", "the product is used elsewhere, too", "no windows", "one window"],
)
def test_a_product_belongs_to_the_windows_that_alone_read_it(compiler, kernel, shared, joined):
    returns, values = (f", {EXPANDED}", ", %m") if shared else ("", "")
    source = BAND.replace("KxK", f"{kernel}x{kernel}").replace("HxH", f"{9 - kernel}x{9 - kernel}")
    _, found = sites_of(compiler, source.replace("RETURNS", returns).replace("VALUES", values))
    whole = [
        s for s in found if {"linalg.matmul", "tensor.pad"} <= set(computed(s)) and not s.reason
    ]
    bands = [s for s in whole if any("depthwise" in name for name in computed(s))]
    assert len(bands) == joined


GATED = """
func.func @main(%x: tensor<36x32xf32>, %s: tensor<32xf32>, %w: tensor<32x16xf32>)
    -> (tensor<36x16xf32>RETURNS) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<36x32xf32>
  %m = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
                       affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x, %s : tensor<36x32xf32>, tensor<32xf32>) outs(%e : tensor<36x32xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    linalg.yield %p : f32
  } -> tensor<36x32xf32>
  %r = tensor.empty() : tensor<36x16xf32>
  %rf = linalg.fill ins(%z : f32) outs(%r : tensor<36x16xf32>) -> tensor<36x16xf32>
  %d = linalg.matmul ins(%m, %w : tensor<36x32xf32>, tensor<32x16xf32>)
      outs(%rf : tensor<36x16xf32>) -> tensor<36x16xf32>
  return %dVALUES : tensor<36x16xf32>RETURNS
}
"""


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "used elsewhere, too"])
def test_a_product_may_take_in_what_scales_its_operand(compiler, shared):
    returns, values = (", tensor<36x32xf32>", ", %m") if shared else ("", "")
    source = GATED.replace("RETURNS", returns).replace("VALUES", values)
    _, found = sites_of(compiler, source)
    whole = [site for site in found if {"linalg.matmul", "linalg.generic"} <= set(computed(site))]
    assert len(whole) == (not shared)
    assert all(len(site.dispatches) == 2 for site in whole)
