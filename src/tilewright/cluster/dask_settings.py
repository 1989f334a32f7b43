"""What Dask does beside the work, which would disturb what is compiled and measured there."""

from __future__ import annotations

from tilewright.cluster.certificates import NO_EXTRA
from tilewright.errors import UserError

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
}


def settle() -> None:
    """Make Dask quiet; called before any of it is used in this process.

    Raises:
        UserError: it is not installed.
    """
    try:
        import dask
    except ImportError:
        raise UserError(NO_EXTRA) from None
    dask.config.set(_SETTINGS)
