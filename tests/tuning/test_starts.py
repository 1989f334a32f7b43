"""Starts: what is tried of each site before the search, in the time that there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_run import played_context

from tilewright.store import Database
from tilewright.tuning import starts
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.starts import _batch, _layouts
from tilewright.tuning.variants import CHANNELS_LAST, Variant


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "t.db") as opened:
        yield opened


def test_no_more_is_compiled_at_once_than_there_is_time_to_try(
    tmp_path: Path, store: Database
) -> None:
    context, _ = played_context(tmp_path, store)
    assert context.target.cores == 2
    assert _batch(context) == 16, "without a limit"
    context.deadlines = Deadlines(400.0, 0.0, lambda: 290.0)
    assert _batch(context) == 4, "while it is not known what one takes"
    context.deadlines.took("trying a candidate", 8.0, 4)
    assert _batch(context) == 5, "ten seconds are left to the search"
    context.deadlines.took("trying a candidate", 900.0, 1)
    assert _batch(context) == 2, "one for each core"


@pytest.mark.parametrize("whole", [None, Variant("all-channels-last", ("--x",), is_layout=True)])
def test_channels_last_come_first_where_there_are_convolutions(
    monkeypatch: pytest.MonkeyPatch, whole: Variant | None
) -> None:
    context: Any = SimpleNamespace(options=TuneOptions(effort="quick"))
    monkeypatch.setattr(starts, "all_channels_last", lambda _: whole)

    def layouts(op: str, **site: Any) -> list[str]:
        first: Any = SimpleNamespace(sites=[SimpleNamespace(ops=(op,), tunable=object(), **site)])
        return [one.name for one in _layouts(context, first)]

    more = [] if whole is None else [whole.name]
    assert layouts("linalg.conv_2d_nchw_fchw") == [*more, "channels-last", "default"]
    assert layouts("linalg.matmul") == ["default"]
    context.options = TuneOptions(effort="quick", variants=(CHANNELS_LAST,))
    assert layouts("linalg.conv_2d_nchw_fchw") == ["channels-last"], "what the user names"
