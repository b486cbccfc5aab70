"""What every transaction is held to; read once at the composition root."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits of every transaction. The defaults are Kafka's, but for ``patience_ms``."""

    # The longest time that a producer may ask its transactions to be kept open for.
    timeout_max_ms: int = 900_000
    # A transactional id that nobody has used for this long is forgotten.
    retention_ms: int = 7 * 24 * 3_600_000
    # How long whoever comes while a transaction is being ended waits for that, before being told to try again.
    patience_ms: int = 1_000
