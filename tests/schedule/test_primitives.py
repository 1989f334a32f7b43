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


def _row_sums() -> tuple[te.Schedule, te.Tensor, te.Tensor]:
    a = te.placeholder((8, 12), name="A")
    r = te.reduce_axis(12, "r")
    c = te.compute((8,), lambda i: te.sum(a[i, r], axis=r), name="C")
    return te.create_schedule(c), a, c


def test_a_prefetch_of_what_is_added_to() -> None:
    """The result of the stage itself, and what it reads through an inlined stage, in rows where a
    tile goes from one end of a dimension to the beginning of the next."""
    a, c = te.placeholder((5, 7, 12), name="A"), te.placeholder((5, 7, 12), name="C")
    r = te.reduce_axis(12, "r")
    total = te.compute((5, 7), lambda i, j: te.sum(a[i, j, r], axis=r), name="T")
    scaled = te.compute((5, 7, 12), lambda i, j, k: c[i, j, k] * 2.0, name="S")
    out = te.compute((5, 7, 12), lambda i, j, k: scaled[i, j, k] + total[i, j], name="O")
    s = te.create_schedule(out)
    s[scaled].compute_inline()
    i, j, _ = s[out].op.axis
    tile, _ = s[out].split(s[out].fuse(i, j), 3)
    s[total].compute_at(s[out], tile)
    s[out].prefetch(c, tile, 0)
    s[total].prefetch(total, s[total].op.axis[0], 0)
    text = str(te.lower(s, [a, c, out]))
    (row,) = (line for line in text.splitlines() if "prefetch(C" in line)
    place = "(i.j.fused.outer*3 + i.j.fused.inner.init)"
    assert row.strip() == f"prefetch(C[0 + {place}//7, {place}%7, 0:+12])".replace("0 + ", "")
    assert "for i.j.fused.inner.init in range(3):" in text
    assert text.count("prefetch(T[") == 1


@pytest.mark.parametrize("parts", [{"factor": 4}, {"nparts": 5}])
def test_a_split_takes_a_prefetch_along(parts: dict[str, int]) -> None:
    """The element that is fetched stays the one that the unsplit loop would have read next."""
    s, a, c = _row_sums()
    (r,) = c.op.reduce_axis
    s[c].prefetch(a, r, 2)
    _, inner = s[c].split(r, **parts)
    extent = {"factor": 4, "nparts": 3}[next(iter(parts))]
    read = f"r.outer*{extent} + r.inner"
    text = str(te.lower(s, [a, c]))
    assert f"prefetch(A[i, {read} + 2])" in text
    assert f"C[i] = C[i] + A[i, {read}]" in text
    assert s.trace().apply(c).trace() == s.trace()
    assert s[c].marks[inner].prefetches == [(a, 2)]


@pytest.mark.parametrize(
    ("pragma", "value", "outer", "inner"),
    [
        ("unroll", None, "  # pragma unroll", "  # pragma unroll"),
        ("vectorize", None, "", "  # pragma vectorize"),
        ("auto_unroll_max_step", 8, "  # pragma auto_unroll_max_step=8", ""),
    ],
)
def test_a_split_takes_pragmas_along(
    pragma: str, value: int | None, outer: str, inner: str
) -> None:
    s, a, c = _row_sums()
    (i,) = c.op.axis
    s[c].pragma(i, pragma, value)
    s[c].split(i, factor=4)
    text = str(te.lower(s, [a, c]))
    assert f"for i.outer in range(2):{outer}\n" in text
    assert f"for i.inner in range(4):{inner}\n" in text


def test_a_tile_takes_hints_along() -> None:
    a = te.placeholder((8, 8), name="A")
    c = te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="C")
    s = te.create_schedule(c)
    s[c].pragma(c.op.axis[0], "unroll")
    s[c].tile(*c.op.axis, 4, 4)
    assert str(te.lower(s, [a, c])).count("# pragma unroll") == 2
