"""The gRPC door's server, inside the node's own event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2_grpc

from penstock.api.operation import Operation
from penstock.api.table import OPERATIONS
from penstock.doors.grpc.binder import Conversation, handlers_of
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.health import SERVICE as HEALTH
from penstock.doors.grpc.health import Health
from penstock.doors.grpc.publishing import publish_stream
from penstock.doors.grpc.reading import read
from penstock.doors.grpc.reflection import serve_reflection
from penstock.doors.grpc.subscription import subscribe
from penstock.errors import StartupError
from penstock.grpc.definitions import PACKAGE
from penstock.grpc.pool import generated_pool
from penstock.grpc.shapes import rpcs_of, service_name
from penstock.network.certificates import Certificates, KeyMaterial
from penstock.operations.services import Services

log = logging.getLogger(__name__)

__all__ = ["GrpcConfig", "GrpcServer"]

_ANY_HOST: Final = {"", "*", "0.0.0.0", "::"}
_FAREWELL_SECONDS: Final = 3.0
_STREAMS: Final[Mapping[str, Conversation]] = {
    "PublishStream": publish_stream,
    "Read": read,
    "Subscribe": subscribe,
}


class GrpcServer:
    """The door itself: `start` binds and serves, `stop` lets calls under way finish for a while."""

    def __init__(
        self,
        services: Services,
        config: GrpcConfig,
        certificates: Certificates | None = None,
        operations: Sequence[Operation] = OPERATIONS,
        pool: DescriptorPool | None = None,
    ) -> None:
        self._config = config
        self._certificates = certificates
        self._door = Door(services, config)
        self._server: grpc.aio.Server | None = None
        self._rpcs = rpcs_of(operations)
        self._pool = pool or generated_pool()
        self._names = tuple(dict.fromkeys(f"{PACKAGE}.{service_name(rpc.service)}" for rpc in self._rpcs))
        self._health = Health(self._names)
        self.port = config.port  # the one that was given, where 0 was asked for

    @property
    def door(self) -> Door:
        return self._door

    async def start(self) -> None:
        """Listen, and return when calls are taken; `StartupError` if the address cannot be had."""
        server = grpc.aio.server(options=_options(self._config), maximum_concurrent_rpcs=self._config.calls_max)
        server.add_generic_rpc_handlers(tuple(handlers_of(self._door, self._rpcs, _STREAMS, self._pool)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        serve_reflection(server, [*self._names, HEALTH])
        self.port = _bind(server, self._config, self._certificates)
        await server.start()
        self._server = server

    def announce_start(self) -> None:
        """Say that the node is one of its cluster; until then calls are told to try again."""
        self._health.start()

    async def announce_stop(self) -> None:
        """Before the node gives up what it leads: say that it will stop, end streams, give back what they hold.

        Single calls are still answered.
        """
        self._health.stop()
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._door.end_conversations()
        except TimeoutError:
            log.warning("Some gRPC streams did not end in time; their leases end by themselves.")

    async def stop(self) -> None:
        """Take no more calls, finish those under way, and cut off what is left when the time is over."""
        if self._server is None:
            return
        self._health.stop()
        self._door.stopping.set()
        server, self._server = self._server, None
        await server.stop(self._config.stop_timeout_ms / 1000)
        await self._door.end_conversations()


def _options(config: GrpcConfig) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", config.node.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_connection_idle_ms", config.node.idle_timeout_ms),
        ("grpc.keepalive_time_ms", config.keep_alive_ms),
        ("grpc.keepalive_timeout_ms", config.keep_alive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ask as well, even often; some do so every ten seconds.
        ("grpc.http2.min_ping_interval_without_data_ms", config.ping_interval_min_ms),
        ("grpc.http2.max_ping_strikes", config.pings_forgiven),
        ("grpc.max_concurrent_streams", config.streams_max),
        ("grpc.max_allowed_incoming_connections", config.connections_max),
        ("grpc.max_metadata_size", config.metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", config.metadata_bytes_max),
        ("grpc.server_handshake_timeout_ms", config.handshake_timeout_ms),
        ("grpc.http2.settings_timeout", config.handshake_timeout_ms),
        ("grpc.so_reuseport", 0),
    )


def _credentials(config: GrpcConfig, certificates: Certificates) -> grpc.ServerCredentials:
    """What the server shows; it asks anew in every handshake, from threads of its own."""
    shown = certificates.material

    def fetch() -> Any:  # None: as before
        nonlocal shown
        current = certificates.material
        if current is shown:
            return None
        shown = current
        return _configuration(current, config)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown, config), fetch, require_client_authentication=config.needs_client_certificate
    )


def _configuration(material: KeyMaterial, config: GrpcConfig) -> grpc.ServerCertificateConfiguration:
    # The library either asks for no certificate or insists on one: `want` is for the other doors.
    authorities = material.ca if config.needs_client_certificate else None
    return grpc.ssl_server_certificate_configuration([(material.key, material.certificate)], authorities)


def _bind(server: grpc.aio.Server, config: GrpcConfig, certificates: Certificates | None) -> int:
    where = f"{config.host}:{config.port}"
    if config.host in _ANY_HOST:
        address = f"[::]:{config.port}" if config.host in {"", "*", "::"} else where
    else:
        address = f"[{config.host}]:{config.port}" if ":" in config.host else where
    try:
        if certificates is not None:
            return server.add_secure_port(address, _credentials(config, certificates))
        return server.add_insecure_port(address)
    except RuntimeError as error:  # the library says no more than that it could not
        raise StartupError(
            f"The gRPC door cannot listen on {where}: port {config.port} is in use, or the address is not one of this "
            "machine's. Choose another with --grpc HOST:PORT, or --grpc null for none."
        ) from error
