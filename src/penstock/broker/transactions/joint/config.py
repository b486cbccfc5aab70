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
    # The same for the last transaction of a series, which tells what of it is committed; and for the only one.
    series_retention_ms: int = 30 * 24 * 3_600_000
    single_retention_ms: int = 7 * 24 * 3_600_000
