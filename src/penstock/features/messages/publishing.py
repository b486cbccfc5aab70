"""Messages into partitions, for the doors that speak of messages and not of batches.

Each call makes one batch a partition, more only where one would exceed the topic's ``max.message.bytes``. The messages
of a batch are kept together or not at all; what goes to different partitions stands or falls on its own, so the outcome
is told message by message. Messages of one call keep their order within a partition: once a batch could not be
written, those behind it are not tried.

A partition that is led here is appended to at once; for any other its leader is asked, wherever that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from penstock.consensus.metadata import Topic
from penstock.errors import (
    InvalidRecord,
    InvalidRequest,
    PenstockError,
    PolicyViolation,
    RequestTimedOut,
)
from penstock.machines.messages import ProducerIdentity
from penstock.machines.ports import Ports
from penstock.model import is_internal
from penstock.partitions.partition import Appended, Partition
from penstock.records import HEADER_BYTES, KeyHash, Partitioner, Record, encode_batch
from penstock.records.batch import Headers

COMMIT_TIMEOUT_MS: Final = 30_000

# The most that lengths, attributes, deltas and the header count of a record can take; and of one header.
_RECORD_OVERHEAD_BYTES: Final = 36
_HEADER_OVERHEAD_BYTES: Final = 10
_UTF8_BYTES_MAX: Final = 4


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way in. Without a partition the partitioner chooses, without a timestamp it is now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    due_ms: int | None = (
        None  # when it is to be in its topic; None is now. `penstock.features.messages.delays` heeds it
    )
    schedule_id: str = ""  # what it is to be called until then, if it is for later


class PublishedAt(NamedTuple):
    """Where a message is, now that it is safe."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


PublishOutcome = PublishedAt | PenstockError


