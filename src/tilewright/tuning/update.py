"""A result brought up to date: what still holds is kept, what does not is tuned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.tuning.options import TuneOptions, read_fields
from tilewright.tuning.recorded import read_recorded
from tilewright.tuning.request import TuneRequest
from tilewright.tuning.variants import BUILT_IN, DEFAULT_VARIANT, read_variants

# Options that decide what the program computes: recorded ones are looked up where they lie now.
_PROGRAM = ("inputs", "parameters", "iree_flags", "threads", "device")


def update_request(
    folder: Path, program: Path | None = None, given: Mapping[str, Any] | None = None
) -> TuneRequest:
    """The run that brings a result up to date with this IREE and this machine.

    Entries are matched anew, by what they are for and not by their text; each is measured and
    confirmed beside the compiler's own choice, and written by this version. Only workloads that the
    result knows nothing of are searched: those that the program or the compiler have changed.

    Args:
        folder: the result.
        program: in the place of the program that it was made of.
        given: options of the run, by field, in the place of the recorded ones; None was not given.

    Returns:
        What is to be run; it writes a result folder.

    Raises:
        UserError: the folder or an option is not as it should be.
    """
    asked = {name: value for name, value in (given or {}).items() if value not in (None, ())}
    ours = {name: asked.pop(name) for name in _PROGRAM if name in asked}
    found = read_recorded(folder, program, asked.pop("target", None), **ours)
    kept = {"kernels": found.manifest["options"].get("kernels"), **asked}
    options: TuneOptions = replace(found.options, **read_fields(kept))
    variant = found.tuned.variant.name
    if variant in BUILT_IN and options.variants is None:
        names = dict.fromkeys((DEFAULT_VARIANT.name, variant))
        options = replace(options, variants=read_variants(",".join(names)))
    options = replace(options, start_spec=(str(folder),), keep_start=True)
    return TuneRequest(found.program, options)
