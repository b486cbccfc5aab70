"""Where the node listens, and what it tells clients and other nodes to connect to."""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import dataclass
from typing import Final

from penstock.config.kinds import Address
from penstock.config.settings import BrokerSettings
from penstock.consensus.records import Endpoint
from penstock.errors import StartupError
from penstock.partitions.metadata_applier import INTERNAL_DOOR
from penstock.wrong_port import Ports

log = logging.getLogger(__name__)

_ANY_HOST: Final = {"0.0.0.0", "::", "*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The address of each door, with the port the system chose where it was to choose; None for a closed door."""

    kafka: Address
    http: Address
    grpc: Address | None
    internal: Address | None

    @classmethod
    def choose(cls, settings: BrokerSettings) -> Listeners:
        """Choose the ports now: they are announced before the doors open."""
        return cls(
            kafka=_with_port(settings.kafka),
            http=_with_port(settings.http),
            grpc=None if settings.grpc is None else _with_port(settings.grpc),
            internal=None if settings.internal is None else _with_port(settings.internal),
        )

    def ports(self, *, has_tls: bool) -> Ports:
        """For clients that came to the wrong one."""
        grpc = None if self.grpc is None else self.grpc.port
        return Ports(kafka=self.kafka.port, http=self.http.port, grpc=grpc, has_tls=has_tls)

    def endpoints(self, settings: BrokerSettings) -> tuple[Endpoint, ...]:
        """The addresses that this node announces."""
        doors = (
            ("kafka", self.kafka, settings.advertised_kafka),
            ("http", self.http, settings.advertised_http),
            ("grpc", self.grpc, settings.advertised_grpc),
            (INTERNAL_DOOR, self.internal, settings.advertised_internal),
        )
        return tuple(
            _endpoint(door, listener, advertised) for door, listener, advertised in doors if listener is not None
        )

    def check_free(self) -> None:
        """Refuse a port that another process has before anything is opened, read or recovered."""
        doors = (("kafka", self.kafka), ("http", self.http), ("grpc", self.grpc), ("internal", self.internal))
        for name, address in doors:
            if address is not None:
                _check_port(name, address)


def _check_port(name: str, address: Address) -> None:
    """Refuse a port that is in use. Whatever else is wrong with an address is told by the door that listens there."""
    try:
        found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    continue
                raise StartupError(
                    f"Port {address.port} of broker.{name} ({address}) is in use. Stop the process that has it, or "
                    f"choose another with --{name} HOST:PORT."
                ) from None


def _endpoint(door: str, listener: Address, advertised: Address | None) -> Endpoint:
    if advertised is None and listener.host in _ANY_HOST:
        advertised = Address(socket.gethostname(), listener.port)
        log.warning(
            "The %s door listens on every interface, and clients are told to use %s. If they cannot reach that, set "
            "broker.advertised_%s.",
            door,
            advertised,
            door,
        )
    reached_at = advertised or listener
    return Endpoint(door=door, host=reached_at.host, port=reached_at.port)


def _with_port(address: Address) -> Address:
    """Choose the port now where the system is to choose: it is announced before the door opens."""
    if address.port:
        return address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.create_server((address.host, 0), family=family) as probe:
            return Address(address.host, probe.getsockname()[1])
    except OSError as error:
        raise StartupError(f"Cannot listen on {address.host}: {error.strerror or error}.") from error
