"""The configuration file of the auto-scheduler that tilewright succeeds, accepted as it is.

An INI file of three sections, each of which, and each key of which, may be absent::

    [Env]
    iree_bin = build/tools          a directory with other IREE tools
    input_file = matmul.mlir        the program, unless one is given on the command line
    output_file = matmul.csv        receives the trials
    [SearchSpace]
    tile_m = [64, 128]              the values that the knob may take
    block_dim_x = [64]
    [SearchStrategy]
    tuner = XGBoostTuner
    n_trial = 16

`[SearchSpace]` may name the knobs of that system (:data:`CLASSIC_KNOBS`) and any knob of any space
of tilewright. A section `[SearchSpace.REGEX]` holds the same keys for the dispatches in whose name
the regular expression is found; there its keys take the place of those of `[SearchSpace]`, and of
those of matching sections above it.

Lines that begin with `#` or `;` are comments, and so is, except in `[Env]`, what follows a space
and one of these signs. Keys are not case-sensitive. A relative path is looked for in the working
directory, as the old system did, then beside the file.
"""

from __future__ import annotations

import configparser
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import parse_json

BLOCK_DIMS = ("block_dim_x", "block_dim_y", "block_dim_z")
TILE_KEYS = ("tile_m", "tile_n", "tile_k")
PIPELINE_DEPTH = "pipeline_depth"
GPU_ONLY_KNOBS = (*BLOCK_DIMS, PIPELINE_DEPTH)
CLASSIC_KNOBS = (*TILE_KEYS, *GPU_ONLY_KNOBS)
MAX_BLOCK_SIZE = 1024
"""Threads of a block at most, on every GPU that CUDA and HIP know."""

_KEYS = {
    "Env": ("iree_bin", "input_file", "output_file"),
    "SearchStrategy": ("tuner", "n_trial"),
}
_SPACE = "SearchSpace"
_REPEAT = "\0"  # marks a repeated key or section, followed by its line number

Restrictions = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DispatchRestrictions:
    """The section `[SearchSpace.PATTERN]`: restrictions for the dispatches that it matches."""

    pattern: str
    restrictions: Restrictions

    def matches(self, dispatch: str) -> bool:
        """Whether the regular expression is found in a dispatch's name.

        Args:
            dispatch: its name.
        """
        return re.search(self.pattern, dispatch) is not None


@dataclass(frozen=True)
class ConfigFile:
    """What a configuration file asks for; None and empty where it says nothing.

    `restrictions` maps the name of a knob to the values it may take, in the order of the file.
    `warnings` are for the user: one line each.
    """

    path: Path
    input_file: Path | None = None
    output_file: Path | None = None
    iree_bin: Path | None = None
    restrictions: Restrictions = field(default_factory=dict)
    dispatch_restrictions: tuple[DispatchRestrictions, ...] = ()
    tuner: str | None = None
    n_trial: int | None = None
    warnings: tuple[str, ...] = ()

    def restrictions_for(self, dispatch: str) -> dict[str, tuple[int, ...]]:
        """The restrictions that hold for a dispatch, those of matching sections applied.

        Args:
            dispatch: its name.

        Returns:
            Allowed values by knob.
        """
        merged = dict(self.restrictions)
        for section in self.dispatch_restrictions:
            if section.matches(dispatch):
                merged.update(section.restrictions)
        return merged

    @property
    def _named(self) -> set[str]:
        """The knobs restricted anywhere in the file."""
        return set(self.restrictions).union(*(d.restrictions for d in self.dispatch_restrictions))

    @property
    def restricts(self) -> bool:
        """Whether the file narrows the search on a CPU at all."""
        return not self._named <= set(GPU_ONLY_KNOBS)

    def place(self, dispatch: str, key: str) -> str:
        """Where a key is that holds for a dispatch: file, section and key.

        Args:
            dispatch: its name.
            key: one of `restrictions_for`.
        """
        section = _SPACE
        for one in self.dispatch_restrictions:
            if key in one.restrictions and one.matches(dispatch):
                section = f"{_SPACE}.{one.pattern}"
        return f"{self.path}: [{section}] {key}"


def read_config(
    path: str | os.PathLike[str],
    *,
    known_tuners: Collection[str],
    known_knobs: Collection[str] = (),
    need_input: bool = True,
) -> ConfigFile:
    """Read and check a configuration file.

    `known_tuners` and `known_knobs` are the names that may be used (beside `CLASSIC_KNOBS`). With
    `need_input` False an input file that is not there is no error: the program came from elsewhere.

    A key repeated with the same value gives a warning. UserError, naming the file, section, key
    and value, for all that is wrong.

    Args:
        path: the file.
        known_tuners: names that `tuner` may have.
        known_knobs: names of knobs besides the classic ones.
        need_input: whether `input_file` must be there.

    Returns:
        What it asks for; relative paths are resolved.
    """
    return _Reader(Path(path), known_tuners, known_knobs).read(need_input)