async def publish_each(
    ports: Ports,
    topic: str,
    messages: Sequence[OutgoingMessage],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[PublishOutcome]:
    """Publish ``messages`` and tell of each what became of it; raises only where the topic itself is the problem.

    Returns once everything is committed, which with ``fsync: every`` means durable. Cancelling gives up the wait, not
    the messages.
    """
    check_writable(topic)
    begun = perf_counter()
    found = await ensure_topic(ports, topic)
    publication = Publication(ports, found, messages)
    publication.append_all(publication.route(partitioner or DEFAULT_PARTITIONER))
    await publication.wait_committed(timeout_ms)
    ports.stats.produce_latency.observe(perf_counter() - begun)
    return publication.close()


def check_writable(topic: str) -> None:
    """Refuse what only the broker writes to."""
    if is_internal(topic):
        raise PolicyViolation(f"{topic!r} holds the broker's own state; only the broker writes to it.")


async def ensure_topic(ports: Ports, name: str) -> Topic:
    """The topic with its partitions open, created if it is not there and the broker's settings allow that."""
    topic = ports.metadata.topics.get(name)
    return await (ports.topics.ensure(name) if topic is None else ports.topics.opened(topic))


class Partitioners:
    """The partitioners that a door offers by name, one of each for a topic, so that topics take their turns apart."""

    def __init__(self, kinds: Mapping[str, Callable[[], Partitioner]], default: str) -> None:
        assert default in kinds, "the default partitioner must be one of those on offer"
        self._kinds = kinds
        self._default = default
        self._made: dict[tuple[str, str], Partitioner] = {}

    def get(self, topic: str, name: str | None = None) -> Partitioner:
        """The topic's own partitioner of that kind."""
        at = (topic, name or self._default)
        partitioner = self._made.get(at)
        if partitioner is None:
            kind = self._kinds.get(at[1])
            if kind is None:
                raise InvalidRequest(f"There is no partitioner {name!r}. Choose one of {', '.join(self._kinds)}.")
            if len(self._made) >= _REMEMBERED_MAX:
                self._made.clear()  # all that is lost is whose turn it was
            partitioner = self._made[at] = kind()
        return partitioner


_REMEMBERED_MAX: Final = 10_000
DEFAULT_PARTITIONER: Final = KeyHash()


class Publication:
    """One call's messages: where each goes, and what became of it.

    With a producer they are part of its transaction, which must have been told of the partitions before.
    """

    def __init__(self, ports: Ports, topic: Topic, messages: Sequence[OutgoingMessage]) -> None:
        self._ports = ports
        self._topic = topic
        self._messages = messages
        self.producer: ProducerIdentity | None = None
        self.is_repeatable = False  # publishing it all again would not write it twice
        self._now_ms = ports.clock.now_ms()
        self._outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self._waiting: list[tuple[asyncio.Future[PenstockError | None], Sequence[int]]] = []

    def route(self, partitioner: Partitioner) -> dict[int, list[int]]:
        """The positions of the messages for each partition."""
        groups: dict[int, list[int]] = {}
        count = len(self._topic.partitions)
        for position, message in enumerate(self._messages):
            index = message.partition
            if index is None:
                index = partitioner.partition(message.key, count)
            groups.setdefault(index, []).append(position)
        return groups

    def append_all(self, groups: Mapping[int, list[int]]) -> None:
        """Write every message that can be written to its partition; what is led elsewhere is on its way then."""
        for index, positions in groups.items():
            partition = self._ports.partitions.local(self._topic.name, index)
            if partition is not None:
                self._append_group(partition, positions)
            else:
                self.await_sent(asyncio.ensure_future(self._send_group(index, positions)), positions)

    async def _send_group(self, index: int, positions: list[int]) -> PenstockError | None:
        """Have the leader of a partition append messages, batch by batch; what kept the rest out, if anything did."""
        ports, name = self._ports, self._topic.name
        left = list(positions)
        try:
            ports.metadata.partition(name, index)
            settings = ports.topics.settings_of(name)
            if settings.log.is_compacting:
                left = self._refuse_keyless(left)
            for chunk in chunks(self._messages, tuple(left), settings.max_message_bytes):
                try:
                    appended = await ports.partitions.append(
                        name,
                        index,
                        self.encode(chunk),
                        timeout_ms=COMMIT_TIMEOUT_MS,
                        is_internal=self.producer is not None,
                    )
                except InvalidRequest as error:
                    self.fail(chunk, error)
                else:
                    self.note_appended(index, chunk, appended)
                del left[: len(chunk)]
        except PenstockError as error:
            self.fail(left, error)
        return None

    def _append_group(self, partition: Partition, positions: list[int]) -> None:
        if partition.settings.log.is_compacting:
            positions = self._refuse_keyless(positions)
        left = list(positions)
        next_offset = -1
        for chunk in chunks(self._messages, positions, partition.settings.max_message_bytes):
            try:
                next_offset = self.append(partition, chunk, self.encode(chunk))
            except InvalidRequest as error:  # these messages are bad; the ones behind them need not be
                self.fail(chunk, error)
            except PenstockError as error:
                self.fail(left, error)
                break
            del left[: len(chunk)]
        if next_offset >= 0:
            self.await_commit(partition, next_offset, positions)

    def encode(self, chunk: Sequence[int], base_sequence: int = -1) -> bytearray:
        """The batch of the messages at these positions."""
        records = [
            Record(
                delta,
                self._now_ms if message.timestamp_ms is None else message.timestamp_ms,
                message.key,
                message.value,
                message.headers,
            )
            for delta, message in enumerate(self._messages[position] for position in chunk)
        ]
        producer = self.producer
        if producer is None:
            return encode_batch(records)
        return encode_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=base_sequence,
            is_transactional=True,
        )

    def append(self, partition: Partition, chunk: Sequence[int], batch: bytearray) -> int:
        """Write one batch and note where its messages are; the offset after it."""
        begun = perf_counter()
        partition.check_in_sync()
        appended = partition.append(
            memoryview(batch),
            self._now_ms,
            is_durable=self._ports.syncs_before_ack,
            is_internal=self.producer is not None,
        )
        self._ports.stats.append_latency.observe(perf_counter() - begun)
        self.note_appended(partition.id.partition, chunk, appended)
        return appended.next_offset

    def note_appended(self, index: int, chunk: Sequence[int], appended: Appended) -> None:
        """Messages are in their partition."""
        for delta, position in enumerate(chunk):
            timestamp_ms = self._messages[position].timestamp_ms
            if appended.append_time_ms >= 0:
                timestamp_ms = appended.append_time_ms
            elif timestamp_ms is None:
                timestamp_ms = self._now_ms
            self._outcomes[position] = PublishedAt(self._topic.name, index, appended.base_offset + delta, timestamp_ms)

    def note(self, position: int, published: PublishedAt) -> None:
        """A message is in its partition already."""
        self._outcomes[position] = published

    def _refuse_keyless(self, positions: list[int]) -> list[int]:
        keyless = [position for position in positions if self._messages[position].key is None]
        if keyless:
            self.fail(keyless, InvalidRecord(f"{self._topic.name!r} is compacted, so every message needs a key."))
        return [position for position in positions if self._messages[position].key is not None]

    def await_commit(self, partition: Partition, offset: int, positions: Sequence[int]) -> None:
        """Count these messages as published only once everything before ``offset`` is committed."""
        self._waiting.append((partition.committed(offset), positions))

    def await_sent(self, sending: asyncio.Future[PenstockError | None], positions: Sequence[int]) -> None:
        """Count these messages as published only once another node has them, which ``sending`` tells."""
        self._waiting.append((sending, positions))

    async def wait_committed(self, timeout_ms: int) -> None:
        """Wait until what was written is committed; what is not by then has timed out."""
        pending = [committed for committed, _ in self._waiting if not committed.done()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_ms / 1000)
        for committed, positions in self._waiting:
            error = committed.result() if committed.done() else self._timed_out(timeout_ms)
            if error is not None:
                committed.cancel()  # nothing more is sent
                self.fail([at for at in positions if not isinstance(self._outcomes[at], PenstockError)], error)

    def _timed_out(self, timeout_ms: int) -> RequestTimedOut:
        again = "is safe." if self.is_repeatable else "may make it appear twice."
        return RequestTimedOut(
            f"The message was written but not committed within {timeout_ms} ms. It may still be; publishing it again "
            f"{again}"
        )

    def fail(self, positions: Sequence[int], error: PenstockError) -> None:
        """These messages are not published."""
        for position in positions:
            self._outcomes[position] = error
        if positions and self._topic.name in self._ports.metadata.topics:
            self._ports.stats.topic(self._topic.name).count_error(error.code)

    def raise_first(self) -> None:
        """Raise the first thing that went wrong with any message."""
        for outcome in self._outcomes:
            if isinstance(outcome, PenstockError):
                raise outcome

    def close(self) -> list[PublishOutcome]:
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        assert len(outcomes) == len(self._messages), "every message has an outcome"
        return outcomes


def chunks(messages: Sequence[OutgoingMessage], positions: Sequence[int], batch_bytes_max: int) -> Iterator[list[int]]:
    """Split positions into runs that surely fit a batch; one that may not fit alone is a run for the log to judge."""
    chunk: list[int] = []
    size = HEADER_BYTES
    for position in positions:
        message_bytes = _bytes_at_most(messages[position])
        if chunk and size + message_bytes > batch_bytes_max:
            yield chunk
            chunk, size = [], HEADER_BYTES
        chunk.append(position)
        size += message_bytes
    if chunk:
        yield chunk


def _bytes_at_most(message: OutgoingMessage) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        size += _HEADER_OVERHEAD_BYTES + _UTF8_BYTES_MAX * len(name) + len(value or b"")
    return size
