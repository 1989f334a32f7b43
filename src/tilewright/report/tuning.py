"""The page on a tuning run: `report.html` in the result folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.measure.peak import Peak
from tilewright.report import time_figures, tuning_figures
from tilewright.report.page import Figures, render, write_page
from tilewright.report.result_folder import ResultFolder, read_result_folder
from tilewright.tables import Table
from tilewright.words import interval, share, significant

REPORT = "report.html"

_TEMPLATE = "tuning.html.j2"
_TONES = {"tuned": "good", "reused": "good", "default kept": "calm"}


@dataclass
class _Dispatch:
    """What the template shows of a dispatch; texts all."""

    id: str
    name: str
    status: str
    tone: str
    short: str
    terms: list[tuple[str, str]]
    entry: str
    entry_is: str
    trials: int
    convergence: str = ""
    importance: str = ""
    coordinates: str = ""
    failures: tuple[tuple[str, str, int], ...] = ()


def write_tuning_page(folder: Path, output: Path | None = None, peak: Peak | None = None) -> Path:
    """Write the page on a result folder.

    Args:
        folder: as `tilewright tune` wrote it.
        output: the page, by default in the folder.
        peak: what the machine reaches, for the roofline; without it there is none.

    Returns:
        The page's path.

    Raises:
        UserError: the folder cannot be read, or the page not written.
    """
    return write_page(
        output or folder / REPORT, tuning_page(read_result_folder(folder), peak), "--output"
    )


def tuning_page(result: ResultFolder, peak: Peak | None = None) -> str:
    """The page as text.

    Args:
        result: the folder.
        peak: what the machine reaches.
    """
    summary = result.summary
    program = summary["program"]
    rows = summary["dispatches"]
    figures: Figures = {}
    kinds = [{"kind": row["workload"].split(" ")[0], **row} for row in rows]
    time_figures.before_after(figures, kinds)
    time_figures.flame(figures, kinds)
    drawn = peak is not None and tuning_figures.roofline(figures, rows, peak)
    dispatches = [
        _dispatch(result, row, f"dispatch-{number}", figures, peak)
        for number, row in enumerate(rows)
    ]
    name = Path(result.manifest["program"]["source"]).name
    values = {
        "title": f"Tuning {name}",
        "headline": _headline(summary),
        "facts": _facts(result),
        "before_after": _before_after_words(program),
        "overview": _overview(rows),
        "roofline": _limits(peak) if peak is not None and drawn else "",
        "dispatches": dispatches,
        "notes": summary.get("notes", []),
        "tune_command": _tune_command(result.manifest),
        "command": result.command,
        "runs": _runs(result.summary),
        "environment": _environment(result.manifest),
        "spec": result.spec,
    }
    return render(_TEMPLATE, values, figures)


# -- words -----------------------------------------------------------------------------------------


def _headline(summary: Mapping[str, Any]) -> str:
    program = summary["program"]
    before, after = significant(program["default_ms"]), significant(program["tuned_ms"])
    low, high = program["speedup_ci"]
    if program["speedup"] <= 1.0:
        return f"{before} ms: nothing beat the compiler's own choices beyond the noise."
    return (
        f"{program['speedup']:.2f} times as fast: from {before} ms to {after} ms "
        f"(95% interval {low:.2f} to {high:.2f})"
    )


def _facts(result: ResultFolder) -> list[str]:
    summary, machine = result.summary, result.manifest["machine"]
    threads = result.manifest["options"].get("threads")
    by = summary["program"].get("compared_with")
    right = f"outputs as right, by {by}" if by else "outputs equal"
    verified = right if summary["program"]["verified"] else "outputs not compared"
    if summary["program"].get("largest_error") is not None:
        verified += f" (largest error {summary['program']['largest_error']:.2g})"
    return [
        f"{summary['trials_total']:,} trials in {summary['wall_s']:.0f} s",
        f"variant {summary['program']['variant']}",
        f"{share(summary.get('layout_share', 0.0))} of the time in changes of layout",
        verified,
        f"{machine['cpu']}, {threads or machine['threads']} threads",
        result.manifest["date"][:10],
    ]


def _before_after_words(program: Mapping[str, Any]) -> str:
    times = program.get("variants", {})
    known = {name: v for name, v in times.items() if isinstance(v, int | float)}
    ranked = sorted(known.items(), key=lambda pair: pair[1])
    variants = [f"{name} {significant(ms)} ms" for name, ms in ranked]
    before, after = significant(program["default_ms"]), significant(program["tuned_ms"])
    text = (
        f"One run of the program takes {before} ms as the compiler makes it by default, and "
        f"{after} ms tuned. Below are its dispatches, each measured alone."
    )
    if len(times) < 2:
        return text
    others = "".join(f" {name}: {words}." for name, words in times.items() if name not in known)
    return f"{text} Whole-program variants before any tuning: {', '.join(variants)}.{others}"


def _overview(rows: list[dict[str, Any]]) -> Table:
    columns = (
        "dispatch", "status", "runs", "share %", "default ms", "tuned ms", "speed-up",
        "95% interval", "GFLOP/s", "trials", "failed",
    )  # fmt: skip
    right = (*columns[2:7], *columns[8:])
    return Table(
        columns,
        right,
        tuple(
            (
                row["name"],
                str(row["status"]),
                str(row["count"]),
                f"{100 * row['share']:.1f}",
                significant(row["default_ms"]),
                significant(row["tuned_ms"]),
                f"{row['speedup']:.2f}",
                _interval(row.get("speedup_ci")),
                significant(row.get("gflops_tuned")),
                str(row["trials"]),
                str(row["failed_trials"]),
            )
            for row in rows
        ),
    )


def _interval(bounds: Any) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"


def _tune_command(manifest: Mapping[str, Any]) -> str:
    """The command line, as far as options tell it."""
    import shlex

    from tilewright.tuning.options import TuneOptions, option_table

    plain = TuneOptions().to_json()
    words = ["tilewright", "tune", manifest["program"]["source"]]
    given = manifest["options"]
    for option in option_table():
        value = given.get(option.name)
        if value in (None, [], False) or value == plain.get(option.name):
            continue
        if not option.metavar:
            words.append(option.flag)
        elif option.name == "variants":
            words += [option.flag, ",".join(value)]
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [option.flag, str(one)]
    return shlex.join(words)


def _runs(summary: Mapping[str, Any]) -> Table:
    """The runtime's choices for the program; results of before there were any have none."""
    columns = (
        "device",
        "threads",
        "pinned",
        "pages",
        "batch",
        "awake",
        "caller polls",
        "ms",
        "over the time of what was tuned for",
        "command",
    )
    rows = [
        (
            f"{one['device']}{' (advised)' if one['advised'] else ''}",
            str(one["threads"]),
            "yes" if one.get("pinned") else "",
            "huge" if one.get("huge_pages") else "",
            "yes" if one.get("batch") else "",
            f"{one['spin_us']} us" if one.get("spin_us") else "",
            "yes" if one.get("polls") else "",
            significant(one["ms"]),
            interval(*one["ratio_ci"]),
            one["command"],
        )
        for one in summary.get("runs", ())
    ]
    return Table(columns, ("threads", "ms"), tuple(rows))