class _Reader:
    def __init__(
        self, path: Path, known_tuners: Collection[str], known_knobs: Collection[str]
    ) -> None:
        self._path = path
        self._tuners = known_tuners
        # Keys come in lower case from configparser.
        self._knobs = {name.lower(): name for name in (*known_knobs, *CLASSIC_KNOBS)}
        self._warnings: list[str] = []

    def read(self, need_input: bool) -> ConfigFile:
        sections = self._sections()
        env = sections.get("Env", {})
        strategy = sections.get("SearchStrategy", {})
        general: dict[str, tuple[int, ...]] = {}
        special: list[DispatchRestrictions] = []
        for section, keys in sections.items():
            if section == _SPACE:
                general = self._restrictions(section, keys)
            elif section.startswith(_SPACE + "."):
                pattern = section.removeprefix(_SPACE + ".")
                self._check_pattern(section, pattern)
                special.append(DispatchRestrictions(pattern, self._restrictions(section, keys)))
        self._check_block_size(_SPACE, general)
        for one in special:
            self._check_block_size(f"{_SPACE}.{one.pattern}", {**general, **one.restrictions})
        return ConfigFile(
            path=self._path,
            input_file=self._input_file(env.get("input_file", ""), need_input),
            output_file=self._output_file(env.get("output_file", "")),
            iree_bin=self._iree_bin(env.get("iree_bin", "")),
            restrictions=general,
            dispatch_restrictions=tuple(special),
            tuner=self._tuner(strategy.get("tuner")),
            n_trial=self._n_trial(strategy.get("n_trial")),
            warnings=tuple(self._warnings),
        )

    # The text

    def _text(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self._path}: byte {error.start} is not UTF-8; save the file as UTF-8"
            ) from error
        except FileNotFoundError as error:
            raise UserError(f"{self._path}: there is no such configuration file") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{self._path}: cannot read the configuration file: {reason}"
            ) from error
        if "\0" in text:
            raise UserError(f"{self._path}: it is not a text file (it has a NUL character)")
        return text

    def _sections(self) -> dict[str, dict[str, str]]:
        """Keys and values of each section, names checked, repeats merged and warned about."""
        sections: dict[str, dict[str, str]] = {}
        parser = _parse_with_repeats(self._path, self._text())
        for heading in parser.sections():
            section = heading.partition(_REPEAT)[0].strip()
            self._check_section(section)
            merged = sections.setdefault(section, {})
            for marked, value in parser.items(heading):
                key = marked.partition(_REPEAT)[0]
                name = self._known_key(section, key)
                if section != "Env":
                    value = re.split(r"\s[#;]", value, maxsplit=1)[0].rstrip()
                if name not in merged:
                    merged[name] = value
                elif _same(merged[name], value):
                    self._warn(section, name, f"is given more than once, each time as {value}")
                else:
                    raise self._error(
                        section, name, value, f"contradicts {merged[name]!r} above; keep one"
                    )
        return sections

    def _check_section(self, section: str) -> None:
        if section not in (*_KEYS, _SPACE) and not section.startswith(_SPACE + "."):
            allowed = (*_KEYS, _SPACE, _SPACE + ".REGEX")
            raise UnknownNameError("section", section, allowed, str(self._path))

    def _known_key(self, section: str, key: str) -> str:
        names = {k: k for k in _KEYS[section]} if section in _KEYS else self._knobs
        if key not in names:
            raise UnknownNameError("key", key, names.values(), f"{self._path}: [{section}]")
        return names[key]

    # Messages

    def _error(self, section: str, key: str, value: str, problem: str) -> UserError:
        return UserError(f"{self._path}: [{section}] {key} = {_one_line(value)}: {problem}")

    def _warn(self, section: str, key: str, what: str) -> None:
        self._warnings.append(f"{self._path}: [{section}] {key} {_one_line(what)}")

    # [SearchSpace]

    def _restrictions(self, section: str, keys: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        return {key: self._values(section, key, text) for key, text in keys.items()}

    def _values(self, section: str, key: str, text: str) -> tuple[int, ...]:
        # Sizes of blocks and tiles are positive; elsewhere IREE has 0 say "not tiled".
        least = 1 if key in CLASSIC_KNOBS else 0
        wanted = f"a list of {'positive' if least else 'non-negative'} integers such as [32, 64]"
        values = _list_of_integers(text)
        if not values or min(values) < least:
            raise self._error(section, key, text, f"must be {wanted}")
        unique = tuple(dict.fromkeys(values))
        if len(unique) < len(values):
            self._warn(section, key, f"has the same value more than once: {text}")
        if key == "block_dim_z" and unique != (1,):
            raise self._error(section, key, text, "must be [1]")
        return unique

    def _check_block_size(self, section: str, restrictions: Restrictions) -> None:
        dims = [name for name in BLOCK_DIMS if name in restrictions]
        sizes = [max(restrictions[name]) for name in dims]
        if math.prod(sizes) > MAX_BLOCK_SIZE:
            shown = ", ".join(f"{n} = {v}" for n, v in zip(dims, sizes, strict=True))
            raise UserError(
                f"{self._path}: [{section}] {shown}: the product of the block dimensions is "
                f"{math.prod(sizes)}, at most {MAX_BLOCK_SIZE} is allowed; take out a value"
            )

    def _check_pattern(self, section: str, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"{self._path}: [{section}]: '{pattern}' is not a regular expression ({error})"
            ) from error
        if not pattern:
            raise UserError(
                f"{self._path}: [{section}]: the regular expression is missing; "
                f"write [{_SPACE}.REGEX], or [{_SPACE}] for every dispatch"
            )

    # [SearchStrategy]

    def _tuner(self, text: str | None) -> str | None:
        if text is not None and text not in self._tuners:
            raise UnknownNameError(
                "tuner", text, self._tuners, f"{self._path}: [SearchStrategy] tuner"
            )
        return text

    def _n_trial(self, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            raise self._error("SearchStrategy", "n_trial", text, "must be a positive integer")
        return int(text)

    # [Env]

    def _places(self, text: str) -> list[Path]:
        """Where a path may be: as the working directory has it, and beside the file."""
        named = Path(os.path.expanduser(text))
        if named.is_absolute():
            return [named]
        return list(dict.fromkeys((Path.cwd() / named, self._path.absolute().parent / named)))

    def _input_file(self, text: str, needed: bool) -> Path | None:
        if not text:
            return None
        places = self._places(text)
        for place in places:
            if os.path.isfile(place):
                return place
        if not needed:
            return places[0]
        looked = " and ".join(map(str, places))
        raise self._error("Env", "input_file", text, f"there is no such file (looked for {looked})")

    def _output_file(self, text: str) -> Path | None:
        if not text:
            return None
        place = Path.cwd() / os.path.expanduser(text)
        if os.path.isdir(place):
            raise self._error("Env", "output_file", text, "is a directory; name a file")
        if not os.path.isdir(place.parent):
            raise self._error(
                "Env", "output_file", text, f"there is no directory {place.parent}; make it first"
            )
        return place

    def _iree_bin(self, text: str) -> Path | None:
        if not text:
            return None
        places = self._places(text)
        for place in places:
            if any(os.path.isfile(place / name) for name in ("iree-compile", "iree-compile.exe")):
                return place
        looked = " and ".join(map(str, places))
        raise self._error(
            "Env",
            "iree_bin",
            text,
            f"must be a directory that has iree-compile in it (looked at {looked}); "
            "leave the key out to use the installed IREE",
        )


def _parse_with_repeats(path: Path, text: str) -> configparser.RawConfigParser:
    """Parse the text, keeping repeated keys and sections apart.

    configparser either stops at a repeat or forgets the first value. It says on which line the
    repeat is, so the name on that line gets a mark and the text is parsed again.
    """
    lines = text.split("\n")
    while True:
        parser = configparser.RawConfigParser(default_section=_REPEAT, strict=True)
        try:
            parser.read_string("\n".join(lines), source=str(path))
            return parser
        except (configparser.DuplicateOptionError, configparser.DuplicateSectionError) as error:
            number = error.lineno or 1  # None only for sources that are not text
            line, mark = lines[number - 1], f"{_REPEAT}{number}"
            if isinstance(error, configparser.DuplicateOptionError):
                end = re.search(r"\s*[=:]", line)
            else:
                end = re.search(r"\][^]]*$", line)
            at = end.start() if end else len(line)
            lines[number - 1] = line[:at] + mark + line[at:]
        except configparser.MissingSectionHeaderError as error:
            raise UserError(
                f"{path}, line {error.lineno}: '{_one_line(error.line)}' stands before any "
                f"section; begin with {', '.join(f'[{name}]' for name in (*_KEYS, _SPACE))}"
            ) from error
        except configparser.ParsingError as error:
            number = error.errors[0][0]  # the text beside it differs between versions of Python
            raise UserError(
                f"{path}, line {number}: '{_one_line(lines[number - 1])}' is neither [Section], "
                "'key = value' nor a comment"
            ) from error


def _list_of_integers(text: str) -> list[int]:
    """The integers of `[1, 2]`; an empty list for a text that is anything else."""
    try:
        values = parse_json(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        return []
    return values


def _same(one: str, other: str) -> bool:
    """Whether two texts say the same: equal, or lists of equal integers however spaced."""
    return one == other or (
        bool(_list_of_integers(one)) and _list_of_integers(one) == _list_of_integers(other)
    )


def _one_line(text: str) -> str:
    """The text on one line, cut when it is long."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:79] + "…"
