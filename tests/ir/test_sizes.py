"""Sizes known at run time only: evaluated for given arguments, unknown where data decides."""

import numpy as np
import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.dispatches import entry_function, find_dispatches, isolate
from tilewright.ir.reference import accuracy, evaluate
from tilewright.ir.session import ISOLATED_PHASE
from tilewright.ir.sizes import SizeEvaluator
from tilewright.ir.template import read_dispatch
from tilewright.ir.walk import walk

PROGRAM = """
func.func @main(%a: tensor<?x256xf32>, %w: tensor<256x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %m = tensor.dim %a, %c0 : tensor<?x256xf32>
  %n = tensor.dim %w, %c1 : tensor<256x?xf32>
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %p = linalg.matmul ins(%a, %w : tensor<?x256xf32>, tensor<256x?xf32>)
      outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %p : tensor<?x?xf32>
}
"""
ARITHMETIC = """
func.func @f(%n: index, %a: tensor<?x8xf32>, %data: tensor<1xindex>) -> index {
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %d = tensor.dim %a, %c0 : tensor<?x8xf32>
  %sum = arith.addi %n, %d : index
  %up = arith.ceildivui %sum, %c3 : index
  %least = affine.min affine_map<(d0)[s0] -> (d0 * 2, s0 + 7)>(%up)[%n]
  %read = tensor.extract %data[%c0] : tensor<1xindex>
  %unknown = arith.addi %read, %n : index
  %zero = arith.constant 0 : index
  %divided = arith.divui %n, %zero : index
  %e = tensor.empty(%sum, %unknown) : tensor<?x?xf32>
  return %least : index
}
"""


@pytest.fixture(scope="module")
def arithmetic():
    with corpus.session().context:
        module = ir.Module.parse(ARITHMETIC)
    function = module.body.operations[0].operation
    n, a, _ = function.regions[0].blocks[0].arguments
    ops = {op.name: op for op in walk(function)}
    return module, ops, SizeEvaluator({n: 10, a: (7, 8)})


def test_index_arithmetic(arithmetic):
    _, ops, sizes = arithmetic
    assert sizes.value(ops["arith.ceildivui"].results[0]) == 6
    assert sizes.value(ops["affine.min"].results[0]) == 12


def test_what_data_decides_is_not_known(arithmetic):
    _, ops, sizes = arithmetic
    assert sizes.value(ops["tensor.extract"].results[0]) is None
    assert sizes.shape(ops["tensor.empty"].results[0]) == (17, -1)


def test_nothing_is_known_without_arguments(arithmetic):
    _, ops, _ = arithmetic
    assert SizeEvaluator().value(ops["affine.min"].results[0]) is None
    assert SizeEvaluator().shape(ops["tensor.empty"].results[0]) == (-1, -1)


@pytest.fixture(scope="module")
def isolated():
    module = corpus.flow_module(PROGRAM)
    (site,) = find_dispatches(module)
    sizes = SizeEvaluator.of_entry(entry_function(module, "main"), [(48, 256), (256, 80)])
    return site, isolate(corpus.session(), module, site, sizes)


def test_the_reference_is_computed_at_these_sizes(isolated):
    _, alone = isolated
    rng = np.random.default_rng(0)
    values = dict(alone.values)
    data = [
        values[i] if i in values else rng.normal(size=a.shape)
        for i, a in enumerate(alone.arguments)
    ]
    tensors = [d for d in data if isinstance(d, np.ndarray)]
    (result,) = evaluate(alone.module, "main", data)
    assert result == pytest.approx(tensors[0] @ tensors[1])
    assert accuracy(alone.module, "main", unknown_size=1).reduction_length == 256


class TestDispatch:
    def test_operands_have_the_sizes_of_the_run(self, isolated):
        _, alone = isolated
        tensors = [a.shape for a in alone.arguments if a.shape is not None]
        assert tensors == [(48, 256), (256, 80)]
        assert sorted(value for _, value in alone.values) == [48, 80]
        assert [a.shape for a in alone.outputs] == [(-1, -1)]
        assert sorted(w for w in alone.workload if w is not None) == [48, 80]

    def test_sizes_stay_arguments_of_the_code(self, isolated):
        """As constants the compiler would fold them, and make other code."""
        _, alone = isolated
        assert "tensor<?x256xf32>" in alone.module.operation.get_asm()

    def test_the_loops_are_known_in_the_configured_dispatch(self, isolated):
        site, alone = isolated
        compiler = corpus.session()
        source = alone.module.operation.get_asm()
        text = compiler.compile(source, ISOLATED_PHASE, corpus.CONFIGURED)
        with compiler.context:
            module = ir.Module.parse(text)
        found = read_dispatch(module, site.executable, site.entry, alone.workload)
        assert found.workload.sizes == (48, 80, 256)
        assert found.workload.dynamic_loops == {0, 1}
        assert "48?x80?x256" in found.workload.name
        assert found.workload.flops == 2 * 48 * 80 * 256
        assert found.workload.bytes == 4 * (48 * 256 + 256 * 80 + 48 * 80)
        assert found.template.root_op.extents == (48, 80, 256)

        unknown = read_dispatch(module, site.executable, site.entry)
        assert not unknown.workload.is_static
