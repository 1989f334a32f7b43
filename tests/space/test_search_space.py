import itertools

import numpy as np
import pytest

from tilewright.errors import UnknownNameError, UserError
from tilewright.space import (
    BoolKnob,
    ChoiceKnob,
    Constraint,
    PermutationKnob,
    SearchSpace,
    Space,
    TileKnob,
    UnionSpace,
    product_at_most,
    sampling,
)
from tilewright.trial import Configuration


def at_most(name, a, b):
    """a <= b"""
    return Constraint(name, (a, b), lambda x, y: x <= y, lambda x, y: f"{x} > {y}", vectorised=True)


def powers(n):
    return tuple(2**i for i in range(n))


def make(n=6, wide=False, prior=None):
    """Tiles under nesting and footprint rules; the wide rule looks at everything."""
    knobs = [TileKnob(k, powers(n)) for k in ("dist", "cache", "vec", "k")]
    knobs += [BoolKnob("peel"), PermutationKnob("order", 3)]
    rules = [
        at_most("cache_in_dist", "cache", "dist"),
        at_most("vec_in_cache", "vec", "cache"),
        product_at_most("stack", ["vec", "k"], 2**n),
        Constraint("peel_small", ("peel", "vec"), lambda p, v: not p or v < 4, lambda p, v: f"{v}"),
    ]
    if wide:
        rules.append(
            Constraint(
                "total",
                ("dist", "cache", "vec", "k"),
                lambda d, c, v, k: d + c + v + k <= 2**n,
                lambda d, c, v, k: f"{d + c + v + k} > {2**n}",
                vectorised=True,
            )
        )
    default = {"dist": 1, "cache": 1, "vec": 1, "k": 1, "peel": False, "order": (0, 1, 2)}
    return SearchSpace("s", knobs, rules, Configuration.of(default), prior)


def brute_force(space):
    domains = [[k.value(i) for i in range(k.cardinality)] for k in space.knobs]
    names = [k.name for k in space.knobs]
    points = (
        Configuration.of(dict(zip(names, p, strict=True))) for p in itertools.product(*domains)
    )
    return {c for c in points if not space.violations(c)}


def chi_square(counts, cells):
    """Chi-square statistic against uniform, in standard deviations above its mean."""
    n = sum(counts)
    expected = n / cells
    statistic = sum((c - expected) ** 2 / expected for c in counts)
    statistic += (cells - len(counts)) * expected
    return (statistic - (cells - 1)) / (2 * (cells - 1)) ** 0.5


@pytest.fixture(params=["exact", "rejection", "listed", "fold"])
def space(request, monkeypatch):
    """The same kind of space, sampled by each of the methods there are."""
    if request.param == "exact":
        return make(wide=True)
    if request.param == "fold":
        monkeypatch.setattr(sampling, "MAX_TABLE", 50)
        return make()
    monkeypatch.setattr(sampling, "MAX_TABLE", 50)
    monkeypatch.setattr(sampling, "_PROBES", 64 if request.param == "rejection" else 10**9)
    return make(wide=True)


class TestValidSet:
    def test_fixture_exercises_each_method(self, space, request):
        method = request.node.callspec.params["space"]
        valid = space._valid
        assert bool(valid.wide) is (method in ("rejection", "listed"))
        assert (valid._listed is not None) is (method == "listed")

    def test_order_is_the_valid_set(self, space):
        ordered = [c for c in space.ordered(range(space.order_size)) if c is not None]
        assert len(set(ordered)) == len(ordered)
        assert set(ordered) == brute_force(space)

    def test_sampling_is_uniform(self, space):
        cells = len(brute_force(space))
        drawn = space.sample(np.random.default_rng(7), 15 * cells)
        assert len(drawn) == 15 * cells
        counts = {}
        for c in drawn:
            counts[c] = counts.get(c, 0) + 1
        assert len(counts) <= cells
        assert abs(chi_square(list(counts.values()), cells)) < 4

    def test_size(self, space):
        estimate = space.size_estimate(np.random.default_rng(0))
        true = len(brute_force(space))
        assert estimate.low <= true <= estimate.high
        assert estimate.total == 6**4 * 2 * 6
        if estimate.exact:
            assert estimate.points == true

    def test_same_seed_same_samples_whatever_came_before(self, space):
        first = space.sample(np.random.default_rng(3), 10)
        space.size_estimate(np.random.default_rng(0))
        space.sample(np.random.default_rng(1), 500)
        assert space.sample(np.random.default_rng(3), 10) == first
        assert space.sample(np.random.default_rng(4), 10) != first

    def test_rejections(self, space):
        shares = space.rejections(np.random.default_rng(0), 20_000)
        domain = list(itertools.product(range(6), repeat=2))
        expected = sum(a > b for a, b in domain) / len(domain)
        assert shares["cache_in_dist"] == pytest.approx(expected, abs=0.02)
        assert set(shares) == {c.name for c in space.constraints}


