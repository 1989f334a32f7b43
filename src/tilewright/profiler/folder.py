"""The folder of generated dispatches: one folder for each operation, and what is known of it.

    DIR/generated/<dialect>/<kind>/<operation>/
        <operation>.mlir        the program; its function `main` computes the operation
        manifest.json           configurations, and what became of compiling them
        <dispatch>.vmfb         the compiled program, in one configuration
        <dispatch>.mlir         the configured program that code was generated from
        compile.log             what the compiler said
        reference/              inputs and expected results

Manifests appear whole or not at all, and each is written by one process at a time: who changes the
folder holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.files import parse_json, write_text
from tilewright.gpu import GpuCompilationInfo
from tilewright.kernels.kinds import parse_operation
from tilewright.kernels.operation import Operation
from tilewright.profiler.names import format_dispatch
from tilewright.target import CPU
from tilewright.tiling import CompilationInfo
from tilewright.trial import Status

FORMAT = 1
GENERATED = "generated"
MANIFEST = "manifest.json"
LOG = "compile.log"
_LOCK = ".lock"
# File systems take 255 bytes; suffixes, and what a file is called while it is written, come on top.
_LONGEST_STEM = 220


@dataclass(frozen=True)
class TunedConfiguration:
    """A configuration and the dispatch of the program that it is for.

    `knobs` holds the values of the search space that it comes from.
    """

    executable: str
    entry: str
    configuration: CompilationInfo
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "executable": self.executable,
            "entry": self.entry,
            "configuration": self.configuration.to_json(),
            "knobs": dict(self.knobs),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TunedConfiguration:
        """What `to_json` wrote.

        Args:
            data: one entry.

        Raises:
            KeyError: it is something else.
        """
        kept = data["configuration"]
        reader = GpuCompilationInfo if "ordinal" in kept else CompilationInfo
        configuration = reader.from_json(kept)
        return TunedConfiguration(data["executable"], data["entry"], configuration, data["knobs"])


@dataclass(frozen=True)
class CompileRecord:
    """What became of compiling a dispatch.

    key: a digest of all that decides the outcome (`compiling.dispatch_key`). repeats: how often
    the program's function `bench` runs it. message: why there is no vmfb, else ''. flags: of
    iree-compile.
    """

    key: str
    status: Status
    message: str = ""
    seconds: float = 0.0
    repeats: int = 1
    flags: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CompileRecord:
        """What `dataclasses.asdict` made of one.

        Args:
            data: one entry.
        """
        given = {**data, "status": Status(data["status"]), "flags": tuple(data["flags"])}
        return CompileRecord(**given)


@dataclass
class DispatchEntry:
    """A dispatch of a manifest. `tuned` is None for the compiler's own configuration."""

    tuned: TunedConfiguration | None = None
    compiled: CompileRecord | None = None


class OperationFolder:
    """The folder of one operation; `dispatches` are its configurations by name, which are for
    `target`, as users name it."""

    def __init__(self, path: Path, operation: Operation, target: str = CPU) -> None:
        self.path = path
        self.operation = operation
        self.target = target
        self.dispatches: dict[str, DispatchEntry] = {}

    @property
    def program(self) -> Path:
        return self.path / f"{self.operation.name}.mlir"

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def reference(self) -> Path:
        return self.path / "reference"

    def save(self) -> None:
        """Write the manifest; it appears whole."""
        data = {
            "format": FORMAT,
            "operation": self.operation.name,
            "target": self.target,
            "dispatches": {
                name: {
                    "tuned": entry.tuned and entry.tuned.to_json(),
                    "compiled": entry.compiled and asdict(entry.compiled),
                }
                for name, entry in self.dispatches.items()
            },
        }
        write_text(self.path / MANIFEST, json.dumps(data, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> OperationFolder:
        """Read a manifest.

        Args:
            path: the operation's folder.

        Raises:
            UserError: it is damaged, or of another format.
        """
        where = path / MANIFEST
        try:
            data = parse_json(where.read_text(encoding="utf-8"))
            if data["format"] == FORMAT:
                return OperationFolder._read(path, data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
            raise UserError(
                f"{where}: cannot be read ({error}); delete {path} and generate it again"
            ) from error
        raise UserError(
            f"{where}: written by another version of tilewright; delete {path} and generate it "
            "again"
        )

    @staticmethod
    def _read(path: Path, data: Mapping[str, Any]) -> OperationFolder:
        target = data.get("target", CPU)
        folder = OperationFolder(path, parse_operation(data["operation"]), target)
        for name, entry in data["dispatches"].items():
            tuned, compiled = entry["tuned"], entry["compiled"]
            folder.dispatches[name] = DispatchEntry(
                None if tuned is None else TunedConfiguration.from_json(tuned),
                None if compiled is None else CompileRecord.from_json(compiled),
            )
        return folder


@dataclass(frozen=True)
class Selected:
    """One dispatch: an operation's folder and the name of a configuration in it."""

    folder: OperationFolder
    configuration: str

    @property
    def name(self) -> str:
        return format_dispatch(self.folder.operation.name, self.configuration)

    @property
    def entry(self) -> DispatchEntry:
        return self.folder.dispatches[self.configuration]

    @property
    def vmfb(self) -> Path:
        """Where the compiled program is."""
        return self.folder.path / f"{self._stem}.vmfb"

    @property
    def configured(self) -> Path:
        """Where the program that code was generated from is."""
        return self.folder.path / f"{self._stem}.mlir"

    @property
    def _stem(self) -> str:
        """The dispatch's name, cut where it would be too long for a file."""
        name = self.name
        if len(name) <= _LONGEST_STEM:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        return f"{name[: _LONGEST_STEM - 13]}-{digest}"


def _by_numbers(path: Path) -> list[str | int]:
    """A key that sorts names with their numbers as numbers: 8x64 comes before 8x128."""
    parts = re.split("([0-9]+)", str(path))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


class GeneratedFolder:
    """All operations under `DIR/generated`."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / GENERATED

    def folder_of(self, operation: Operation) -> OperationFolder:
        """The operation's folder; what it holds already is read.

        Args:
            operation: which.

        Returns:
            Its folder, which may not be there yet.

        Raises:
            UserError: its manifest is damaged.
        """
        kind = operation.kind
        path = self.root / kind.dialect / kind.name / operation.name
        if (path / MANIFEST).is_file():
            return OperationFolder.load(path)
        return OperationFolder(path, operation)

    def operations(self) -> list[OperationFolder]:
        """All operations that have been generated, by kind and sizes. Raises UserError when there
        are none."""
        paths = [manifest.parent for manifest in self.root.glob(f"*/*/*/{MANIFEST}")]
        found = [OperationFolder.load(path) for path in sorted(paths, key=_by_numbers)]
        if not found:
            raise UserError(
                f"{self.root}: no generated dispatches; run `tilewright profile generate "
                f"--generated-dir {self.root.parent}` first"
            )
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder while changing it. Raises UserError when another process does.

        The lock goes with the process that holds it, however that ends.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"{self.root}: cannot write there ({error.strerror})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"{self.root}: another tilewright is working on it; wait for that, or give "
                "another --generated-dir"
            ) from error
        try:
            yield
        finally:
            os.close(descriptor)
