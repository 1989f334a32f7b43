"""Search spaces of real dispatches: every registered generator keeps the same contract."""

import math
from dataclasses import replace

import numpy as np
import pytest

import dispatch_corpus as corpus
from tilewright.errors import UserError
from tilewright.ir.session import CompileError
from tilewright.space import Constraint
from tilewright.space.cpu_tiles import INNER, NO_LOOP, CpuPipeline
from tilewright.space.generators import CPU_PIPELINES, GPU_PIPELINES, dispatch_space
from tilewright.space.knobs import TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB
from tilewright.tiling import PEELING, Tiling
from tilewright.trial import Configuration

SAMPLES = 5


def spaces(name):
    """(dispatch, its space) for every dispatch of a case."""
    for dispatch in corpus.dispatches(name):
        space = dispatch_space(dispatch.template, dispatch.workload, corpus.TARGET)
        assert space is not None
        yield dispatch, space


def space_of(name):
    return list(spaces(name))[-1][1]


def member(name, pipeline):
    return space_of(name).members[pipeline]


def named_convolution():
    """The space of a convolution that the compiler has not made generic."""
    dispatch = corpus.last("conv_nhwc")
    template = dispatch.template
    root = replace(template.root_op, name="linalg.conv_2d_nhwc_hwcf")
    ops = tuple(root if i == template.root else op for i, op in enumerate(template.ops))
    return dispatch_space(replace(template, ops=ops), dispatch.workload, corpus.TARGET)


def changed(space, **values):
    """The default with other values for some knobs."""
    return Configuration.of({**dict(space.default.items), **values})


def reasons(space, **values):
    return {v.name: v.reason for v in space.violations(changed(space, **values))}


class TestContract:
    @pytest.mark.parametrize("name", corpus.CASES)
    def test_the_compilers_own_choice_is_a_member(self, name):
        for dispatch, space in spaces(name):
            assert space.space.default_is_member
            assert space.space.violations(space.default) == []
            assert space.lower(space.default) == dispatch.template.default

    @pytest.mark.parametrize("name", corpus.CASES)
    def test_samples_are_valid_and_become_attributes_of_the_compiler(self, name):
        for dispatch, space in spaces(name):
            drawn = space.space.sample(np.random.default_rng(3), SAMPLES)
            assert len(drawn) == SAMPLES
            for configuration in drawn:
                assert space.space.contains(configuration)
                lowered = space.lower(configuration)
                assert lowered.translation.pipeline in space.members
                assert dispatch.with_configuration(lowered).verify()

    @pytest.mark.parametrize("name", corpus.CASES)
    def test_every_configuration_has_a_finite_prior_and_features(self, name):
        for _, space in spaces(name):
            drawn = space.space.sample(np.random.default_rng(4), 20)
            assert space.space.has_prior
            for configuration in (space.default, *drawn):
                assert math.isfinite(space.space.prior(configuration))
            assert np.isfinite(space.space.encode_many(drawn)).all()

    @pytest.mark.parametrize("name", corpus.CASES)
    def test_only_the_loops_levels_that_a_pipeline_reads_are_tiled(self, name):
        for dispatch, space in spaces(name):
            loops = len(dispatch.workload.dims)
            for configuration in space.space.sample(np.random.default_rng(5), SAMPLES):
                lowered = space.lower(configuration)
                read = space.members[lowered.translation.pipeline].levels
                for level, sizes in dict(lowered.tilings)[dispatch.template.root].levels:
                    assert level in read
                    assert len(sizes) == loops

    def test_generators_are_named_once_for_each_pipeline(self):
        assert len({p.name for p in CPU_PIPELINES}) == len(CPU_PIPELINES)
        assert len(set(GPU_PIPELINES)) == len(GPU_PIPELINES)

    def test_every_generator_is_tested(self):
        seen = {
            d.template.translation.pipeline
            for name in corpus.CASES
            for d in corpus.dispatches(name)
        }
        assert seen == {p.name for p in CPU_PIPELINES}

    @pytest.mark.parametrize("pipeline", CPU_PIPELINES, ids=lambda p: p.name)
    def test_a_pipeline_fits_what_the_compiler_itself_gives_to_it(self, pipeline):
        for name in corpus.CASES:
            for dispatch, space in spaces(name):
                if dispatch.template.translation.pipeline == pipeline.name:
                    assert space.own == pipeline.name
                    assert space.members[pipeline.name].is_own
                elif pipeline.fits(dispatch.template, dispatch.workload):
                    assert space.members[pipeline.name].is_own is False
                else:
                    assert pipeline.name not in space.members


