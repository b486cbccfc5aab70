"""What followers and leaders say to each other.

A fetch belongs to a *session*, which the follower numbers, and within it has a number of its own, from 0 on. Fetch 0
names everything that is followed; each later one only what was added, moved or dropped since the one before. A
partition is named by topic and index once and by its *slot* from then on. The answer names slots that have news, and
its body holds their batches, one slot's behind the other's.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from penstock.network.port import Method, Nothing


class Added(msgspec.Struct, frozen=True, array_like=True):
    """A partition that is followed from now on, and the follower's position in it."""

    slot: int
    topic_id: UUID
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    stable: int


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """The follower's position is another one now, or it keeps more of what it has."""

    slot: int
    offset: int
    last_epoch: int
    stable: int


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the follower is about to cut, once it cannot be taken for one that has everything."""

    topic_id: UUID
    partition: int
    leader_epoch: int


class FetchReplica(msgspec.Struct, frozen=True, array_like=True):
    """Ask for batches. ``catch_up_bytes`` limits those of partitions in which the follower is not in sync; -1 if not.

    ``node_epoch`` is that of the life in which the node asks. Of the slots that are dropped, ``refused`` names those
    that the follower cannot write to its disk.
    """

    node_epoch: int
    session: int
    number: int
    max_wait_ms: int
    max_bytes: int
    catch_up_bytes: int
    added: tuple[Added, ...] = ()
    moved: tuple[Moved, ...] = ()
    dropped: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    leaving: tuple[Leaving, ...] = ()


class News(msgspec.Struct, frozen=True, array_like=True):
    """What the leader says of one slot: a problem, where histories part, or batches and how far they are committed."""

    slot: int
    leader_epoch: int
    problem: str
    high_watermark: int
    log_start: int
    log_end: int
    size: int = 0
    parting_epoch: int = -1
    parting_end: int = -1
    is_parting: bool = False


class Fetched(msgspec.Struct, frozen=True, array_like=True):
    """The answer. A session that is not known there has to be begun anew.

    ``let_go`` are the places, among those that wanted to leave, of partitions in which the follower is not in sync, and
    will not be by any word that is on its way.
    """

    session: int
    number: int
    is_known: bool
    news: tuple[News, ...] = ()
    let_go: tuple[int, ...] = ()


class Stable(msgspec.Struct, frozen=True, array_like=True):
    """One slot is kept up to ``offset`` now, whatever happens to the node."""

    slot: int
    leader_epoch: int
    offset: int


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """Told by a follower whenever syncs are done."""

    node_epoch: int
    session: int
    stable: tuple[Stable, ...]


class Nudge(msgspec.Struct, frozen=True, array_like=True):
    """Answer the fetch that waits at once: there is something to add."""

    session: int


FETCH: Final = Method("replication.fetch", FetchReplica, Fetched, is_bulk=True)
DURABLE: Final = Method("replication.durable", Kept, Nothing, is_bulk=True)
NUDGE: Final = Method("replication.nudge", Nudge, Nothing, is_bulk=True)
