"""What a tuning run found: the object that the API returns and the command prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from tilewright import words
from tilewright.plain_data import tupled
from tilewright.workload import LAYOUT_KINDS


@dataclass(frozen=True)
class ProgramSummary:
    """The whole program before and after. `speedup_ci` is a 95% interval of default / tuned.

    `largest_error`: how far the tuned program's results are from the untuned one's at the element
    that is closest to its bound, `allowed_error`; None where they are the same program.
    `compared_with`: what else they were compared with, where the untuned program's were not right.
    `constant_work`: dispatches of a call that work on constants alone (packing, transposing),
    which could be done ahead, and how often they run; None where that was not looked for.
    `model_run_by`: what else ran the model, `model_error`: how far the untuned program's results
    are from its own, as a part of the largest value; None where nothing was compared.
    """

    default_ms: float
    tuned_ms: float
    speedup: float
    speedup_ci: tuple[float, float]
    verified: bool
    variant: str
    variants: dict[str, float | str] = field(default_factory=dict)
    largest_error: float | None = None
    allowed_error: float | None = None
    compared_with: str = ""
    constant_work: dict[str, int] | None = None
    model_run_by: str = ""
    model_error: float | None = None

    @property
    def outputs(self) -> str:
        """What is known of the tuned program's results, in sentences."""
        if not self.verified:
            return "Outputs were not compared."
        found = "Outputs equal those of the untuned program."
        if self.compared_with:
            found = f"Outputs are as right as the untuned program's, by {self.compared_with}."
        if self.largest_error is not None and self.allowed_error:
            error, allowed = f"{self.largest_error:.2g}", f"{self.allowed_error:.2g}"
            found += f" Largest error: {error}, allowed {allowed}."
        if self.model_error is not None:
            off = "not at all" if not self.model_error else f"by {self.model_error:.2g}"
            found += f" The untuned program's differ from {self.model_run_by}'s {off}" + (
                " of the largest value." if self.model_error else "."
            )
        return found


@dataclass(frozen=True)
class RunSummary:
    """A way to run the program that is handed back: device and threads of IREE's runtime.

    `ms` is the median of interleaved rounds, `ratio_ci` the interval of its time over that of the
    way that was tuned for. `advised`: the one to use. `command` runs the program so.
    `huge_pages`: with them, where weights are many. `pinned`: workers keep their cores.
    `batch`: as one of Linux's batch processes. `spin_us`: microseconds that workers stay awake.
    `polls`: the caller waits awake, as `tilewright.load` does; that of `command` sleeps.
    """

    device: str
    threads: int
    ms: float
    ratio_ci: tuple[float, float]
    advised: bool
    command: str
    huge_pages: bool = False
    pinned: bool = False
    batch: bool = False
    spin_us: int = 0
    polls: bool = False

    @property
    def words(self) -> list[str]:
        """What there is to say of it beside its device and threads."""
        said = {
            "huge pages": self.huge_pages,
            "pinned": self.pinned,
            "batch": self.batch,
            f"awake for {self.spin_us} us": self.spin_us > 0,
            "polls": self.polls,
        }
        return [word for word, is_so in said.items() if is_so]


@dataclass(frozen=True)
class KernelSummary:
    """A kernel of our own that is handed back: what wrote it with which knobs, its loops, and the
    calls of the schedule language that make them."""

    sketch: str
    knobs: dict[str, Any]
    loops: str
    python: str


@dataclass(frozen=True)
class DispatchSummary:
    """One workload of the program.

    `status`: `tuned`, `default kept`, `reused`, `dropped in company`, `part of NAME` (whose kernel
    took its place), `not timed alone` (a kernel that no trial timed), or `skipped: reason`.
    `configuration` is what the compiler is told now, in words; `speedup_ci` the interval of the
    interleaved comparison with the default; `verification` what the results were compared with.
    `space_points` is the estimated size of the search space, `tried_share` how much of it was
    tried. `flops` and `bytes` are of one execution, `entry` is its name in the spec. `dispatches`:
    of several that were tuned together, what they are. `kernel`: what computes it now, where that
    is no longer the compiler's code. `kind`: of `workload.KINDS`.
    """

    name: str
    workload: str
    count: int
    share: float = 0.0
    default_ms: float | None = None
    tuned_ms: float | None = None
    speedup: float = 1.0
    trials: int = 0
    status: str = ""
    configuration: str = ""
    default_configuration: str = ""
    speedup_ci: tuple[float, float] | None = None
    gflops_default: float | None = None
    gflops_tuned: float | None = None
    verification: str = ""
    failed_trials: int = 0
    space_points: float = 0.0
    tried_share: float = 0.0
    variant: str = ""
    names: tuple[str, ...] = ()
    key: str = ""
    flops: int = 0
    bytes: int = 0
    entry: str = ""
    dispatches: tuple[str, ...] = ()
    kernel: KernelSummary | None = None
    kind: str = ""


