"""Each primitive: its loop nest, its effect in the MLIR, its numbers against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nest_evaluator import evaluate
from primitive_cases import EXAMPLES, MARKS
from test_primitive_docs import METHODS

from tilewright import te

GOLDEN = Path(__file__).parent / "golden"
PRIME = 37


def test_every_primitive_has_an_example() -> None:
    assert set(EXAMPLES) == set(METHODS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_nest(name: str, request: pytest.FixtureRequest) -> None:
    texts = []
    for n in (64, PRIME):
        made = EXAMPLES[name](n)
        texts.append(f"# n = {n}\n{te.lower(made.schedule, made.arguments, simple_mode=True)}\n")
    text = "\n".join(texts)
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("n", [1, 7, 12])
def test_the_nest_computes_what_numpy_does(name: str, n: int) -> None:
    made = EXAMPLES[name](n)
    rng = np.random.default_rng(n)
    inputs = [rng.random(t.shape, np.float32) for t in made.arguments[:-1]]
    program = te.lower(made.schedule, made.arguments).program
    (result,) = evaluate(program, inputs, "random", n)
    np.testing.assert_allclose(result, made.reference(*inputs), rtol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_mlir_shows_it(name: str) -> None:
    made = EXAMPLES[name](64)
    text = str(te.lower(made.schedule, made.arguments).mlir("cpu"))
    outputs = [t for t in made.arguments if not made.schedule[t].is_placeholder]
    plain = str(te.lower(te.create_schedule(outputs), made.arguments).mlir("cpu"))
    if name == "compute_root":
        # It undoes compute_at.
        assert text == plain
        return
    assert text != plain
    assert MARKS[name] in text
    assert not MARKS[name] or text.count(MARKS[name]) > plain.count(MARKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("n", [PRIME, 64, 100])
def test_it_runs_on_the_cpu(name: str, n: int) -> None:
    made = EXAMPLES[name](n)
    te.build(made.schedule, made.arguments, target="cpu").verify(made.reference)
