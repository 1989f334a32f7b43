"""The plain commands that do what the profiler does: IREE's own tools, for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tilewright.files import write_text
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.kernels.operation import Operation
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputFile
from tilewright.profiler.folder import Selected
from tilewright.toolchain import IREE_COMPILE

# Types that .npy files of NumPy do not know; IREE reads them as raw bytes.
_RAW = ("bf16",)


def dispatch_commands(dispatch: Selected, device: DeviceOptions, flags: Sequence[str]) -> list[str]:
    """Lines that compile a dispatch, run it on the profiler's inputs, and time it.

    The compile starts from the configured program that `profile compile` leaves beside the vmfb,
    with the flags that it was compiled with; `flags` are for a dispatch that has not been. For one
    that has not been and is not in the compiler's own configuration there is only a comment.

    Args:
        dispatch: which.
        device: what it runs on.
        flags: of iree-compile, for a dispatch that has not been compiled.

    Returns:
        Lines of a shell script; comments where there is nothing to run.
    """
    folder = dispatch.folder
    compiled = dispatch.entry.compiled
    lines = [f"# {dispatch.name}"]
    if compiled is not None and not compiled.ok:
        lines.append(f"# {compiled.status}: {compiled.message}")
    configured = dispatch.configured
    if configured.is_file():
        begin = [str(configured), f"--compile-from={CONFIGURED_PHASE}"]
    elif dispatch.entry.tuned is None:
        begin = [str(folder.program)]
    else:
        lines.append("# not compiled: `tilewright profile compile` writes what the commands need")
        return lines
    repeats = compiled.repeats if compiled is not None and configured.is_file() else 1
    used = compiled.flags if compiled is not None else (*flags, *folder.operation.flags)
    inputs = [
        f"--input={_input(folder.operation, i, folder.reference)}"
        for i in range(len(folder.operation.arguments))
    ]
    vmfb = str(dispatch.vmfb)
    common = [f"--module={vmfb}", *device.tool_flags]
    timed = ["--function=bench", f"--batch_size={repeats}"] if repeats > 1 else ["--function=main"]
    raw = folder.operation.result.element_type in _RAW
    result = dispatch.vmfb.with_suffix(".bin" if raw else ".npy")
    return [
        *lines,
        shlex.join([IREE_COMPILE, *begin, *used, "-o", vmfb]),
        shlex.join(["iree-run-module", *common, "--function=main", *inputs, f"--output=@{result}"]),
        shlex.join(["iree-benchmark-module", *common, *timed, *inputs]),
    ]


def _input(operation: Operation, position: int, folder: Path) -> str:
    kind = operation.arguments[position]
    if kind.element_type in _RAW:
        return f"{kind}=@{_raw(folder, position)}"
    return f"@{folder / f'input_{position}.npy'}"


def _raw(folder: Path, position: int) -> Path:
    return folder / f"input_{position}.bin"


def save_commands(
    path: Path, selected: Sequence[Selected], device: DeviceOptions, flags: Sequence[str]
) -> None:
    """Write the commands of dispatches to a shell script, whose inputs are in their folders.

    Inputs whose type .npy files do not know are written as raw bytes beside the others.

    Args:
        path: the script.
        selected: the dispatches.
        device: what they run on.
        flags: of iree-compile, for those that have not been compiled.

    Raises:
        UserError: a file cannot be written.
    """
    lines = ["#!/bin/sh"]
    for dispatch in selected:
        lines += ["", *dispatch_commands(dispatch, device, flags)]
        _write_raw(dispatch)
    write_text(path, "\n".join(lines) + "\n")


def _write_raw(dispatch: Selected) -> None:
    folder = dispatch.folder.reference
    for position, kind in enumerate(dispatch.folder.operation.arguments):
        source = folder / f"input_{position}.npy"
        target = _raw(folder, position)
        if kind.element_type in _RAW and source.is_file() and not target.is_file():
            target.write_bytes(InputFile(str(source), kind).load().tobytes())
