"""Valid and invalid certificates, each with its key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority."""

    name: x509.Name
    key: Any


def certificate(
    folder: Path,
    host: str = "localhost",
    days: tuple[int, int] = (-1, 1),
    signed_by: Authority | None = None,
) -> tuple[Path, Path]:
    """Write a certificate for a host and its key; self-signed unless an authority is given.

    days: validity relative to today (first day, last day)
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(host)
    issuer = signed_by or Authority(name, key)
    alternative = x509.SubjectAlternativeName([x509.DNSName(host)])
    builder = _builder(name, issuer.name, key, days).add_extension(alternative, critical=False)
    if signed_by is None:
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    files = folder / f"{host}{days[1]}.pem", folder / f"{host}{days[1]}.key"
    _write(files[0], builder.sign(issuer.key, hashes.SHA256()))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return files


def authority(folder: Path) -> tuple[Authority, Path]:
    """Create an authority; return it and the path of its own certificate."""
    created = Authority(_name("authority"), ec.generate_private_key(ec.SECP256R1()))
    builder = _builder(created.name, created.name, created.key, (-30, 30))
    builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    path = folder / "authority.pem"
    _write(path, builder.sign(created.key, hashes.SHA256()))
    return created, path


def _builder(
    name: x509.Name, issuer: x509.Name, key: Any, days: tuple[int, int]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _write(path: Path, made: x509.Certificate) -> None:
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
