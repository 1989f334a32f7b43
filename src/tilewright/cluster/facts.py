"""What a worker of a cluster says of itself, and whether it may work for a run."""

from __future__ import annotations

import ast
import importlib.util
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.cluster.dispatching import COMPILE, CPU, DEVICE, FarmWorker
from tilewright.measure.machine import cpuinfo
from tilewright.measure.measurement_key import machine_key
from tilewright.toolchain import installed_version

#: Of what travels between tuner and workers; both must speak the same.
WIRE_FORMAT = 2
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker tells the scheduler when it comes.

    device: of the runtime, as the worker opens it; '' for compile workers. labels: what a run may
    ask for. host: a name of the running system, the same for all its processes; node: of the
    machine, for people. processor: its model. builds: version and commit of what decides results.
    machine: of a device, the part of the `MeasurementKey` of its measurements that no run adds.
    """

    role: str
    device: str
    labels: tuple[str, ...]
    host: str
    node: str
    processor: str
    builds: Mapping[str, str]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, data: Any) -> WorkerFacts | None:
        """The facts of `to_json`; None for what is none (a worker of another kind).

        Args:
            data: what a worker has told.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not names <= set(data):
            return None
        texts = [data[name] for name in names - {"labels", "builds", "machine"}]
        if not all(isinstance(one, str) for one in texts) or not isinstance(data["machine"], dict):
            return None
        given = {name: data[name] for name in names}
        builds = {str(k): str(v) for k, v in dict(given["builds"]).items()}
        return cls(**{**given, "labels": tuple(map(str, given["labels"])), "builds": builds})

    def worker(self, address: str) -> FarmWorker:
        """It, as far as placing goes.

        Args:
            address: of the worker.
        """
        return FarmWorker(address, self.role, frozenset(self.labels), self.host)


def facts_of(role: str, device: str = "", labels: Iterable[str] = ()) -> WorkerFacts:
    """What a worker of this process is.

    Args:
        role: `compile` or `device`.
        device: that it measures on.
        labels: more that a run may ask for.
    """
    driver = device.partition("://")[0]
    own = (device, driver, *([CPU] if driver.startswith("local-") else []), *labels)
    return WorkerFacts(
        role,
        device if role == DEVICE else "",
        tuple(dict.fromkeys(own if role == DEVICE else labels)),
        _host(),
        platform.node(),
        _processor(),
        builds(),
        machine_key(device).to_json() if role == DEVICE else {},
    )


def builds() -> dict[str, str]:
    """Versions of this installation that must be the same on all machines, '' for what is missing;
    of IREE with the commit, where the package says it."""
    return {
        "tilewright": f"{installed_version('tilewright')} (format {WIRE_FORMAT})",
        "iree-base-compiler": _build("iree-base-compiler", "iree.compiler"),
        "iree-base-runtime": _build("iree-base-runtime", "iree.runtime"),
    }


def disagreement(ours: WorkerFacts, theirs: WorkerFacts, *, own_processor: bool) -> str:
    """Why a worker cannot work for a run; '' where it can.

    Args:
        ours: of the tuner's machine.
        theirs: of the worker's.
        own_processor: whether code is made for the processor of whatever machine compiles it.
    """
    needed = ["tilewright", "iree-base-compiler" if theirs.role == COMPILE else "iree-base-runtime"]
    for name in needed:
        have, want = theirs.builds.get(name, ""), ours.builds[name]
        if have != want:
            return f"it has {name} {have or 'not at all'}, this machine {want}"
    matters = theirs.role == COMPILE or CPU in theirs.labels
    if own_processor and matters and theirs.processor != ours.processor:
        return (
            f"its processor is '{theirs.processor}', this machine's '{ours.processor}': name the "
            "one that is tuned for, such as --target cpu:znver4"
        )
    return ""


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two machines that measure.

    Args:
        one: as a worker tells it.
        other: another.
    """
    names = {**one, **other}
    return [name.replace("_", " ") for name in names if one.get(name) != other.get(name)]


def _build(distribution: str, package: str) -> str:
    version = installed_version(distribution)
    commit = _commit(package) if version else ""
    return f"{version} ({commit[:12]})" if commit else version


def _commit(package: str) -> str:
    """The commit that a package was built from, read without importing it; '' unknown."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    path = Path(spec.origin).with_name("version.py")
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "REVISIONS":
            revisions = ast.literal_eval(node.value)
            return str(revisions.get("IREE", "")) if isinstance(revisions, dict) else ""
    return ""


def _host() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()


def _processor() -> str:
    info = cpuinfo()
    named = [info.get(name, "") for name in ("model name", "cpu family", "model", "stepping")]
    return " ".join(part for part in named if part) or platform.machine()