@dataclass(frozen=True)
class TuneResult:
    """The outcome of `tilewright.tune`; `to_json()` is summary.json."""

    program: ProgramSummary
    dispatches: tuple[DispatchSummary, ...]
    trials_total: int
    wall_s: float
    phase_s: dict[str, float]
    output: Path
    changed: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    runs: tuple[RunSummary, ...] = ()

    @property
    def improved(self) -> bool:
        """Whether anything beat the compiler's defaults."""
        return self.program.speedup > 1.0 and (
            bool(self.changed) or self.program.variant != "default"
        )

    @property
    def layout_share(self) -> float:
        """The part of the dispatches' time, each measured alone, that goes into changes of layout:
        packing, unpacking and transposing what a call computes."""
        times = [
            (one.kind, one.count * one.tuned_ms)
            for one in self.dispatches
            if one.tuned_ms is not None
            if not one.status.startswith("part of") and (one.kernel or not one.dispatches)
        ]
        moved = sum(spent for kind, spent in times if kind in LAYOUT_KINDS)
        return moved / max(sum(spent for _, spent in times), 1e-9)

    def _repr_html_(self) -> str:
        """The result as notebooks show it: what was gained, and the dispatches, hottest first."""
        program, times = self.program, words.significant
        gain = words.times(program.speedup) if self.improved else "no gain"
        head = (
            f"<p><b>{times(program.default_ms)} ms to {times(program.tuned_ms)} ms: {gain}</b> "
            f"({words.interval(*program.speedup_ci)}), {escape(program.variant)}, in "
            f"{escape(str(self.output))}</p>"
        )
        timed = [one for one in self.dispatches if one.default_ms is not None]
        columns = ("dispatch", "runs", "share", "default ms", "tuned ms", "speed-up", "now")
        rows = [columns] + [
            (
                one.name,
                str(one.count),
                words.share(one.share),
                times(one.default_ms),
                times(one.tuned_ms),
                words.times(one.speedup),
                one.kernel.sketch if one.kernel else one.status,
            )
            for one in sorted(timed, key=lambda one: -one.share)
        ]
        cells = [
            "".join(f"<{kind}>{escape(text)}</{kind}>" for text in row)
            for kind, row in zip(("th", *["td"] * len(timed)), rows, strict=True)
        ]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        # What a notebook shows is kept in its file: no scripts, nothing fetched.
        return f"{head}<table>{body}</table>"

    def to_json(self) -> dict[str, Any]:
        """What summary.json holds.

        Returns:
            The fields as JSON has them.
        """
        data = asdict(self)
        data["output"] = str(self.output)
        data["layout_share"] = round(self.layout_share, 4)
        for dispatch in data["dispatches"]:
            for name in ("names", "dispatches"):
                dispatch[name] = list(dispatch[name])
        return data


def result_of(data: Mapping[str, Any], folder: Path) -> TuneResult:
    """The result that `TuneResult.to_json` wrote.

    Args:
        data: what JSON was.
        folder: where it lies now.

    Raises:
        TypeError, KeyError: it is of another version.
    """
    found = {name: tupled(value) for name, value in data.items() if name != "layout_share"}
    found["output"] = folder
    found["program"] = ProgramSummary(**_tupled_values(found["program"]))
    found["runs"] = tuple(RunSummary(**_tupled_values(one)) for one in found["runs"])
    found["dispatches"] = tuple(
        DispatchSummary(
            **{
                **_tupled_values(one),
                "kernel": KernelSummary(**one["kernel"]) if one["kernel"] else None,
            }
        )
        for one in found["dispatches"]
    )
    return TuneResult(**found)


def _tupled_values(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tupled(value) for name, value in data.items()}
