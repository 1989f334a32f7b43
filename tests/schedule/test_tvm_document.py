"""Document 003 of the originals: the loops that its 21 programs print are those that it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from loop_structures import of_ours, of_tvm

from tilewright import te, tvm_compat
from tilewright.schedule.tensor import PlaceholderOp
from tilewright.tvm_compat import main

Array: TypeAlias = npt.NDArray[Any]

FOLDER = Path(__file__).parents[3] / "shared" / "originals"
DOCUMENTS = sorted(FOLDER.glob("003_*.txt"))
CUT = re.compile(r"^-+(?:cutting line-+)?$", re.MULTILINE)
SHOWN = re.compile(r"^@main = .*?^}$", re.MULTILINE | re.DOTALL)


def programs() -> list[tuple[str, list[str]]]:
    """The programs of the document, each with the functions that it shows for it."""
    if not DOCUMENTS:
        return []
    parts = re.split(r"^import tvm$", DOCUMENTS[0].read_text(), flags=re.MULTILINE)[1:]
    cut = [
        re.split(r"^(?:执行|运行)?结果.*$", part, maxsplit=1, flags=re.MULTILINE) for part in parts
    ]
    # The last program is there twice: the second one stands where its result should.
    return [(f"import tvm{p[0]}", SHOWN.findall(p[1])) for p in cut if len(p) == 2]


PROGRAMS = programs()


@pytest.mark.skipif(not PROGRAMS, reason="the originals are not there")
def test_there_are_twenty_one() -> None:
    assert len(PROGRAMS) == 21
    # The last one shows its own source instead of what it prints.
    assert [len(shown) for _, shown in PROGRAMS] == [2] * 20 + [0]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_prints_the_loops_that_the_document_shows(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, shown = PROGRAMS[number]
    program = tmp_path / "program.py"
    program.write_text(source)
    try:
        assert main([str(program)]) == 0
    except SystemExit as ended:
        assert ended.code == 0  # noqa: PT017  (some end in exit(0))
    printed = [part.strip("\n") for part in CUT.split(capsys.readouterr().out)]
    assert len(printed) == 2
    for ours, theirs in zip(printed, shown, strict=bool(shown)):
        mine, wanted = of_ours(ours), of_tvm(theirs)
        assert mine.lines == wanted.lines
        assert mine.storage == wanted.storage


def _filled(tensors: list[te.Tensor]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, t.shape).astype(np.float32) for t in tensors]


def _padded(a: Array, w: Array) -> Array:
    wide = np.pad(a, 4)
    m = len(a) + 2
    parts = [w[p, q] * wide[p + 2 :, q + 2 :][:m, :m] for p in range(3) for q in range(3)]
    return np.sum(parts, axis=0)


# By the programs' numbers in the document.
WANTED: dict[int, Callable[..., Array]] = {
    **dict.fromkeys((1, 2, 4, 15, 16, 17), lambda a: a.sum(1)),
    **dict.fromkeys((5, 7, 8, 9, 19, 20), lambda a: a.sum(keepdims=True)),
    **dict.fromkeys((10, 12, 13), lambda a, b: a + b),
    3: lambda a: a.sum(1) + 10,
    6: _padded,
    11: lambda a, b: a @ b,
    14: lambda a: a[:1] * 1024,
    18: lambda a, b: a @ b.T,
    21: lambda a, b: a + 2 * b,
}
GEMV = """
int gemv_update(float *c, const float *a, const float *b, int m, int l, int stride) {
  for (int i = 0; i < m; ++i)
    for (int k = 0; k < l; ++k) c[i] += a[k] * b[i * stride + k];
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(PROGRAMS) + 1))
def test_a_program_computes_what_it_says(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built as it stands at its end, on this processor; and it compiles for a GPU."""
    said: list[tuple[te.Schedule, list[te.Tensor]]] = []

    def lower(s: te.Schedule, tensors: list[te.Tensor], **_: object) -> str:
        said.append((s, tensors))
        return ""

    monkeypatch.setattr(tvm_compat, "lower", lower)
    source = re.sub(r"^exit\(0\)$", "", PROGRAMS[number - 1][0], flags=re.MULTILINE)
    (tmp_path / "program.py").write_text(source)
    tvm_compat.run(str(tmp_path / "program.py"))
    s, tensors = said[-1]
    if number == 18:
        s[tensors[-1]].pragma(tensors[-1].op.axis[0], "import_c", GEMV)
    given = _filled([t for t in tensors if isinstance(t.op, PlaceholderOp)])
    result = te.build(s, tensors, threads=1)(*given)
    np.testing.assert_allclose(result, WANTED[number](*given), rtol=1e-5)
    if number != 18:
        assert te.build(s, tensors, target="cuda:sm_80").vmfb
