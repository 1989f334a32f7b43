"""Kernel candidates as data: what a worker is asked and answers; inputs packed for a kernel."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from tilewright.argument import ArgumentType
from tilewright.errors import TilewrightError
from tilewright.files import whole_file
from tilewright.measure.inputs import InputFile, InputSet, ScalarInput, save_array
from tilewright.site import KernelChoice, Site
from tilewright.sketch.dimensions import splits
from tilewright.sketch.interface import SiteExpression, SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.target import PACKED_AHEAD_BYTES, Target


class SketchError(TilewrightError):
    """A sketch made something that does not stand for its site."""


@dataclass(frozen=True)
class KernelRequest:
    """Compile a kernel of our own for a site, into a program that can be checked and timed.

    The program has a function `main`, which takes the kernel's inputs (constant ones flat, packed
    ones in the place of the site's) and returns the site's result, and, with `repeats` of more than
    1, `bench`, which runs the kernel's dispatches this often in one submission, on `rotations` sets
    of inputs in turn, or on as many as `inputs` are to take (`InputSet.turns`).

    expression: what `stored` makes of the site's expression. target, flags: what it is compiled
    for, and all flags of `iree-compile`. keep: where the kernel's MLIR is written. programs: a
    folder for what candidates became: of one that becomes the same program as another before it
    only the digest is returned, and no vmfb is written. inputs: those of the site, which are packed
    as the kernel has them, into files of the folder `packed`. beside: bytes of constants that a
    call of the whole program reads; 0: not said. site: what the expression was read from, where it
    can be read again on another machine.
    """

    expression: bytes
    choice: KernelChoice
    target: Target
    flags: tuple[str, ...]
    repeats: int
    vmfb: Path
    rotations: int = 1
    keep: Path | None = None
    programs: Path | None = None
    inputs: InputSet | None = None
    packed: Path | None = None
    beside: int = 0
    site: Site | None = None


@dataclass(frozen=True)
class CompiledKernel:
    """digest: equal for equal programs. inputs: the kernel's, where the site's were given.

    phase_s: seconds of what was done: `schedule` and `lower` make loops, `pack` the inputs, `emit`
    MLIR, `targets` the LLVM dialect, `code` the kernel's code, `host` the host's where it is the
    first that is called like this, `program` both together; of several kernels that were compiled
    together each has an equal share.
    """

    digest: str
    inputs: InputSet | None = None
    phase_s: Mapping[str, float] = field(default_factory=dict)


def stored(expression: SiteExpression) -> bytes:
    """An expression as it is handed to workers, which know it by its content.

    Args:
        expression: of a site.
    """
    return pickle.dumps(expression)


def check_kernel(expression: SiteExpression, kernel: SketchedKernel) -> None:
    """Check that a kernel takes what its site takes, and makes what that makes.

    Args:
        expression: of the site.
        kernel: that a sketch wrote for it.

    Raises:
        SketchError: it does not; says in what.
    """
    wanted = [*expression.inputs, expression.output]
    if len(kernel.arguments) != len(wanted):
        raise SketchError(f"{len(kernel.arguments)} arguments instead of {len(wanted)}")
    for position, (have, want) in enumerate(zip(kernel.arguments, wanted, strict=True)):
        packing = kernel.packings.get(position)
        shape = packing.shape if packing is not None else want.shape
        if want is expression.output and splits(shape, have.shape):
            shape = have.shape
        dtype = packing.dtype(want.dtype) if packing is not None else want.dtype
        if (have.shape, have.dtype) != (shape, dtype):
            what = f"argument {position}" if have is not kernel.arguments[-1] else "the result"
            raise SketchError(
                f"{what} is {have.dtype}{list(have.shape)} instead of {dtype}{list(shape)}"
            )
    for position, packing in kernel.packings.items():
        added = packing.added(wanted[position].dtype)
        if added > PACKED_AHEAD_BYTES:
            raise SketchError(
                f"argument {position} grows by {added} bytes when it is packed: the compiler packs "
                f"ahead what grows by at most {PACKED_AHEAD_BYTES}"
            )
        if not (position < len(expression.constant) and expression.constant[position]):
            raise SketchError(f"argument {position} is packed and is no constant")


def packed_inputs(
    inputs: InputSet,
    constant: Sequence[bool],
    packings: Mapping[int, Packing],
    folder: Path,
    beside: int = 0,
) -> InputSet:
    """Inputs of a site as a kernel takes them. Equal packings of equal inputs share their files.

    Args:
        inputs: of the site.
        constant: which of them can be packed.
        packings: by position.
        folder: for the packed ones; made if it is not there.
        beside: bytes of constants that a call of the whole program reads.

    Returns:
        The inputs; constant ones have one dimension.

    Raises:
        SketchError: what is to be packed is no tensor.
    """
    arguments: list[InputFile | ScalarInput] = []
    key = hashlib.sha256(inputs.key.encode())
    for position, original in enumerate(inputs.arguments):
        packing = packings.get(position)
        if not constant[position] or not isinstance(original, InputFile):
            if packing is not None:
                raise SketchError(f"argument {position} is packed and is no constant tensor")
            arguments.append(original)
            continue
        size = prod(original.type.shape or ())
        path, dtype = Path(original.path), original.type.element_type
        if packing is not None:
            digest = hashlib.sha256(f"{inputs.key} {position} {packing}".encode()).hexdigest()[:20]
            key.update(digest.encode())
            dtype = packing.dtype(dtype)
            path, size = folder / f"packed_{digest}.npy", prod(packing.shape)
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as part, part.open("wb") as file:
                    save_array(file, packing.of(original.load()).reshape(-1))
        kind = ArgumentType(dtype, (size,))
        arguments.append(InputFile(str(path.resolve()), kind))
    if not any(constant):
        return inputs
    positions = tuple(i for i, known in enumerate(constant) if known)
    return InputSet(f"{key.hexdigest()[:20]}", tuple(arguments), positions, beside)
