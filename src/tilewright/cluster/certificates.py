"""Certificates of a cluster: an authority of its own, and one certificate for each role.

Scheduler, workers and tuners prove to each other that the authority has signed them; nobody else
gets in. Names of machines are not checked: whoever has a certificate belongs to the cluster.
"""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cluster.dask_settings import NO_EXTRA, settle
from tilewright.errors import UserError
from tilewright.files import user_folder_file, write_whole

if TYPE_CHECKING:
    from distributed.security import Security

#: Names the folder with the certificates.
CERTS_VARIABLE = "TILEWRIGHT_CERTS"
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca-key.pem"
ROLES = ("scheduler", "worker", "client")
_DAYS = 825


def certificates_folder(given: Path | None) -> Path:
    """The folder with a cluster's certificates.

    Args:
        given: by an option; None: `$TILEWRIGHT_CERTS`, else one in the user's data folder.
    """
    named = os.environ.get(CERTS_VARIABLE)
    return given or (Path(named) if named else user_folder_file("data", "certs"))


def make_certificates(folder: Path, days: int = _DAYS) -> list[Path]:
    """Make an authority, unless the folder has one, and certificates that it signs.

    Args:
        folder: made if there is none.
        days: for which they are valid.

    Returns:
        The files that were written: those of roles have certificate and key.

    Raises:
        UserError: they cannot be made or written.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise UserError(NO_EXTRA) from None
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: str, key: Any, issuer: Any, issuer_key: Any) -> Any:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        is_authority = issuer is None
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
        )
        if not is_authority:
            usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            made = made.add_extension(x509.ExtendedKeyUsage(usage), False)
        return made.sign(issuer_key, hashes.SHA256())

    def pem(key: Any) -> bytes:
        data: bytes = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return data

    written: list[Path] = []

    def write(name: str, data: bytes) -> None:
        path = write_whole(folder / name, b"")
        path.chmod(0o600)
        path.write_bytes(data)
        written.append(path)

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (folder / AUTHORITY).exists() and (folder / AUTHORITY_KEY).exists():
            authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
            secret: Any = serialization.load_pem_private_key(
                (folder / AUTHORITY_KEY).read_bytes(), None
            )
        else:
            secret = ec.generate_private_key(ec.SECP256R1())
            authority = signed("tilewright cluster", secret, None, secret)
            write(AUTHORITY_KEY, pem(secret))
            write(AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
        for role in ROLES:
            key = ec.generate_private_key(ec.SECP256R1())
            made = signed(f"tilewright {role}", key, authority, secret)
            write(f"{role}.pem", pem(key) + made.public_bytes(serialization.Encoding.PEM))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot make certificates there ({error})") from error
    return written


def security_of(folder: Path, role: str) -> Security:
    """What Dask is told of a cluster's certificates; nothing is sent in the clear with it.

    Args:
        folder: as `make_certificates` left it, or a copy without `ca-key.pem` and other roles'.
        role: whose certificate there has to be: one of ROLES.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    settle()
    try:
        from distributed.security import Security
    except ImportError:
        raise UserError(NO_EXTRA) from None
    # Dask would say that it has no context, in words of its own, once it connects.
    tls_context(folder, role, server=False)
    files: dict[str, str] = {"tls_ca_file": str(folder / AUTHORITY)}
    for role in ROLES:
        path = folder / f"{role}.pem"
        if path.exists():
            files |= {f"tls_{role}_cert": str(path), f"tls_{role}_key": str(path)}
    made: Security = Security(require_encryption=True, **files)  # type: ignore[no-untyped-call]
    return made


def tls_context(folder: Path, role: str, *, server: bool) -> ssl.SSLContext:
    """For connections beside Dask's, by the same certificates.

    Args:
        folder: with the certificates.
        role: whose certificate is shown.
        server: which end of the connection this is.

    Raises:
        UserError: there are none.
    """
    _check(folder)
    protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(folder / AUTHORITY)
        context.load_cert_chain(folder / f"{role}.pem")
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{folder}: no certificate of a {role} can be read there, from {AUTHORITY} and "
            f"{role}.pem ({error})"
        ) from None
    return context


def _check(folder: Path) -> None:
    if not (folder / AUTHORITY).is_file():
        raise UserError(
            f"{folder}: there are no certificates for tls:// (no {AUTHORITY}); make them with "
            "`tilewright cluster certs DIR`, copy the folder to each machine, and name it with "
            f"--certs or ${CERTS_VARIABLE}"
        )
