"""Elementwise sites: every configuration of the sketch computes the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sketch_cases import check, site

from tilewright import te
from tilewright.sketch.elementwise import ElementwiseSketch
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.target import parse_target


def chain(m: int, n: int) -> SiteExpression:
    x, b = te.placeholder((m, n), "f32", name="x"), te.placeholder((n,), "f32", name="b")
    added = te.compute((m, n), lambda i, j: x[i, j] + b[j], name="added")
    y = te.compute((n, m), lambda i, j: te.select(added[j, i] > 0.0, added[j, i], 0.0), name="y")
    return SiteExpression((x, b), (False, True), y)


def per_channel(n: int, c: int, h: int, w: int) -> SiteExpression:
    x, b = te.placeholder((n, c, h, w), "f32", name="x"), te.placeholder((c,), "f32", name="b")
    y = te.compute(x.shape, lambda n, c, h, w: te.maximum(x[n, c, h, w] + b[c], 0.0), name="y")
    return site(y, x, b)


def channels_last(c: int, h: int, w: int) -> SiteExpression:
    x = te.placeholder((c, h, w), "f32", name="x")
    return site(te.compute((h, w, c), lambda h, w, c: x[c, h, w] * 2.0, name="y"), x)


def reshaped(m: int, n: int) -> SiteExpression:
    x = te.placeholder((m, n), "f32", name="x")
    return site(te.compute((m * n,), lambda i: x[i // n, i % n] + 1.0, name="y"), x)


def padded(n: int) -> SiteExpression:
    x = te.placeholder((n, n), "f32", name="x")

    def inside(i: te.IterVar, j: te.IterVar) -> te.Tensor:
        here = te.all(i >= 1, i < n + 1, j >= 1, j < n + 1)
        return te.if_then_else(here, x[i - 1, j - 1], 0.0)

    return site(te.compute((n + 2, n + 2), inside, name="y"), x)


def read_twice(m: int, n: int) -> SiteExpression:
    """A costly stage that is read at two places."""
    x = te.placeholder((m, n), "f32", name="x")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j]), name="e")
    return site(te.compute((m, n), lambda i, j: e[i, j] - e[i, n - 1 - j], name="y"), x)


CASES = {
    "chain with a broadcast and a transpose": lambda: chain(6, 13),
    "transpose of whole tiles": lambda: chain(32, 64),
    "per channel": lambda: per_channel(2, 5, 3, 7),
    "channels last": lambda: channels_last(19, 3, 10),
    "reshape": lambda: reshaped(9, 11),
    "padding": lambda: padded(10),
    "costly and read twice": lambda: read_twice(4, 21),
    "one row": lambda: reshaped(1, 100),
}


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    check(ElementwiseSketch(expression, parse_target("cpu")), expression, 6)


def test_code_of_a_chain_with_a_broadcast_is_right() -> None:
    expression = pickle.loads(pickle.dumps(chain(6, 13)))
    (sketch,) = sketches(expression, parse_target("cpu"))
    values = np.random.default_rng(0).standard_normal((6, 13)).astype("f")
    bias = np.linspace(-1, 1, 13, dtype="f")
    for configuration in sketch.space.sample(np.random.default_rng(0), 3):
        kernel = sketch.schedule(configuration)
        found = te.build(kernel.schedule, kernel.arguments)(values, bias)
        assert np.array_equal(found, np.maximum(values + bias, 0).T)
