"""Measuring on another machine: what goes there and what comes back, as a folder of files.

    FOLDER/files/DIGEST.vmfb …      programs, inputs, expected results, each stored once
    FOLDER/batch_0001/manifest.json requests, which name those files
    FOLDER/batch_0001/results*.jsonl one line for each request that is done, a file for each station
    FOLDER/batch_0001/claims/KEY    there: a station has begun with that request
    FOLDER/batch_0001/outputs/…     results of programs that were run to keep them
    FOLDER/closed                   there: no more batches will come

Manifests are written whole before they have their name, results a line at a time, so either side
can be stopped at any moment and goes on where it was. Stations that share a folder claim what they
measure, so that nothing is measured twice; the claim of one that is gone is taken over.

This module is used on both sides; it needs nothing but NumPy and the runtime's wheel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import parse_json, write_whole
from tilewright.measure.encoding import Files, ManifestEntry, writing

FORMAT = 1
MANIFEST, OUTPUTS, FILES, CLOSED = "manifest.json", "outputs", "files", "closed"
_CLAIMS = "claims"
# Beyond a request's own limit, after which a claim without a result is another's to take.
_CLAIM_MARGIN_S = 120.0
_DEFAULT_LIMIT_S = 60.0


class Batch:
    """A folder with requests and what has come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def number(self) -> int:
        return int(self.folder.name.rpartition("_")[2])

    @property
    def entries(self) -> list[ManifestEntry]:
        """The requests. UserError when the manifest is not one of this version's."""
        path = self.folder / MANIFEST
        try:
            data = parse_json(path.read_text())
            if data["format"] != FORMAT:
                raise UserError(
                    f"{path}: format {data['format']}, this tilewright reads {FORMAT}: install the "
                    "same version on both machines"
                )
            return [ManifestEntry(**request) for request in data["requests"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a manifest of tilewright ({error})") from error

    @property
    def label(self) -> str:
        data = parse_json((self.folder / MANIFEST).read_text())
        return str(data.get("label", ""))

    def results(self) -> dict[str, dict[str, Any]]:
        """What has come back, by key; a line that was cut off is left out."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("results*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    data = parse_json(line)
                    if data.get("failure") is not None or "value" in data:
                        found.setdefault(str(data["key"]), data)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
        return found

    def add_result(self, data: Mapping[str, Any], station: str = "") -> None:
        """Append a result; it is on disk when this returns.

        Args:
            data: the line, as JSON has it.
            station: who measured it; each writes a file of its own.

        Raises:
            UserError: it cannot be written.
        """
        path = self.folder / (f"results-{station}.jsonl" if station else "results.jsonl")
        with writing(path):
            # What was cut off when the machine went down must not swallow the next line.
            cut = path.exists() and path.stat().st_size > 0 and not _ends_line(path)
            with path.open("a") as file:
                file.write(("\n" if cut else "") + json.dumps(data) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def claim(self, entry: ManifestEntry, station: str) -> bool:
        """Begin with a request, unless another station has.

        A claim is a file that only one can make. One whose station is gone (its process, on this
        machine; else by time, as the file system tells it) is renamed, which only one can do, too.

        Args:
            entry: of this batch, without a result.
            station: who asks, as `station_name` gave it.

        Raises:
            UserError: the folder cannot be written to.
        """
        path = self.folder / _CLAIMS / entry.key
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            if _made(path, station):
                return True
            holder = self._abandoned(path, entry.timeout_s or _DEFAULT_LIMIT_S)
            if holder is None:
                return False
            stale = path.with_name(f".{entry.key}.{secrets.token_hex(6)}")
            try:
                path.rename(stale)
                if stale.read_text() != holder:
                    # Another has taken it over in between: it is that one's.
                    with contextlib.suppress(FileExistsError):
                        os.link(stale, path)
                    return False
            except FileNotFoundError:
                return False
            finally:
                stale.unlink(missing_ok=True)
            return _made(path, station)

    def release(self, entry: ManifestEntry) -> None:
        """Give back a claim: the result is there, or nobody wants it.

        Args:
            entry: that was claimed.
        """
        (self.folder / _CLAIMS / entry.key).unlink(missing_ok=True)

    def _abandoned(self, path: Path, limit_s: float) -> str | None:
        """The station whose claim may be taken over; None where it may not."""
        try:
            begun, station = path.stat().st_mtime, path.read_text()
        except FileNotFoundError:
            return None
        if _is_gone(station):
            return station
        # The clock of whoever keeps the files, which need not be this machine's.
        probe = path.with_name(f".now.{secrets.token_hex(6)}")
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return station if now - begun > limit_s + _CLAIM_MARGIN_S else None


def station_name() -> str:
    """A name for this process among the stations of a folder: machine, process, and a number."""
    host = "".join(c for c in platform.node() if c.isalnum()) or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_gone(station: str) -> bool:
    """Whether a station was a process of this machine that has ended."""
    host, _, rest = station.partition("-")
    number = rest.partition("-")[0]
    if not number.isdigit() or host != station_name().partition("-")[0]:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _made(path: Path, content: str) -> bool:
    """Make a file that is not there; False where it is."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(content)
    return True


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class Exchange:
    """A folder through which two machines measure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = Files(folder / FILES)

    def batches(self) -> list[Batch]:
        """All batches whose manifest is there, in order."""
        found = [
            Batch(path.parent)
            for path in self.folder.glob(f"batch_*/{MANIFEST}")
            if path.parent.name.rpartition("_")[2].isdigit()
        ]
        return sorted(found, key=lambda batch: batch.number)

    def new_batch(self, entries: Sequence[ManifestEntry], label: str) -> Batch:
        """Write a manifest with these requests.

        Args:
            entries: the requests.
            label: what they are for, in words.

        Raises:
            UserError: it cannot be written.
        """
        requests = [dataclasses.asdict(entry) for entry in entries]
        manifest = {"format": FORMAT, "label": label, "requests": requests}
        with writing(self.folder):
            number = max((batch.number for batch in self.batches()), default=0) + 1
            folder = self.folder / f"batch_{number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
            (self.folder / CLOSED).unlink(missing_ok=True)
        return Batch(folder)

    def close(self) -> None:
        """Say that no more batches will come."""
        if self.folder.is_dir():
            (self.folder / CLOSED).touch()

    @property
    def closed(self) -> bool:
        return (self.folder / CLOSED).exists()

    def answered(self) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Every result there is."""
        for batch in self.batches():
            for data in batch.results().values():
                yield batch, data
