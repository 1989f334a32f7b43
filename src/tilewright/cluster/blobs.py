"""Files that go between machines, by the digest of their content: past the scheduler, over HTTP.

The tuner serves its folder; workers fetch what they lack and hand in what they made. A file's name
is its digest, so nothing that arrives is believed and nothing can be put in another's place. Where
all see one folder, none of this is needed.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import secrets
import socket
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tilewright.errors import TilewrightError
from tilewright.files import whole_file
from tilewright.measure.encoding import Files, file_digest

_TIMEOUT_S = 60.0
_BLOCK = 1 << 20
_ASKED_BYTES = 1 << 19
_DIGEST_CHARS = 32
# Programs and tensors; parameter archives are the largest.
_MAX_BYTES = 1 << 38


class BlobError(TilewrightError):
    """A file could not be had from, or handed to, where files are kept."""


def is_blob_name(name: str) -> bool:
    """Whether this is what a stored file is called: its digest and a suffix.

    Args:
        name: any text.
    """
    digest, dot, suffix = name.partition(".")
    hexadecimal = len(digest) == _DIGEST_CHARS and all(c in "0123456789abcdef" for c in digest)
    return hexadecimal and bool(dot) and suffix.isalnum()


class BlobServer:
    """Serves the files of a folder, and takes new ones, to whoever knows the token.

    files: what is served. host: the address that others reach this machine by. context: for TLS.
    """

    def __init__(self, files: Files, host: str, context: ssl.SSLContext | None = None) -> None:
        files.folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_urlsafe(24)
        handler = type("_BoundHandler", (_Handler,), {"files": files, "token": token})
        self._server = _Server((host, 0), handler, context)
        port = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if context else 'http'}://{shown}:{port}/{token}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="blobs", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any, context: ssl.SSLContext | None):
        self._context = context
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's own thread: a handshake that hangs must not stop the others.
        request.settimeout(_TIMEOUT_S)
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)
        if self._context is not None:
            with contextlib.suppress(OSError):
                request.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Strangers and connections that break are no business of the run's."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The end of a file would wait until its beginning is acknowledged, which the other side puts
    # off for 40 ms.
    disable_nagle_algorithm = True
    files: Files
    token: str

    def do_GET(self) -> None:
        """A file, or 404."""
        path = self._place()
        if path is None or not path.is_file():
            return self._end(404)
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                self.wfile.write(block)

    def do_HEAD(self) -> None:
        """Whether a file is there."""
        path = self._place()
        self._end(200 if path is not None and path.is_file() else 404)

    def do_PUT(self) -> None:
        """A new file; it must be what its name says."""
        path = self._place()
        length = self.headers.get("Content-Length", "")
        if path is None or not length.isdigit() or int(length) > _MAX_BYTES:
            self.close_connection = True
            return self._end(400)
        left = int(length)
        partial = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with partial.open("wb") as file:
                while left and (block := self.rfile.read(min(left, _BLOCK))):
                    left -= len(block)
                    file.write(block)
            good = left == 0 and file_digest(partial) == path.name.partition(".")[0]
            if good:
                partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._end(201 if good else 400)

    def _place(self) -> Path | None:
        _, token, name = [*self.path.split("/", 2), "", ""][:3]
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        return self.files.folder / name if is_blob_name(name) else None

    def _end(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


class FetchedFiles(Files):
    """Files of a folder here, which are fetched from where they are kept when they are missing,
    and handed in there when they are new.

    folder: for those that were fetched. url: as BlobServer gives it. context: for TLS.
    """

    def __init__(self, folder: Path, url: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._address = urlsplit(url)
        self._context = context
        self._connection: http.client.HTTPConnection | None = None
        self._handed_in: set[str] = set()

    def put(self, source: str | bytes, suffix: str) -> str:
        """As there; it is where files are kept when this returns.

        Args:
            source: its path, or its content.
            suffix: of the name, where the path has none.

        Raises:
            UserError: it cannot be stored here.
            BlobError: it cannot be handed in.
        """
        name = super().put(source, suffix)
        if name not in self._handed_in:
            # Whether a large one is there already is worth a question.
            is_small = (self.folder / name).stat().st_size < _ASKED_BYTES
            if is_small or self._ask("HEAD", name) != 200:
                status = self._ask("PUT", name)
                if status != 201:
                    raise BlobError(f"{self._address.netloc} does not take {name} ({status})")
            self._handed_in.add(name)
        return name

    def path(self, name: str) -> Path:
        """As there, fetched if need be.

        Args:
            name: as `put` gave it.

        Raises:
            UserError: it is no name, or the file is not whole.
            BlobError: it cannot be fetched.
        """
        if is_blob_name(name) and not (self.folder / name).exists():
            status = self._ask("GET", name)
            if status != 200:
                raise BlobError(f"{self._address.netloc} does not have {name} ({status})")
        return super().path(name)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, name: str) -> int:
        """Send or fetch a file; the status. A connection that was closed is opened once more."""
        for attempt in (0, 1):
            try:
                return self._once(method, name)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if attempt:
                    reason = f"{self._address.netloc} cannot be reached: {error}"
                    raise BlobError(f"{reason} (it serves the files of the run)") from error
        raise AssertionError

    def _once(self, method: str, name: str) -> int:
        if self._connection is None:
            self._connection = self._connect()
        place = self.folder / name
        path = f"{self._address.path}/{name}"
        if method == "PUT":
            with place.open("rb") as file:
                length = {"Content-Length": str(place.stat().st_size)}
                self._connection.request(method, path, file, length)
        else:
            self._connection.request(method, path)
        reply = self._connection.getresponse()
        if method == "GET" and reply.status == 200:
            with whole_file(place) as partial, partial.open("wb") as file:
                while block := reply.read(_BLOCK):
                    file.write(block)
        else:
            reply.read()
        return reply.status

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_S, context=self._context
            )
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
