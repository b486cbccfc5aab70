"""Precedence between partitions: those where a critical message is next go before the others, but not for ever.

Lanes hold within a partition. A receive that goes through several of them asks those first whose next message is
critical; the others come in their turn. So that a partition which only ever has critical messages cannot keep the
others waiting, a few receives in a row may jump the queue, and then one goes by turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.queues.leading.coordinator import QueueCoordinator
from penstock.errors import PenstockError

_CRITICAL: Final = 0
_JUMPS_MAX: Final = 4
_GROUPS_MAX: Final = 10_000


class Precedence:
    """Which partitions of a group come first; it remembers how often somebody came out of turn."""

    def __init__(self, coordinator: QueueCoordinator) -> None:
        self._coordinator = coordinator
        self._jumps: dict[tuple[str, str], int] = {}

    def ordered(self, topic: str, group: str, partitions: Sequence[int]) -> Sequence[int]:
        """Partitions that came by turn, the urgent ones first."""
        if len(partitions) < 2:
            return partitions
        urgent = [partition for partition in partitions if self._is_urgent(topic, group, partition)]
        if not urgent or urgent[0] == partitions[0]:
            self._jumps.pop((topic, group), None)
            return partitions
        jumps = self._jumps.get((topic, group), 0)
        if jumps >= _JUMPS_MAX:
            del self._jumps[topic, group]
            return partitions
        if len(self._jumps) >= _GROUPS_MAX:
            self._jumps.clear()
        self._jumps[topic, group] = jumps + 1
        return [*urgent, *(partition for partition in partitions if partition not in urgent)]

    def _is_urgent(self, topic: str, group: str, partition: int) -> bool:
        try:
            queue = self._coordinator.find(topic, partition).machines.get(group)
        except PenstockError:
            return False
        pool = None if queue is None else queue.supply.pool
        return pool is not None and pool.next_lane() == _CRITICAL
