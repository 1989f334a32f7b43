"""The options of a tuning run, in one table: the command line, the Python API and the docs read it.

Every field of :class:`TuneOptions` carries its option, what it takes and its help as metadata;
:func:`option_table` lists them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.tuning.config_file import ConfigFile
from tilewright.tuning.effort import EFFORTS, Effort
from tilewright.tuning.parse import ParameterFile, VariantChoice

DEFAULT_OUTPUT = Path("tilewright-out")


@dataclass(frozen=True)
class OptionSpec:
    """One row of the table of options.

    `metavar` is empty for a switch. `multiple`: the option may be given more than once.
    `identifies`: it must be equal for a run to be resumed. `measures`: it is about measuring, and
    does not go with `--compile-only`.
    """

    field: str
    flag: str
    metavar: str
    help: str
    multiple: bool = False
    identifies: bool = False
    short: str = ""
    measures: bool = False


def _option(
    flag: str,
    metavar: str,
    help: str,
    *,
    multiple: bool = False,
    identifies: bool = False,
    short: str = "",
    measures: bool = False,
) -> dict[str, Any]:
    """The metadata of a field: all of its `OptionSpec` but the name."""
    return {
        "flag": flag,
        "metavar": metavar,
        "help": help,
        "multiple": multiple,
        "identifies": identifies,
        "short": short,
        "measures": measures,
    }


@dataclass(frozen=True)
class TuneOptions:
    """What `tilewright tune` and `tilewright.tune` were asked for; None means not given.

    Making one checks the values; a UserError names the option. `max_trials` counts candidates
    over the whole run, its parts before a resume included.
    """

    target: str = field(
        default="cpu",
        metadata=_option(
            "--target",
            "NAME",
            "what to compile for: cpu (this machine), cpu:znver4, cuda:sm_80, rocm:gfx942, "
            "vulkan:ampere, metal",
            identifies=True,
        ),
    )
    effort: str = field(
        default="standard",
        metadata=_option("--effort", "|".join(EFFORTS), "how much to spend", identifies=True),
    )
    max_trials: int | None = field(
        default=None,
        metadata=_option(
            "--max-trials", "N", "candidates in the whole run, resumed parts included"
        ),
    )
    time_limit_s: float | None = field(
        default=None,
        metadata=_option(
            "--time-limit", "DURATION", "time for the whole run, such as 90s, 10m or 1h30m"
        ),
    )
    strategy: str | None = field(
        default=None,
        metadata=_option(
            "--strategy", "NAME", "how to search (default: auto)", identifies=True, measures=True
        ),
    )
    strategy_options: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            "--strategy-option",
            "NAME=VALUE",
            "option of the strategy, such as plan_size=64",
            multiple=True,
            identifies=True,
            measures=True,
        ),
    )
    seed: int = field(
        default=0,
        metadata=_option("--seed", "N", "one seed, one order of candidates", identifies=True),
    )
    function: str | None = field(
        default=None,
        metadata=_option(
            "--function", "NAME", "entry point (default: the only one)", identifies=True
        ),
    )
    inputs: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            "--input",
            "SPEC",
            "input in IREE's syntax: 3x5xf32=1, @file.npy (default: random data)",
            multiple=True,
            identifies=True,
        ),
    )
    parameters: tuple[ParameterFile, ...] = field(
        default=(),
        metadata=_option(
            "--parameters",
            "SCOPE=FILE",
            "weights outside the program (.irpa, .gguf, .safetensors)",
            multiple=True,
            identifies=True,
        ),
    )
    iree_flags: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            "--iree-flag", "FLAG", "flag for iree-compile", multiple=True, identifies=True
        ),
    )
    variants: tuple[VariantChoice, ...] | None = field(
        default=None,
        metadata=_option(
            "--variants",
            "LIST",
            "whole-program variants to try: default,data-tiling,NAME=FLAGS (default: the effort's)",
            identifies=True,
            measures=True,
        ),
    )
    only: str | None = field(
        default=None,
        metadata=_option(
            "--only", "REGEX", "only the dispatches whose name has this in it", identifies=True
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_option(
            "--threads", "N", "threads the program runs on (default: all cores)", identifies=True
        ),
    )
    config: ConfigFile | None = field(
        default=None,
        metadata=_option(
            "--config",
            "FILE",
            "configuration file, as of the auto-scheduler that tilewright succeeds",
        ),
    )
    db: Path | None = field(
        default=None, metadata=_option("--db", "FILE", "the database (default: $TILEWRIGHT_DB)")
    )
    resume: bool = field(
        default=False,
        metadata=_option("--resume", "", "go on with the last unfinished run", measures=True),
    )
    fresh: bool = field(
        default=False,
        metadata=_option(
            "--fresh", "", "tune again what the database has results for", measures=True
        ),
    )
    keep_candidates: Path | None = field(
        default=None,
        metadata=_option(
            "--keep-candidates", "DIR", "keep every candidate's MLIR and compile command"
        ),
    )
    device: str | None = field(
        default=None,
        metadata=_option(
            "--device",
            "URI",
            "device of the runtime: cuda://0, hip (default: the target's first); cuda://0,cuda://1 "
            "shares candidates out between both",
            measures=True,
        ),
    )
    runner: str | None = field(
        default=None,
        metadata=_option(
            "--runner",
            "dir:PATH|ssh:HOST[:PATH]",
            "measure on another machine (see docs/gpu.md)",
            measures=True,
        ),
    )
    compile_only: bool = field(
        default=False,
        metadata=_option("--compile-only", "", "compile --max-trials candidates (64), run nothing"),
    )
    output: Path = field(
        default=DEFAULT_OUTPUT,
        metadata=_option("--output", "DIR", "where the results are written", short="-o"),
    )
    json: bool = field(default=False, metadata=_option("--json", "", "print the summary as JSON"))

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UnknownNameError("effort", self.effort, EFFORTS, "--effort")
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
        for one in self.iree_flags:
            if not one.startswith("-"):
                raise UserError(
                    f"--iree-flag: '{one}' is not a flag; write --iree-flag=--iree-opt-level=O3"
                )

    @property
    def effort_preset(self) -> Effort:
        return EFFORTS[self.effort]

    @property
    def strategy_name(self) -> str:
        """The strategy by its own name, whichever spelling was given.

        Raises UnknownNameError for one that there is not.
        """
        # Here, as in what follows: strategies bring NumPy along, which `--help` has no use for.
        from tilewright.search.registry import DEFAULT_STRATEGY, find_strategy

        return find_strategy(self.strategy or DEFAULT_STRATEGY).name

    @property
    def strategy_settings(self) -> dict[str, str]:
        """The options of the strategy by name, as text; UserError for a text without `=`."""
        from tilewright.search.strategy_options import parse_assignments

        return parse_assignments(self.strategy_options)

    def check_strategy(self) -> None:
        """UserError unless there is such a strategy, it takes these options, and it has the
        libraries that it needs."""
        from tilewright.search.registry import check_strategy

        check_strategy(self.strategy_name, self.strategy_settings)

    @property
    def trial_limit(self) -> int:
        """Candidates in the whole run at most: `max_trials`, else the effort's."""
        return self.effort_preset.max_trials if self.max_trials is None else self.max_trials

    def with_config(self, config: ConfigFile) -> TuneOptions:
        """These options with a configuration file: it fills in what was not given itself."""
        return dataclasses.replace(
            self,
            config=config,
            strategy=self.strategy or config.tuner,
            max_trials=config.n_trial if self.max_trials is None else self.max_trials,
        )

    def selects(self, dispatch: str) -> bool:
        """Whether `--only` leaves this dispatch in."""
        return self.only is None or re.search(self.only, dispatch) is not None

    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to be resumed, as JSON.

        Limits and places are not in it: a run may go on with a higher `--max-trials`, a later
        `--time-limit`, another output directory. Parameter files count by where they are and
        their size (they can be too big to be read for this).
        """
        from tilewright.search.registry import find_strategy
        from tilewright.search.strategy_options import parse_options

        data = {spec.field: getattr(self, spec.field) for spec in option_table() if spec.identifies}
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
            data["variants"] = [[v.name, v.flags] for v in self.variants]
        config = self.config or ConfigFile(Path())
        data["restrictions"] = dict(config.restrictions)
        data["dispatch_restrictions"] = [
            [d.pattern, dict(d.restrictions)] for d in config.dispatch_restrictions
        ]
        data["iree_bin"] = str(config.iree_bin or "")
        return data

    def digest(self) -> str:
        """A digest of :meth:`identity`: equal digests mean that a run may be resumed."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_json(self) -> dict[str, Any]:
        """Every option with its value, for the manifest and the database."""
        data: dict[str, Any] = {}
        for spec in option_table():
            value = getattr(self, spec.field)
            if isinstance(value, ConfigFile):
                value = str(value.path)
            elif isinstance(value, Path):
                value = str(value)
            elif isinstance(value, tuple):
                value = [str(v) for v in value]
            data[spec.field] = value
        return data


def option_table() -> tuple[OptionSpec, ...]:
    """The options in the order of the fields of :class:`TuneOptions`."""
    return tuple(OptionSpec(f.name, **f.metadata) for f in dataclasses.fields(TuneOptions))
