"""Workers as jobs of Slurm, by dask-jobqueue: the scheduler lives with the run, on the machine that
submits."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cluster.certificates import (
    make_certificates,
    security_of,
)
from tilewright.cluster.dask_settings import NO_EXTRA, PAGE, settle
from tilewright.cluster.place import ClusterPlace
from tilewright.errors import UserError

if TYPE_CHECKING:
    from distributed.security import Security

_WALLTIME, _MEMORY, _DEVICE = "08:00:00", "8GB", "local-task"
_DEATH_TIMEOUT_S = 120


def job_options(place: ClusterPlace, certs: Path) -> dict[str, dict[str, Any]]:
    """The jobs of a run, as dask-jobqueue is told of them.

    Args:
        place: `slurm:N` with its options.
        certs: folder with the run's certificates, which all nodes see.

    Returns:
        Options of a `SLURMJob` for each worker, by its name.
    """
    given = place.options
    common = {
        "cores": 1,
        "processes": 1,
        "memory": given.get("memory", _MEMORY),
        "walltime": given.get("walltime", _WALLTIME),
        "queue": given.get("queue"),
        "account": given.get("account"),
        "worker_command": "tilewright worker --scheduler",
        "death_timeout": _DEATH_TIMEOUT_S,
    }
    end = ["--certs", shlex.quote(str(certs))]
    jobs = {
        f"compile-{n}": {**common, "worker_extra_args": ["--role", "compile", *end]}
        for n in range(place.workers)
    }
    device = ["--role", "device", "--device", shlex.quote(given.get("device", _DEVICE))]
    directives = [f"--gres={given['gres']}"] if "gres" in given else []
    for n in range(_number(place, "devices")):
        extra = {
            "worker_extra_args": [*device, *end],
            "job_extra_directives": directives,
            "cores": _number(place, "cores"),
        }
        jobs[f"device-{n}"] = {**common, **extra}
    return jobs


def _number(place: ClusterPlace, name: str) -> int:
    text = place.options.get(name, "1")
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise UserError(f"--cluster: {name}={text}: a whole number from 1 to 1000 is needed")
    return int(text)


@contextlib.contextmanager
def slurm_cluster(place: ClusterPlace) -> Iterator[tuple[str, Security]]:
    """Start a scheduler here, and submit its workers.

    Args:
        place: `slurm:N` with its options.

    Yields:
        The scheduler's address, and Dask's security.

    Raises:
        UserError: dask-jobqueue is not installed, no folder is named, or jobs cannot be submitted.
    """
    settle()
    try:
        from dask_jobqueue.slurm import SLURMJob
        from distributed import Scheduler, SpecCluster
    except ImportError:
        raise UserError(NO_EXTRA) from None
    if place.folder is None:
        raise UserError(
            "--cluster slurm: name a folder that all nodes see: slurm:8?folder=/shared/tilewright"
        )
    if shutil.which(SLURMJob.submit_command) is None:
        raise UserError(f"--cluster slurm: there is no {SLURMJob.submit_command} on this machine")
    certs = place.folder / "certs"
    make_certificates(certs)
    security = security_of(certs, "scheduler")
    host = place.options.get("host") or socket.gethostname()
    jobs = job_options(place, certs)
    made: Any = SpecCluster
    try:
        with made(
            workers={name: {"cls": SLURMJob, "options": one} for name, one in jobs.items()},
            scheduler={
                "cls": Scheduler,
                "options": {
                    "host": host,
                    "protocol": "tls://",
                    "security": security,
                    **PAGE,
                },
            },
            security=security,
            silence_logs=50,
        ) as cluster:
            yield str(cluster.scheduler_address), security
    except (OSError, RuntimeError) as error:
        raise UserError(f"--cluster slurm: {error}") from error
