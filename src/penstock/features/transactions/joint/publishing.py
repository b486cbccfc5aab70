"""Messages of a joint transaction's writer into partitions.

The transaction is told of the partitions first, and asked once more, without a pause, right before the batches are
written: so nothing is written into a transaction that has been decided. What is on its way to another node then, and
arrives after the end, is fenced there by the marker, and told to have come too late.

A numbered call is written once, however often it is sent. Before its messages, the call itself is written down with the
partition of each message. In every partition a writer's messages have sequence numbers without gaps, so the log tells
how many of the call's messages it holds: a writer that sends the call again has the rest written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import crc32c
import msgspec

from penstock.api.limits import DEFAULT_WRITER
from penstock.consensus.metadata import Topic
from penstock.errors import (
    DuplicateSequence,
    InvalidRecord,
    MessageTooLarge,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    TransactionEnded,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.messages.publishing import (
    COMMIT_TIMEOUT_MS,
    DEFAULT_PARTITIONER,
    OutgoingMessage,
    Publication,
    PublishedAt,
    PublishOutcome,
    check_writable,
    chunks,
    ensure_topic,
)
from penstock.features.transactions.joint.coordinator import Holding, JointCoordinator, Search
from penstock.features.transactions.joint.messages import check_writer
from penstock.features.transactions.joint.records import StoredCall, StoredWriter
from penstock.features.transactions.joint.shard import WRITER_EPOCH
from penstock.machines.messages import ProducerIdentity
from penstock.machines.ports import Ports
from penstock.records import Partitioner

_SEQUENCE_MAX: Final = (1 << 31) - 1
_NO_PRODUCER: Final = -1  # has written nothing anywhere

Batch = tuple[Sequence[int], bytearray]  # the positions of the messages, and the batch ready to be written


class NumberedCall:
    """One call of a writer whose turn it is."""

    def __init__(
        self,
        ports: Ports,
        joint: JointCoordinator,
        transaction_id: str,
        writer: str,
        topic: Topic,
        messages: Sequence[OutgoingMessage],
        publication: Publication,
    ) -> None:
        self._ports = ports
        self._joint = joint
        self._transaction_id = transaction_id
        self._writer = writer
        self._topic = topic
        self._messages = messages
        self._publication = publication

    async def append(self, sequence: int, groups: Mapping[int, list[int]]) -> None:
        """Write what is not written yet. Afterwards each message has its place, but need not be committed."""
        if sequence + len(self._messages) > _SEQUENCE_MAX:
            raise OutOfOrderSequence(f"A writer can number up to {_SEQUENCE_MAX} messages in one transaction.")
        known = self._joint.check_open(self._transaction_id).writers.get(self._writer)
        call = await self._call(sequence, groups)
        last = None if known is None else known.call
        if last is None or sequence != last.sequence:
            await self._check_finished(known)
            self._check(groups)
        entered = await self._joint.enter(self._transaction_id, self._writer, self._topic, frozenset(groups), call)
        writer = entered.writer
        assert writer.call is not None
        self._publication.producer = ProducerIdentity(writer.producer_id, WRITER_EPOCH)
        groups = _groups(writer.call.spread)
        stored = dict.fromkeys(groups, 0)
        if entered.is_repeat:
            counts = await asyncio.gather(*(self._find(index, each, writer) for index, each in groups.items()))
            stored = dict(zip(groups, counts, strict=True))
        self._write(writer, groups, stored)

    async def _call(self, sequence: int, groups: Mapping[int, list[int]]) -> StoredCall:
        """The call as it is written down."""
        spread = [0] * len(self._messages)
        for index, positions in groups.items():
            for position in positions:
                spread[position] = index
        nothing = Search(producer_id=_NO_PRODUCER, epoch=WRITER_EPOCH)
        holdings = await self._search(self._topic.name, dict.fromkeys(groups, nothing))
        return StoredCall(
            sequence=sequence,
            topic_id=str(self._topic.topic_id),
            digest=_digest(self._messages),
            spread=tuple(spread),
            starts={index: holding.end_offset for index, holding in holdings.items()},
        )

    async def _search(self, topic: str, searches: Mapping[int, Search]) -> dict[int, Holding]:
        holdings = self._joint.holdings
        found = {index: holdings.glance(topic, index, each) for index, each in searches.items()}
        unknown = [index for index, holding in found.items() if holding is None]
        if unknown:
            answers = await asyncio.gather(*(holdings.search(topic, index, searches[index]) for index in unknown))
            found.update(zip(unknown, answers, strict=True))
        return {index: holding for index, holding in found.items() if holding is not None}

    # -- before it is written down ------------------------------------------------------------------------------------

    async def _check_finished(self, known: StoredWriter | None) -> None:
        """Refuse the next call while the one before it is written in part only."""
        if known is None or known.call is None:
            return
        names = {place.topic_id: place.topic for place in known.places}
        topic = self._ports.metadata.topics.get(names[known.call.topic_id])
        if topic is None or str(topic.topic_id) != known.call.topic_id:
            return  # deleted, and what was written there with it
        search = Search(producer_id=known.producer_id, epoch=WRITER_EPOCH)
        holdings = await self._search(topic.name, dict.fromkeys(known.call.spread, search))
        for index, holding in holdings.items():
            if holding.last_sequence + 1 < known.sent_to(known.call.topic_id, index):
                raise OutOfOrderSequence(
                    f"The last call of writer {self._writer!r}, which began with message {known.call.sequence}, is not "
                    "finished. Repeat it first."
                )

    def _check(self, groups: Mapping[int, list[int]]) -> None:
        """Refuse now what could not be written later: a call that is written down has to be finished."""
        settings = self._ports.topics.settings_of(self._topic.name)
        limit = settings.max_message_bytes
        for positions in groups.values():
            if settings.log.is_compacting and any(self._messages[at].key is None for at in positions):
                raise InvalidRecord(f"{self._topic.name!r} is compacted, so every message needs a key.")
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
        base, start = writer.base_sequence(index), writer.call.starts[index]
        search = Search(
            producer_id=writer.producer_id, epoch=WRITER_EPOCH, base=base, count=len(positions), start=start
        )
        holding = await self._joint.holdings.search(self._topic.name, index, search)
        count = min(max(holding.last_sequence + 1 - base, 0), len(positions))
        if len(holding.found) < count:
            raise DuplicateSequence("These messages are stored already, but their offsets are no longer known.")
        for position, (offset, timestamp_ms) in zip(positions, holding.found, strict=False):
            self._publication.note(position, PublishedAt(self._topic.name, index, offset, timestamp_ms))
        return count

    def _write(self, writer: StoredWriter, groups: Mapping[int, list[int]], stored: Mapping[int, int]) -> None:
        """Write the rest. From the check to the last batch of this node, and to those on their way, is no pause.

        What reaches another node after its transaction has ended is fenced there by the marker of that end.
        """
        batches = {
            index: list(self._batches(positions[stored[index] :], writer.base_sequence(index) + stored[index]))
            for index, positions in groups.items()
        }
        check_still_open(self._ports, self._joint, self._transaction_id, self._topic)
        for index, ready in batches.items():
            partition = self._ports.partitions.local(self._topic.name, index)
            if partition is None:
                if ready:
                    sending = asyncio.ensure_future(self._send(index, ready))
                    self._publication.await_sent(sending, [at for positions, _ in ready for at in positions])
                continue
            for positions, data in ready:
                next_offset = self._publication.append(partition, positions, data)
                self._publication.await_commit(partition, next_offset, positions)

    async def _send(self, index: int, batches: Sequence[Batch]) -> PenstockError | None:
        """Have another node write batches, one after the other; what kept it from that, if anything did."""
        for positions, data in batches:
            try:
                appended = await self._ports.partitions.append(
                    self._topic.name, index, data, timeout_ms=COMMIT_TIMEOUT_MS, is_internal=True
                )
            except PenstockError as error:
                return error
            self._publication.note_appended(index, positions, appended)
        return None

    def _batches(self, positions: Sequence[int], sequence: int) -> Iterator[Batch]:
        limit = self._ports.topics.settings_of(self._topic.name).max_message_bytes
        for chunk in chunks(self._messages, positions, limit):
            yield chunk, self._publication.encode(chunk, sequence)
            sequence += len(chunk)


def check_still_open(ports: Ports, joint: JointCoordinator, transaction_id: str, topic: Topic) -> None:
    """Refuse unless transaction and topic are what they were; to be followed by writing without a pause."""
    joint.check_open(transaction_id)
    current = ports.metadata.topics.get(topic.name)
    if current is None or current.topic_id != topic.topic_id:
        raise UnknownTopic(f"Topic {topic.name!r} was deleted in the meantime.")


def _groups(spread: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for position, index in enumerate(spread):
        groups.setdefault(index, []).append(position)
    return groups


def _digest(messages: Sequence[OutgoingMessage]) -> int:
    """A number that other messages have only by chance. It depends on all that was sent, and on nothing else."""
    digest = 0
    for each in messages:
        fields = (each.key, each.value, each.headers, each.partition, each.timestamp_ms)
        digest = crc32c.crc32c(msgspec.msgpack.encode(fields), digest)
    return digest


@dataclass(frozen=True, slots=True)
class Ticket:
    """Into which transaction to publish, and as whom. ``sequence`` counts the writer's messages before this call."""

    transaction: str
    writer: str = DEFAULT_WRITER
    sequence: int | None = None


