"""Descriptors of hand-made dispatches: what they say, and that they say the same in every shape."""

import math

import hand_made
import numpy as np
import pytest

from tilewright.space import SearchSpace, TileKnob, UnionSpace
from tilewright.space.cpu_tiles import INNER
from tilewright.space.descriptors import PRIOR, Descriptors, aligned
from tilewright.tiling import PEELING
from tilewright.trial import Configuration

SPACES = {
    "matmul": hand_made.matmul(784, 128, 1152),
    "convolution": hand_made.convolution(28, 64, 96),
    "row_sum": hand_made.row_sum(1000, 300),
}


def described(space, **values):
    """The descriptors of the default with other values for some knobs, by name."""
    config = Configuration.of({**dict(space.default.items), **values})
    numbers = space.space.describe_many([config])
    return dict(zip(space.space.descriptor_names, numbers[0].tolist(), strict=True))


@pytest.mark.parametrize("kind", SPACES)
class TestContract:
    def test_a_finite_number_for_every_name(self, kind):
        space = SPACES[kind].space
        configs = [space.default, *space.sample(np.random.default_rng(0), 500)]
        numbers = space.describe_many(configs)
        assert numbers.shape == (501, len(space.descriptor_names))
        assert len(set(space.descriptor_names)) == len(space.descriptor_names)
        assert np.isfinite(numbers).all()
        assert space.describe_many([]).shape == (0, len(space.descriptor_names))

    def test_one_at_a_time_is_the_same(self, kind):
        space = SPACES[kind].space
        configs = space.sample(np.random.default_rng(1), 20)
        for many in (space.describe_many, space.encode_many, space.prior_many):
            together = many(configs)
            assert np.array_equal(together, np.concatenate([many([c]) for c in configs]))
        assert [space.prior(c) for c in configs] == space.prior_many(configs).tolist()
        assert np.array_equal(
            np.array([space.encode(c) for c in configs]), space.encode_many(configs)
        )

    def test_the_prior_is_among_them(self, kind):
        space = SPACES[kind].space
        configs = space.sample(np.random.default_rng(2), 50)
        column = space.descriptor_names.index(PRIOR)
        assert np.array_equal(space.describe_many(configs)[:, column], space.prior_many(configs))

    def test_configurations_that_compile_differently_are_told_apart(self, kind):
        dispatch = SPACES[kind]
        configs = list(dict.fromkeys(dispatch.space.sample(np.random.default_rng(3), 300)))
        lowered = {}
        for config, row in zip(configs, dispatch.space.describe_many(configs), strict=True):
            lowered.setdefault(tuple(row.tolist()), set()).add(dispatch.lower(config))
        assert all(len(same) == 1 for same in lowered.values())


def test_names_are_those_of_any_shape_of_the_kind():
    for small, large in (
        (hand_made.matmul(7, 33, 64), SPACES["matmul"]),
        (hand_made.convolution(14, 3, 32), SPACES["convolution"]),
    ):
        assert small.space.descriptor_names == large.space.descriptor_names


def test_what_they_say_of_a_matmul():
    space = SPACES["matmul"]
    told = described(
        space,
        distribution_m=112,
        distribution_n=128,
        cache_parallel_m=0,
        cache_parallel_n=0,
        cache_reduction_k=0,
        vector_common_parallel_m=8,
        vector_common_parallel_n=32,
        vector_reduction_k=4,
    )
    assert told["extent_m"] == math.log2(784)
    assert told["distribution_m"] == math.log2(112)
    assert told["distribution_trips_m"] == math.log2(7)
    assert told["vector_trips_k"] == math.log2(288)
    assert told["distribution_waste_m"] == 0
    # 7 workgroups on 4 cores: one core has nothing to do in the second round.
    assert told["workgroups"] == math.log2(7 / 4)
    assert told["idle_cores"] == pytest.approx(1 / 8)
    # 8 rows of two registers, two for a row of the right factor, two more.
    assert told["registers"] == math.log2(20 / 32)
    assert told["spilled"] == 0
    assert told["instructions"] == math.log2(2 * 8 * 4)
    assert told["lanes_used"] == 1
    # The right factor and the result are walked without a stride; the left one has no column.
    assert told["lane_contiguous"] == 1
    vector_bytes = 4 * (8 * 4 + 4 * 32 + 8 * 32)
    assert told["vector_bytes_registers"] == pytest.approx(math.log2(vector_bytes / (32 * 64)))
    assert told["vector_intensity"] == pytest.approx(math.log2(8 * 32 * 4 / vector_bytes))
    panel = 4 * (8 * 1152 + 1152 * 32 + 8 * 32)
    assert told["panel_bytes_l1"] == pytest.approx(math.log2(panel / (32 << 10)))
    block = 4 * (112 * 1152 + 1152 * 128 + 112 * 128)
    assert told["block_bytes_l2"] == pytest.approx(math.log2(block / (1 << 20)))
    assert told["cache_reduction"] == 0


