"""Layouts of a program as variants: which there are for it and for a processor."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convolution_networks import network
from dispatch_corpus import FLAGS
from tilewright.ir.session import CompilerSession
from tilewright.measure.jobs import WorkerState
from tilewright.target import parse_target
from tilewright.tuning.layouts import (
    BlockingRequest,
    ChannelsLastRequest,
    block_sizes,
    start_layouts,
    write_all_channels_last,
    write_blocked_layouts,
)
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.variants import CHANNELS_LAST, PREPROCESSING_FLAG, Variant


def layouts(text: str, folder: Path, *blocks: int):
    path = folder / "program.mlir"
    path.write_text(text)
    request = BlockingRequest(path, tuple(FLAGS), blocks, folder / "layouts")
    return write_blocked_layouts(WorkerState(), request)


@pytest.mark.parametrize(("cpu", "blocks"), [("znver3", (16, 32, 8)), ("znver4", (32, 64, 16))])
def test_blocks_are_whole_vectors(cpu: str, blocks: tuple[int, ...]) -> None:
    vectors = {"znver3": 32, "znver4": 64}[cpu]
    assert block_sizes(parse_target(f"cpu:{cpu}").with_vectors(cpu, "", vectors)) == blocks


def test_each_layout_compiles_and_differs(tmp_path: Path) -> None:
    text = network("nchw")
    found = layouts(text, tmp_path, 8, 16)
    assert [one.block for one in found] == [8, 16]
    assert found[0].ops == 17
    for one in found:
        flags = (*FLAGS, f"{PREPROCESSING_FLAG}={one.spec}")
        module = CompilerSession(flags).compile(text, compile_to="preprocessing")
        assert b"linalg.pack" in module
        assert b"linalg.conv" not in module


def test_what_is_the_same_is_there_once(tmp_path: Path) -> None:
    # No channels are a multiple of 32 where the widest image has 8 times four.
    text = network("nchw", channels=4)
    assert [one.block for one in layouts(text, tmp_path, 32, 64)] == [32]


def test_programs_without_any(tmp_path: Path) -> None:
    assert layouts(network("nhwc"), tmp_path, 8) == ()


def test_all_channels_last_is_for_what_the_compiler_leaves(tmp_path: Path) -> None:
    def written(text: str) -> Path | None:
        path = tmp_path / "program.mlir"
        path.write_text(text)
        request = ChannelsLastRequest(path, tuple(FLAGS), tmp_path / "layouts")
        return write_all_channels_last(WorkerState(), request)

    text = network("nchw")
    spec = written(text)
    assert spec is not None
    flags = (*FLAGS, f"{PREPROCESSING_FLAG}={spec}")
    module = CompilerSession(flags).compile(text, compile_to="preprocessing")
    assert b"depthwise_conv_2d_nhwc_hwc" in module
    assert b"nchw" not in module
    assert written(network("nhwc")) is None


@pytest.mark.parametrize("whole", [None, Variant("all-channels-last", ("--x",), is_layout=True)])
def test_channels_last_come_first_where_there_are_convolutions(
    monkeypatch: pytest.MonkeyPatch, whole: Variant | None
) -> None:
    target = SimpleNamespace(cores=2, is_gpu=False)
    context: Any = SimpleNamespace(options=TuneOptions(effort="quick"), target=target)
    monkeypatch.setattr("tilewright.tuning.layouts.all_channels_last", lambda _: whole)

    def names_of(op: str, seconds: float = 1.0) -> list[str]:
        site = SimpleNamespace(dispatches=("a",))
        tasks = [
            SimpleNamespace(is_chain=False, names=[name], guessed_s=s)
            for name, s in {"a": seconds, "b": 99.0}.items()
        ]
        facts = SimpleNamespace(ops=(op,), tunable=object(), site=site)
        first: Any = SimpleNamespace(sites=[facts], tasks=tasks)
        return [one.name for one in start_layouts(context, first)]

    more = [] if whole is None else [whole.name]
    assert names_of("linalg.conv_2d_nchw_fchw", 3.0) == [*more, "channels-last", "default"]
    assert names_of("linalg.conv_2d_nchw_fchw", 1.0) == ["default"], "they take too little"
    assert names_of("linalg.matmul") == ["default"]
    context.options = TuneOptions(effort="quick", variants=(CHANNELS_LAST,))
    assert names_of("linalg.conv_2d_nchw_fchw") == ["channels-last"], "what the user names"
