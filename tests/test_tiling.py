"""Tilings as data: what is written, and how the root's tiling is carried over to other ops."""

import json
from dataclasses import replace

import pytest

from tilewright.tiling import (
    PEELING,
    CompilationInfo,
    DispatchTemplate,
    OpTemplate,
    Tiling,
    Translation,
    propagate,
    shared_loops,
)

# A product (m, n, k) with a fill before it and a bias after it.
ROOT = OpTemplate(
    "linalg.matmul",
    (64, 96, 128),
    (False, False, True),
    (0, 1, 2),
    Tiling.of(
        {
            "distribution": (8, 48, 0),
            "vector_common_parallel": (8, 16, 0),
            "vector_reduction": (0, 0, 16),
        }
    ),
)
FILL = OpTemplate(
    "linalg.fill",
    (64, 96),
    (False, False),
    (0, 1),
    Tiling.of({"vector_common_parallel": (8, 16)}),
    before_root=True,
)
BIAS = replace(FILL, name="linalg.generic", before_root=False)
TEMPLATE = DispatchTemplate(Translation("DoubleTilingExpert"), (FILL, ROOT, BIAS), 1)


def tiling(**levels):
    return Tiling.of(levels)


class TestTiling:
    def test_levels_come_in_their_order_and_without_those_that_tile_nothing(self):
        made = tiling(vector_reduction=(0, 4), cache_parallel=(0, 0), distribution=(8, 0))
        assert [k for k, _ in made.levels] == ["distribution", "vector_reduction"]

    def test_distribution_stays_even_when_it_tiles_nothing(self):
        made = tiling(distribution=(0, 0), vector_reduction=(0, 4))
        assert made.to_attribute() == (
            "#iree_cpu.lowering_config<distribution = [0, 0], vector_reduction = [0, 4]>"
        )
        assert str(made) == "vector_reduction 0,4"

    def test_equal_tilings_are_equal_however_they_are_made(self):
        assert tiling(distribution=(1,), vector_reduction=(2,)) == tiling(
            vector_reduction=(2,), distribution=(1,)
        )

    def test_sizes_of_levels_and_loops_that_are_not_there_are_0(self):
        made = tiling(distribution=(8, 4))
        assert [made.size("distribution", i) for i in range(3)] == [8, 4, 0]
        assert made.size("cache_parallel", 0) == 0


def test_translation_attributes():
    assert Translation("Default").to_attribute() == (
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>>"
    )
    assert Translation("DoubleTilingExpert", (PEELING,)).to_attribute() == (
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, "
        "{enable_loop_peeling}>"
    )


def test_configurations_survive_json():
    own = TEMPLATE.default
    peeled = replace(own, translation=Translation("DoubleTilingExpert", (PEELING,)))
    for configuration in (own, peeled, CompilationInfo(Translation("Default"), ())):
        data = json.loads(json.dumps(configuration.to_json()))
        assert CompilationInfo.from_json(data) == configuration


def test_templates_survive_json():
    packed = replace(FILL, tiling=None, scales=((1, 16), (16, 1)), operand_loops=((0,), (0, 1)))
    for template in (TEMPLATE, replace(TEMPLATE, ops=(packed, ROOT), root=1)):
        data = json.loads(json.dumps(template.to_json()))
        assert DispatchTemplate.from_json(data) == template


def test_a_configuration_in_words_is_the_roots():
    assert TEMPLATE.default.describe(TEMPLATE.root) == (
        "DoubleTilingExpert: distribution 8,48,0; vector_common_parallel 8,16,0; "
        "vector_reduction 0,0,16"
    )
    assert CompilationInfo(Translation("Default"), ()).describe(0) == "Default"