class TestWhatIsSearched:
    def test_convolutions_have_a_choice_of_pipelines(self):
        for name in ("conv_nhwc", "depthwise", "pool_max"):
            space = space_of(name)
            assert set(space.members) == {"ConvTileAndDecomposeExpert", "DoubleTilingExpert"}
            assert dict(space.default.items)[MEMBER_KNOB] == "ConvTileAndDecomposeExpert"
        assert set(space_of("matmul_odd").members) == {"DoubleTilingExpert"}

    def test_all_levels_of_a_matmul(self):
        knobs = {k.name for k in space_of("matmul_nn_f32_f32").space.knobs}
        assert knobs == {
            MEMBER_KNOB,
            "distribution_m",
            "distribution_n",
            "cache_parallel_m",
            "cache_parallel_n",
            "cache_reduction_k",
            "vector_common_parallel_m",
            "vector_common_parallel_n",
            "vector_reduction_k",
            INNER,
            PEELING,
        }

    def test_loops_that_run_once_have_no_knobs(self):
        knobs = {k.name for k in space_of("matmul_one_row").space.knobs}
        assert not any(name.endswith("_m") for name in knobs)

    def test_packed_tiles_are_fixed_by_their_layout(self):
        for name in ("mmt4d", "matmul_i8_data_tiled", "batch_mmt4d"):
            space = space_of(name)
            knobs = {k.name for k in space.space.knobs}
            assert not any(k.endswith(("m1", "n1", "k1")) for k in knobs)
            assert {"distribution_m0", "vector_common_parallel_n0", "vector_reduction_k0"} <= knobs
        assert "distribution_b" in knobs
        assert "vector_common_parallel_b" not in knobs

    def test_packed_tiles_of_a_step_fit_the_registers(self):
        space = member("mmt4d", "Mmt4dTilingExpert").space
        (rule,) = (c for c in space.constraints if c.name == "accumulators")
        assert rule.knobs == ("vector_common_parallel_m0", "vector_common_parallel_n0")
        held = {m: rule.holds(dict.fromkeys(rule.knobs, m)) for m in (1, 2, 4, 8)}
        assert held[1]
        assert not held[8]
        assert list(held.values()) == sorted(held.values(), reverse=True)

    def test_peeling(self):
        space = space_of("matmul_odd")
        for on in (False, True):
            lowered = space.lower(changed(space, **{PEELING: on}))
            assert (PEELING in lowered.translation.options) is on

    def test_the_compilers_own_peeling_is_kept_and_can_be_dropped(self):
        first, second = spaces("layernorm")
        assert PEELING not in first[1].lower(first[1].default).translation.options
        own = second[1]
        assert PEELING in own.lower(own.default).translation.options
        off = own.lower(changed(own, **{PEELING: False}))
        assert off.translation.options == ()
        assert off.tilings == own.lower(own.default).tilings

    def test_an_inner_parallel_loop_takes_its_vector_along(self):
        space = space_of("matmul_nn_f32_f32")
        dispatch = corpus.last("matmul_nn_f32_f32")
        (knob,) = (k for k in space.space.knobs if k.name == INNER)
        assert [knob.value(i) for i in range(knob.cardinality)] == [NO_LOOP, "m", "n"]
        lowered = space.lower(changed(space, **{INNER: "n"}))
        root = dict(lowered.tilings)[dispatch.template.root].by_level
        assert root["vector_common_parallel"] == (8, 0, 0)
        assert root["vector_inner_parallel"] == (0, 16, 0)

    def test_the_same_configuration_is_for_every_op_of_the_dispatch(self):
        space = space_of("matmul_bias_relu")
        lowered = dict(space.lower(changed(space, vector_common_parallel_m=4)).tilings)
        assert {t.size("vector_common_parallel", 0) for t in lowered.values()} == {4}


