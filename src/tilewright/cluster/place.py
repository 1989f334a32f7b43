"""Where a cluster is, as users write it: `tls://HOST:PORT`, `tcp://127.0.0.1:PORT`, `local:N`,
`slurm:N`, each with `?name=value&…` behind it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tilewright.errors import UserError

_FORMS = (
    "tls://HOST:PORT (a scheduler), tcp://127.0.0.1:PORT (one on this machine), local:N (N compile "
    "workers on this machine), slurm:N (N jobs)"
)
_OPTIONS: Mapping[str, frozenset[str]] = {
    "scheduler": frozenset({"folder"}),
    "local": frozenset(),
    "slurm": frozenset(
        {
            "folder",
            "queue",
            "account",
            "memory",
            "walltime",
            "devices",
            "device",
            "cores",
            "gres",
            "host",
        }
    ),
}


@dataclass(frozen=True)
class ClusterPlace:
    """A cluster: `kind` is `scheduler`, `local` or `slurm`; `url` a scheduler's address; `workers`
    how many compile workers are started; `options` what is behind the `?`."""

    kind: str
    url: str = ""
    workers: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_encrypted(self) -> bool:
        """Whether its scheduler is reached by TLS."""
        return self.url.startswith("tls://")

    @property
    def folder(self) -> Path | None:
        """The folder that all machines see, if one is named."""
        given = self.options.get("folder")
        return Path(given) if given else None


def parse_place(text: str, where: str = "--cluster") -> ClusterPlace:
    """Where a cluster is.

    Args:
        text: as the user wrote it.
        where: the option, for messages.

    Raises:
        UserError: it is none, or plain TCP to another machine.
    """
    base, _, query = text.partition("?")
    kind, _, rest = base.partition(":")
    if kind in ("tls", "tcp"):
        return ClusterPlace(
            "scheduler", scheduler_url(base, where), options=_read(query, "scheduler", where)
        )
    if kind in ("local", "slurm") and rest.isdigit():
        number = int(rest)
        if number < (least := 0 if kind == "local" else 1) or number > 10_000:
            raise UserError(f"{where}: {kind}:{rest}: from {least} to 10000 workers can be started")
        return ClusterPlace(kind, "", number, _read(query, kind, where))
    raise UserError(f"{where}: '{text}' is no cluster; write {_FORMS}")


def scheduler_url(text: str, where: str) -> str:
    """The address of a scheduler, which is encrypted unless it is on this machine.

    Args:
        text: as the user wrote it.
        where: the option, for messages.

    Raises:
        UserError: it is none, or plain TCP to another machine.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if (
        not host
        or port is None
        or parts.scheme not in ("tls", "tcp")
        or parts.path not in ("", "/")
    ):
        raise UserError(f"{where}: '{text}' is no address of a scheduler; write tls://HOST:PORT")
    if parts.scheme == "tcp" and not is_loopback(host):
        raise UserError(
            f"{where}: '{text}': whoever reaches a scheduler by plain TCP can run programs on its "
            "workers; beyond this machine write tls://HOST:PORT, with certificates of `tilewright "
            "cluster certs`"
        )
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, which no other reaches.

    Args:
        host: as in an address.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(query: str, kind: str, where: str) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - _OPTIONS[kind])
    if unknown:
        allowed = ", ".join(sorted(_OPTIONS[kind])) or "none"
        raise UserError(f"{where}: '{unknown[0]}' is no option of it (allowed: {allowed})")
    return given
