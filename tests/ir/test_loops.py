"""Which loops of a dispatch's ops are the same."""

import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.loops import find_loops, uses_of_loops
from tilewright.tiling import Tiling, shared_loops


def loops_of(body, arguments="", names=("linalg.", "iree_linalg_ext.")):
    """The loops of the ops of a function body, and whether each is in order."""
    with ir.Context() as context, ir.Location.unknown():
        context.load_all_available_dialects()
        module = ir.Module.parse(f"func.func @f({arguments}) {{ {body}\n return }}")
        block = module.body.operations[0].regions[0].blocks[0]
        return find_loops([o.operation for o in block.operations if o.name.startswith(names)])


def same(a, b):
    """For each loop of b the loop of a that it is."""
    return [a.shared.index(i) if i in a.shared else None for i in b.shared]


EXP = """{{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ({out})>],
    iterator_types = ["parallel", "parallel"]}} ins(%{x} : tensor<8x8xf32>)
    outs(%e : tensor<8x8xf32>) {{ ^bb0(%v: f32, %o: f32):
    %r = math.exp %v : f32
    linalg.yield %r : f32 }} -> tensor<8x8xf32>"""


def test_results_join_loops_through_their_maps():
    first, second = loops_of(
        "%e = tensor.empty() : tensor<8x8xf32>\n"
        f"%p = linalg.generic {EXP.format(x='a', out='j, i')}\n"
        f"%q = linalg.generic {EXP.format(x='p', out='i, j')}\n",
        "%a: tensor<8x8xf32>",
    )
    assert same(first, second) == [1, 0]


def test_inputs_and_empty_tensors_join_nothing():
    first, second = loops_of(
        "%e = tensor.empty() : tensor<8x8xf32>\n"
        f"%p = linalg.generic {EXP.format(x='a', out='j, i')}\n"
        f"%q = linalg.generic {EXP.format(x='a', out='i, j')}\n",
        "%a: tensor<8x8xf32>",
    )
    assert same(first, second) == [None, None]


def test_rows_and_columns_of_x_times_its_transpose_are_two_loops():
    template = corpus.last("x_times_transpose").template
    root = template.root_op
    assert len(set(root.shared)) == 3
    bias = template.ops[template.root + 1]
    assert shared_loops(root, bias) == [0, 1]
    other = Tiling.of({"distribution": (8, 64, 0), "vector_common_parallel": (2, 32, 0)})
    made = dict(template.configure(other, template.translation).tilings)
    assert made[template.root + 1].by_level["vector_common_parallel"] == (2, 32)


def test_the_extents_of_a_convolution_come_from_where_a_loop_stands_alone():
    assert corpus.last("conv_nhwc").template.root_op.extents == (1, 16, 16, 64, 3, 3, 32)


def test_copies_between_buffers_have_their_sizes():
    assert corpus.last("pad").template.root_op.extents == (62, 126)


def test_sizes_that_are_not_known():
    (loops,) = loops_of(
        "%p = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],"
        'iterator_types = ["parallel"]} ins(%a : tensor<?xf32>) outs(%b : tensor<?xf32>) {'
        "^bb0(%v: f32, %o: f32):\n linalg.yield %v : f32 } -> tensor<?xf32>",
        "%a: tensor<?xf32>, %b: tensor<?xf32>",
    )
    assert loops.extents == (-1,)


class TestPacking:
    def test_an_unpack_steps_by_the_products_inner_tiles(self):
        template = corpus.last("matmul_data_tiled").template
        root, unpack = template.root_op, template.ops[-1]
        assert unpack.name == "linalg.unpack"
        assert sorted(shared_loops(root, unpack)) == [0, 1]
        assert unpack.scales == ((16, 1), (16, 1))
        # Twice as many outer tiles at a time are twice as many rows.
        own = root.tiling.by_level
        wider = Tiling.of({**own, "vector_common_parallel": (2, 1, 0, 16, 16, 0)})
        made = dict(template.configure(wider, template.translation).tilings)
        loop = shared_loops(root, unpack).index(0)
        assert made[len(template.ops) - 1].size("vector_common_parallel", loop) == 32

    def test_a_pack_takes_whole_tiles_of_what_is_before_it(self):
        first, pack, _ = loops_of(
            "%e = tensor.empty() : tensor<8x8xf32>\n"
            f"%p = linalg.generic {EXP.format(x='a', out='i, j')}\n"
            "%d = tensor.empty() : tensor<8x2x4x1xf32>\n"
            "%q = linalg.pack %p outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] "
            "inner_tiles = [4, 1] into %d : tensor<8x8xf32> -> tensor<8x2x4x1xf32>\n"
            "%s = linalg.unpack %q outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] "
            "inner_tiles = [4, 1] into %e : tensor<8x2x4x1xf32> -> tensor<8x8xf32>",
            "%a: tensor<8x8xf32>",
        )
        assert pack.extents == (8, 2)
        assert same(first, pack) == [1, 0]
        assert pack.scales == ((1, 1), (1, 4))

    def test_an_unpack_of_given_data_shares_its_loops_with_what_follows(self):
        unpack, after = loops_of(
            "%e = tensor.empty() : tensor<8x8xf32>\n"
            "%s = linalg.unpack %a inner_dims_pos = [0, 1] inner_tiles = [4, 1] "
            "into %e : tensor<2x8x4x1xf32> -> tensor<8x8xf32>\n"
            f"%q = linalg.generic {EXP.format(x='s', out='i, j')}",
            "%a: tensor<2x8x4x1xf32>",
        )
        assert same(unpack, after) == [0, 1]
        assert unpack.scales == ((1, 1), (1, 1))


@pytest.mark.parametrize("name", ["sort", "topk", "softmax"])
def test_loops_that_run_in_order(name):
    assert corpus.last(name).template.root_op.reduction == (False, True)


def test_ops_that_go_through_their_input():
    assert corpus.last("topk").template.root_op.extents == (64, 128)


@pytest.mark.parametrize(
    ("text", "used", "compound"),
    [
        ("(a, b, c) -> (a, c)", {0, 2}, set()),
        ("(a, b, c) -> (a * 2 + b, c)", {0, 1, 2}, {0, 1}),
        ("(a, b, c) -> (a * 2, c)", {0, 2}, set()),
        ("(a, b, c) -> (0, b floordiv 4)", {1}, set()),
    ],
)
def test_uses_of_loops(text, used, compound):
    with ir.Context():
        map_ = ir.AffineMapAttr.parse(f"affine_map<{text}>").value
        assert uses_of_loops(map_) == (used, compound)