class TestConstraints:
    def test_every_rule_says_why_with_numbers(self):
        """A rule is broken in random points of the whole product, and its reason has the values."""
        seen = set()
        rng = np.random.default_rng(0)
        names = ("matmul_nn_f32_f32", "conv_nhwc", "attention", "mmt4d", "unpack")
        for searched in (*map(space_of, names), named_convolution()):
            for pipeline in searched.members.values():
                space = pipeline.space
                for _ in range(300):
                    values = {k.name: k.sample(rng) for k in space.knobs}
                    for violation in space.violations(Configuration.of(values)):
                        rule = next(c for c in space.constraints if c.name == violation.name)
                        assert any(str(values[k] or "") in violation.reason for k in rule.knobs), (
                            violation
                        )
                        assert "\n" not in violation.reason
                        assert any(c.isdigit() for c in violation.reason)
                        seen.add(violation.name)
        assert {
            "vector_within_distribution_m",
            "cache_within_distribution_n",
            "vector_within_cache_k",
            "vector_bytes",
            "decomposable_window",
            "query_key_vector_bytes",
            "value_vector_bytes",
        } <= seen

    def test_a_vector_beyond_its_distribution_tile(self):
        space = member("matmul_nn_f32_f32", "DoubleTilingExpert").space
        assert not reasons(space, distribution_m=6, vector_common_parallel_m=8)
        found = reasons(space, distribution_m=4, vector_common_parallel_m=8)
        assert set(found) == {"vector_within_distribution_m"}
        assert "8" in found["vector_within_distribution_m"]

    def test_cache_blocks_between_distribution_and_vector(self):
        space = member("matmul_nn_f32_f32", "DoubleTilingExpert").space
        assert not reasons(space, distribution_m=32, cache_parallel_m=16)
        assert set(reasons(space, distribution_m=16, cache_parallel_m=16)) == {
            "cache_within_distribution_m"
        }
        assert set(
            reasons(space, distribution_m=64, cache_parallel_m=8, vector_common_parallel_m=16)
        ) == {"vector_within_cache_m"}

    def test_vectors_beyond_the_compilers_limit(self):
        space = member("matmul_nn_f32_f32", "DoubleTilingExpert").space
        # 16 * 32 * 16 elements of 4 bytes are the limit itself, which is one too many.
        sizes = {"distribution_m": 64, "distribution_n": 96, "vector_common_parallel_m": 16}
        at = reasons(space, **sizes, vector_common_parallel_n=32, vector_reduction_k=16)
        assert set(at) == {"vector_bytes"}
        assert "takes 32768 bytes" in at["vector_bytes"]
        assert not reasons(space, **sizes, vector_common_parallel_n=32, vector_reduction_k=8)

    def test_initial_values_of_a_cache_tile_beyond_the_compilers_limit(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        target = replace(corpus.TARGET, max_vector_bytes=16 * 1024)
        spaces = dispatch_space(dispatch.template, dispatch.workload, target)
        space = spaces.members["DoubleTilingExpert"].space
        # 64 * 64 elements of 4 bytes are the limit itself, which is one too many.
        tile = {"distribution_m": 64, "distribution_n": 64}
        found = reasons(space, **tile, cache_reduction_k=32)
        assert set(found) == {"initial_values_bytes"}
        assert "64x64 elements of 32 bits" in found["initial_values_bytes"]
        assert "of 16384 bytes" in found["initial_values_bytes"]
        assert not reasons(space, **tile)
        assert not reasons(space, **tile, cache_reduction_k=32, cache_parallel_n=32)
        # The inner loop has its vector tile there, the other one has not.
        inner = {**tile, "cache_reduction_k": 32, "vector_inner_parallel": "m"}
        assert not reasons(space, **inner)
        assert set(reasons(space, **{**inner, "vector_common_parallel_m": 64})) >= {
            "initial_values_bytes"
        }
        drawn = space.sample(np.random.default_rng(6), 200)
        assert not any(space.violations(one) for one in drawn)

    def test_the_limit_counts_the_accumulator(self):
        narrow = member("matmul_nn_i8_i32", "DoubleTilingExpert").space
        assert "of 32 bits" in next(
            iter(
                reasons(
                    narrow,
                    distribution_m=64,
                    distribution_n=96,
                    vector_common_parallel_m=16,
                    vector_common_parallel_n=32,
                    vector_reduction_k=16,
                ).values()
            )
        )

    def test_attention_has_a_limit_for_each_of_its_products(self):
        space = member("attention", "LinalgExtTileAndVectorize").space
        assert {"query_key_vector_bytes", "value_vector_bytes"} <= {
            c.name for c in space.constraints
        }

    def test_only_a_row_or_a_column_of_a_named_convolution_can_be_decomposed(self):
        dispatch = corpus.last("conv_nhwc")
        window = {"vector_reduction_kh": 3, "vector_reduction_kw": 3, "vector_reduction_ic": 1}
        space = named_convolution().members["ConvTileAndDecomposeExpert"].space
        found = reasons(space, **window)
        assert set(found) == {"decomposable_window"}
        assert "the window 3x3 and the image 1x8" in found["decomposable_window"]
        assert not reasons(space, **{**window, "vector_reduction_kh": 1})
        # What the compiler has made generic it does not have to decompose.
        assert dispatch.template.root_op.name == "linalg.generic"
        own = member("conv_nhwc", "ConvTileAndDecomposeExpert")
        assert not reasons(own.space, **window)
        module = dispatch.with_configuration(own.configure(changed(own.space, **window)))
        assert dispatch.session.compile(module, compile_from=corpus.CONFIGURED)

    @pytest.mark.slow
    def test_the_compiler_refuses_vectors_beyond_the_limit(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        own = member("matmul_nn_f32_f32", "DoubleTilingExpert")
        beyond = changed(
            own.space,
            distribution_m=64,
            distribution_n=96,
            vector_common_parallel_m=16,
            vector_common_parallel_n=32,
        )
        assert [v.name for v in own.space.violations(beyond)] == ["vector_bytes"]
        module = dispatch.with_configuration(own.configure(beyond))
        with pytest.raises(CompileError, match="large vector sizes"):
            dispatch.session.compile(module, compile_from=corpus.CONFIGURED)

    def test_a_rule_that_the_compiler_itself_breaks_is_no_rule(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        template = dispatch.template
        huge = Tiling.of(
            {
                "distribution": (64, 96, 0),
                "vector_common_parallel": (64, 96, 0),
                "vector_reduction": (0, 0, 64),
            }
        )
        root = replace(template.root_op, tiling=huge)
        ops = tuple(root if i == template.root else op for i, op in enumerate(template.ops))
        own = replace(template, ops=ops)
        space = dispatch_space(own, dispatch.workload, corpus.TARGET)
        assert space.space.default_is_member
        assert space.lower(space.default) == own.default
        (pipeline,) = space.members.values()
        assert "vector_bytes" not in {c.name for c in pipeline.space.constraints}


class TestSize:
    def test_sampling_a_huge_space_costs_no_more_than_a_small_one(self, monkeypatch):
        evaluated = 0
        mask, holds = Constraint.mask, Constraint.holds

        def counting_mask(self, columns):
            nonlocal evaluated
            evaluated += len(columns[0])
            return mask(self, columns)

        def counting_holds(self, values):
            nonlocal evaluated
            evaluated += 1
            return holds(self, values)

        monkeypatch.setattr(Constraint, "mask", counting_mask)
        monkeypatch.setattr(Constraint, "holds", counting_holds)
        for name, least in (("sum", 1e3), ("conv_nhwc_n2", 1e9)):
            evaluated = 0
            space = space_of(name).space
            assert space.size_estimate(np.random.default_rng(0)).points >= least
            space.sample(np.random.default_rng(0), 10)
            assert evaluated < 1_000_000
            evaluated = 0
            assert len(set(space.sample(np.random.default_rng(1), 1000))) > 500
            # What is not in tables is asked once of each that is drawn, whatever the space's size.
            assert evaluated < 5 * 1000

    def test_a_dispatch_without_a_choice_is_its_default(self):
        space = space_of("scalar").space
        assert space.size_estimate(np.random.default_rng(0)).points == 1
        assert set(space.sample(np.random.default_rng(0), 3)) == {space.default}

    @pytest.mark.parametrize("name", ["matmul_nn_f32_f32", "conv_nhwc", "attention", "pack"])
    def test_neighbours_are_members_and_one_step_away(self, name):
        space = space_of(name).space
        steps = list(space.neighbours(space.default, np.random.default_rng(0)))
        assert len(steps) > 5
        assert space.default not in steps
        assert len(set(steps)) == len(steps)
        assert all(space.contains(c) for c in steps)

    @pytest.mark.parametrize("name", ["matmul_nn_f32_f32", "conv_nhwc", "attention", "pack"])
    def test_members_that_differ_in_one_knob_are_all_that_there_are(self, name):
        union = space_of(name).space
        for space in getattr(union, "members", [union]):
            (drawn,) = space.sample(np.random.default_rng(3), 1)
            values = dict(drawn.items)
            others = [
                Configuration.of(values | {knob.name: knob.value(i)})
                for knob in space.knobs
                for i in range(knob.cardinality)
            ]
            found = space.changed_once([drawn])
            members = [one for one in others if space.contains(one)]
            assert [found.at(number) for number in range(len(found.of))] == members
            # Also around what is none itself, and of several together.
            rejected = next((one for one in others if not space.contains(one)), None)
            if rejected is not None:
                both = space.changed_once([rejected, drawn])
                around = [(int(n), both.at(at)) for at, n in enumerate(both.of)]
                assert [one for number, one in around if number == 1] == members
                assert all(space.contains(one) for _, one in around)
                assert (0, drawn) in around

    def test_rejections_name_the_rules(self):
        found = named_convolution().space.rejections(np.random.default_rng(0))
        assert found["ConvTileAndDecomposeExpert.decomposable_window"] > 0.1
        assert all(0 <= share <= 1 for share in found.values())


class TestRestriction:
    def test_a_knob_is_held_to_the_values_of_the_user(self):
        space = space_of("matmul_nn_f32_f32").space
        narrow = space.restrict({"distribution_m": [33, 64], "cache_reduction_k": [32, 64]}).space
        drawn = narrow.sample(np.random.default_rng(0), 50)
        assert {c["distribution_m"] for c in drawn} == {33, 64}
        assert {c["cache_reduction_k"] for c in drawn} == {32, 64}
        lower = space_of("matmul_nn_f32_f32").lower
        assert all(dict(lower(c).tilings)[1].size("distribution", 0) in (33, 64) for c in drawn)

    def test_a_size_beyond_the_loop_is_an_error_with_what_is_allowed(self):
        space = space_of("matmul_nn_f32_f32").space
        with pytest.raises(UserError, match="1 to 64"):
            space.restrict({"distribution_m": [65]})

    def test_a_pipeline_can_be_chosen(self):
        space = space_of("conv_nhwc").space
        only = space.restrict({MEMBER_KNOB: ["ConvTileAndDecomposeExpert"]}).space
        assert {c[MEMBER_KNOB] for c in only.sample(np.random.default_rng(0), 20)} == {
            "ConvTileAndDecomposeExpert"
        }

    def test_restrictions_that_exclude_each_other_name_the_rule(self):
        space = space_of("matmul_nn_f32_f32").space
        with pytest.raises(UserError, match="vector_within_distribution_m"):
            space.restrict({"distribution_m": [4], "vector_common_parallel_m": [32]})


class TestWithoutASpace:
    def test_sizes_known_at_run_time_only(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        dims = tuple(replace(d, size=-1) for d in dispatch.workload.dims)
        workload = replace(dispatch.workload, dims=dims)
        assert dispatch_space(dispatch.template, workload, corpus.TARGET) is None

    def test_a_pipeline_that_is_not_modelled(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        translation = replace(dispatch.template.translation, pipeline="TransformDialectCodegen")
        template = replace(dispatch.template, translation=translation)
        assert dispatch_space(template, dispatch.workload, corpus.TARGET) is None

    def test_a_root_that_the_compiler_does_not_tile(self):
        dispatch = corpus.last("matmul_nn_f32_f32")
        ops = tuple(replace(op, tiling=None) for op in dispatch.template.ops)
        template = replace(dispatch.template, ops=ops)
        assert dispatch_space(template, dispatch.workload, corpus.TARGET) is None


def test_another_pipeline_starts_from_the_compilers_tiles():
    dispatch = corpus.last("conv_nhwc")
    own = dispatch.template.root_op.tiling
    other = member("conv_nhwc", "DoubleTilingExpert")
    assert isinstance(other, CpuPipeline)
    assert other.tiling(other.default) == own
    assert other.configure(other.default).translation.pipeline == "DoubleTilingExpert"


def test_a_tile_of_the_compilers_that_is_larger_than_the_loop():
    dispatch = corpus.last("matmul_odd")
    root = dispatch.template.root_op
    own = root.tiling
    large = {level: list(sizes) for level, sizes in own.levels}
    large["cache_parallel"] = [2 * root.extents[0], *([0] * (len(root.extents) - 1))]
    tiling = Tiling.of({level: tuple(sizes) for level, sizes in large.items()})
    ops = tuple(
        replace(op, tiling=tiling) if i == dispatch.template.root else op
        for i, op in enumerate(dispatch.template.ops)
    )
    template = replace(dispatch.template, ops=ops)
    space = dispatch_space(template, dispatch.workload, corpus.TARGET)
    assert space.space.default_is_member
    assert space.lower(space.default) == template.default
    knob = next(
        k for k in space.members["DoubleTilingExpert"].space.knobs if k.name == "cache_parallel_m"
    )
    assert knob.values[-2:] == (2 * root.extents[0], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "matmul_odd",
        "conv_nhwc",
        "depthwise",
        "softmax",
        "attention",
        "pack",
        "mmt4d",
        "batch_mmt4d",
    ],
)
def test_most_samples_compile(name):
    dispatch, space = corpus.last(name), space_of(name)
    good = 0
    for configuration in space.space.sample(np.random.default_rng(0), 4):
        try:
            module = dispatch.with_configuration(space.lower(configuration))
            good += bool(dispatch.session.compile(module, compile_from=corpus.CONFIGURED))
        except CompileError:
            continue
    assert good >= 2


class TestKernels:
    """Sketches of kernels are members of a dispatch's space like pipelines."""

    @staticmethod
    def sketch(prior=None):
        knobs = [TileKnob("rows", (1, 2, 4, 8)), TileKnob("columns", (8, 16, 32))]
        start = Configuration.of({"rows": 4, "columns": 16})
        return SearchSpace("tiles", knobs, [], start, prior)

    def space(self, alone=False, prior=None):
        dispatch = corpus.last("matmul_odd")
        kernels = {"tiles": self.sketch(prior)}
        target = corpus.TARGET
        return dispatch_space(dispatch.template, dispatch.workload, target, kernels, alone)

    def test_a_configuration_is_a_kernel_or_of_a_pipeline(self):
        space = self.space()
        assert {c[MEMBER_KNOB] for c in self.drawn(space)} == {*space.members, "kernel-tiles"}
        for one in self.drawn(space):
            kernel = space.kernel(one)
            assert (kernel is None) == (one[MEMBER_KNOB] in space.members)
            if kernel is not None:
                assert kernel.sketch == "tiles"
                assert set(kernel.knobs.values) == {"rows", "columns"}

    @staticmethod
    def drawn(space):
        return space.space.sample(np.random.default_rng(0), 200)

    def test_both_worlds_are_drawn_alike_whatever_their_sizes(self):
        kernels = [c for c in self.drawn(self.space()) if c[MEMBER_KNOB] == "kernel-tiles"]
        assert 70 < len(kernels) < 130

    def test_a_sketch_is_taken_to_be_as_fast_as_the_compilers_own_choice(self):
        space = self.space(prior=lambda c: 5.0 - c["rows"])
        own, kernel = space.space.anchors
        assert own == space.default
        assert space.space.prior(kernel) == pytest.approx(space.space.prior(own))
        better = Configuration.of({**dict(kernel.items), "rows": 1})
        assert space.space.prior(better) == pytest.approx(space.space.prior(own) + 3.0)

    def test_held_to_kernels_the_compilers_choice_is_known_and_not_searched(self):
        space, free = self.space(alone=True), self.space()
        assert space.default == free.default
        assert not space.space.default_is_member
        assert {c[MEMBER_KNOB] for c in self.drawn(space)} == {"kernel-tiles"}
        assert space.lower(space.default) == free.lower(free.default)

    def test_kernels_alone_make_a_space_where_there_is_no_template(self):
        workload = corpus.last("matmul_odd").workload
        space = dispatch_space(None, workload, corpus.TARGET, {"tiles": self.sketch()})
        assert {c[MEMBER_KNOB] for c in self.drawn(space)} == {"kernel-tiles"}
        assert dispatch_space(None, workload, corpus.TARGET) is None
