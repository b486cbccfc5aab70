"""What the HTTP door needs to know; read once at the composition root."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.wrong_port import NO_PORTS, Ports


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Settings of the HTTP door. Every limit is there so that no client can hold what others need."""

    host: str = "127.0.0.1"
    port: int = 8080
    # Names beside loopback, addresses and this machine's own under which it may be called, and the proxies (addresses
    # or networks) that are believed what name their clients used.
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    connections_max: int = 10_000
    # The request line and headers together; and how long a client may take to send them.
    head_bytes_max: int = 64 * 1024
    head_timeout_ms: int = 10_000
    body_bytes_max: int = 16 * 1024 * 1024
    bodies_bytes_max: int = 256 * 1024 * 1024  # of all requests that are not answered yet
    body_timeout_ms: int = 30_000
    keep_alive_ms: int = 75_000
    # How long requests under way may take to finish once the node is told to stop.
    stop_timeout_ms: int = 5_000
    publish_timeout_ms: int = 30_000
    default_partitioner: str = "key_hash"
    read_bytes_max: int = 4 * 1024 * 1024
    # How long a WebSocket session waits for a client that was cut off; how often sockets are looked after.
    websocket_resume_ms: int = 60_000
    websocket_ping_ms: int = 20_000
    # Metrics have a row for each partition up to this many partitions on the node, and for each topic beyond.
    metrics_partitions_max: int = 1_000
    # Where the node speaks what, for clients that came to the wrong port.
    ports: Ports = NO_PORTS
