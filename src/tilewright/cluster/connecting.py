"""Opening a cluster for a run: connecting to one that is there, or starting one for the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tilewright.cluster.blobs import BlobServer
from tilewright.cluster.certificates import (
    CERTS_VARIABLE,
    certificates_folder,
    security_of,
    tls_context,
)
from tilewright.cluster.dask_settings import NO_EXTRA, PAGE, settle
from tilewright.cluster.dispatching import COMPILE, DEVICE
from tilewright.cluster.facts import facts_of
from tilewright.cluster.link import Announce, Cluster
from tilewright.cluster.place import ClusterPlace, is_loopback
from tilewright.errors import UserError
from tilewright.measure.encoding import Files

_START_S, _JOIN_S, _QUEUE_S = 90.0, 20.0, 3600.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class ClusterNeeds:
    """What a run needs of a cluster.

    label: of the devices. devices: those of this machine that are measured on, where the cluster is
    started here. own_processor: whether code is made for the processor of the compiling machine.
    """

    label: str
    devices: tuple[str, ...]
    own_processor: bool = False


@contextlib.contextmanager
def open_cluster(
    place: ClusterPlace,
    needs: ClusterNeeds,
    work: Path,
    announce: Announce = lambda text: None,
    certs: Path | None = None,
) -> Iterator[Cluster]:
    """Connect to a cluster, with its workers there and of the same builds as this machine.

    Args:
        place: which.
        needs: of the run.
        work: the run's own folder; files for workers lie in it, unless the place names one.
        announce: told what is waited for and what goes wrong.
        certs: folder with certificates; None: where they usually are.

    Raises:
        UserError: there is none, nobody to work, or builds do not agree.
    """
    with contextlib.ExitStack() as stack:
        files = Files(place.folder or work / "files")
        files.folder.mkdir(parents=True, exist_ok=True)
        security, wanted, alive = None, {COMPILE: 0, DEVICE: 1}, _nothing
        where: Mapping[str, str] = {"folder": str(files.folder.resolve())}
        if place.kind == "scheduler":
            url, patience_s = place.url, _JOIN_S
            folder = certificates_folder(certs)
            if place.is_encrypted:
                security = security_of(folder, "client")
            if place.folder is None:
                host = _own_address(url)
                context = tls_context(folder, "client", server=True) if security else None
                server = BlobServer(files, host, context)
                stack.callback(server.close)
                where = {"url": server.url}
        elif place.kind == "local":
            patience_s = _START_S
            url = stack.enter_context(_local_scheduler(work))
            wanted = {COMPILE: place.workers, DEVICE: len(needs.devices)}
            alive = stack.enter_context(_local_workers(url, place.workers, needs.devices, work))
        else:
            from tilewright.cluster.slurm import slurm_cluster

            # Jobs begin when the queue lets them.
            patience_s, wanted = _QUEUE_S, {COMPILE: 1, DEVICE: 1}
            url, security = stack.enter_context(slurm_cluster(place))
        cluster = Cluster(
            url,
            files,
            where,
            facts_of(COMPILE),
            own_processor=needs.own_processor,
            security=security,
            announce=announce,
        )
        stack.callback(cluster.close)
        _gather(cluster, needs, wanted, patience_s, alive)
        yield cluster


def _nothing() -> None:
    """Of workers that others started nothing is known."""


def _gather(
    cluster: Cluster,
    needs: ClusterNeeds,
    wanted: Mapping[str, int],
    patience_s: float,
    check: Callable[[], None],
) -> None:
    """Wait until the workers are there that a run cannot begin without."""
    end = time.monotonic() + patience_s
    while True:
        cluster.look()
        cluster.check()
        fitting = [w for w in cluster.workers.values() if needs.label in w.labels]
        if cluster.count(COMPILE) >= wanted[COMPILE] and len(fitting) >= wanted[DEVICE]:
            return
        if time.monotonic() >= end:
            break
        check()
        time.sleep(_LOOK_S)
    there = {label for w in cluster.workers.values() for label in w.labels}
    raise UserError(
        f"--cluster: {cluster.url}: no worker with device '{needs.label}' is there "
        f"(devices: {', '.join(sorted(there)) or 'none'}; compile workers: "
        f"{cluster.count(COMPILE)}); start `tilewright worker --scheduler {cluster.url} --role "
        f"device --device URI`"
    )


def _own_address(url: str) -> str:
    """The address by which workers reach this machine: that from which the scheduler is reached."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    if is_loopback(host):
        return "127.0.0.1" if ":" not in host else host
    from distributed import utils

    find: Any = utils.get_ip
    try:
        return str(find(host, port))
    except OSError as error:
        raise UserError(f"--cluster: {host} is not known here ({error.strerror})") from None


@contextlib.contextmanager
def _local_scheduler(work: Path) -> Iterator[str]:
    settle(work)
    try:
        from distributed import LocalCluster
    except ImportError:
        raise UserError(NO_EXTRA) from None
    made: Any = LocalCluster
    with made(
        n_workers=0,
        host="127.0.0.1",
        scheduler_kwargs=PAGE,
        dashboard_address=None,
        silence_logs=50,
        protocol="tcp://",
    ) as cluster:
        yield str(cluster.scheduler_address)


@contextlib.contextmanager
def _local_workers(
    url: str, compilers: int, devices: Sequence[str], work: Path
) -> Iterator[Callable[[], None]]:
    """Start workers on this machine; yields what raises when one has ended."""
    processes: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    roles = [(f"compile-{n}", ["--role", "compile"]) for n in range(compilers)]
    roles += [
        (f"device-{n}", ["--role", "device", "--device", uri]) for n, uri in enumerate(devices)
    ]

    def check() -> None:
        for name, (process, log) in processes.items():
            if process.poll() is not None:
                lines = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
                raise UserError(f"--cluster: the worker {name} has ended: {lines[-1]}")

    try:
        for name, options in roles:
            log = work / f"worker-{name}.log"
            with log.open("wb") as output:
                processes[name] = (
                    subprocess.Popen(
                        worker_command(url, name, options),
                        stdout=output,
                        stderr=output,
                        stdin=subprocess.DEVNULL,
                        env=worker_environment(),
                        start_new_session=True,
                    ),
                    log,
                )
        yield check
    finally:
        for process, _ in processes.values():
            process.terminate()
        for process, _ in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def worker_command(url: str, name: str, options: Sequence[str]) -> list[str]:
    """The command that starts a worker for a scheduler that goes with its run.

    Args:
        url: of the scheduler.
        name: of the worker.
        options: role and device.
    """
    command = [sys.executable, "-P", "-m", "tilewright", "worker", "--scheduler", url]
    return [*command, "--name", name, "--death-timeout", "10s", "--quiet", *options]


def worker_environment() -> dict[str, str]:
    """Variables for a worker here: what is importable here is importable there."""
    own = {name: value for name, value in os.environ.items() if name != CERTS_VARIABLE}
    return {**own, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
