"""Files between machines: fetched and handed in by digest, with a token, by TLS."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tilewright.cluster.blobs import BlobError, BlobServer, FetchedFiles, is_blob_name
from tilewright.cluster.certificates import make_certificates, tls_context
from tilewright.errors import UserError
from tilewright.measure.encoding import Files

CONTENT = b"a program" * 100_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BlobServer]:
    server = BlobServer(Files(tmp_path / "kept"), "127.0.0.1")
    yield server
    server.close()


def ask(server: BlobServer, method: str, path: str, body: bytes | None = None) -> int:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    connection.request(method, path, body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_what_is_put_on_one_machine_is_there_on_another(tmp_path: Path, served: BlobServer) -> None:
    one = FetchedFiles(tmp_path / "one", served.url)
    name = one.put(CONTENT, ".vmfb")
    assert (tmp_path / "kept" / name).read_bytes() == CONTENT
    two = FetchedFiles(tmp_path / "two", served.url)
    assert two.path(name).read_bytes() == CONTENT
    assert two.put(CONTENT, ".vmfb") == name


def test_a_file_that_is_not_there_is_named(tmp_path: Path, served: BlobServer) -> None:
    files = FetchedFiles(tmp_path / "one", served.url)
    with pytest.raises(BlobError, match="does not have 0000"):
        files.path("0" * 32 + ".vmfb")
    with pytest.raises(UserError, match="no name"):
        files.path("../secret")


def test_nothing_is_put_in_anothers_place(tmp_path: Path, served: BlobServer) -> None:
    token = urlsplit(served.url).path
    name = Files(tmp_path / "kept").put(CONTENT, ".vmfb")
    assert ask(served, "PUT", f"{token}/{name}", b"something else") == 400
    assert (tmp_path / "kept" / name).read_bytes() == CONTENT
    assert ask(served, "PUT", f"{token}/..%2Fescaped.vmfb", b"x") == 400
    assert ask(served, "GET", f"{token}/../../etc/passwd") == 404
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {name}


def test_without_the_token_there_is_nothing(tmp_path: Path, served: BlobServer) -> None:
    name = Files(tmp_path / "kept").put(CONTENT, ".vmfb")
    assert ask(served, "GET", f"/guess/{name}") == 404
    assert ask(served, "GET", "/") == 404


def test_only_certificates_of_the_authority_get_in(tmp_path: Path) -> None:
    for folder in ("ours", "theirs"):
        make_certificates(tmp_path / folder)
    server = BlobServer(
        Files(tmp_path / "kept"), "127.0.0.1", tls_context(tmp_path / "ours", "client", server=True)
    )
    try:
        name = Files(tmp_path / "kept").put(CONTENT, ".vmfb")
        good = tls_context(tmp_path / "ours", "worker", server=False)
        assert FetchedFiles(tmp_path / "one", server.url, good).path(name).exists()
        for context in (
            tls_context(tmp_path / "theirs", "worker", server=False),
            ssl._create_unverified_context(),
        ):
            with pytest.raises(BlobError, match="cannot be reached"):
                FetchedFiles(tmp_path / "two", server.url, context).path(name)
    finally:
        server.close()


@pytest.mark.parametrize("name", ["", ".", "a.vmfb", "0" * 32, "0" * 32 + ".", "0" * 31 + "g.vmfb"])
def test_names_of_files(name: str) -> None:
    assert not is_blob_name(name)
    assert is_blob_name("0123456789abcdef" * 2 + ".vmfb")
