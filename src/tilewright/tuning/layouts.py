"""Layouts of a program's convolutions, as variants with specs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.files import write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.target import Target
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.variants import CHANNELS_LAST, PREPROCESSING_FLAG, Variant
from tilewright.tuning.worker_tasks import parse_module, preprocessed

if TYPE_CHECKING:
    from iree.compiler import ir

    from tilewright.tuning.context import RunContext
    from tilewright.tuning.kernel_sites import SiteFacts
    from tilewright.tuning.prepared_variant import PreparedVariant

ALL_CHANNELS_LAST = "all-channels-last"
"""The name of what :func:`all_channels_last` makes."""

_TIMEOUT_S = 600.0
# A block that is narrower fills no vector of any processor.
_LEAST = 4
_F32_BITS = 32
# A Swin or a ViT has one convolution, 0.3 and 0.6% of the guessed time, a ConvNeXt 7%: reading all
# dispatches once more, in another layout, took a fifth of the Swin's run.
_LITTLE = 0.02
# A quantised network whose convolutions have no kernels had some for its padding, a thousandth of
# its time: its starts took half of the time that variants should have had.
_HARDLY_ANY = 0.01


def start_layouts(context: RunContext, first: PreparedVariant) -> list[Variant]:
    """The variants that a start is made of: the compiler's own, and other layouts.

    Channels last come first where there are convolutions, since time may be short: with kernels a
    ResNet-50 from ONNX took 69 ms in channels last and 89 in its own layout, before any search.

    Args:
        context: the run.
        first: the dispatches of the compiler's own variant, with its sites.

    Returns:
        The most promising first.
    """
    if _share(context, first, lambda facts: facts.tunable is not None) < _HARDLY_ANY:
        return []
    of = [v for v in context.options.chosen_variants if v.is_layout or not v.flags]
    share = _share(context, first, _convolves)
    if share == 0.0 or (share < _LITTLE and context.options.variants is None):
        return [v for v in of if not v.flags]
    blocked = context.options.effort_preset.blocked_layouts
    if context.options.variants is None and blocked:
        of += blocked_variants(context)[:blocked]
    of.sort(key=lambda variant: variant != CHANNELS_LAST)
    if context.options.variants is None and CHANNELS_LAST in of:
        # Mostly it is the better one. Not surely: channels that are concatenated are copied then.
        whole = all_channels_last(context)
        of = of if whole is None else [whole, *of]
    return of


def _share(
    context: RunContext, prepared: PreparedVariant, wanted: Callable[[SiteFacts], bool]
) -> float:
    """The part of the program's guessed time in dispatches of some sites."""
    names = {name for one in prepared.sites if wanted(one) for name in one.site.dispatches}
    inside = whole = 0.0
    for task in (one for one in prepared.tasks if not one.is_chain):
        whole += task.guessed_s
        inside += task.guessed_s if names & set(task.names) else 0.0
    # What is in no task of its own is not known to be little.
    return inside / whole if inside else float(bool(names))


def _convolves(facts: SiteFacts) -> bool:
    """Whether a site has one of the ops that layouts are about."""
    return any("conv" in name or "pooling" in name for name in facts.ops)


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


def all_channels_last(opened: OpenProgram) -> Variant | None:
    """The variant in which all that lies between a program's convolutions has channels last, too.

    Args:
        opened: the program.

    Returns:
        The variant, which IREE 3.13 crashes on for some programs, when it moves transposes; None
        where IREE's own pass for channels last leaves nothing, or with a note why there is none.
    """
    folder = opened.work / "layouts"
    request = ChannelsLastRequest(opened.program.path, opened.flags(), folder)
    found = opened.compilers.ask(write_all_channels_last, request, _TIMEOUT_S)
    if isinstance(found, WorkerFailure):
        opened.note(f"no {ALL_CHANNELS_LAST}: {found.message}", warning=True)
        return None
    if found is None:
        return None
    return Variant(
        ALL_CHANNELS_LAST,
        (f"{PREPROCESSING_FLAG}={found}",),
        "convolutions, pooling windows, concatenations and what is between them have the channels "
        "of a pixel beside each other in memory",
        is_layout=True,
    )


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
    from tilewright.spec.blocking import blockable_ops, blocks_of, write_blocking_spec

    ops = blockable_ops(_preprocessed(state, request.program, request.flags))
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


@dataclass(frozen=True)
class ChannelsLastRequest:
    """Write the spec of `ALL_CHANNELS_LAST` for a program into a folder."""

    program: Path
    flags: tuple[str, ...]
    folder: Path


def write_all_channels_last(state: WorkerState, request: ChannelsLastRequest) -> Path | None:
    """Task: see ChannelsLastRequest.

    Args:
        state: the worker's.
        request: for which program.

    Returns:
        The spec; None for a program that has nothing besides plain convolutions with channels
        first.

    Raises:
        CompileError: the program does not compile.
    """
    from tilewright.spec.channels_last import find_channels_first, write_channels_last_spec

    found = find_channels_first(_preprocessed(state, request.program, request.flags))
    if not found.ops:
        return None
    request.folder.mkdir(parents=True, exist_ok=True)
    path = request.folder / f"{ALL_CHANNELS_LAST}.mlir"
    write_whole(path, write_channels_last_spec(found).encode())
    return path


def _preprocessed(state: WorkerState, program: Path, flags: tuple[str, ...]) -> ir.Module:
    return parse_module(session(state, flags), preprocessed(state, program, flags))
