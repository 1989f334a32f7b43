"""A page on a run that goes on, served on this machine: the page, and its figures as server-sent
events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import plotly.io

from tilewright.cli.watched_run import COLUMNS, WatchedRun
from tilewright.report.page import render

# Seconds between looks at the run; between messages where nothing is new, so that a page that has
# gone is noticed; and between messages and between pictures at least, so that the page has time to
# draw.
_LOOK_S, _QUIET_S, _LEAST_S, _PICTURE_S = 0.1, 1.0, 0.5, 2.0


class WatchServer(ThreadingHTTPServer):
    """Serves the page of one run.

    Only requests that name this machine are answered while it listens on the loopback: a page of
    elsewhere whose name was made to mean this machine gets nothing.

    Args:
        run: that is watched.
        host: name or address to listen on.
        port: to listen on; 0 for a free one.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, run: WatchedRun, host: str, port: int) -> None:
        self.run = run
        self.stopping = threading.Event()
        self.guarded = is_loopback(host)
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed is no error; nothing is printed into the terminal.

        Args:
            request: its connection.
            client_address: whose.
        """

    def shutdown(self) -> None:
        """Stop serving; pages that are open are let go."""
        self.stopping.set()
        super().shutdown()


def is_loopback(host: str) -> bool:
    """Whether a name or address can be reached from this machine alone.

    Args:
        host: as the user gives it.
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        pages: dict[str, Callable[[], None]] = {"/": self._page, "/events": self._events}
        name = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        if self.server.guarded and not is_loopback(name):
            self.send_error(HTTPStatus.FORBIDDEN, "not by this name")
            return
        answer = pages.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        answer()

    def _page(self) -> None:
        page = render("watch.html.j2", {"columns": COLUMNS, "title": "A tuning run"}, {}).encode()
        self._head("text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _events(self) -> None:
        self._head("text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        run, sent, at = self.server.run, -1, 0.0
        drawn, drawn_at = -1, 0.0
        while not self.server.stopping.is_set():
            version, now = run.poll(), time.monotonic()
            if now - at >= (_LEAST_S if version != sent else _QUIET_S):
                told = run.snapshot()
                ended = told["ended"]
                if told["version"] == sent:
                    del told["lines"]
                sent, at = told["version"], now
                if drawn == sent or (now - drawn_at < _PICTURE_S and not ended):
                    del told["figures"]
                else:
                    drawn, drawn_at = sent, now
                self._send("run", told)
                if ended:
                    self._send("end", {})
                    return
            self.server.stopping.wait(_LOOK_S)

    def _send(self, name: str, data: dict[str, Any]) -> None:
        figures = {
            key: json.loads(plotly.io.to_json(figure, validate=False))
            for key, figure in data.get("figures", {}).items()
        }
        if figures:
            data = {**data, "figures": figures}
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass
