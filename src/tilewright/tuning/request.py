"""What a user asked for, as text or as values, becomes a program and the options of a run.

The command line gives texts, the Python API texts or values; both go through here, so that an
option means the same in both, and a mistake gets the same message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.search.registry import strategy_names
from tilewright.tiling import LEVELS
from tilewright.tuning.config_file import CLASSIC_KNOBS, ConfigFile, read_config
from tilewright.tuning.options import TuneOptions, option_table
from tilewright.tuning.parse import (
    ParameterFile,
    VariantChoice,
    parse_count,
    parse_duration,
    parse_parameters,
    parse_variants,
)
from tilewright.workload import ROLES, Dim, Workload

# Loops of one role in one op, at most; more than this IREE's own ops never have.
_MAX_LOOPS = 8


@dataclass(frozen=True)
class TuneRequest:
    """A program to tune and how. `warnings`: one line each, for the user."""

    program: Path
    options: TuneOptions
    warnings: tuple[str, ...] = ()


def make_request(program: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> TuneRequest:
    """The request for a program and options by their field name in :class:`TuneOptions`.

    What is None was not given. A text is read as on the command line; `parameters` may be a mapping
    of scopes to files, `variants` a sequence of names. A configuration file fills in what was not
    given, the program included. Raises UserError, which names the option.
    """
    values = {name: _READ[name](value) for name, value in given.items() if value is not None}
    config = values.pop("config", None)
    if isinstance(config, Path):
        config = _read_config(config, need_input=program is None)
    options = TuneOptions(**values)
    _check_compile_only(options, values)
    warnings: tuple[str, ...] = ()
    if config is not None:
        options = options.with_config(config)
        program = program or config.input_file
        warnings = config.warnings
    if program is None:
        raise UserError(
            "PROGRAM is missing: give an MLIR or .onnx file"
            + (f", or name it with input_file in {config.path}" if config is not None else "")
        )
    return TuneRequest(Path(program), options, warnings)


def _check_compile_only(options: TuneOptions, given: Mapping[str, Any]) -> None:
    """UserError for options that `--compile-only` would have to ignore. What a configuration file
    says of the search is none of them: the file is taken as it is."""
    if not options.compile_only:
        return
    idle = [s.flag for s in option_table() if s.measures and given.get(s.field)]
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
    """Every name that a knob for a tile size can have, whatever the program is."""
    return frozenset(f"{level}_{loop}" for level in LEVELS for loop in _loop_names())


def _loop_names() -> Iterator[str]:
    """Every name that a loop can have: workloads are asked, so that there is one naming rule."""
    window = Dim("window", 2, True)
    for role in ROLES:
        for number in range(1, _MAX_LOOPS + 1):
            dims = (Dim(role, 2),) * number
            for loops in (dims, (*dims, window)):
                yield from Workload("other", loops, (), (), "").loop_names


# From what is given to what TuneOptions holds, by field


def _as_is(value: Any) -> Any:
    return value


def _path(value: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(value))


def _config(value: ConfigFile | str | os.PathLike[str]) -> ConfigFile | Path:
    return value if isinstance(value, ConfigFile) else _path(value)


def _texts(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _number(option: str, least: int) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        return parse_count(value, option, least) if isinstance(value, str) else value

    return read


def _duration(value: str | float) -> float:
    return parse_duration(value) if isinstance(value, str) else float(value)


def _parameters(
    value: str | Mapping[str, str | os.PathLike[str]] | Iterable[str | ParameterFile],
) -> tuple[ParameterFile, ...]:
    if isinstance(value, Mapping):
        value = [f"{scope}={os.fspath(file)}" for scope, file in value.items()]
    elif isinstance(value, str):
        value = [value]
    return tuple(v if isinstance(v, ParameterFile) else parse_parameters(v) for v in value)


def _settings(value: str | Mapping[str, Any] | Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        value = [f"{name}={setting}" for name, setting in value.items()]
    return _texts(value)


def _variants(value: str | Iterable[str | VariantChoice]) -> tuple[VariantChoice, ...]:
    from tilewright.tuning.variants import variant_names

    known = variant_names()
    parts = [value] if isinstance(value, str) else list(value)
    chosen: list[VariantChoice] = []
    for part in parts:
        chosen += [part] if isinstance(part, VariantChoice) else parse_variants(part, known)
    return tuple(chosen)


_READ: dict[str, Callable[[Any], Any]] = {spec.field: _as_is for spec in option_table()}
_READ |= {
    "max_trials": _number("--max-trials", 1),
    "seed": _number("--seed", 0),
    "threads": _number("--threads", 1),
    "time_limit_s": _duration,
    "strategy_options": _settings,
    "inputs": _texts,
    "parameters": _parameters,
    "iree_flags": _texts,
    "variants": _variants,
    "config": _config,
    "db": _path,
    "keep_candidates": _path,
    "output": _path,
}
