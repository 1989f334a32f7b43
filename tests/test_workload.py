"""Workloads, configurations and errors: plain data."""

import json
import pickle
from dataclasses import replace

import pytest

from tilewright.errors import UnknownNameError, did_you_mean
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload

MATMUL = Workload(
    kind="contraction",
    dims=(Dim("m", 64), Dim("n", 96), Dim("k", 128, True)),
    element_types=("f32", "f32", "f32"),
    layout=("(m, n, k) -> (m, k)",),
    body="abc",
    root="linalg.matmul",
    flops=2 * 64 * 96 * 128,
    bytes=4,
)


def names(*roles):
    return replace(MATMUL, dims=tuple(Dim(role, 2) for role in roles)).loop_names


class TestWorkload:
    def test_json_and_key(self):
        again = Workload.from_json(json.loads(json.dumps(MATMUL.to_json())))
        assert again == MATMUL
        assert again.key == MATMUL.key == pickle.loads(pickle.dumps(MATMUL)).key
        assert hash(again) == hash(MATMUL)

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "reduction"},
            {"dims": (Dim("m", 64), Dim("n", 96), Dim("k", 127, True))},
            {"dims": (Dim("m", 64), Dim("k", 96), Dim("k", 128, True))},
            {"element_types": ("f16", "f16", "f32")},
            {"layout": ("(m, n, k) -> (k, m)",)},
            {"body": "abd"},
            {"fused": ("linalg.generic",)},
            {"encoding": "x"},
            {"attributes": (("a", "b"),)},
        ],
    )
    def test_whatever_decides_the_code_decides_the_key(self, change):
        assert replace(MATMUL, **change).key != MATMUL.key

    def test_name(self):
        assert MATMUL.name == "contraction 64x96x128 f32"
        mixed = replace(MATMUL, element_types=("f16", "f16", "f32"), fused=("a", "b"))
        assert mixed.name == "contraction 64x96x128 f16*f16->f32 +2 fused"
        assert replace(MATMUL, dims=(), kind="elementwise").name == "elementwise f32"
        assert replace(MATMUL, dims=(Dim("m", -1),)).name == "contraction ? f32"

    def test_sizes_that_are_not_known(self):
        dynamic = replace(MATMUL, dims=(Dim("m", -1), Dim("k", 4, True)))
        assert not dynamic.is_static
        assert dynamic.points == 0
        assert MATMUL.points == 64 * 96 * 128

    def test_loop_names_are_the_fields_own(self):
        assert names("batch", "m", "n", "k") == ("b", "m", "n", "k")
        assert names("m", "m", "n", "k") == ("m0", "m1", "n", "k")
        assert names("batch", "image", "image", "channel", "window", "window", "k") == (
            "b",
            "oh",
            "ow",
            "oc",
            "kh",
            "kw",
            "ic",
        )
        assert names("image", "channel", "window") == ("ow", "oc", "kw")
        assert names("image", "image", "image", "window")[:3] == ("od", "oh", "ow")
        assert names("parallel", "parallel", "reduction") == ("p0", "p1", "r")
        assert names("batch", "m", "n", "k1", "k2") == ("b", "m", "n", "k1", "k2")

    def test_by_role(self):
        assert MATMUL.by_role("k") == (2,)
        assert MATMUL.by_role("batch") == ()


class TestTrial:
    def test_configurations_are_equal_whatever_the_order_of_their_knobs(self):
        one, other = Configuration.of({"a": 1, "b": True}), Configuration.of({"b": True, "a": 1})
        assert one == other
        assert hash(one) == hash(other)
        assert one["a"] == 1
        with pytest.raises(TypeError):
            one.values["a"] = 2

    def test_ok_needs_a_time(self):
        configuration = Configuration.of({})
        assert Trial(configuration, Status.OK, 1.0).ok
        assert not Trial(configuration, Status.OK).ok
        assert not Trial(configuration, Status.CRASHED, 1.0).ok


def test_unknown_names_show_where_and_the_nearest():
    error = UnknownNameError("knob", "tile_n", ["tile_m", "depth"], "[SearchSpace]")
    assert str(error) == (
        "[SearchSpace]: unknown knob 'tile_n'; did you mean 'tile_m'? (allowed: depth, tile_m)"
    )
    assert did_you_mean("zzz", ["tile_m"]) == ""
