"""Libraries of specs: folders, or the same behind a URL, looked up by operator and machine.

A library is files as anybody can serve them: `index.json`, and each spec under the name of its
digest. What a spec is for stands in it (`spec.evidence`); the index says it once more, so that
looking up reads one file.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path

from tilewright.errors import UserError
from tilewright.files import parse_json, write_file
from tilewright.measure.measurement_key import MeasurementKey, compare_measured, why_other
from tilewright.spec.evidence import EntryEvidence
from tilewright.spec.report import SpecReport

INDEX = "index.json"
OWN = "own"
"""The name of the library that comes with tilewright."""

_FORMAT = 1
_SPECS = "specs"
_TIMEOUT_S = 60.0
# Of one file; a spec with many kernels has some megabytes.
_MOST_BYTES = 1 << 28
# In which order a fit counts.
SKU, FAMILY = "this processor", "its family"
OTHER = ""


@dataclass(frozen=True)
class LibrarySpec:
    """One spec of a library.

    file: relative to the library. sha256: of its content. program: digest of the program that it
    was made of, '' where nobody says. entries: what each is for, by name.
    """

    file: str
    sha256: str
    preprocessing: bool
    program: str
    entries: Mapping[str, EntryEvidence]


@dataclass(frozen=True)
class LibraryFit:
    """Whether an entry is for a machine.

    how: `SKU`, all that measurements depend on is equal; `FAMILY`, the same kind of processor with
    vectors as wide, a hint; or `OTHER`. why: what keeps it from being more, in words.
    """

    how: str
    why: str


@dataclass(frozen=True)
class LibraryFind:
    """An entry that fits a machine."""

    name: str
    evidence: EntryEvidence
    fit: LibraryFit


@dataclass(frozen=True)
class SpecLibrary:
    """The index of a library. place: a folder or a URL."""

    place: str
    specs: tuple[LibrarySpec, ...] = ()

    def find(self, operator: str, target: str, now: MeasurementKey | None) -> list[LibraryFind]:
        """What there is for an operator on a machine: for this processor, else for its family.

        Args:
            operator: the workload's key.
            target: the target's key.
            now: what would be measured under; None where that is not known.

        Returns:
            The entries, the greatest gain first; where neither fits those of other machines.
        """
        found: dict[str, list[LibraryFind]] = {SKU: [], FAMILY: [], OTHER: []}
        for spec in self.specs:
            for name, one in spec.entries.items():
                if one.operator == operator:
                    fits = fit(one, target, now)
                    found[fits.how].append(LibraryFind(name, one, fits))
        return sorted(
            found[SKU] or found[FAMILY] or found[OTHER], key=lambda one: -gain(one.evidence)
        )

    def of_program(self, digest: str) -> list[LibrarySpec]:
        """The specs that were made of a program.

        Args:
            digest: the program's.
        """
        return [one for one in self.specs if one.program == digest]

    def read(self, spec: LibrarySpec) -> bytes:
        """The content of a spec.

        Args:
            spec: of this library.

        Raises:
            UserError: it cannot be read, or is not what the index says.
        """
        content = _read(self.place, spec.file)
        found = hashlib.sha256(content).hexdigest()
        if found != spec.sha256:
            raise UserError(
                f"{self.place}: {spec.file} is not what {INDEX} says it is (sha256 {found[:12]}, "
                f"not {spec.sha256[:12]}); push the spec again, or pull from where it came"
            )
        return content


def fit(evidence: EntryEvidence, target: str, now: MeasurementKey | None) -> LibraryFit:
    """Whether what was found on one machine is for another.

    Args:
        evidence: what was found.
        target: the other's target key.
        now: what would be measured under there; None where that is not known.
    """
    kinds = [family(one) for one in (evidence.target, target)]
    if kinds[0] != kinds[1]:
        return LibraryFit(OTHER, f"for {kinds[0]}, not {kinds[1]}")
    if now is None:
        return LibraryFit(FAMILY, "nobody says what it would be measured on")
    why = why_other(compare_measured(evidence.machine, now))
    return LibraryFit(FAMILY if why else SKU, why)


def family(target: str) -> str:
    """A target's key without the number of threads.

    Args:
        target: as `Target.key`.
    """
    kept, _, last = target.rpartition("/")
    return kept if last.removesuffix("t").isdigit() and last.endswith("t") else target


def gain(evidence: EntryEvidence) -> float:
    """How many times as fast an entry made its operator; 1 where it does not say.

    Args:
        evidence: of the entry.
    """
    try:
        return float(evidence.default_ms) / float(evidence.tuned_ms)
    except (ValueError, ZeroDivisionError):
        return 1.0


def open_library(place: str) -> SpecLibrary:
    """Read the index of a library.

    Args:
        place: a folder, a URL (http or https), or `OWN`.

    Returns:
        The library.

    Raises:
        UserError: there is none, or its index cannot be read.
    """
    try:
        data = parse_json(_read(place, INDEX))
        if data["format"] != _FORMAT:
            raise UserError(
                f"{place}: its {INDEX} has format {data['format']}, this tilewright reads "
                f"{_FORMAT}; use a newer tilewright"
            )
        specs = tuple(
            LibrarySpec(
                file=_inside(str(one["file"])),
                sha256=str(one["sha256"]),
                preprocessing=bool(one["preprocessing"]),
                program=str(one["program"]),
                entries={
                    str(name): EntryEvidence.of({k: str(v) for k, v in texts.items()})
                    for name, texts in one["entries"].items()
                },
            )
            for one in data["specs"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{place}: its {INDEX} is no index of specs ({error})") from error
    return SpecLibrary(place, specs)


def _inside(file: str) -> str:
    """A file's name, unless it leads out of the library."""
    if Path(file).is_absolute() or ".." in Path(file).parts or ":" in file:
        raise ValueError(f"'{file}' is not in the library")
    return file


