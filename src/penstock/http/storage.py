"""What this node keeps on its disk, looked after over REST: the scrub seen and asked for."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.broker.scrub import ScrubProgress
from penstock.broker.soundness import is_damaged
from penstock.http.door import Door
from penstock.http.exchange import Call
from penstock.http.operation import Operation


class ScrubView(msgspec.Struct, frozen=True, kw_only=True):
    """The scrub of the node that answers. Counts are since it started."""

    node_id: int
    is_on: Annotated[bool, Meta(description="Whether it runs by itself; it can be asked for in any case.")]
    is_running: bool
    round: Annotated[int, Meta(description="The round under way, or the last one.")]
    completed_round: Annotated[int, Meta(description="The last round that looked at everything due; 0 for none.")]
    completed_at_ms: Annotated[int | None, Meta(description="When that round ended, in ms since 1970.")]
    asked_round: Annotated[
        int | None, Meta(description="The round that will have checked everything, where that was asked for.")
    ]
    checked_bytes: int
    checked_segments: int
    damaged_segments: Annotated[int, Meta(description="Segments in which damage was found that was not known.")]
    unreadable_segments: Annotated[int, Meta(description="Checks that the disk refused.")]
    repaired_indexes: int
    damaged_partitions: Annotated[
        int, Meta(description="Replicas here that are known to be damaged now, and are not copied anew yet.")
    ]
    corrupt_bytes: Annotated[int, Meta(description="Bytes of them that fail their checksums.")]


async def scrub_status(door: Door, _call: Call[None, None]) -> ScrubView:
    """How far the scrub of this node is, and what it has found."""
    return _view(door, door.broker.scrub.progress, None)


async def scrub_now(door: Door, _call: Call[None, None]) -> ScrubView:
    """Have everything on this node checked now. It is done when `completed_round` reaches `asked_round`."""
    asked_round = door.broker.scrub.ask()
    return _view(door, door.broker.scrub.progress, asked_round)


def _view(door: Door, progress: ScrubProgress, asked_round: int | None) -> ScrubView:
    stats = progress.stats
    return ScrubView(
        node_id=door.broker.config.node_id,
        is_on=progress.is_on,
        is_running=progress.is_running,
        round=progress.round,
        completed_round=progress.completed_round,
        completed_at_ms=progress.completed_at_ms,
        asked_round=asked_round,
        checked_bytes=stats.bytes,
        checked_segments=stats.segments,
        damaged_segments=stats.damaged,
        unreadable_segments=stats.unreadable,
        repaired_indexes=stats.indexes_repaired,
        damaged_partitions=sum(is_damaged(partition.log) for partition in door.broker.replicas),
        corrupt_bytes=sum(partition.log.corrupt_bytes for partition in door.broker.replicas),
    )


STORAGE_OPERATIONS: Final = (
    Operation("GET", "/v1/storage/scrub", scrub_status, "cluster", ScrubView),
    Operation("POST", "/v1/storage/scrub", scrub_now, "cluster", ScrubView, 202),
)