class TestCost:
    """A space of 10^9 points and more costs no more than one of 10^3: count the evaluations."""

    def evaluations(self, values, wide):
        """Combinations looked at while setting up, and per sample."""
        seen = [0]

        def counted(check):
            def wrapped(*columns):
                seen[0] += np.size(columns[0])
                return check(*columns)

            return wrapped

        names = [f"t{i}" for i in range(10)]
        knobs = [TileKnob(n, powers(values)) for n in names]
        rules = [
            Constraint(f"r{i}", (a, b), counted(lambda x, y: x <= y), lambda *v: "", True)
            for i, (a, b) in enumerate(itertools.pairwise(names[:5]))
        ]
        if wide:
            half = 2 ** (values - 1) * 10
            check = counted(lambda *v: sum(v) < half)
            rules.append(Constraint("wide", tuple(names), check, lambda *v: "", True))
        space = SearchSpace("s", knobs, rules, Configuration.of(dict.fromkeys(names, 1)))
        size = space.size_estimate(np.random.default_rng(0)).points
        setup, seen[0] = seen[0], 0
        assert len(space.sample(np.random.default_rng(0), 1000)) == 1000
        return size, setup, seen[0] / 1000

    @pytest.mark.parametrize("wide", [False, True])
    def test_evaluations_do_not_grow_with_the_space(self, wide):
        small, small_setup, small_cost = self.evaluations(3, wide)
        large, large_setup, large_cost = self.evaluations(12, wide)
        assert small < 10**4
        assert large > 10**9
        assert large_setup <= small_setup + 4 * 12 * 12 + 2 * 4096
        assert large_cost <= max(4 * small_cost, 4)
        if not wide:
            assert large_cost == 0

    def test_neighbours_do_not_enumerate(self):
        looked = [0]

        def check(*values):
            looked[0] += 1
            return True

        names = [f"t{i}" for i in range(10)]
        rule = Constraint("r", tuple(names), check, lambda *v: "")
        knobs = [TileKnob(n, powers(12)) for n in names]
        start = Configuration.of(dict.fromkeys(names, 16))
        space = SearchSpace("s", knobs, [rule], start)
        assert len(list(space.neighbours(start, np.random.default_rng(0)))) == 20 + 45 * 4
        assert looked[0] < 400


class TestExactness:
    def test_thin_product_bound_needs_no_rejection(self):
        # 20^8 combinations of which about one in 10^7 is valid: rejection would not get far.
        names = [f"t{i}" for i in range(8)]
        knobs = [TileKnob(n, tuple(range(1, 21))) for n in names]
        rule = product_at_most("volume", names, 12)
        space = SearchSpace("s", knobs, [rule], Configuration.of(dict.fromkeys(names, 1)))
        exact = space.size_estimate(np.random.default_rng(0))
        # Ordered factorisations of 1 to 12 into 8 factors.
        expected = sum(_factorisations(n, 8) for n in range(1, 13))
        assert exact.exact
        assert exact.points == expected
        drawn = space.sample(np.random.default_rng(0), 200)
        assert all(space.contains(c) for c in drawn)

    def test_thin_unstructured_space_still_samples(self, monkeypatch):
        monkeypatch.setattr(sampling, "MAX_TABLE", 100)
        knobs = [TileKnob(n, tuple(range(1, 31))) for n in "abc"]
        rule = Constraint("one", ("a", "b", "c"), lambda *v: sum(v) == 3, lambda *v: "sum is not 3")
        space = SearchSpace("s", knobs, [rule], Configuration.of({"a": 1, "b": 1, "c": 1}))
        assert set(space.sample(np.random.default_rng(0), 5)) == {space.default}
        assert space.size_estimate(np.random.default_rng(0)).points == 1


