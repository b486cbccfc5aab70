"""A writer's numbered call: written once, however often it is sent.

Before its messages, the call itself is written down with the partition of each message. In every partition a writer's
messages have sequence numbers without gaps, so the log tells how many of the call's messages it holds: whoever sends
the call again has the rest written, and hears of all where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import crc32c
import msgspec

from penstock.broker.broker import Broker
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.publishing import Message, Publication, Published, chunks
from penstock.broker.transactions.joint.records import StoredCall, StoredWriter
from penstock.broker.transactions.joint.shard import WRITER_EPOCH
from penstock.cluster.metadata import Topic
from penstock.errors import DuplicateSequence, InvalidRecord, MessageTooLarge, OutOfOrderSequence, UnknownTopic
from penstock.records import decode_records, parse_header

_SEQUENCE_MAX: Final = (1 << 31) - 1


class _Batch(NamedTuple):
    """A batch that is ready to be written."""

    partition: Partition
    positions: Sequence[int]
    data: bytearray


class NumberedCall:
    """One call of a writer whose turn it is."""

    def __init__(
        self,
        broker: Broker,
        transaction_id: str,
        writer: str,
        topic: Topic,
        messages: Sequence[Message],
        publication: Publication,
    ) -> None:
        self._broker = broker
        self._transaction_id = transaction_id
        self._writer = writer
        self._topic = topic
        self._messages = messages
        self._publication = publication

    async def append(self, sequence: int, groups: Mapping[int, list[int]]) -> None:
        """Write what is not written yet. Afterwards each message has its place, but need not be committed."""
        if sequence + len(self._messages) > _SEQUENCE_MAX:
            raise OutOfOrderSequence(f"A writer can number up to {_SEQUENCE_MAX} messages in one transaction.")
        known = self._broker.joint.check_open(self._transaction_id).writers.get(self._writer)
        call = self._call(sequence, groups)
        last = None if known is None else known.call
        if last is None or sequence != last.sequence:
            self._check_finished(known)
            self._check(groups)
        entered = await self._broker.joint.enter(
            self._transaction_id, self._writer, self._topic, frozenset(groups), call
        )
        writer = entered.writer
        assert writer.call is not None
        self._publication.producer = ProducerIdentity(writer.producer_id, WRITER_EPOCH)
        groups = _groups(writer.call.spread)
        stored = dict.fromkeys(groups, 0)
        if entered.is_repeat:
            stored = {index: await self._find(index, positions, writer) for index, positions in groups.items()}
        self._write(writer, groups, stored)

    def _call(self, sequence: int, groups: Mapping[int, list[int]]) -> StoredCall:
        """The call as it is written down."""
        spread = [0] * len(self._messages)
        starts = {}
        for index, positions in groups.items():
            starts[index] = self._partition(index).log.end_offset
            for position in positions:
                spread[position] = index
        topic_id = str(self._topic.topic_id)
        return StoredCall(
            sequence=sequence, topic_id=topic_id, digest=_digest(self._messages), spread=tuple(spread), starts=starts
        )

    def _partition(self, index: int) -> Partition:
        return self._broker.partition(self._topic.name, index)

    # -- before it is written down ------------------------------------------------------------------------------------

    def _check_finished(self, known: StoredWriter | None) -> None:
        """Refuse the next call while the one before it is written in part only."""
        if known is None or known.call is None:
            return
        names = {place.topic_id: place.topic for place in known.places}
        topic = self._broker.metadata.topics.get(names[known.call.topic_id])
        if topic is None or str(topic.topic_id) != known.call.topic_id:
            return  # deleted, and what was written there with it
        for index in set(known.call.spread):
            producers = self._broker.partition(topic.name, index).log.producers
            stored = producers.last_sequence_of(known.producer_id, WRITER_EPOCH) + 1
            if stored < known.sent_to(known.call.topic_id, index):
                raise OutOfOrderSequence(
                    f"The last call of writer {self._writer!r}, which began with message {known.call.sequence}, is not "
                    "finished. Repeat it first."
                )

    def _check(self, groups: Mapping[int, list[int]]) -> None:
        """Refuse now what could not be written later: a call that is written down has to be finished."""
        for index, positions in groups.items():
            partition = self._partition(index)
            partition.check_leader()
            if partition.settings.log.is_compacting and any(self._messages[at].key is None for at in positions):
                raise InvalidRecord(f"{self._topic.name!r} is compacted, so every message needs a key.")
            limit = partition.settings.max_message_bytes
            for chunk in chunks(self._messages, positions, limit):
                size = len(self._publication.encode(chunk))
                if size > limit:
                    raise MessageTooLarge(
                        f"The message makes a batch of {size} bytes; {self._topic.name!r} takes up to {limit} "
                        "(max.message.bytes)."
                    )

    # -- after --------------------------------------------------------------------------------------------------------

    async def _find(self, index: int, positions: list[int], writer: StoredWriter) -> int:
        """How many of these messages the partition holds already; where they are is noted."""
        assert writer.call is not None
        partition = self._partition(index)
        base = writer.base_sequence(index)
        last = partition.log.producers.last_sequence_of(writer.producer_id, WRITER_EPOCH)
        count = min(max(last + 1 - base, 0), len(positions))
        if count == 0:
            return 0
        start = max(writer.call.starts[index], partition.log.start_offset)
        found = await asyncio.to_thread(_read_stored, partition, writer.producer_id, base, count, start)
        if len(found) < count:
            raise DuplicateSequence("These messages are stored already, but their offsets are no longer known.")
        for position, published in zip(positions, found, strict=False):
            self._publication.note(position, published)
        self._publication.await_commit(partition, found[-1].offset + 1, positions[:count])
        return count

    def _write(self, writer: StoredWriter, groups: Mapping[int, list[int]], stored: Mapping[int, int]) -> None:
        """Write the rest. From the check to the last batch there is no pause."""
        batches = [
            batch
            for index, positions in groups.items()
            for batch in self._batches(index, positions[stored[index] :], writer.base_sequence(index) + stored[index])
        ]
        check_still_open(self._broker, self._transaction_id, self._topic)
        for partition, positions, data in batches:
            next_offset = self._publication.append(partition, positions, data)
            self._publication.await_commit(partition, next_offset, positions)

    def _batches(self, index: int, positions: Sequence[int], sequence: int) -> Iterator[_Batch]:
        partition = self._partition(index)
        for chunk in chunks(self._messages, positions, partition.settings.max_message_bytes):
            yield _Batch(partition, chunk, self._publication.encode(chunk, sequence))
            sequence += len(chunk)


def check_still_open(broker: Broker, transaction_id: str, topic: Topic) -> None:
    """Refuse unless transaction and topic are what they were; to be followed by writing without a pause."""
    broker.joint.check_open(transaction_id)
    current = broker.metadata.topics.get(topic.name)
    if current is None or current.topic_id != topic.topic_id:
        raise UnknownTopic(f"Topic {topic.name!r} was deleted in the meantime.")


def _groups(spread: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for position, index in enumerate(spread):
        groups.setdefault(index, []).append(position)
    return groups


def _digest(messages: Sequence[Message]) -> int:
    """A number that other messages have only by chance. It depends on all that was sent, and on nothing else."""
    digest = 0
    for each in messages:
        fields = (each.key, each.value, each.headers, each.partition, each.timestamp_ms)
        digest = crc32c.crc32c(msgspec.msgpack.encode(fields), digest)
    return digest


def _read_stored(partition: Partition, producer_id: int, base: int, count: int, start: int) -> list[Published]:
    """Where the producer's records with the sequence numbers from ``base`` on are. Runs in any thread."""
    found: list[Published] = []
    topic, index = partition.id
    for batch in partition.log.batches(start):
        data = memoryview(batch.read())
        header = parse_header(data)
        if header.producer_id != producer_id or header.is_control:
            continue
        shift = header.base_sequence - header.base_offset
        found += [
            Published(topic, index, record.offset, record.timestamp)
            for record in decode_records(data)
            if base <= record.offset + shift < base + count
        ]
        if len(found) >= count:
            break
    return found