def _environment(manifest: Mapping[str, Any]) -> Table:
    machine = manifest["machine"]
    caches = ", ".join(
        f"L{c['level']} {c['kind'].lower()} {c['bytes'] >> 10:,} KiB" for c in machine["caches"]
    )
    rows = [
        *((name, version) for name, version in manifest["versions"].items() if version),
        ("target", manifest["target"]),
        ("flags of iree-compile", " ".join(manifest["flags"])),
        ("processor", machine["cpu"]),
        ("cores, threads", f"{machine['cores']}, {machine['threads']}"),
        ("caches", caches),
        ("system", machine["system"]),
        ("governor", machine["governor"] or "not told"),
        ("load when it ended", machine["load"]),
        ("seed", manifest["seed"]),
        ("date", manifest["date"]),
    ]
    return Table(("what", "value"), (), tuple((str(a), str(b)) for a, b in rows))


def _limits(peak: Peak) -> str:
    return (
        f"Measured with {peak.threads} threads: {significant(peak.gflops)} GFLOP/s in f32, "
        f"{significant(peak.gbytes_per_s)} GB/s."
    )


# -- dispatches ------------------------------------------------------------------------------------


def _dispatch(
    result: ResultFolder, row: Mapping[str, Any], name: str, figures: Figures, peak: Peak | None
) -> _Dispatch:
    trials = result.trials.get((row["name"], row["variant"]))
    status = str(row["status"])
    entry, kernel = result.entries.get(row.get("entry") or ""), row.get("kernel")
    shown = f"{entry.pipeline}\n{entry.configuration}" if entry else ""
    if kernel:
        shown = f"{kernel['loops'].strip()}\n\n{kernel['python'].strip()}"
    made = _Dispatch(
        name,
        row["name"],
        status,
        _TONES.get(status, "bad"),
        _short(row),
        _terms(row, peak),
        shown,
        "Its loops, and the calls that schedule them" if kernel else "As it stands in the spec",
        trials.count if trials else 0,
    )
    if trials is None:
        return made
    made.failures = trials.failures
    if trials.ok.any():
        made.convergence = tuning_figures.convergence(figures, f"{name}-convergence", trials, row)
        made.importance, made.coordinates = tuning_figures.knobs(figures, name, trials)
    return made


def _short(row: Mapping[str, Any]) -> str:
    if row["default_ms"] is None:
        return ""
    if row["speedup"] <= 1.0 or row["tuned_ms"] is None:
        return f"{significant(row['default_ms'])} ms"
    before, after = significant(row["default_ms"]), significant(row["tuned_ms"])
    return f"{before} ms to {after} ms, {row['speedup']:.2f} times"


def _terms(row: Mapping[str, Any], peak: Peak | None) -> list[tuple[str, str]]:
    terms = [("What it computes", row["workload"])]
    if row.get("names") and len(row["names"]) > 1:
        terms.append(("The same in", ", ".join(row["names"])))
    if row.get("dispatches"):
        terms.append(("In the place of", ", ".join(row["dispatches"])))
    terms += [
        ("Configuration now", row["configuration"] or "-"),
        ("The compiler's own", row.get("default_configuration") or "-"),
    ]
    if row.get("speedup_ci"):
        terms.append(
            ("Speed-up", f"{row['speedup']:.3f} (95% interval {_interval(row['speedup_ci'])})")
        )
    if row.get("gflops_tuned"):
        share = ""
        if peak is not None:
            share = f", {100 * row['gflops_tuned'] / peak.gflops:.0f}% of the machine's peak"
        now, before = significant(row["gflops_tuned"]), significant(row.get("gflops_default"))
        terms.append(("Speed", f"{now} GFLOP/s (before: {before}){share}"))
    if row.get("verification"):
        terms.append(("Results compared with", row["verification"]))
    points, part = row.get("space_points") or 0.0, row.get("tried_share") or 0.0
    if points:
        terms.append(
            ("Search space", f"about {points:,.0f} configurations, {100 * part:.2g}% tried")
        )
    return terms
