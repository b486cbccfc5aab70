"""What the gRPC door needs to know; read once at the composition root."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """Settings of the gRPC door. Every limit is there so that no client can hold what others need."""

    host: str = "127.0.0.1"
    port: int = 9000
    # The largest request message taken, of a stream as of a single call.
    message_bytes_max: int = 16 * 1024 * 1024
    # A connection without a call for this long is closed.
    idle_timeout_ms: int = 600_000
    # How long calls under way may take to finish once the node is told to stop.
    stop_timeout_ms: int = 5_000
    publish_timeout_ms: int = 30_000
    # A client that says nothing for so long is asked whether it is there, and given so long to answer.
    keep_alive_ms: int = 20_000
    keep_alive_timeout_ms: int = 10_000
