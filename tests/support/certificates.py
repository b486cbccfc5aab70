"""Certificates for tests: an authority, what it signs, and files of both."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key, and the authority to trust for it."""

    certificate: Path
    key: Path
    ca: Path

    def client_context(self, *, shows: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if shows:
            context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """Signs certificates, and writes them to a directory."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = _begin(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        built = built.add_extension(usage, True)
        self.certificate = built.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.certificate)

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        node_id: int | None = None,
        file: str | None = None,
        days: int = 30,
    ) -> Pair:
        """A certificate for ``CN=name,O=Example``, good for servers and clients, in files of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        names: list[x509.GeneralName] = [_general(host) for host in hosts]
        if node_id is not None:
            names.append(x509.DNSName(f"node-{node_id}.penstock"))
        built = _begin(subject, self._name, key, days).add_extension(x509.SubjectAlternativeName(names), False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = built.add_extension(x509.ExtendedKeyUsage(usages), False)
        where = self.directory / (file or name)
        pair = Pair(where.with_suffix(".pem"), where.with_suffix(".key"), self.ca)
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _replace(pair.key, private)
        _replace(pair.certificate, built.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        return pair


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 30
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _replace(path: Path, data: bytes) -> None:
    """As programs that renew certificates do: the new file takes the place of the old one at once."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)
