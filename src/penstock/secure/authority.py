"""The cluster's own certificate authority: a key that signs the certificates of its nodes and its clients.

A node's certificate names its id (``node-3.penstock``), so that no node can speak for another, and the hosts that
clients reach it by. Keys are EC P-256: a handshake costs the node a fifth of what RSA costs. Nothing here reads a
clock or a file; the caller says when it is and keeps the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import InvalidRequest

_AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
_EARLY: Final = timedelta(hours=1)  # clocks differ: a certificate is good from a little before it was made
_ORGANIZATION: Final = "Penstock"
_NODE_NAME: Final = re.compile(r"node-(\d{1,10})\.penstock")
_COMMON_NAME_MAX: Final = 64  # X.520's own bound


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<KeyPair>"  # the key is in no log


def node_name(node_id: int) -> str:
    """The name in a node's certificate that says which node it is."""
    return f"node-{node_id}.penstock"


def make_authority(now: datetime) -> KeyPair:
    """A new authority, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Penstock cluster authority")
    builder = _begin(name, name, key.public_key(), now, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


class Authority:
    """Signs certificates with the key of an authority."""

    def __init__(self, pair: KeyPair) -> None:
        try:
            self._certificate = x509.load_pem_x509_certificate(pair.certificate)
            key = serialization.load_pem_private_key(pair.key, None)
        except ValueError as error:
            raise InvalidRequest(f"The authority's certificate or key cannot be read: {error}.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise InvalidRequest(
                "The authority's key does not belong to its certificate. Restore both from one backup."
            )
        self._key = key

    def issue_node(self, node_id: int, hosts: Sequence[str], now: datetime, days: int = CERTIFICATE_DAYS) -> KeyPair:
        """A certificate for a node, good as a server's for these hosts and as a client's towards other nodes."""
        names = [x509.DNSName(node_name(node_id)), x509.UniformResourceIdentifier(f"penstock://node/{node_id}")]
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._issue(node_name(node_id), [*names, *_host_names(hosts)], usages, now, days)

    def issue_client(self, name: str, now: datetime, days: int = CERTIFICATE_DAYS) -> KeyPair:
        """A certificate that a client logs in with, as the user of that name."""
        if not name or len(name) > _COMMON_NAME_MAX:
            raise InvalidRequest(f"A certificate's name has 1 to {_COMMON_NAME_MAX} characters; got {len(name)}.")
        return self._issue(name, [], (ExtendedKeyUsageOID.CLIENT_AUTH,), now, days)

    def _issue(
        self,
        name: str,
        alternatives: Iterable[x509.GeneralName],
        usages: Iterable[x509.ObjectIdentifier],
        now: datetime,
        days: int,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begin(_name(name), self._certificate.subject, key.public_key(), now, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        names = list(alternatives)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)


def expiry_of(certificate: bytes) -> datetime:
    """Until when a certificate is good."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise InvalidRequest(f"This is not a certificate in PEM: {error}.") from error


def identity_of(certificate: bytes) -> tuple[int, list[str]]:
    """The node id and the hosts that a node's certificate names."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidRequest(f"This is not the certificate of a node: {error}.") from error
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    ids = [int(found[1]) for host in hosts if (found := _NODE_NAME.fullmatch(host))]
    if not ids:
        raise InvalidRequest("This certificate names no node; issue one with `penstock secure add-node`.")
    return ids[0], [host for host in hosts if not _NODE_NAME.fullmatch(host)]


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            found.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)
