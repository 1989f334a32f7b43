"""A cluster of processes on this machine, by TLS: a scheduler and workers, each by its command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.cluster.certificates import make_certificates

START_S = 120.0


@dataclass
class ClusterProcesses:
    """The processes; `url` is the scheduler's address, `certs` the folder with certificates."""

    folder: Path
    certs: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tilewright", *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.processes.append(process)
        return process

    def worker(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        place = ("--scheduler", self.url, "--certs", str(self.certs), "--name", name)
        return self.start(name, "worker", *place, *arguments, **environment)

    def said(self, name: str, pattern: str) -> str:
        """What a process says, waited for."""
        end = time.monotonic() + START_S
        path = self.folder / f"{name}.log"
        while time.monotonic() < end:
            found = re.search(pattern, path.read_text() if path.exists() else "")
            if found:
                return found.group(1)
            time.sleep(0.05)
        raise AssertionError(f"{name} does not say {pattern}: {path.read_text()}")


@contextmanager
def cluster_processes(folder: Path) -> Iterator[ClusterProcesses]:
    """A scheduler by TLS; its workers are for the test to start."""
    made = ClusterProcesses(folder, folder / "certs")
    make_certificates(made.certs)
    try:
        scheduler = ("--host", "127.0.0.1", "--port", "0", "--certs", str(made.certs))
        made.start("scheduler", "cluster", "scheduler", *scheduler)
        made.url = made.said("scheduler", r"scheduler at (tls://\S+)")
        yield made
    finally:
        for process in reversed(made.processes):
            process.terminate()
        for process in made.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def older_iree(folder: Path) -> Mapping[str, str]:
    """The environment of an installation that has another runtime."""
    for name in ("iree_base_runtime", "iree_base_compiler"):
        info = folder / f"{name}-3.13.99.dist-info"
        info.mkdir(parents=True)
        distribution = name.replace("_", "-")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.13.99\n"
        )
    return {"PYTHONPATH": os.pathsep.join([str(folder), *(p for p in sys.path if p)])}
