"""What the gRPC door needs to know: where it listens, the node's settings for clients, and its own limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config.settings import BrokerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """Settings of the gRPC door. Every limit is there so that no client can hold what others need."""

    host: str = "127.0.0.1"
    port: int = 9000
    node: BrokerSettings = field(default_factory=BrokerSettings)
    # Whether clients have to show a certificate, where the door speaks TLS.
    needs_client_certificate: bool = False
    # How long calls under way may take to finish once the node is told to stop.
    stop_timeout_ms: int = 5_000
    publish_timeout_ms: int = 30_000
    # Calls and streams at once: of one connection, and of all.
    streams_max: int = 1_000
    calls_max: int = 20_000
    connections_max: int = 5_000
    # What a call may send along beside its messages.
    metadata_bytes_max: int = 16 * 1024
    # A connection that does not speak HTTP/2 within this time is closed.
    handshake_timeout_ms: int = 20_000
    # A stream that has to begin with a request, and does not within this time, is ended.
    first_request_timeout_ms: int = 30_000
    # A client may ask so often whether the node is there; one that asks more often is forgiven so many times.
    ping_interval_min_ms: int = 1_000
    pings_forgiven: int = 100
    # A client that says nothing for so long is asked whether it is there, and given so long to answer.
    keep_alive_ms: int = 20_000
    keep_alive_timeout_ms: int = 10_000
