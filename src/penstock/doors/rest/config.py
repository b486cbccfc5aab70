"""What the HTTP door needs to know: where it listens, the node's settings for clients, and its own limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config.settings import BrokerSettings, MetricsSettings, TlsSettings
from penstock.wrong_port import NO_PORTS, Ports


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Settings of the HTTP door. Every limit is there so that no client can hold what others need."""

    host: str = "127.0.0.1"
    port: int = 8080
    node: BrokerSettings = field(default_factory=BrokerSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    connections_max: int = 10_000
    # The request line and headers together; and how long a client may take to send them.
    head_bytes_max: int = 64 * 1024
    head_timeout_ms: int = 10_000
    body_timeout_ms: int = 30_000
    bodies_at_once: int = 16  # of the largest size may wait for their answer; of small ones more
    publish_timeout_ms: int = 30_000
    read_bytes_max: int = 4 * 1024 * 1024
    # Where the node speaks what, for clients that came to the wrong port.
    ports: Ports = NO_PORTS
    tls: TlsSettings = field(default_factory=TlsSettings)

    @property
    def bodies_bytes_max(self) -> int:
        """Of all requests that are not answered yet."""
        return self.bodies_at_once * self.node.max_body_bytes
