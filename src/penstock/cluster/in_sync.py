"""How many replicas of a partition must be in sync: one rule, for leaders that commit and a controller that elects.

Both must agree. A replica that fell out while too few were in sync may still lead (KIP-966), and that is sound only as
long as no leader commits anything with so few. So the controller takes the lowest number that any leader may go by.
"""

from __future__ import annotations

from penstock.cluster.records import PartitionAssigned


def min_in_sync(partition: PartitionAssigned, configured: int) -> int:
    """The setting, but never more than there are replicas; where it is 0, more than half of them.

    Replicas that are only on their way do not count: a move must not make a partition ask for more than it has.
    """
    if configured:
        return min(configured, len(partition.replicas))
    return more_than_half(len(partition.replicas) - len(partition.adding))


def more_than_half(count: int) -> int:
    return count // 2 + 1
