"""Templates: choices, the space that they make, and its search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate

from tilewright import te
from tilewright.store import Database, RunStatus
from tilewright.trial import Configuration


@te.template
def matmul(cfg: te.Config, n: int) -> Any:
    """A product of square matrices."""
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    cfg.define_split("i", c.op.axis[0], num_outputs=3)
    cfg.define_split("j", n, policy="candidate", candidate=[[-1, 1], [-1, 4], [-1, 3]])
    cfg.define_split("k", k, policy="power2", max_factor=4, filter=lambda e: e.size[1] != 2)
    i0, i1, i2 = cfg["i"].apply(s, c, c.op.axis[0])
    j0, j1 = cfg["j"].apply(s, c, c.op.axis[1])
    k0, k1 = cfg["k"].apply(s, c, k)
    cfg.define_reorder(
        "order", [k1, i2, j1], policy="candidate", candidate=[[k1, i2, j1], [i2, k1, j1]]
    )
    s[c].reorder(i0, i1, j0, k0, *cfg["order"].apply(s, c, [k1, i2, j1]))
    cfg.define_annotate("ann", [i2, j1], policy="try_unroll_vec")
    cfg["ann"].apply(s, c, [i2, j1])
    cfg.define_knob("parallel", [False, True])
    if cfg["parallel"].val:
        s[c].parallel(i0)
    return s, [a, b, c]


def test_the_choices_are_knobs() -> None:
    space = matmul.space(12)
    assert [k.name for k in space.knobs] == [
        *("i.1", "i.2", "j", "k.1", "order", "ann.0", "ann.1", "parallel")
    ]
    for configuration in space.sample(np.random.default_rng(0), 50):
        values = dict(configuration.items)
        assert 12 % (int(values["i.1"]) * int(values["i.2"])) == 0  # type: ignore[arg-type]
        assert values["k.1"] in (1, 4)


def test_every_member_computes_the_same() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((6, 6), np.float32), rng.random((6, 6), np.float32)
    for configuration in matmul.space(6).sample(rng, 25):
        schedule, tensors = matmul.schedule(6, config=configuration)
        (result,) = evaluate(te.lower(schedule, tensors).program, [a, b])
        np.testing.assert_allclose(result, a @ b, rtol=1e-5)


def test_the_default_is_the_first_of_each() -> None:
    default, tensors = matmul.schedule(8)
    plain = te.create_schedule(tensors[-1])
    k = tensors[-1].op.reduce_axis[0]
    assert "range(8)" in str(te.lower(default, tensors))
    assert str(te.lower(plain, tensors)).count("for") == str(te.lower(default, tensors)).count(
        "for"
    )
    assert k.name == "k"


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda c, k: c.define_split("x", k, policy="odd"), "unknown policy 'odd'"),
        (lambda c, k: c.define_split("x", k, num_outputs=0), "num_outputs is 0"),
        (lambda c, k: c.define_split("x", k, policy="candidate"), "lists of 2 sizes"),
        (lambda c, k: c.define_reorder("x", [k], policy="candidate"), "no candidate"),
        (lambda c, k: c.define_reorder("x", [k] * 6), "too many permutations"),
        (lambda c, k: c.define_annotate("x", [k], policy="bind"), "unknown policy 'bind'"),
        (lambda c, k: c.define_knob("x", []), "no candidate"),
        (lambda c, k: c["y"], "no choice 'y'"),
        (lambda c, k: (c.define_knob("x", [1]), c.define_knob("x", [1])), "twice"),
    ],
)
def test_mistakes_are_named(define: Any, message: str) -> None:
    @te.template
    def broken(cfg: te.Config) -> Any:
        a = te.placeholder((4,), name="A")
        b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
        define(cfg, b.op.axis[0])
        return te.create_schedule(b), [a, b]

    with pytest.raises(te.ScheduleError, match=message):
        broken.space()


def test_a_configuration_of_another_template_is_refused() -> None:
    with pytest.raises(te.ScheduleError, match=r"no value for 'i\.1'"):
        matmul.schedule(8, config=Configuration.of({"x": 1}))


@pytest.mark.slow
def test_a_search_finds_keeps_and_goes_on(tmp_path: Path) -> None:
    database = tmp_path / "trials.db"
    seen = []
    result = te.tune(
        matmul,
        64,
        trials=6,
        strategy="random",
        threads=1,
        database=database,
        reference=lambda a, b: a @ b,
        observe=lambda trial, best: seen.append(trial),
    )
    assert len(result.trials) == len(seen) == 6
    assert all(t.ok for t in result.trials), [t.message for t in result.trials]
    assert result.best_s <= result.default_s * 1.5
    result.build().verify(lambda a, b: a @ b)
    assert "times the default's speed" in str(result)
    with Database.open(database, create=False) as store:
        (run,) = store.runs()
        assert run.status is RunStatus.FINISHED
        assert store.count_trials(run.id) == 6