async def publish_into(
    ports: Ports,
    joint: JointCoordinator,
    ticket: Ticket,
    topic: str,
    messages: Sequence[OutgoingMessage],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[PublishOutcome]:
    """Publish into a joint transaction and tell of each message what became of it.

    A numbered call is published as a whole or raises; then it has to be repeated before the writer goes on.
    """
    check_writable(topic)
    check_writer(ticket.writer)
    begun = perf_counter()
    await joint.loaded()
    joint.check_open(ticket.transaction)  # before a topic is created for nothing
    found = await ensure_topic(ports, topic)
    publication = Publication(ports, found, messages)
    groups = publication.route(partitioner or DEFAULT_PARTITIONER)
    if ticket.sequence is None:
        await _append(ports, joint, ticket, found, publication, groups)
        await publication.wait_committed(timeout_ms)
    else:
        publication.is_repeatable = True
        async with joint.turn(ticket.transaction, ticket.writer):
            call = NumberedCall(ports, joint, ticket.transaction, ticket.writer, found, messages, publication)
            try:
                await call.append(ticket.sequence, groups)
            except PenstockError as error:
                publication.fail(range(len(messages)), error)
                raise
            await publication.wait_committed(timeout_ms)
        try:
            publication.raise_first()
        except ProducerFenced as error:
            raise TransactionEnded(f"Transaction {ticket.transaction!r} ended before all was written.") from error
    ports.stats.produce_latency.observe(perf_counter() - begun)
    return [_told(ticket, outcome) for outcome in publication.close()]


def _told(ticket: Ticket, outcome: PublishOutcome) -> PublishOutcome:
    if isinstance(outcome, ProducerFenced):
        return TransactionEnded(f"Transaction {ticket.transaction!r} ended before the message was written.")
    return outcome


async def _append(
    ports: Ports,
    joint: JointCoordinator,
    ticket: Ticket,
    topic: Topic,
    publication: Publication,
    groups: dict[int, list[int]],
) -> None:
    count = len(topic.partitions)
    for index in [index for index in groups if index >= count]:
        # Now, and whatever partitions there are later: the transaction is not told of these.
        missing = UnknownPartition(f"Topic {topic.name!r} has {count} partitions; there is no partition {index}.")
        publication.fail(groups.pop(index), missing)
    if groups:
        entered = await joint.enter(ticket.transaction, ticket.writer, topic, frozenset(groups))
        publication.producer = ProducerIdentity(entered.writer.producer_id, WRITER_EPOCH)
        check_still_open(ports, joint, ticket.transaction, topic)
        publication.append_all(groups)
