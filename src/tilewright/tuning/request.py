"""What a user asked for, as text or as values, becomes a program and the options of a run.

The command line gives texts, the Python API texts or values; both go through here, so that an
option means the same in both, and a mistake gets the same message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.search.interface import strategy_names
from tilewright.tiling import LEVELS
from tilewright.tuning.config_file import CLASSIC_KNOBS, ConfigFile, read_config
from tilewright.tuning.options import TuneOptions, option_table, read_fields
from tilewright.tuning.project import ProjectFile
from tilewright.workload import ROLES, Dim, Workload

CONFIG_NAME = "auto-scheduler.cfg"
"""The configuration file that is found without being named."""

# Of the knobs on GPUs that are numbers: what comes before a loop's name, before its number, others.
_GPU_LEVELS = ("workgroup", "thread", "reduction", "subgroups", "tiles", "threads", "tile")
_GPU_COUNTED = ("wg", "sg", "red")
_GPU_KNOBS = {"sg_m_cnt", "sg_n_cnt", "m_tile", "n_tile", "waves_per_eu", "prefetch_num_stages"}
# Loops of one role in one op, at most; more than this IREE's own ops never have.
_MAX_LOOPS = 8


@dataclass(frozen=True)
class TuneRequest:
    """A program to tune and how. `warnings` and `notes`: one line each, for the user."""

    program: Path
    options: TuneOptions
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def make_request(
    program: str | os.PathLike[str] | None,
    given: Mapping[str, Any],
    project: ProjectFile | None = None,
) -> TuneRequest:
    """The request for a program and options by their field name in :class:`TuneOptions`.

    What is None was not given. A text is read as on the command line; `parameters` may be a mapping
    of scopes to files, `variants` a sequence of names. A configuration file fills in what was not
    given, the program included; where neither it nor a program is given, it is `CONFIG_NAME` of the
    working directory. Raises UserError, which names the option.

    Args:
        program: a path; None where a configuration file names it.
        given: options by field; None was not given.
        project: of a project's own file, for what neither is given nor in a configuration file.

    Returns:
        The program, its options, and remarks for the user.
    """
    asked = read_fields(given)
    project = project or ProjectFile()
    values = {**_read_project(project), **asked}
    config = values.pop("config", None)
    notes: tuple[str, ...] = ()
    if config is None and Path(CONFIG_NAME).is_file():
        if program is None:
            config = Path(CONFIG_NAME)
            notes = (f"{CONFIG_NAME}: found in the working directory",)
        else:
            notes = (f"{CONFIG_NAME} is not read: a program is given (--config {CONFIG_NAME})",)
    if isinstance(config, Path):
        config = _read_config(config, need_input=program is None)
    if config is not None:
        # These the configuration file may say; what is asked for goes before it.
        for name, said in (("strategy", config.tuner), ("max_trials", config.n_trial)):
            if said is not None and name not in asked:
                values.pop(name, None)
    try:
        options = TuneOptions(**values)
    except UserError:
        _check_project(project)
        raise
    _check_compile_only(options, asked)
    warnings: tuple[str, ...] = ()
    if config is not None:
        options = options.with_config(config)
        program = program or config.input_file
        warnings = config.warnings
    if program is None:
        raise UserError(
            "PROGRAM is missing: give an MLIR, .onnx or .pt2 file, or name it with input_file in "
            + (str(config.path) if config is not None else f"a file {CONFIG_NAME} here")
        )
    return TuneRequest(Path(program), options, warnings, notes)


def _read_project(project: ProjectFile) -> dict[str, Any]:
    """The values of a project's options; a fault in one names the file."""
    try:
        return read_fields(project.given)
    except UserError as error:
        raise UserError(f"{project.path}: {error}") from error


def _check_project(project: ProjectFile) -> None:
    """UserError that names the file where its options are wrong by themselves."""
    values = {name: one for name, one in _read_project(project).items() if name != "config"}
    try:
        TuneOptions(**values)
    except UserError as error:
        raise UserError(f"{project.path}: {error}") from error


def _check_compile_only(options: TuneOptions, given: Mapping[str, Any]) -> None:
    """UserError for options that `--compile-only` would have to ignore. What a configuration file
    says of the search is none of them: the file is taken as it is."""
    if not options.compile_only:
        return
    idle = [s.flag for s in option_table() if s.measures and given.get(s.name)]
    if idle:
        raise UserError(
            f"{', '.join(idle)}: --compile-only draws candidates of the compiler's own variant and "
            f"measures nothing; leave out one or the other"
        )


def _read_config(path: Path, need_input: bool) -> ConfigFile:
    try:
        return read_config(
            path,
            known_tuners=strategy_names(),
            known_knobs=knob_names(),
            need_input=need_input,
        )
    except UnknownNameError as error:
        if len(error.allowed) < len(knob_names()):
            raise
        # All the names that a knob can have would fill a page.
        levels = ", ".join(LEVELS)
        raise UserError(
            f"{str(error).partition(' (allowed: ')[0]} (allowed: {', '.join(CLASSIC_KNOBS)}, and "
            f"LEVEL_LOOP such as distribution_m, the levels being {levels}; `tilewright inspect` "
            "lists the knobs of a program)"
        ) from None


def knob_names() -> frozenset[str]:
    """Every name that a knob for a size can have, whatever the program and the target are."""
    levels = dict.fromkeys((*LEVELS, *_GPU_LEVELS))
    named = {f"{level}_{loop}" for level in levels for loop in _loop_names()}
    counted = {f"{level}_{i}" for level in _GPU_COUNTED for i in range(_MAX_LOOPS)}
    return frozenset(named | counted | _GPU_KNOBS)


def _loop_names() -> Iterator[str]:
    """Every name that a loop can have: workloads are asked, so that there is one naming rule."""
    window = Dim("window", 2, True)
    for role in ROLES:
        for number in range(1, _MAX_LOOPS + 1):
            dims = (Dim(role, 2),) * number
            for loops in (dims, (*dims, window)):
                yield from Workload("other", loops, (), (), "").loop_names
