"""The node's certificate, key and authorities: read from files, checked, and read again when the files change.

What is in use is replaced as a whole, and only by files that belong together: while a new certificate, its key or the
authorities cannot be used, the old ones stay, and `problem` says why. Handshakes that begin after a change see the new
ones; open connections go on. `ServerContext` stands for whichever context is current, for code that takes one for good.

A certificate that names a node (``node-3.penstock`` as a DNS name, or the URI ``penstock://node/3``) makes its holder
that node; see `PeerCertificate.node_ids`.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.config.settings import ClientAuth, TlsSettings
from penstock.errors import StartupError

log = logging.getLogger(__name__)

_NODE_NAME: Final = re.compile(r"(?:node-(\d{1,10})\.penstock|penstock://node/(\d{1,10}))", re.IGNORECASE)
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.WANT: ssl.CERT_OPTIONAL,
    ClientAuth.NEED: ssl.CERT_REQUIRED,
}
# RFC 4514, section 3; OpenSSL's long names for the rest.
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = re.compile(r'([,+"\\<>;]|^[# ]| $)')

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What the certificate of the other end says, which an authority of ours has signed."""

    subject: str  # as RFC 4514 and Kafka write it: CN=alice,O=Example
    node_ids: frozenset[int]

    @classmethod
    def of(cls, certificate: Mapping[str, Any] | None) -> PeerCertificate | None:
        """From what `ssl` makes of a certificate; None where the other end showed none."""
        if not certificate:
            return None
        named = (_NODE_NAME.fullmatch(name) for kind, name in certificate.get("subjectAltName", ()) if kind in _KINDS)
        ids = frozenset(int(found[1] or found[2]) for found in named if found)
        return cls(distinguished_name(certificate.get("subject", ())), ids)


_KINDS: Final = frozenset({"DNS", "URI"})


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A subject as one text, the most specific part first, as RFC 4514 writes it."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escape(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escape(value: str) -> str:
    return _ESCAPED.sub(r"\\\1", value)


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """The files' content, for gRPC, which takes no context. The key is in no log."""

    certificate: bytes
    key: bytes
    ca: bytes | None

    def __repr__(self) -> str:
        return "<KeyMaterial>"


@dataclass(frozen=True, slots=True)
class _Current:
    """What handshakes use from one change of the files to the next."""

    stamp: Stamp
    doors: ssl.SSLContext
    links: ssl.SSLContext | None  # that other nodes open
    asking: ssl.SSLContext | None  # that this node opens
    material: KeyMaterial


class Certificates:
    """What a node shows to others and by what it judges theirs."""

    def __init__(self, settings: TlsSettings) -> None:
        assert settings.certificate is not None, "TLS is off"
        self._settings = settings
        self._certificate = settings.certificate
        self._key = settings.key or settings.certificate
        try:
            self._current = self._load(self._stamp())
        except _Unusable as error:
            raise StartupError(f"TLS cannot start: {error}") from error
        self._seen = self._current.stamp
        self._refused: Stamp | None = None
        self.problem: str | None = None  # with the files as they are; what was read before is in use
        self.doors = ServerContext(self)

    @property
    def has_links(self) -> bool:
        """Whether nodes speak TLS to each other."""
        return self._current.links is not None

    @property
    def current(self) -> ssl.SSLContext:
        return self._current.doors

    @property
    def links(self) -> ssl.SSLContext:
        """For links that other nodes open: each has to show a certificate."""
        assert self._current.links is not None, "nodes do not speak TLS to each other"
        return self._current.links

    @property
    def asking(self) -> ssl.SSLContext:
        """For links that this node opens."""
        assert self._current.asking is not None, "nodes do not speak TLS to each other"
        return self._current.asking

    @property
    def material(self) -> KeyMaterial:
        return self._current.material

    def look(self) -> None:
        """Read the files again if they changed; to be called once in a while.

        Files that change are left to settle until the next call: a certificate and its key are replaced one after the
        other.
        """
        try:
            stamp = self._stamp()
            is_settled, self._seen = stamp == self._seen, stamp
            if not is_settled or stamp in (self._current.stamp, self._refused):
                return
            self._current = self._load(stamp)
        except _Unusable as error:
            self._refuse(str(error))
            return
        self._refused = self.problem = None
        log.info("TLS: new handshakes use the changed certificate of %s.", self._certificate)

    def _refuse(self, problem: str) -> None:
        self._refused = self._seen
        if problem != self.problem:
            log.error("TLS: the changed files cannot be used, and those read before stay in use: %s", problem)
        self.problem = problem

    def _paths(self) -> list[Path]:
        return [path for path in (self._certificate, self._key, self._settings.ca) if path is not None]

    def _stamp(self) -> Stamp:
        found = []
        for path in self._paths():
            try:
                status = os.stat(path)
            except OSError as error:
                raise _Unusable(f"{path} cannot be read: {error.strerror}.") from error
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)

    def _load(self, stamp: Stamp) -> _Current:
        settings = self._settings
        doors = self._context(ssl.PROTOCOL_TLS_SERVER)
        doors.verify_mode = _VERIFY[settings.client_auth]
        links = asking = None
        if settings.internal:
            links = self._context(ssl.PROTOCOL_TLS_SERVER)
            links.verify_mode = ssl.CERT_REQUIRED
            asking = self._context(ssl.PROTOCOL_TLS_CLIENT)
            asking.check_hostname = False  # the certificate names the node's id, wherever it runs
            asking.verify_mode = ssl.CERT_REQUIRED
            for context in (links, asking):
                context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        ca = None if settings.ca is None else _read(settings.ca)
        return _Current(stamp, doors, links, asking, KeyMaterial(_read(self._certificate), _read(self._key), ca))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # a session would outlive the authorities that it was checked by
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        except _Unusable:
            raise
        except ssl.SSLError as error:
            raise _Unusable(self._explain(error)) from error
        except OSError as error:
            raise _Unusable(f"{self._certificate} or {self._key} cannot be read: {error.strerror}.") from error
        if self._settings.ca is not None:
            try:
                context.load_verify_locations(self._settings.ca)
            except (ssl.SSLError, OSError) as error:
                raise _Unusable(
                    f"{self._settings.ca} (security.tls.ca) holds no certificates of authorities in PEM."
                ) from error
        return context

    def _explain(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {self._key} does not belong to the certificate in {self._certificate}: give the pair."
        return (
            f"{self._certificate} and {self._key} are not a certificate and its private key in PEM "
            f"({error.reason or error}): give security.tls.certificate the certificate, its chain behind it, and "
            "security.tls.key the key."
        )


class ServerContext(ssl.SSLContext):
    """The current context of the doors, for code that is given one context for good."""

    _certificates: Certificates

    def __new__(cls, certificates: Certificates) -> ServerContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context._certificates = certificates
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._certificates.current.wrap_bio(*args, **options)


class _Unusable(Exception):
    """Why files cannot be used."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Unusable(f"{path} cannot be read: {error.strerror}.") from error


def _no_passphrase() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise _Unusable("the private key is encrypted with a passphrase: give one without, readable by this user only.")