def _factorisations(n, parts):
    if parts == 1:
        return 1
    return sum(_factorisations(n // d, parts - 1) for d in range(1, n + 1) if n % d == 0)


class TestMembership:
    def test_reasons(self):
        space = make()
        config = Configuration.of({**dict(space.default.items), "cache": 8, "vec": 32, "k": 4})
        assert [str(v) for v in space.violations(config)] == [
            "cache_in_dist: 8 > 1",
            "vec_in_cache: 32 > 8",
            "stack: vec 32 * k 4 = 128, more than 64",
        ]
        assert not space.contains(config)

    def test_wrong_knobs_and_values(self):
        space = make()
        values = dict(space.default.items)
        del values["peel"]
        wrong = Configuration.of({**values, "dist": 3, "speed": 9})
        text = "\n".join(map(str, space.violations(wrong)))
        assert "no knob 'speed'" in text
        assert "no value for knob 'peel'" in text
        assert "dist = 3 is not one of 1, 2, 4, 8, 16, 32" in text
        assert not space.contains(wrong)

    def test_default_is_always_a_member(self):
        assert make().contains(make().default)
        knobs = [TileKnob("a", (1, 2))]
        never = Constraint("never", ("a",), lambda a: False, lambda a: f"a is {a}")
        with pytest.raises(ValueError, match=r"compiler's own choice.*never: a is 1"):
            SearchSpace("s", knobs, [never], Configuration.of({"a": 1}))
        with pytest.raises(ValueError, match="a = 4 is not one of"):
            SearchSpace("s", knobs, [], Configuration.of({"a": 4}))

    def test_both_kinds_satisfy_the_interface(self):
        space = make()
        assert isinstance(space, Space)
        assert isinstance(UnionSpace("u", [space]), Space)


class TestSteps:
    def test_neighbours_are_valid_and_differ_in_one_or_two_knobs(self):
        space = make(wide=True)
        for config in space.sample(np.random.default_rng(0), 20):
            found = list(space.neighbours(config, np.random.default_rng(1)))
            assert len(set(found)) == len(found)
            changed = [sum(c[k.name] != config[k.name] for k in space.knobs) for c in found]
            assert set(changed) <= {1, 2}
            assert changed == sorted(changed)
            assert all(space.contains(c) for c in found)

    def test_neighbours_are_complete(self):
        space = make(wide=True)
        config = space.sample(np.random.default_rng(5), 1)[0]
        found = set(space.neighbours(config, np.random.default_rng(1)))
        values = dict(config.items)
        single = {
            Configuration.of({**values, k.name: v})
            for k in space.knobs
            for v in k.neighbours(values[k.name])
        }
        assert {c for c in single if space.contains(c)} <= found

    def test_repair(self):
        space = make(wide=True)
        rng = np.random.default_rng(0)
        for _ in range(50):
            broken = Configuration.of({k.name: k.sample(rng) for k in space.knobs})
            fixed = space.nearest_valid(broken)
            assert space.contains(fixed)
            if space.contains(broken):
                assert fixed == broken
        odd = {**dict(space.default.items), "dist": 20, "cache": 5}
        fixed = space.nearest_valid(Configuration.of(odd))
        assert (fixed["dist"], fixed["cache"]) == (16, 4)
        assert space.contains(space.nearest_valid(Configuration.of({"dist": 7, "other": 1})))

    def test_repair_moves_as_little_as_it_can(self):
        space = make()
        broken = {**dict(space.default.items), "dist": 16, "cache": 32}
        fixed = space.nearest_valid(Configuration.of(broken))
        moved = sum(
            abs(np.log2(int(fixed[k])) - np.log2(broken[k])) for k in ("dist", "cache", "vec")
        )
        assert moved == 1


class TestMany:
    """What is done for many at once is what is done one by one."""

    def test_contains_many(self):
        space = make(wide=True)
        rng = np.random.default_rng(0)
        mixed = [Configuration.of({k.name: k.sample(rng) for k in space.knobs}) for _ in range(300)]
        values = dict(space.default.items)
        mixed += [
            space.default,
            Configuration.of({**values, "dist": 3}),
            Configuration.of({**values, "peel": 1}),
            Configuration.of({**values, "speed": 9}),
            Configuration.of({"dist": 1}),
            Configuration(()),
        ]
        valid = space.contains_many(mixed)
        assert valid.tolist() == [space.contains(c) for c in mixed]
        assert 0 < valid.sum() < len(mixed)
        assert space.contains_many([]).shape == (0,)

    def test_one_and_true_are_different_values(self):
        space = make()
        values = dict(space.default.items)
        numbers = [Configuration.of({**values, "peel": v}) for v in (True, 1, False, 0)]
        column = space.feature_names.index("peel")
        assert space.encode_many(numbers)[:, column].tolist() == [1, 0, 0, 0]

    def test_encoding_knows_values_outside_a_restriction(self):
        space = make()
        small = space.restrict({"dist": [8]}).space
        drawn = space.sample(np.random.default_rng(0), 50)
        assert np.array_equal(small.encode_many(drawn), space.encode_many(drawn))

    def test_a_prior_for_one_serves_for_many(self):
        space = make(prior=lambda c: float(c["dist"]))
        drawn = space.sample(np.random.default_rng(0), 20)
        assert space.prior_many(drawn).tolist() == [c["dist"] for c in drawn]
        assert make().prior_many(drawn).tolist() == [0] * 20
        assert not make().has_prior

    @pytest.mark.parametrize("reach", [1, 3])
    def test_steps_are_neighbours(self, reach):
        space = make(wide=True)
        rng = np.random.default_rng(0)
        drawn = space.sample(rng, 200)
        moved = space.step_many(drawn, rng, reach)
        assert len(moved) == 200
        stayed = 0
        for before, after in zip(drawn, moved, strict=True):
            assert space.contains(after)
            if before == after:
                stayed += 1
            else:
                near = set(space.neighbours(before, np.random.default_rng(1), reach))
                assert after in near
        assert stayed < 10

    def test_steps_reach_every_neighbour(self):
        space = make()
        start = Configuration.of({**dict(space.default.items), "dist": 8, "cache": 4, "vec": 2})
        near = set(space.neighbours(start, np.random.default_rng(0)))
        assert near <= set(space.step_many([start] * 4000, np.random.default_rng(1)))

    def test_what_is_no_member_takes_no_step(self):
        space = make().restrict({"dist": [8, 16]}).space
        rng = np.random.default_rng(0)
        assert space.step_many([space.default] * 9, rng) == [space.default] * 9

    def test_steps_where_there_are_none(self):
        one = make().restrict({k: [v] for k, v in make().default.items}).space
        assert one.step_many([one.default], np.random.default_rng(0)) == [one.default]
        assert make().step_many([], np.random.default_rng(0)) == []

    def test_steps_of_a_union_change_the_member_now_and_then(self):
        union = TestUnion().build()
        rng = np.random.default_rng(0)
        drawn = union.sample(rng, 400)
        moved = union.step_many(drawn, rng)
        assert union.contains_many(moved).all()
        changed = sum(a["pipeline"] != b["pipeline"] for a, b in zip(drawn, moved, strict=True))
        assert 2 <= changed <= 40
        assert union.contains_many([Configuration.of({"pipeline": "x"})]).tolist() == [False]

    def test_a_union_held_to_each_pipeline(self):
        union = TestUnion().build()
        parts = [set(p.ordered(range(p.order_size))) for p in union.pipelines]
        assert set.union(*parts) == set(union.ordered(range(union.order_size)))
        assert [{c["pipeline"] for c in part} for part in parts] == [{"s"}, {"small"}]
        assert {p.default for p in union.pipelines} == {union.default}


class TestNoEffect:
    def build(self):
        knobs = [
            TileKnob("a", (1, 2)),
            PermutationKnob("order", 3, effect=False, note="no loop is interchanged here"),
        ]
        default = Configuration.of({"a": 1, "order": (1, 0, 2)})
        return SearchSpace("s", knobs, [], default)

    def test_never_varied(self):
        space = self.build()
        assert space.size_estimate(np.random.default_rng(0)).points == 2
        drawn = space.sample(np.random.default_rng(0), 20)
        assert {c["order"] for c in drawn} == {(1, 0, 2)}
        found = list(space.neighbours(space.default, np.random.default_rng(0), 2))
        assert [c["a"] for c in found] == [2]

    def test_restriction_is_accepted_and_reported(self):
        restriction = self.build().restrict({"order": [(0, 1, 2)]})
        assert restriction.notes == ("order: has no effect in 's' (no loop is interchanged here)",)
        assert restriction.space.default_is_member


class TestRestrict:
    def test_members_are_those_with_the_values(self):
        space = make()
        small = space.restrict({"dist": [8, 32], "peel": [True]}).space
        expected = {c for c in brute_force(space) if c["dist"] in (8, 32) and c["peel"] is True}
        assert set(small.ordered(range(small.order_size))) == expected
        assert small.feature_names == space.feature_names
        assert np.array_equal(small.encode(small.default), space.encode(space.default))

    def test_default_may_fall_outside(self):
        small = make().restrict({"dist": [8]}).space
        assert small.default == make().default
        assert not small.default_is_member
        assert all(
            c["dist"] == 8 for c in small.neighbours(small.default, np.random.default_rng(0))
        )
        assert make().restrict({"dist": [1]}).space.default_is_member

    def test_errors(self):
        space = make()
        with pytest.raises(UnknownNameError, match="unknown knob 'dost'; did you mean 'dist'"):
            space.restrict({"dost": [1]})
        with pytest.raises(UserError, match=r"'dist': 7 is not allowed; the nearest is 8"):
            space.restrict({"dist": [8, 7]})
        with pytest.raises(UserError, match=r"dist = \[2\], cache = \[8\].*cache_in_dist: 8 > 2"):
            space.restrict({"dist": [2], "cache": [8]})

    def test_nothing_left_under_a_wide_constraint(self, monkeypatch):
        monkeypatch.setattr(sampling, "MAX_TABLE", 50)
        with pytest.raises(UserError, match=r"total: \d+ > 64"):
            make(wide=True).restrict({"dist": [32], "cache": [32], "k": [2]})


class TestUnion:
    def build(self):
        small = SearchSpace(
            "small",
            [TileKnob("dist", (1, 2, 4)), ChoiceKnob("only", ("x", "y"))],
            [],
            Configuration.of({"dist": 1, "only": "x"}),
            prior=lambda c: 5.0,
        )
        return UnionSpace("u", [make(4), small], default="small")

    def test_order_is_the_union(self):
        union = self.build()
        ordered = union.ordered(range(union.order_size))
        assert len(set(ordered)) == len(ordered) == union.order_size
        assert sum(c["pipeline"] == "small" for c in ordered) == 6
        assert all(union.contains(c) for c in ordered)
        assert union.ordered([union.order_size - 1, 0]) == [ordered[-1], ordered[0]]

    def test_uniform_over_the_whole(self):
        union = self.build()
        cells = union.order_size
        counts = {}
        for c in union.sample(np.random.default_rng(2), 30 * cells):
            counts[c] = counts.get(c, 0) + 1
        assert abs(chi_square(list(counts.values()), cells)) < 4

    def test_default_prior_and_names(self):
        union = self.build()
        assert union.default["pipeline"] == "small"
        assert union.default_is_member
        assert union.prior(union.default) == 5.0
        assert union.has_prior
        assert "small.rule" not in union.rejections(np.random.default_rng(0))
        assert "s.stack" in union.rejections(np.random.default_rng(0))
        wrong = Configuration.of({**dict(union.default.items), "pipeline": "none"})
        assert "pipeline = none is not one of s, small" in str(union.violations(wrong)[0])
        assert not union.contains(wrong)

    def test_features_are_shared_by_name(self):
        union = self.build()
        assert len(set(union.feature_names)) == len(union.feature_names)
        code = dict(zip(union.feature_names, union.encode(union.default), strict=True))
        assert code["pipeline=small"] == 1
        assert code["only=x"] == 1
        assert code["cache"] == 0
        both = union.encode_many([union.default, union.ordered([0])[0]])
        assert both.shape == (2, len(union.feature_names))

    def test_neighbours_reach_the_other_member(self):
        union = self.build()
        found = list(union.neighbours(union.default, np.random.default_rng(0)))
        assert {c["pipeline"] for c in found} == {"s", "small"}
        assert all(union.contains(c) for c in found)

    def test_restrict(self):
        union = self.build()
        picked = union.restrict({"pipeline": ["s"]}).space
        assert {c["pipeline"] for c in picked.ordered(range(picked.order_size))} == {"s"}
        assert not picked.default_is_member
        assert picked.contains(picked.nearest_valid(picked.default))
        dropped = union.restrict({"dist": [8]})
        assert "'small' is left out" in dropped.notes[0]
        assert {c["pipeline"] for c in dropped.space.sample(np.random.default_rng(0), 9)} == {"s"}
        with pytest.raises(UserError, match="dist"):
            union.restrict({"dist": [7]})
        with pytest.raises(UnknownNameError, match="unknown knob 'onyl'; did you mean 'only'"):
            union.restrict({"onyl": ["x"]})
