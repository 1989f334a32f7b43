"""Each primitive: its loop nest, its effect in the MLIR, its numbers against NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def _tiled_product() -> tuple[te.Schedule, te.Tensor, list[te.Tensor], list[Any]]:
    """A product in panels of 8 columns, tiles of 2 rows, sums below the tiles; the loops over
    panels, tiles and steps of the depth."""
    a, b = te.placeholder((6, 40), name="A"), te.placeholder((3, 40, 8), name="B")
    k = te.reduce_axis(40, "k")
    sums = te.compute((6, 24), lambda i, j: te.sum(a[i, k] * b[j // 8, k, j % 8], k), name="S")
    out = te.compute((6, 24), lambda i, j: sums[i, j] + 1.0, name="O")
    s = te.create_schedule(out)
    rows, row = s[out].split(s[out].op.axis[0], 2)
    panels, column = s[out].split(s[out].op.axis[1], 8)
    s[out].reorder(panels, rows, row, column)
    s[sums].compute_at(s[out], rows)
    steps, step = s[sums].split(s[sums].op.reduce_axis[0], 5)
    s[sums].reorder(steps, step, *s[sums].op.axis)
    return s, sums, [a, b, out], [panels, rows, steps]


def test_shares_of_a_prefetch_are_all_that_the_next_iteration_reads() -> None:
    """20 lines of a panel in the 24 iterations of the steps for three tiles of rows."""
    s, sums, arguments, (panels, _, steps) = _tiled_product()
    s[sums].prefetch(arguments[1], panels, 1, during=steps)
    text = str(te.lower(s, arguments))
    (line,) = (line.strip() for line in text.splitlines() if "prefetch(" in line)
    fetched = re.fullmatch(r"prefetch\(B\[(.*)\], cache=2\)", line)
    assert fetched is not None, line
    place = fetched[1]
    for old, new in (("j.outer", "panel"), ("i.outer", "tile"), ("k.outer", "step")):
        place = place.replace(old, new)
    for panel in range(3):
        places = [
            eval(place, {"panel": panel, "tile": tile, "step": step})
            for tile in range(3)
            for step in range(8)
        ]
        flat = [40 * 8 * p + 8 * k + j for p, k, j in places]
        assert sorted(set(flat)) == list(range((panel + 1) * 320, (panel + 2) * 320, 16))
        assert flat == sorted(flat)
    made = te.lower(s, arguments).mlir()
    assert "locality<2>" in str(made)


def test_shares_are_of_a_loop_around_the_one_that_fetches() -> None:
    s, sums, arguments, (*_, steps) = _tiled_product()
    inner = s[sums].op.axis[1]
    s[sums].prefetch(arguments[1], inner, 1, during=steps)
    with pytest.raises(te.ScheduleError, match=r"no loop around axis 'k\.outer'"):
        te.lower(s, arguments)
    with pytest.raises(te.ScheduleError, match="is not a loop"):
        s[sums].prefetch(arguments[1], "rows", 1, during=steps)


def test_what_is_computed_inside_of_a_loop_has_no_share_in_it() -> None:
    """Neither at a loop of the stage nor at one around it: the next iteration's is not there."""
    for place in (1, 2):
        s, sums, arguments, (panels, *loops) = _tiled_product()
        copy = s.cache_read(arguments[1], "shared", [sums])
        s[copy].compute_at(s[arguments[2]] if place == 1 else s[sums], loops[place - 1])
        s[sums].prefetch(copy, panels, 1, during=loops[1])
        with pytest.raises(te.ScheduleError, match=r"'B\.shared' is computed at axis"):
            te.lower(s, arguments)


def test_a_schedule_with_shares_is_written_down_and_read() -> None:
    s, sums, arguments, (panels, _, steps) = _tiled_product()
    s[sums].prefetch(arguments[1], panels, 1, during=steps)
    written = s.trace()
    for trace in (
        te.Trace.from_json(written.to_json()),
        te.Trace.from_python(written.to_python()),
    ):
        _, _, others, _ = _tiled_product()
        again = trace.apply(others[-1])
        assert str(te.lower(again, others)) == str(te.lower(s, arguments))


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