def test_waste_spills_and_switches():
    space = SPACES["matmul"]
    told = described(
        space,
        distribution_m=784,
        vector_common_parallel_m=20,
        vector_common_parallel_n=64,
        cache_reduction_k=64,
        **{PEELING: True, INNER: "n"},
    )
    assert told["vector_waste_m"] == pytest.approx(1 - 784 / 800)
    assert told["spilled"] > 1
    assert told["cache_reduction"] == 1
    assert told["cache_trips_k"] == math.log2(18)
    assert told["peeling"] == 1
    assert told["inner_parallel_n"] == 1
    assert told["inner_parallel_m"] == 0


def test_peeling_counts_only_where_a_tile_leaves_a_remainder():
    space = SPACES["matmul"]
    whole = {"distribution_m": 112, "distribution_n": 64, PEELING: True}
    whole |= {
        "vector_common_parallel_m": 8,
        "vector_common_parallel_n": 32,
        "vector_reduction_k": 4,
    }
    assert described(space, **whole)["peeling"] == 0
    assert described(space, **whole) == described(space, **{**whole, PEELING: False})
    assert described(space, **{**whole, "vector_common_parallel_m": 12})["peeling"] == 1


def test_the_prior_likes_neither_long_bodies_nor_unused_lanes():
    space = SPACES["matmul"]
    tiles = {"distribution_m": 112, "distribution_n": 64, "vector_common_parallel_n": 32}
    short = {**tiles, "vector_common_parallel_m": 8, "vector_reduction_k": 4}
    long = {**tiles, "vector_common_parallel_m": 8, "vector_reduction_k": 64}
    masked = {**short, "vector_common_parallel_m": 9}
    best = described(space, **short)[PRIOR]
    assert described(space, **long)[PRIOR] < best - 0.5
    assert described(space, **masked)[PRIOR] < best - 0.5


def test_working_sets_are_measured_against_the_target():
    from dataclasses import replace

    larger = replace(hand_made.TARGET, l2_bytes=2 * hand_made.TARGET.l2_bytes, cores=8)
    here = described(hand_made.matmul(784, 128, 1152))
    there = described(hand_made.matmul(784, 128, 1152, larger))
    assert there["block_bytes_l2"] == here["block_bytes_l2"] - 1
    assert there["workgroups"] == here["workgroups"] - 1


def test_aligned_reads_by_name():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    read = aligned(values, ["a", "b"], ["b", "c", "a"])
    assert read.tolist() == [[2, 0, 1], [4, 0, 3]]
    assert aligned(np.zeros((0, 2)), ["a", "b"], ["b"]).shape == (0, 1)


def test_features_stand_in_where_a_space_has_no_descriptors():
    space = SearchSpace("s", [TileKnob("a", (1, 2, 4))], [], Configuration.of({"a": 1}))
    assert space.descriptor_names == space.feature_names
    assert space.describe_many([space.default]).tolist() == [[0.0]]


def test_a_union_shares_them_by_name():
    def member(name, names):
        knob = TileKnob("t", (1, 2, 4))
        numbers = Descriptors(
            names, lambda configs: np.array([[c["t"], 10.0] for c in configs], dtype=np.float64)
        )
        return SearchSpace(name, [knob], [], Configuration.of({"t": 2}), descriptors=numbers)

    union = UnionSpace("u", [member("x", ("p", "q")), member("y", ("q", "r"))])
    assert union.descriptor_names == ("pipeline=x", "pipeline=y", "p", "q", "r")
    configs = [Configuration.of({"t": 4, "pipeline": p}) for p in ("y", "x")]
    assert union.describe_many(configs).tolist() == [[0, 1, 0, 4, 10], [1, 0, 4, 10, 0]]
    unknown = Configuration.of({"t": 4, "pipeline": "z"})
    assert union.describe_many([unknown]).tolist() == [[0] * 5]


def test_a_union_says_the_prior_of_all_members_or_of_none():
    dispatch = hand_made.matmul(64, 64, 64).space.members[0]
    other = SearchSpace(
        "plain", [TileKnob("t", (1, 2))], [], Configuration.of({"t": 2}), prior=lambda c: 7.0
    )
    union = UnionSpace("u", [dispatch, other])
    configs = [c for p in union.pipelines for c in p.sample(np.random.default_rng(0), 3)]
    column = union.descriptor_names.index(PRIOR)
    assert np.array_equal(union.describe_many(configs)[:, column], union.prior_many(configs))
    assert union.prior_many(configs)[-1] == 7


def test_a_restricted_space_describes_alike():
    space = SPACES["matmul"].space
    small = space.restrict({"distribution_m": [112, 196]}).space
    assert small.descriptor_names == space.descriptor_names
    configs = small.sample(np.random.default_rng(0), 10)
    assert np.array_equal(small.describe_many(configs), space.describe_many(configs))
