"""Certificates of a cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from tilewright.cluster.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTS_VARIABLE,
    ROLES,
    certificates_folder,
    make_certificates,
    security_of,
    tls_context,
)
from tilewright.errors import UserError


def test_an_authority_signs_one_for_each_role_and_stays(tmp_path: Path) -> None:
    written = make_certificates(tmp_path)
    assert {path.name for path in written} == {
        AUTHORITY,
        AUTHORITY_KEY,
        *(f"{role}.pem" for role in ROLES),
    }
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written)
    authority = (tmp_path / AUTHORITY).read_bytes()
    before = (tmp_path / "worker.pem").read_bytes()
    assert {path.name for path in make_certificates(tmp_path)} == {f"{role}.pem" for role in ROLES}
    assert (tmp_path / AUTHORITY).read_bytes() == authority
    assert (tmp_path / "worker.pem").read_bytes() != before
    made = x509.load_pem_x509_certificate((tmp_path / "worker.pem").read_bytes())
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


def test_nothing_is_sent_in_the_clear(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    assert security_of(tmp_path, "client").require_encryption


def test_a_worker_needs_no_key_of_the_authority(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / AUTHORITY_KEY).unlink()
    (tmp_path / "scheduler.pem").unlink()
    assert security_of(tmp_path, "worker").tls_worker_cert
    assert tls_context(tmp_path, "worker", server=False)
    with pytest.raises(UserError, match="no certificate of a scheduler"):
        tls_context(tmp_path, "scheduler", server=True)
    with pytest.raises(UserError, match=r"no certificate of a scheduler .*scheduler\.pem"):
        security_of(tmp_path, "scheduler")


def test_an_authority_alone_or_none_at_all_is_a_mistake(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / "client.pem").write_text("no certificate")
    with pytest.raises(UserError, match="no certificate of a client"):
        security_of(tmp_path, "client")


def test_what_is_missing_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tilewright cluster certs"):
        security_of(tmp_path, "client")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make certificates"):
        make_certificates(tmp_path / "file")


def test_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CERTS_VARIABLE, str(tmp_path))
    assert certificates_folder(None) == tmp_path
    assert certificates_folder(Path("given")) == Path("given")
    monkeypatch.delenv(CERTS_VARIABLE)
    assert certificates_folder(None).parts[-2:] == ("tilewright", "certs")
