"""Document 003 of the originals: the loops that its 21 programs print are those that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from loop_structures import of_ours, of_tvm

from tilewright.tvm_compat import main

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
