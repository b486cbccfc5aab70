"""The listening side of the Kafka door."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.broker import Broker
from penstock.config.settings import BrokerSettings, TlsSettings
from penstock.doors.kafka.connection import Connection
from penstock.doors.kafka.dispatch import KafkaDispatcher
from penstock.errors import StartupError
from penstock.network.certificates import Certificates
from penstock.network.channel import Channel, PlainChannel
from penstock.network.entrance import ChannelEntrance
from penstock.network.sockets import Acceptor
from penstock.wrong_port import NO_PORTS, Guide, Ports, Protocol

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """Settings of the Kafka door."""

    host: str = "127.0.0.1"
    port: int = 9092
    connections_max: int = 10_000
    node: BrokerSettings = field(default_factory=BrokerSettings)
    ports: Ports = NO_PORTS
    tls: TlsSettings = field(default_factory=TlsSettings)


class KafkaServer:
    """Accepts connections and gives each to the dispatcher."""

    def __init__(self, broker: Broker, config: KafkaConfig, certificates: Certificates | None = None) -> None:
        self._config = config
        self._certificates = certificates
        self._entrance: ChannelEntrance | None = None
        self._guide = Guide("the Kafka port", Protocol.KAFKA, config.ports)
        self._dispatcher = KafkaDispatcher(broker, self._forget)
        self._quotas = broker.quotas
        self._connections: set[Connection] = set()
        self._acceptor: Acceptor | None = None
        self._has_warned_of_limit = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """The port listened on, also if the system chose it."""
        assert self._acceptor is not None, "the server is not started"
        return self._acceptor.port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        sock = _listen(self._config.host, self._config.port)
        self._acceptor = Acceptor(sock, self._admit, whose="Kafka clients")
        if self._certificates is not None:
            certificates = self._certificates
            self._entrance = ChannelEntrance(self._guide, self._config.tls, lambda: certificates.current, self._open)
            self._entrance.hold(self._acceptor)
        self._acceptor.start()
        self._sweep()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept no more connections, answer the requests received so far, then close."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._entrance is not None:
            self._entrance.close()
        for connection in tuple(self._connections):
            connection.close_when_answered()
        if self._connections:
            self._emptied = asyncio.Event()
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_seconds)
            except TimeoutError:
                log.warning("Closed %d connections with unanswered requests.", len(self._connections))
        for connection in tuple(self._connections):
            connection.close()

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if len(self._connections) < self._config.connections_max // 2:
            self._has_warned_of_limit = False
        if not self._connections and self._emptied is not None:
            self._emptied.set()

    def _admit(self, sock: socket.socket) -> None:
        if len(self._connections) + (len(self._entrance) if self._entrance else 0) >= self._config.connections_max:
            if not self._has_warned_of_limit:  # once each time it is reached: clients keep trying
                log.warning("Refusing connections: %d are open already (max_connections).", len(self._connections))
                self._has_warned_of_limit = True
            sock.close()
            return
        try:
            if self._entrance is None:
                self._open(PlainChannel(sock))
            else:
                self._entrance.receive(sock)
        except OSError:  # the client is gone again already
            sock.close()

    def _open(self, channel: Channel) -> None:
        connection = Connection(
            asyncio.get_running_loop(),
            channel,
            self._dispatcher,
            max_request_bytes=self._config.node.max_request_bytes,
            guide=self._guide,
        )
        connection.start()
        self._hold_to_quota(connection)
        self._connections.add(connection)

    def _hold_to_quota(self, connection: Connection) -> None:
        """Take requests later where the address connects too often; closing would make it connect again at once."""
        meter = self._quotas.connection_meter(connection.peer_host) if self._quotas.is_on else None
        pause = 0.0 if meter is None else meter.use(1, asyncio.get_running_loop().time())
        if pause > 0:
            connection.pause(pause)

    def _sweep(self) -> None:
        """Close connections on which nothing has happened for too long."""
        loop = asyncio.get_running_loop()
        timeout = self._config.node.idle_timeout_ms / 1000
        for connection in tuple(self._connections):
            if loop.time() - connection.last_active > timeout:
                connection.close("idle for too long")
        self._sweeper = loop.call_later(min(timeout / 2, 30.0), self._sweep)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartupError(
            f"Cannot listen for Kafka clients on {host}:{port}: {error.strerror or error}. "
            "Stop whatever uses that port, or choose another with --kafka HOST:PORT."
        ) from error
    sock.setblocking(False)  # noqa: FBT003
    return sock
