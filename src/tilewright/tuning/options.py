"""The options of a tuning run, in one table: the command line, the Python API and the docs read it.

Every field of :class:`TuneOptions` carries its option, what it takes and its help as metadata;
:func:`option_table` lists them.
"""

# ruff: noqa: RUF009 (`_option` makes a field, not a default)
from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tilewright.cluster.place import parse_place
from tilewright.database_address import ServerAddress, read_database
from tilewright.errors import UserError
from tilewright.tuning.config_file import ConfigFile
from tilewright.tuning.effort import EFFORTS, Effort, find_effort
from tilewright.tuning.goals import Goal, read_goals
from tilewright.tuning.parse import (
    ParameterFile,
    as_given,
    read_choice,
    read_count,
    read_count_or_zero,
    read_duration,
    read_parameters,
    read_path,
    read_settings,
    read_texts,
)
from tilewright.tuning.variants import Variant, effort_variants, read_variants

T = TypeVar("T")
DEFAULT_OUTPUT = Path("tilewright-out")
# Of `--kernels`: beside IREE's configurations, in their place, not at all.
KERNELS = ("on", "only", "off")
# Of `--accuracy`: sums of the products that the program has, or other algorithms for them too.
ACCURACIES = ("strict", "relaxed")


@dataclass(frozen=True)
class OptionSpec:
    """One row of the table of options.

    `name` is the field; `flag` the same with dashes, unless it is given. `metavar` is empty for a
    switch. `read` makes the field's value of what was given, a text of the command line or a value
    of the API; it is told the flag, for messages. `multiple`: the option may be given more than
    once. `identifies`: it must be equal for a run to be resumed. `measures`: it is about measuring,
    and does not go with `--compile-only`.
    """

    metavar: str
    help: str
    flag: str = ""
    read: Callable[[Any, str], Any] = as_given
    multiple: bool = False
    identifies: bool = False
    short: str = ""
    measures: bool = False
    name: str = ""


def _option(default: T, metavar: str, help: str, **more: Any) -> T:
    """A field of `TuneOptions` with its row of the table."""
    spec = OptionSpec(metavar, help, multiple=default == (), **more)
    made: T = field(default=default, metadata={"option": spec})
    return made


def _config_or_path(value: Any, option: str) -> ConfigFile | Path:
    return value if isinstance(value, ConfigFile) else read_path(value, option)


def _kernels(value: Any, option: str) -> str:
    return read_choice(value, option, KERNELS)


def _accuracy(value: Any, option: str) -> str:
    return read_choice(value, option, ACCURACIES)


