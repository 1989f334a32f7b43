"""Requests and results as plain data: files by the digest of their content, and JSON that makes
nothing but what is listed here. Nothing is ever unpickled.

A request is known by a digest of all that it asks for, files by their content. So whoever asks for
the same thing again, today or after the run was stopped, finds the answer that is there.

This module is used by both sides, the one that asks and the one with the device; it needs nothing
but NumPy and the runtime's wheel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.files import whole_file, write_whole
from tilewright.measure.benchmark_worker import (
    CompareRequest,
    RunRequest,
    TimeReply,
    TimeRequest,
    VerifyRequest,
)
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions, Parameters
from tilewright.measure.inputs import InputFile, InputSet, ScalarInput
from tilewright.measure.jobs import Job, WorkerFailure, WorkerTask
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.measure.verify import Comparison
from tilewright.measure.ways import WaysRequest, WayTimes

# All that a manifest or a result may hold: nothing else is ever made from what was read.
_TYPES: Mapping[str, type] = {
    one.__name__: one
    for one in (
        ArgumentType,
        CompareRequest,
        Comparison,
        ComparisonPolicy,
        DeviceOptions,
        InputFile,
        InputSet,
        Measurement,
        Parameters,
        RunRequest,
        ScalarInput,
        TimeReply,
        TimeRequest,
        TimingPolicy,
        VerifyRequest,
        WayTimes,
        WaysRequest,
        WorkerFailure,
    )
}
# Fields that are files, and of `Parameters` the second of each pair.
_FILE_FIELDS = frozenset({"vmfb", "vmfbs", "path", "expected", "sensitivity", "baseline"})
# Where the results of a run are kept is for each side to say.
_OWN_FIELDS = frozenset({"outputs"})
_CLASS, _TUPLE, _FILE = "class", "tuple", "file"
_LONGEST_NAME = 200
_SUFFIX = {"path": ".npy", "expected": ".npz", "sensitivity": ".npz"}


class Files:
    """Files in a folder, by content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[str, int, int], str] = {}
        self._whole: set[tuple[str, int, int]] = set()

    def put(self, source: str | bytes, suffix: str) -> str:
        """Store a file.

        Args:
            source: its path, or its content.
            suffix: of the name, where the path has none.

        Returns:
            Its name in the folder.

        Raises:
            UserError: it cannot be stored.
        """
        with writing(self.folder):
            return self._put(source, suffix)

    def _put(self, source: str | bytes, suffix: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            name = hashlib.sha256(source).hexdigest()[:32] + suffix
            if not (self.folder / name).exists():
                write_whole(self.folder / name, source)
            return name
        status = os.stat(source)
        key = (source, status.st_size, status.st_mtime_ns)
        if key not in self._known:
            name = file_digest(Path(source)) + (Path(source).suffix or suffix)
            target = self.folder / name
            if not target.exists():
                with whole_file(target) as partial:
                    shutil.copyfile(source, partial)
            self._known[key] = name
        return self._known[key]

    def path(self, name: str) -> Path:
        """Where a stored file is.

        Args:
            name: as `put` gave it.

        Raises:
            UserError: it is no name, or the file is missing or not whole.
        """
        if not name or Path(name).name != name or len(name) > _LONGEST_NAME:
            raise UserError(f"{self.folder}: '{name}' is no name of a file")
        found = self.folder / name
        if not found.is_file():
            raise UserError(f"{found}: the file is missing; copy the folder again, with all of it")
        status = found.stat()
        key = (name, status.st_size, status.st_mtime_ns)
        if key not in self._whole:
            if file_digest(found) != found.name.partition(".")[0]:
                raise UserError(
                    f"{found}: the file is not what was written; copy the folder again (one that "
                    "is being copied is whole when that has ended)"
                )
            self._whole.add(key)
        return found


def file_digest(path: Path) -> str:
    """What a file is known by: its content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError where the block cannot write."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror or error})") from error


def encode(value: Any, files: Files | None, field: str = "") -> Any:
    """A request or result as JSON; files that it names are stored (None: there are none).

    Args:
        value: a request or a result.
        files: where files that it names are stored; None: there are none.
        field: the name of the field that has the value.

    Raises:
        TypeError: it holds something that cannot be sent.
    """
    if field in _OWN_FIELDS:
        return ""
    if field in _FILE_FIELDS and files is not None and isinstance(value, str | bytes):
        return {_FILE: files.put(value, _SUFFIX.get(field, ".vmfb"))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if name not in _TYPES:
            raise TypeError(f"{name} cannot be sent to another machine")
        entries = {
            f.name: encode(getattr(value, f.name), files, f.name) for f in dataclasses.fields(value)
        }
        if isinstance(value, Parameters) and files is not None:
            pairs = [
                {_TUPLE: [scope, {_FILE: files.put(path, Path(path).suffix)}]}
                for scope, path in value.archives
            ]
            entries["archives"] = {_TUPLE: pairs}
        return {_CLASS: name, **entries}
    if isinstance(value, tuple):
        return {_TUPLE: [encode(one, files, field) for one in value]}
    if isinstance(value, list):
        return [encode(one, files, field) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent to another machine")


def decode(data: Any, files: Files | None) -> Any:
    """The value that was encoded.

    Args:
        data: as JSON has it.
        files: where files that it names are; None: there are none.

    Raises:
        UserError: it is of a kind that this version does not know.
    """
    if isinstance(data, list):
        return [decode(one, files) for one in data]
    if not isinstance(data, dict):
        return data
    if _TUPLE in data:
        if not isinstance(data[_TUPLE], list):
            raise UserError(f"'{data[_TUPLE]}' is no list of values")
        return tuple(decode(one, files) for one in data[_TUPLE])
    if _FILE in data:
        if files is None:
            raise UserError("a result names a file, which no result does")
        return str(files.path(str(data[_FILE])))
    kind = _TYPES.get(str(data.get(_CLASS)))
    if kind is None:
        raise UserError(
            f"'{data.get(_CLASS)}' is not known here: install the same version of tilewright on "
            "both machines"
        )
    names = {f.name for f in dataclasses.fields(kind)}
    given = {name: decode(value, files) for name, value in data.items() if name != _CLASS}
    if not set(given) <= names:
        raise UserError(
            f"{data[_CLASS]} has {', '.join(sorted(set(given) - names))}, which is not known here: "
            "install the same version of tilewright on both machines"
        )
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise UserError(f"this is no {data[_CLASS]} ({error})") from None


@dataclass(frozen=True)
class ManifestEntry:
    """A request in a manifest. `key` is the digest of what it asks for."""

    key: str
    task: str
    payload: Any
    timeout_s: float | None


def make_entry(job: Job[Any, Any], files: Files) -> ManifestEntry:
    """What is to be measured as it goes into a manifest; its files are stored.

    Args:
        job: a task of the benchmark worker with its request.
        files: where the files that it names are stored.
    """
    name = task_name(job.task)
    payload = encode(job.request, files)
    text = json.dumps([name, payload], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    return ManifestEntry(key, name, payload, job.timeout_s)


def task_name(task: WorkerTask[Any, Any]) -> str:
    """What a manifest calls a task.

    Args:
        task: a task of the benchmark worker.

    Returns:
        `module:function`.
    """
    return f"{task.__module__}:{task.__name__}"
