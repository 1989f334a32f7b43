"""Programs in TVM's words, one for each primitive, as GPUs want them: they print what they should,
compute what NumPy does, and compile for CUDA with shared memory, barriers and threads."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_structures import of_ours
from tvm_programs import BEGINNING, PROGRAMS

from tilewright import te
from tilewright.target import parse_target
from tilewright.tvm_compat import run

GOLDEN = Path(__file__).parent / "golden" / "tvm_programs.txt"
# A reduction over threads gets its memory and its barriers when code is made of it.
OVER_THREADS = ("compute_at", "bind", "rfactor", "set_store_predicate")


@functools.cache
def names(primitive: str) -> dict[str, Any]:
    """What a program leaves."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{primitive}.py"
        file.write_text(BEGINNING + PROGRAMS[primitive])
        return run(str(file))


def lowered(primitive: str) -> te.Lowered:
    left = names(primitive)
    return te.lower(left["s"], left["args"], expand=True)


def test_there_is_one_for_each_primitive() -> None:
    assert len(PROGRAMS) == 21
    for primitive in PROGRAMS:
        called = {step.primitive for step in names(primitive)["s"].trace()}
        assert primitive in called


def test_their_loops(request: pytest.FixtureRequest) -> None:
    parts = []
    for primitive in PROGRAMS:
        structure = of_ours(str(lowered(primitive)))
        kept = [f"{n}: {size} {scope}" for n, (size, scope) in structure.storage.items()]
        parts.append("\n".join([f"# {primitive}", *kept, *structure.lines, ""]))
    text = "\n".join(parts)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("primitive", PROGRAMS)
def test_one_computes_what_numpy_does(primitive: str) -> None:
    left = names(primitive)
    te.build(left["s"], left["args"], threads=1).verify(left["want"])


# One of each kind of step: where it stands, its memory, its threads, what is done once.
FOR_CUDA = ("bind", "cache_read", "compute_at", "prefetch", "rfactor", "storage_align", "tensorize")


@pytest.mark.parametrize(
    "primitive",
    [
        pytest.param(primitive, marks=[] if primitive in FOR_CUDA else [pytest.mark.slow])
        for primitive in PROGRAMS
    ],
)
def test_one_compiles_for_cuda(primitive: str) -> None:
    left = names(primitive)
    loops = te.lower(left["s"], left["args"])
    shown = str(loops)
    assert "for threadIdx.x in thread(16)" in shown
    if primitive in OVER_THREADS:
        assert re.search(r"thread_sum\(.*threads=\[.*threadIdx.x\]", shown)
    else:
        assert "scope=shared" in shown
        assert "barrier()" in shown
    ptx = te.Function(loops, parse_target("cuda:sm_80"), b"", 0.0).assembly()
    assert ".shared" in ptx
    assert "bar.sync" in ptx
    assert ".maxntid 16, 1, 1" in ptx or ".reqntid 16, 1, 1" in ptx


def test_blocks_of_a_reduction_are_one_block_where_code_is_made() -> None:
    program = lowered("bind").program
    assert [kernel.grid for kernel in program.kernels] == [{}]
    x = np.arange(512, dtype=np.float32)
    left = names("bind")
    assert te.build(left["s"], left["args"], threads=1)(x)[0] == x.sum()
