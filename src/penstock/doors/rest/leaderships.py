"""How often leadership of partitions came to this node."""

from __future__ import annotations

from penstock.partitions.partition import Partition


class LeadershipCount:
    """How often this node began to lead a partition since it started."""

    def __init__(self) -> None:
        self.gained = 0

    def on_leadership_gained(self, _partition: Partition) -> None:
        self.gained += 1

    def on_leadership_lost(self, _partition: Partition) -> None:
        """Whoever gained it counts it."""