@dataclass(frozen=True)
class TuneOptions:
    """What `tilewright tune` and `tilewright.tune` were asked for; None means not given.

    Making one checks the values; a UserError names the option. `max_trials` counts candidates
    over the whole run, its parts before a resume included.
    """

    target: str = _option(
        "cpu",
        "NAME",
        "what to compile for: cpu (this machine), cpu:znver4, cuda:sm_80, rocm:gfx942, "
        "vulkan:ampere, metal",
        identifies=True,
    )
    effort: str = _option("standard", "|".join(EFFORTS), "how much to spend", identifies=True)
    max_trials: int | None = _option(
        None, "N", "candidates in the whole run, resumed parts included", read=read_count
    )
    time_limit_s: float | None = _option(
        None,
        "DURATION",
        "time for the whole run, such as 90s, 10m or 1h30m",
        flag="--time-limit",
        read=read_duration,
    )
    stop_at: tuple[Goal, ...] = _option(
        (),
        "GOALS",
        "end the search earlier: at 90%peak, at 2x the default's speed, after no-gain:5m",
        read=read_goals,
        measures=True,
    )
    strategy: str | None = _option(
        None, "NAME", "how to search (default: auto)", identifies=True, measures=True
    )
    strategy_options: tuple[str, ...] = _option(
        (),
        "NAME=VALUE",
        "option of the strategy, such as plan_size=64",
        flag="--strategy-option",
        identifies=True,
        measures=True,
        read=read_settings,
    )
    seed: int = _option(
        0, "N", "one seed, one order of candidates", identifies=True, read=read_count_or_zero
    )
    function: str | None = _option(
        None, "NAME", "entry point (default: the only one)", identifies=True
    )
    inputs: tuple[str, ...] = _option(
        (),
        "SPEC",
        "input in IREE's syntax: 3x5xf32=1, @file.npy (default: random data)",
        flag="--input",
        identifies=True,
        read=read_texts,
    )
    parameters: tuple[ParameterFile, ...] = _option(
        (),
        "SCOPE=FILE",
        "weights outside the program (.irpa, .gguf, .safetensors)",
        identifies=True,
        read=read_parameters,
    )
    iree_flags: tuple[str, ...] = _option(
        (), "FLAG", "flag for iree-compile", flag="--iree-flag", identifies=True, read=read_texts
    )
    variants: tuple[Variant, ...] | None = _option(
        None,
        "LIST",
        "whole-program variants to try: default,data-tiling,NAME=FLAGS (default: the effort's)",
        identifies=True,
        measures=True,
        read=read_variants,
    )
    kernels: str = _option(
        "on",
        "|".join(KERNELS),
        "kernels of our own beside the compiler's configurations, in their place, or none",
        identifies=True,
        read=_kernels,
    )
    accuracy: str = _option(
        "strict",
        "|".join(ACCURACIES),
        "whether kernels may compute by other algorithms, with other rounding (Winograd's, for "
        "convolutions)",
        identifies=True,
        read=_accuracy,
    )
    only: str | None = _option(
        None, "REGEX", "only the dispatches whose name has this in it", identifies=True
    )
    threads: int | None = _option(
        None,
        "N",
        "threads the program may run on (default: all cores)",
        identifies=True,
        read=read_count,
    )
    config: ConfigFile | None = _option(
        None,
        "FILE",
        "configuration file, as of the auto-scheduler that tilewright succeeds",
        read=_config_or_path,
    )
    iree_bin: Path | None = _option(
        None,
        "DIR",
        "IREE's tools to compile with, of the installed version (default: the installed ones)",
        identifies=True,
        read=read_path,
    )
    db: Path | ServerAddress | None = _option(
        None,
        "FILE|URL",
        "the database: a file, or postgresql+psycopg://USER@HOST/NAME (default: $TILEWRIGHT_DB)",
        read=read_database,
    )
    resume: bool = _option(False, "", "go on with the last unfinished run", measures=True)
    start_spec: tuple[str, ...] = _option(
        (),
        "SPEC",
        "begin with what a spec or result folder has, whoever tuned it; 'iree': with the specs "
        "that come with the compiler",
        flag="--start-spec",
        identifies=True,
        measures=True,
        read=read_texts,
    )
    keep_start: bool = _option(
        False,
        "",
        "take what the result folder of --start-spec has for settled, and search the rest alone",
        flag="--keep-start",
        identifies=True,
        measures=True,
    )
    library: str | None = _option(
        None,
        "DIR|URL",
        "begin with what a library of specs has for this machine; 'own': tilewright's",
        identifies=True,
        measures=True,
    )
    fresh: bool = _option(False, "", "tune again what the database has results for", measures=True)
    keep_candidates: Path | None = _option(
        None, "DIR", "keep every candidate's MLIR and compile command", read=read_path
    )
    device: str | None = _option(
        None,
        "URI",
        "device of the runtime: cuda://0, hip (default: the target's first); "
        "cuda://0,cuda://1 shares candidates out between both",
        measures=True,
    )
    runner: str | None = _option(
        None,
        "dir:PATH",
        "measure on another machine, by a folder (see docs/gpu.md)",
        measures=True,
    )
    cluster: str | None = _option(
        None,
        "tls://HOST:PORT|local:N",
        "compile and measure on a cluster's workers (see docs/cluster.md)",
        measures=True,
    )
    cluster_certs: Path | None = _option(
        None,
        "DIR",
        "certificates for --cluster tls:// (default: $TILEWRIGHT_CERTS)",
        measures=True,
        read=read_path,
    )
    compile_only: bool = _option(False, "", "compile --max-trials candidates (64), run nothing")
    no_verify: bool = _option(
        False,
        "",
        "check no results, which everything that is written out then says",
        identifies=True,
        measures=True,
    )
    dry_run: bool = _option(
        False, "", "show what would be tried, in which order, and run nothing", measures=True
    )
    verbose: bool = _option(False, "", "show each trial with its compile command")
    output: Path = _option(
        DEFAULT_OUTPUT, "DIR", "where the results are written", short="-o", read=read_path
    )
    events: Path | None = _option(
        None,
        "FILE",
        "write what happens as lines of JSON while it happens (see docs/watch.md)",
        read=read_path,
    )
    json: bool = _option(False, "", "print the summary as JSON")

    def __post_init__(self) -> None:
        find_effort(self.effort)
        _kernels(self.kernels, "--kernels")
        _accuracy(self.accuracy, "--accuracy")
        for flag, value, least in (
            ("--max-trials", self.max_trials, 1),
            ("--threads", self.threads, 1),
            ("--seed", self.seed, 0),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise UserError(f"{flag}: {value!r} is not a whole number of at least {least}")
        if self.time_limit_s is not None and not 0 < self.time_limit_s < float("inf"):
            raise UserError(f"--time-limit: {self.time_limit_s!r} s is not a duration above zero")
        if self.only is not None:
            try:
                re.compile(self.only)
            except re.error as error:
                raise UserError(
                    f"--only: '{self.only}' is not a regular expression ({error})"
                ) from error
        if self.cluster is not None:
            parse_place(self.cluster)
        for one in self.iree_flags:
            if not one.startswith("-"):
                raise UserError(
                    f"--iree-flag: '{one}' is not a flag; write --iree-flag=--iree-opt-level=O3"
                )

    @property
    def effort_preset(self) -> Effort:
        """What the effort spends."""
        return find_effort(self.effort)

    @property
    def chosen_variants(self) -> tuple[Variant, ...]:
        """The variants that the user chose, in that order; without a choice those of the effort."""
        if self.variants is not None:
            return self.variants
        return tuple(effort_variants(self.effort_preset))

    @property
    def strategy_name(self) -> str:
        """The strategy by its own name, whichever spelling was given.

        Raises UnknownNameError for one that there is not.
        """
        # Here, as in what follows: strategies bring NumPy along, which `--help` has no use for.
        from tilewright.search.interface import DEFAULT_STRATEGY, find_strategy

        return find_strategy(self.strategy or DEFAULT_STRATEGY).name

    @property
    def strategy_settings(self) -> dict[str, str]:
        """The options of the strategy by name, as text; UserError for a text without `=`."""
        from tilewright.search.strategy_options import parse_assignments

        return parse_assignments(self.strategy_options)

    def check_strategy(self) -> None:
        """UserError unless there is such a strategy, it takes these options, and it has the
        libraries that it needs."""
        from tilewright.search.interface import check_strategy

        check_strategy(self.strategy_name, self.strategy_settings)

    @property
    def trial_limit(self) -> int:
        """Candidates in the whole run at most: `max_trials`, else the effort's."""
        return self.effort_preset.max_trials if self.max_trials is None else self.max_trials

    def with_config(self, config: ConfigFile) -> TuneOptions:
        """These options with a configuration file: it fills in what was not given itself.

        Args:
            config: a file that was read.
        """
        return dataclasses.replace(
            self,
            config=config,
            strategy=self.strategy or config.tuner,
            max_trials=config.n_trial if self.max_trials is None else self.max_trials,
        )

    @property
    def tools(self) -> tuple[Path | None, str]:
        """The directory with the IREE tools that the user wants, and who says so."""
        if self.iree_bin is not None:
            return self.iree_bin, f"--iree-bin {self.iree_bin}"
        if self.config is not None and self.config.iree_bin is not None:
            return self.config.iree_bin, f"{self.config.path}: [Env] iree_bin"
        return None, ""

    def selects(self, dispatch: str) -> bool:
        """Whether `--only` leaves this dispatch in.

        Args:
            dispatch: its name.
        """
        return self.only is None or re.search(self.only, dispatch) is not None

    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to be resumed, as JSON.

        Limits and places are not in it: a run may go on with a higher `--max-trials`, a later
        `--time-limit`, another output directory. Parameter files count by where they are and
        their size (they can be too big to be read for this).
        """
        from tilewright.search.interface import find_strategy
        from tilewright.search.strategy_options import parse_options

        data = {spec.name: getattr(self, spec.name) for spec in option_table() if spec.identifies}
        data["strategy"] = self.strategy_name
        table = find_strategy(data["strategy"]).options_table
        settings = parse_options(table, self.strategy_settings, "--strategy-option")
        data["strategy_options"] = {
            o.name: settings[o.name] for o in table if settings[o.name] != o.default
        }
        data["parameters"] = [
            [p.scope, str(p.path.resolve()), p.path.stat().st_size if p.path.exists() else -1]
            for p in self.parameters
        ]
        if self.variants is not None:
            data["variants"] = [[v.name, None if v.is_built_in else v.flags] for v in self.variants]
        config = self.config or ConfigFile(Path())
        data["restrictions"] = dict(config.restrictions)
        data["dispatch_restrictions"] = [
            [d.pattern, dict(d.restrictions)] for d in config.dispatch_restrictions
        ]
        data["iree_bin"] = str(self.tools[0] or "")
        return data

    def digest(self) -> str:
        """A digest of :meth:`identity`: equal digests mean that a run may be resumed."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_json(self) -> dict[str, Any]:
        """Every option with its value, for the manifest and the database."""
        data: dict[str, Any] = {}
        for spec in option_table():
            value = getattr(self, spec.name)
            if isinstance(value, ConfigFile):
                value = str(value.path)
            elif isinstance(value, Path | ServerAddress):
                value = str(value)
            elif isinstance(value, tuple):
                value = [str(v) for v in value]
            data[spec.name] = value
        return data


def option_table() -> tuple[OptionSpec, ...]:
    """The options in the order of the fields of :class:`TuneOptions`."""
    rows = ((f.name, f.metadata["option"]) for f in dataclasses.fields(TuneOptions))
    return tuple(
        dataclasses.replace(spec, name=name, flag=spec.flag or f"--{name.replace('_', '-')}")
        for name, spec in rows
    )


def read_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given for fields of :class:`TuneOptions`, as their values.

    Args:
        given: texts of the command line or values of the API, by field; None was not given.

    Returns:
        The values of those that were given. That of `config` may be the path of a file.

    Raises:
        UserError: a text is not what the option takes; it names the option.
    """
    table = {spec.name: spec for spec in option_table()}
    return {
        name: table[name].read(value, table[name].flag)
        for name, value in given.items()
        if value is not None
    }
