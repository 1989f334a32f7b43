"""Integers that become indices, and how large they may be."""

import dispatch_corpus as corpus
from tilewright.ir.dispatches import entry_function, find_dispatches, isolate
from tilewright.ir.index_bounds import program_limits
from tilewright.ir.reference import evaluate
from tilewright.measure.inputs import Bounds, index_bounds, random_inputs

# Token and type embeddings, the token numbers wrapped around as torch does it; a mask beside them.
EMBEDDING = """
#row = affine_map<(d0, d1) -> (d0)>
#all = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%ids: tensor<24xi64>, %mask: tensor<24xi32>, %types: tensor<24xi64>,
                %table: tensor<100x16xf32>, %kinds: tensor<2x16xf32>) -> tensor<24x16xf32> {
  %e = tensor.empty() : tensor<24x16xf32>
  %r = linalg.generic {indexing_maps = [#row, #row, #row, #all],
                       iterator_types = ["parallel", "parallel"]}
      ins(%ids, %mask, %types : tensor<24xi64>, tensor<24xi32>, tensor<24xi64>)
      outs(%e : tensor<24x16xf32>) {
  ^bb0(%i: i64, %m: i32, %t: i64, %o: f32):
    %zero = arith.constant 0 : i64
    %size = arith.constant 100 : i64
    %negative = arith.cmpi slt, %i, %zero : i64
    %wrapped = arith.addi %i, %size : i64
    %token = arith.select %negative, %wrapped, %i : i64
    %x = arith.index_cast %token : i64 to index
    %y = arith.index_cast %t : i64 to index
    %column = linalg.index 1 : index
    %p = tensor.extract %table[%x, %column] : tensor<100x16xf32>
    %q = tensor.extract %kinds[%y, %column] : tensor<2x16xf32>
    %weight = arith.sitofp %m : i32 to f32
    %s = arith.addf %p, %q : f32
    %v = arith.mulf %s, %weight : f32
    linalg.yield %v : f32
  } -> tensor<24x16xf32>
  return %r : tensor<24x16xf32>
}
"""


def embedding():
    module = corpus.flow_module(EMBEDDING)
    sites = find_dispatches(module)
    return module, sites[-1]


def test_the_limits_of_a_program():
    module, _ = embedding()
    assert program_limits(module, entry_function(module, "main")) == {0: 100, 2: 2}


def test_data_for_the_dispatch_stays_inside_its_tables(tmp_path):
    module, site = embedding()
    alone = isolate(corpus.session(), module, site)
    limits = dict(alone.limits)
    assert sorted(limits.values()) == [2, 100]
    inputs = random_inputs(tmp_path, alone.arguments, seed=3, bounds=index_bounds(limits))
    values = [argument.load() for argument in inputs.arguments]
    for position, limit in limits.items():
        assert 0 <= values[position].min() <= values[position].max() < limit
    # Reads outside a table are NaN in the interpreter: there are none.
    (result,) = evaluate(alone.module, "main", values)
    assert not (result != result).any()


def test_a_program_without_indices_has_none():
    module = corpus.flow_module(corpus.CASES["softmax"].source)
    assert program_limits(module, entry_function(module, "main")) == {}


def test_bounds_leave_at_least_one_value():
    assert index_bounds({3: 0}) == {3: Bounds(0, 1)}
