"""What Dask does beside the work, which would disturb what is compiled and measured there; and what
it says where nobody answers."""

from __future__ import annotations

import ssl
from pathlib import Path

from tilewright.errors import UserError

NO_EXTRA = "clusters need more packages: pip install 'tilewright[cluster]'"
# A worker that says nothing for so long is gone: its machine or the network is.
_SILENT_S = "60s"
_SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": _SILENT_S,
    # Statistics that nobody looks at: stacks every 10 ms while a task runs, ticks every 20 ms.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    # What it serves in the clear, to whoever asks.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # A stranger with another certificate is ten lines a second. Who is refused is told why.
    "logging": {"distributed": "critical"},
}
#: Where the page of a scheduler or worker goes, which has nothing on it and cannot be left out.
PAGE = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


def settle(folder: Path | None = None) -> None:
    """Make Dask quiet; called before any of it is imported in this process.

    Args:
        folder: for files that Dask makes; None: it leaves one in that for temporary files.

    Raises:
        UserError: it is not installed.
    """
    try:
        import dask
    except ImportError:
        raise UserError(NO_EXTRA) from None
    dask.config.set(_SETTINGS)
    if folder is not None:
        dask.config.set({"temporary-directory": str(folder)})


def why_unreachable(error: BaseException) -> str:
    """Why a scheduler cannot be reached, in one line: Dask wraps what TLS and the network say.

    Args:
        error: as connecting raised it.
    """
    chain = [error]
    while (inner := chain[-1].__cause__) is not None:
        chain.append(inner)
    if is_refused(error):
        return (
            "its certificate is of another authority than those here; name the folder with the "
            "certificates that its scheduler has"
        )
    said = (" ".join(str(one).split()) for one in reversed(chain))
    return next((text[:200] for text in said if text), "no answer in time")


def is_refused(error: BaseException | None) -> bool:
    """Whether certificates do not fit, so that waiting is of no use.

    Args:
        error: as connecting raised it.
    """
    while error is not None:
        # Dask says some of it in words of its own alone.
        if isinstance(error, ssl.SSLCertVerificationError) or "TLS certificate" in str(error):
            return True
        error = error.__cause__
    return False
