"""Layouts of a program's convolutions, as variants with specs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.files import write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.target import Target
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.variants import PREPROCESSING_FLAG, Variant
from tilewright.tuning.worker_tasks import parse_module

_TIMEOUT_S = 600.0
# A block that is narrower fills no vector of any processor.
_LEAST = 4
_F32_BITS = 32


def blocked_variants(opened: OpenProgram) -> list[Variant]:
    """Variants of a program in which convolutions compute on blocks of channels.

    Args:
        opened: the program.

    Returns:
        One for each size of block that fills whole vectors and changes the program, the most
        promising first; none, with a note, where the program cannot be read.
    """
    request = BlockingRequest(
        opened.program.path,
        opened.flags(),
        block_sizes(opened.target),
        opened.work / "layouts",
    )
    found = opened.compilers.ask(write_blocked_layouts, request, _TIMEOUT_S)
    if isinstance(found, WorkerFailure):
        opened.note(f"no blocked layouts: {found.message}", warning=True)
        return []
    return [
        Variant(
            f"blocked-{one.block}",
            (f"{PREPROCESSING_FLAG}={one.spec}",),
            f"{one.ops} convolutions and pooling windows compute on blocks of {one.block} channels "
            "that lie side by side",
            is_layout=True,
        )
        for one in found
    ]


def block_sizes(target: Target) -> tuple[int, ...]:
    """How many channels are worth a block: two vectors of f32, four and one.

    A kernel that reads an element of the image multiplies it with all vectors of a block: with one
    vector to a block it reads twice as often as with two.

    Args:
        target: has the vectors.

    Returns:
        The most promising first.
    """
    lanes = target.lanes(_F32_BITS)
    return tuple(lanes * vectors for vectors in (2, 4, 1) if lanes * vectors <= 64)


# In the workers


@dataclass(frozen=True)
class BlockingRequest:
    """Write specs for blocked layouts of a program's convolutions into a folder.

    blocks: the largest block of each spec; smaller ones are for channels that it does not divide.
    """

    program: Path
    flags: tuple[str, ...]
    blocks: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class BlockedLayout:
    """A spec that blocks as many `ops` of a program, by `block` channels where these divide."""

    block: int
    ops: int
    spec: Path


def write_blocked_layouts(state: WorkerState, request: BlockingRequest) -> Sequence[BlockedLayout]:
    """Task: see BlockingRequest.

    Args:
        state: the worker's.
        request: for which program.

    Returns:
        The layouts that differ from each other; none for a program without such ops.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.ir.site_dispatches import SITE_PHASE
    from tilewright.spec.blocking import blockable_ops, blocks_of, write_blocking_spec

    compiler = session(state, request.flags)
    text = compiler.compile(
        request.program.read_bytes(),
        compile_to=SITE_PHASE,
        output="bytecode",
        name=request.program.name,
    )
    ops = blockable_ops(parse_module(compiler, text))
    request.folder.mkdir(parents=True, exist_ok=True)
    found: list[BlockedLayout] = []
    known = []
    for block in request.blocks:
        chosen = {op: blocks_of(op, block, min(_LEAST, block)) for op in ops}
        chosen = {op: blocks for op, blocks in chosen.items() if blocks.result}
        if not chosen or chosen in known:
            continue
        known.append(chosen)
        path = request.folder / f"blocked-{block}.mlir"
        write_whole(path, write_blocking_spec(chosen).encode())
        found.append(BlockedLayout(block, sum(op.count for op in chosen), path))
    return tuple(found)
