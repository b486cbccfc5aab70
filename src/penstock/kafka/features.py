"""What the cluster has agreed on beyond the versions of its APIs (KIP-584)."""

from __future__ import annotations

from typing import Final, NamedTuple


class Feature(NamedTuple):
    """A feature with the lowest level that there is, and the one that holds, which is also the highest."""

    name: str
    lowest: int
    level: int


# Producers use the second protocol of transactions only where the cluster has agreed on it (KIP-890).
FEATURES: Final = (Feature("transaction.version", 0, 2),)
FEATURES_EPOCH: Final = 1  # of the agreement; it has never changed