class TestPropagation:
    def test_the_compilers_own_tiling_gives_the_compilers_choice(self):
        assert TEMPLATE.configure(ROOT.tiling, TEMPLATE.translation) == TEMPLATE.default

    def test_shared_loops_follow_the_root(self):
        other = tiling(
            distribution=(32, 96, 0),
            cache_parallel=(16, 0, 0),
            vector_common_parallel=(4, 32, 0),
            vector_reduction=(0, 0, 8),
        )
        made = dict(TEMPLATE.configure(other, TEMPLATE.translation).tilings)
        expected = tiling(cache_parallel=(16, 0), vector_common_parallel=(4, 32))
        assert made == {0: expected, 1: other, 2: expected}

    def test_an_inner_parallel_loop_of_the_root_is_one_of_the_others_too(self):
        other = tiling(
            distribution=(8, 48, 0),
            vector_common_parallel=(8, 0, 0),
            vector_inner_parallel=(0, 16, 0),
            vector_reduction=(0, 0, 16),
        )
        assert propagate(ROOT, other, BIAS) == tiling(
            vector_common_parallel=(8, 0), vector_inner_parallel=(0, 16)
        )

    def test_loops_of_the_ops_own_keep_the_compilers_sizes(self):
        wider = replace(
            BIAS,
            extents=(64, 96, 10),
            reduction=(False, False, True),
            shared=(0, 1, 9),
            tiling=tiling(vector_common_parallel=(8, 16, 0), vector_reduction=(0, 0, 5)),
        )
        other = tiling(vector_common_parallel=(2, 4, 0), vector_reduction=(0, 0, 32))
        assert propagate(ROOT, other, wider) == tiling(
            vector_common_parallel=(2, 4, 0), vector_reduction=(0, 0, 5)
        )

    def test_producers_follow_the_roots_reduction(self):
        producer = replace(
            FILL,
            extents=(64, 128),
            shared=(0, 2),
            tiling=tiling(vector_common_parallel=(8, 0), vector_reduction=(0, 16)),
        )
        consumer = replace(producer, before_root=False)
        other = tiling(vector_common_parallel=(8, 16, 0), vector_reduction=(0, 0, 4))
        assert propagate(ROOT, other, producer).size("vector_reduction", 1) == 4
        assert propagate(ROOT, other, consumer).size("vector_reduction", 1) == 0

    def test_a_consumer_vectorises_the_roots_reduction_loop_on_its_own(self):
        # The last step of a softmax: parallel where the root adds up.
        last = replace(
            BIAS,
            extents=(64, 128),
            shared=(0, 2),
            tiling=tiling(vector_common_parallel=(8, 0), vector_inner_parallel=(0, 16)),
        )
        other = tiling(vector_common_parallel=(2, 16, 0), vector_reduction=(0, 0, 4))
        assert propagate(ROOT, other, last) == tiling(
            vector_common_parallel=(2, 0), vector_inner_parallel=(0, 16)
        )

    def test_packing_steps_through_whole_inner_tiles(self):
        base = tiling(vector_common_parallel=(1, 1))
        unpack = replace(BIAS, tiling=base, scales=((16, 1), (8, 1)))
        pack = replace(BIAS, tiling=base, scales=((1, 16), (1, 8)))
        other = tiling(vector_common_parallel=(2, 32, 0))
        assert propagate(ROOT, other, unpack) == tiling(vector_common_parallel=(32, 256))
        # A tile smaller than an inner tile still is one.
        assert propagate(ROOT, other, pack) == tiling(vector_common_parallel=(1, 4))

    def test_ops_that_the_compiler_leaves_alone_are_left_alone(self):
        template = replace(TEMPLATE, ops=(FILL, ROOT, replace(BIAS, tiling=None)))
        assert [i for i, _ in template.default.tilings] == [0, 1]
        assert [i for i, _ in template.configure(ROOT.tiling, template.translation).tilings] == [
            0,
            1,
        ]

    @pytest.mark.parametrize(
        ("shared", "expected"),
        [((0, 0), [0, 1]), ((0, 5), [0, None]), ((2, 0, 0, 0), [2, 0, 1, 1])],
    )
    def test_loops_that_are_one_in_the_root_are_matched_in_order(self, shared, expected):
        root = replace(ROOT, shared=(0, 0, 2))
        count = len(shared)
        op = replace(BIAS, extents=(8,) * count, reduction=(False,) * count, shared=shared)
        assert shared_loops(root, op) == expected
