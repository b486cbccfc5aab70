"""Where reading begins: at an offset, at one of the ends, or at a point in time."""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.broker.partition import Partition


class Since(NamedTuple):
    """From the first message at or after a point in time on."""

    timestamp_ms: int


Start = int | Literal["earliest", "latest"] | Since


def resolve_start(partition: Partition, start: Start) -> int:
    """The offset that a start stands for; a number is taken as it is."""
    if start == "earliest":
        return partition.log.start_offset
    end = partition.last_stable_offset
    if start == "latest":
        return end
    if isinstance(start, Since):
        found = partition.log.find_time(start.timestamp_ms)
        return end if found is None else min(found.offset, end)
    return start
