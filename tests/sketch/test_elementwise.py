"""Elementwise sites: every configuration of the sketch computes the same."""

from __future__ import annotations

import pickle

import numpy as np

from tilewright import te
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.target import parse_target


def test_configurations_of_a_chain_with_a_broadcast_are_right() -> None:
    x, b = te.placeholder((6, 13), "f32", name="x"), te.placeholder((13,), "f32", name="b")
    added = te.compute((6, 13), lambda i, j: x[i, j] + b[j], name="added")
    y = te.compute((13, 6), lambda i, j: te.select(added[j, i] > 0.0, added[j, i], 0.0), name="y")
    site = pickle.loads(pickle.dumps(SiteExpression((x, b), (False, True), y)))
    (sketch,) = sketches(site, parse_target("cpu"))
    values = np.random.default_rng(0).standard_normal((6, 13)).astype("f")
    bias = np.linspace(-1, 1, 13, dtype="f")
    for configuration in sketch.space.sample(np.random.default_rng(0), 3):
        kernel = sketch.schedule(configuration)
        found = te.build(kernel.schedule, kernel.arguments)(values, bias)
        assert np.array_equal(found, np.maximum(values + bias, 0).T)