def is_url(place: str) -> bool:
    """Whether a library is behind a URL.

    Args:
        place: as the user wrote it.
    """
    return place.startswith(("http://", "https://"))


def _read(place: str, file: str) -> bytes:
    """A file of a library. Raises UserError."""
    if is_url(place):
        address = f"{place.rstrip('/')}/{file}"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read(_MOST_BYTES + 1)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UserError(f"{address}: cannot get it ({error})") from error
        if len(content) > _MOST_BYTES:
            raise UserError(f"{address}: larger than a spec can be")
        return content
    try:
        if place == OWN:
            return resources.files("tilewright").joinpath("specs", file).read_bytes()
        return (Path(place) / file).read_bytes()
    except OSError as error:
        raise UserError(
            f"{place}: no library of specs: cannot read {file} ({error.strerror}); "
            "`tilewright specs push` makes one"
        ) from error


def push(folder: Path, given: Sequence[tuple[bytes, SpecReport, str]]) -> list[str]:
    """Put specs into a library, which is made where there is none.

    Args:
        folder: the library.
        given: content, what it is, and the digest of its program ('' for unknown) of each.

    Returns:
        Names of the files that are new.

    Raises:
        UserError: a spec knows nothing of its entries, or a file cannot be written.
    """
    known = {}
    if (folder / INDEX).exists():
        known = {one.sha256: one for one in open_library(str(folder)).specs}
    new = []
    for content, report, program in given:
        if not report.evidence:
            raise UserError(
                "the spec says nothing of what its entries are for, so nobody would find it: push "
                "one that `tilewright tune` of this version or a newer one wrote"
            )
        digest = hashlib.sha256(content).hexdigest()
        if digest in known:
            if program and not known[digest].program:
                known[digest] = replace(known[digest], program=program)
            continue
        file = f"{_SPECS}/{digest[:16]}.mlir"
        (folder / _SPECS).mkdir(parents=True, exist_ok=True)
        write_file(folder / file, content)
        known[digest] = LibrarySpec(
            file, digest, report.is_preprocessing, program, dict(report.evidence)
        )
        new.append(file)
    _write_index(folder, list(known.values()))
    return new


def pull(library: SpecLibrary, folder: Path) -> list[str]:
    """Copy a library into a folder that is one, or becomes one. Every file's digest is checked.

    Args:
        library: what is copied.
        folder: where to.

    Returns:
        Names of the files that are new.

    Raises:
        UserError: a file is not what the index says, or cannot be written.
    """
    known = {}
    if (folder / INDEX).exists():
        known = {one.sha256: one for one in open_library(str(folder)).specs}
    new = []
    for spec in library.specs:
        if spec.sha256 not in known:
            content = library.read(spec)
            (folder / spec.file).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / spec.file, content)
            new.append(spec.file)
        known[spec.sha256] = spec
    _write_index(folder, list(known.values()))
    return new


def _write_index(folder: Path, specs: Sequence[LibrarySpec]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(specs, key=lambda one: one.file)
    index = {"format": _FORMAT, "specs": [asdict(one) for one in ordered]}
    write_file(folder / INDEX, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())


def rows(
    library: SpecLibrary, target: str, now: MeasurementKey | None
) -> Iterator[tuple[str, EntryEvidence, LibraryFit]]:
    """Every entry of a library with how it fits a machine.

    Args:
        library: the library.
        target: the machine's target key.
        now: what would be measured under there.

    Yields:
        The file, the evidence, and whether it fits.
    """
    for spec in library.specs:
        for evidence in spec.entries.values():
            yield spec.file, evidence, fit(evidence, target, now)
