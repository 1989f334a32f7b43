"""A result folder read again, wherever it lies by now: what was tuned, with what, how it went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.tuning.apply import TunedSpec, resolve_tuned
from tilewright.tuning.options import TuneOptions, read_fields
from tilewright.tuning.outputs import SUMMARY, read_manifest

# Options of the recorded run that decide what the program computes, and how it is compiled.
_KEPT = ("seed", "function", "inputs", "threads", "accuracy", "device", "effort")
_PARAMETERS = "--parameters="


@dataclass(frozen=True)
class RecordedResult:
    """What `tilewright tune` wrote into a folder.

    tuned: its specs and variant, where they lie now. program: what was compiled. options: those of
    the run that decide what the program computes. made_with: IREE's version. target_key: of the
    machine; measured_on: all that its times hold for, None where the folder does not say. speedup,
    speedup_ci: as measured then, with 95% interval. entries: names of those entries of the specs
    that reached the program then.
    """

    folder: Path
    tuned: TunedSpec
    program: Path
    digest: str
    options: TuneOptions
    made_with: str
    target_key: str
    measured_on: MeasurementKey | None
    date: str
    default_ms: float
    tuned_ms: float
    speedup: float
    speedup_ci: tuple[float, float]
    entries: frozenset[str]
    manifest: dict[str, Any]
    summary: dict[str, Any]


def read_recorded(
    folder: Path, program: Path | None = None, target: str | None = None, **given: Any
) -> RecordedResult:
    """Read a result folder.

    Args:
        folder: as `tilewright tune` wrote it; it may have been moved, or be another machine's.
        program: in the place of the program that it was made of.
        target: in the place of the run's.
        given: further fields of the options, as :func:`read_fields` takes them; None was not given.

    Returns:
        What is recorded.

    Raises:
        UserError: it is no result folder, or the program or its weights are not found.
    """
    tuned = resolve_tuned(folder, target, tuple(given.pop("iree_flags", None) or ()))
    if tuned.given == tuned.spec:
        raise UserError(f"{folder}: not a result folder; give the folder that `tune -o` wrote")
    manifest = read_manifest(folder)
    try:
        summary = parse_json((folder / SUMMARY).read_text())
        before, program_was = manifest["options"], manifest["program"]
        asked = {name: before.get(name) for name in _KEPT}
        asked["parameters"] = [
            _moved(folder, one) for one in program_was.get("runtime_parameters", ())
        ]
        wanted = {name: value for name, value in given.items() if value}
        result = summary["program"]
        return RecordedResult(
            folder=folder,
            tuned=tuned,
            program=program or find_program(folder, Path(program_was["path"])),
            digest=str(program_was["digest"]),
            options=replace(
                TuneOptions(**read_fields({**asked, **wanted})),
                target=tuned.target,
                iree_flags=tuned.iree_flags,
            ),
            made_with=str(manifest["compiler"]),
            target_key=str(manifest["target"]),
            measured_on=read_measured_on(manifest),
            date=str(manifest["date"]),
            default_ms=float(result["default_ms"]),
            tuned_ms=float(result["tuned_ms"]),
            speedup=float(result["speedup"]),
            speedup_ci=(float(result["speedup_ci"][0]), float(result["speedup_ci"][1])),
            entries=frozenset(_reached(summary["dispatches"])),
            manifest=manifest,
            summary=summary,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder}: its {SUMMARY} or manifest is not as tilewright writes it ({error}); "
            "tune the program again"
        ) from error


def read_measured_on(manifest: Mapping[str, Any]) -> MeasurementKey | None:
    """What the times of a result hold for.

    Args:
        manifest: of its folder.

    Returns:
        None where it does not say.
    """
    found = manifest.get("measured_on")
    return MeasurementKey.from_json(found) if isinstance(found, dict) else None


def _reached(dispatches: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The entries that dispatches had in the end."""
    return (one["entry"] for one in dispatches if one["entry"])


def find_program(folder: Path, recorded: Path) -> Path:
    """The program that a folder was made of: the folder may have come from another machine.

    Args:
        folder: the result.
        recorded: where the program was then.

    Returns:
        The folder's own, the recorded one, or a file of its name beside the folder or in the
        working directory.

    Raises:
        UserError: there is none of these.
    """
    places = [folder / recorded.name, recorded, folder.parent / recorded.name, Path(recorded.name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(
            f"{folder}: the program {recorded} is not there, nor is {recorded.name} beside the "
            "folder or here; name it with --program FILE"
        )
    return found


def _moved(folder: Path, flag: str) -> str:
    """`SCOPE=FILE` of a runtime's flag; an archive of the folder is where that lies now."""
    scope, _, name = flag.removeprefix(_PARAMETERS).partition("=")
    own = folder / Path(name).name
    return f"{scope}={own if own.is_file() else name}"
