"""Dask's scheduler as a cluster of tilewright's needs it, and what it knows of its workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tilewright import scratch
from tilewright.cluster.dask_settings import NO_EXTRA, PAGE, is_refused, settle, why_unreachable
from tilewright.cluster.facts import WorkerFacts
from tilewright.errors import UserError

_CONNECT_S = 10.0


def run_scheduler(host: str, port: int, security: Any, say: Callable[[str], object]) -> None:
    """Serve until this process is told to end.

    Args:
        host: address to listen at.
        port: 0 for any that is free.
        security: Dask's; None: plain TCP.
        say: told the address.

    Raises:
        UserError: it cannot listen there.
    """
    with scratch.folder() as folder:
        settle(folder)
        _serve(host, port, security, say)


def _serve(host: str, port: int, security: Any, say: Callable[[str], object]) -> None:
    try:
        from distributed import Scheduler
    except ImportError:
        raise UserError(NO_EXTRA) from None

    async def serve() -> None:
        made: Any = Scheduler
        protocol = "tcp://" if security is None else "tls://"
        async with made(
            host=host, port=port, protocol=protocol, security=security, **PAGE
        ) as scheduler:
            say(f"scheduler at {scheduler.address}")
            await scheduler.finished()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error})") from None


def worker_states(url: str, security: Any) -> list[dict[str, Any]]:
    """What a scheduler knows of its workers.

    Args:
        url: of the scheduler.
        security: Dask's; None: plain TCP.

    Returns:
        Facts, what each does, and how much it has done; in the order of their names.

    Raises:
        UserError: no scheduler answers there.
    """
    settle()
    try:
        from distributed import Client
    except ImportError:
        raise UserError(NO_EXTRA) from None
    made: Any = Client
    try:
        with made(url, security=security, timeout=_CONNECT_S, set_as_default=False) as client:
            info = client.sync(client.scheduler.identity)
    except (OSError, TimeoutError, RuntimeError, ValueError) as error:
        why = why_unreachable(error)
        said = why if is_refused(error) else f"no scheduler answers there ({why})"
        raise UserError(f"{url}: {said}") from None
    found = []
    for address, data in info["workers"].items():
        told = (data.get("metrics") or {}).get("tilewright")
        facts = WorkerFacts.from_json(told)
        if told is not None and facts is not None:
            own = {"doing": str(told.get("doing", "")), "done": int(told.get("done", 0))}
            name = str(data.get("name") or address)
            found.append({"name": name, "address": address, **facts.to_json(), **own})
    return sorted(found, key=lambda one: str(one["name"]))
