"""What every joint transaction is held to; read once at the composition root."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JointConfig:
    """Limits of every joint transaction."""

    timeout_max_ms: int = 900_000
    writers_max: int = 1_000
    # Each holds back readers of committed messages in every partition it wrote to.
    open_max: int = 1_000
    # How long the outcome is remembered, so that who commits again hears it.
    results_retention_ms: int = 24 * 3_600_000
