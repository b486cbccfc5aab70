"""Batches of one partition as they are stored, for readers that keep their own place and decode on their own side.

The partition's leader answers; any other node hands the request on. What nobody is to see is left out, and damage is
never stepped over unless the reader says so: an answer without an error has every message there is.
Forms: docs/reference/rest-binary.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.types import Scope

from penstock.broker.partition import Partition
from penstock.broker.reach import led_here
from penstock.broker.runs import select
from penstock.cluster.records import NO_LEADER
from penstock.errors import CorruptRecords, LeaderNotAvailable, NotLeader, UnknownTopic
from penstock.http.door import Door
from penstock.http.exchange import MSGPACK, Call, Reply
from penstock.http.homes import Home
from penstock.http.problems import InvalidParameter
from penstock.storage.aborted import AbortedTransaction

_PATIENCE_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.02
_ANY_NUMBER: Final = 1 << 62
_ANSWER: Final = b"\x96"  # an array of six
_BYTES: Final = b"\xc6"

_encoder: Final = msgspec.msgpack.Encoder()


class BatchesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="Where to begin.")] = 0
    max_bytes: Annotated[
        int, Meta(ge=1, le=32 * 1024 * 1024, description="How much at most, except that one batch always comes whole.")
    ] = 8 * 1024 * 1024
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        Meta(description="Whether to stop before open transactions and leave out aborted ones, or to see all."),
    ] = "read_committed"
    topic_id: Annotated[str | None, Meta(description="Refuse if the topic of that name has another id by now.")] = None
    skip_damage: Annotated[bool, Meta(description="Read on behind what is damaged instead of refusing.")] = False


@dataclass(frozen=True)
class LeaderHome(Home):
    """The leader of the partition in the path answers."""

    async def find(self, door: Door, scope: Scope) -> int:
        broker = door.broker
        topic, index = scope["path_params"]["topic"], partition_in(scope)
        deadline = broker.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            leader = broker.metadata.partition(topic, index).leader
            if leader != NO_LEADER:
                return leader
            if broker.clock.monotonic() >= deadline:
                raise LeaderNotAvailable(f"{topic}-{index} has no leader now. Try again in a moment.")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def settle(self, door: Door, scope: Scope) -> None:
        """A new leader takes over within moments; whoever asks too early is told so and comes again."""


LEADER: Final = LeaderHome("", lambda _: None)


def partition_in(scope: Scope) -> int:
    """The partition that a path names."""
    text: str = scope["path_params"]["partition"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidParameter(f"Partitions are numbered from 0; {text!r} is none.")
    return int(text)


async def read_batches(door: Door, call: Call[None, BatchesQuery]) -> Reply:
    """Read record batches as they are stored, from an offset on; nothing is consumed by it."""
    query, index = call.query, partition_in(call.scope)
    topic = door.broker.metadata.topic(call.topic)
    if query.topic_id is not None and query.topic_id != str(topic.topic_id):
        raise UnknownTopic(f"Topic {call.topic!r} is another one than {query.topic_id}, which is gone.")
    door.broker.metadata.partition(call.topic, index)
    partition = led_here(door.broker, call.topic, index)
    if partition is None:
        raise NotLeader(f"This node does not lead {call.topic}-{index}. Try again in a moment.")
    end, data = _read(partition, query)
    stats = door.broker.stats.topic(call.topic)
    stats.bytes_consumed += len(data)
    stats.messages_consumed += max(end - query.offset, 0)
    head = (str(partition.topic_id), end, partition.log.start_offset, partition.high_watermark)
    told = _ANSWER + b"".join(map(_encoder.encode, (*head, partition.last_stable_offset)))
    return Reply(200, told + _BYTES + len(data).to_bytes(4, "big"), MSGPACK, [], (data,))


def _read(partition: Partition, query: BatchesQuery) -> tuple[int, bytes]:
    """Where to read on, and the batches before that which a reader may have."""
    is_committed_only = query.isolation == "read_committed"
    lost = None if query.skip_damage else partition.log.lost_at(query.offset)
    if lost is not None:
        raise CorruptRecords(
            f"Offsets {lost.first} to {lost.next - 1} of {partition.id} are lost: no replica has them any more. "
            f"Read on from offset {lost.next}, or with skip_damage."
        )
    found = partition.read(query.offset, query.max_bytes, is_committed_only=is_committed_only)
    if found is None:
        return query.offset, b""
    data = found.read()
    aborted: list[AbortedTransaction] = []
    if is_committed_only:
        aborted = partition.aborted_in(query.offset, found.next_offset)
    if not aborted and found.next_offset > query.offset:
        return found.next_offset, data
    run = select(memoryview(data), query.offset, aborted, _ANY_NUMBER)
    return run.end, run.data
