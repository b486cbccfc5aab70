"""Messages into partitions, for the doors that speak of messages and not of batches.

Each call makes one batch a partition, more only where one would exceed the topic's ``max.message.bytes``. The messages
of a batch are kept together or not at all; what goes to different partitions stands or falls on its own, so the outcome
is told message by message. Messages of one call keep their order within a partition: once a batch could not be
written, those behind it are not tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.cluster.metadata import Topic
from penstock.errors import (
    InvalidRecord,
    InvalidRequest,
    PenstockError,
    PolicyViolation,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model import is_internal
from penstock.records import HEADER_BYTES, KeyHash, Partitioner, Record, encode_batch
from penstock.records.batch import Headers

COMMIT_TIMEOUT_MS: Final = 30_000

# The most that lengths, attributes, deltas and the header count of a record can take; and of one header.
_RECORD_OVERHEAD_BYTES: Final = 36
_HEADER_OVERHEAD_BYTES: Final = 10
_UTF8_BYTES_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message on its way in. Without a partition the partitioner chooses, without a timestamp it is now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Published(NamedTuple):
    """Where a message is, now that it is safe."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Outcome = Published | PenstockError


async def publish(
    broker: Broker,
    topic: str,
    messages: Sequence[Message],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[Published]:
    """Publish all of ``messages``, or raise the first thing that went wrong with any of them."""
    published = []
    for outcome in await publish_each(broker, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms):
        if isinstance(outcome, PenstockError):
            raise outcome
        published.append(outcome)
    return published


async def publish_each(
    broker: Broker,
    topic: str,
    messages: Sequence[Message],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[Outcome]:
    """Publish ``messages`` and tell of each what became of it; raises only where the topic itself is the problem.

    Returns once everything is committed, which with ``fsync: every`` means durable. Cancelling gives up the wait, not
    the messages.
    """
    if is_internal(topic):
        raise PolicyViolation(f"{topic!r} holds the broker's own state; only the broker writes to it.")
    begun = perf_counter()
    found = await ensure_topic(broker, topic)
    publication = _Publication(broker, found, messages)
    publication.append_all(partitioner or _DEFAULT)
    await publication.wait_committed(timeout_ms)
    broker.stats.produce_latency.observe(perf_counter() - begun)
    return publication.close()


async def ensure_topic(broker: Broker, name: str) -> Topic:
    """The topic with its partitions open, created if it is not there and the broker's settings allow that."""
    topic = broker.metadata.topics.get(name)
    if topic is None:
        return await broker.ensure_topic(name)
    if not broker.replicas.has(name, len(topic.partitions) - 1):
        await broker.settled()  # it is being created right now, by somebody else's first message
    return topic


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
_DEFAULT: Final = KeyHash()


class _Publication:
    """One call's messages: where each goes, and what became of it."""

    def __init__(self, broker: Broker, topic: Topic, messages: Sequence[Message]) -> None:
        self._broker = broker
        self._topic = topic
        self._messages = messages
        self._now_ms = broker.clock.now_ms()
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._waiting: list[tuple[asyncio.Future[PenstockError | None], list[int]]] = []

    def append_all(self, partitioner: Partitioner) -> None:
        """Write every message that can be written to its partition."""
        groups: dict[int, list[int]] = {}
        count = len(self._topic.partitions)
        for position, message in enumerate(self._messages):
            index = message.partition
            if index is None:
                index = partitioner.partition(message.key, count)
            groups.setdefault(index, []).append(position)
        for index, positions in groups.items():
            self._append_group(index, positions)

    def _append_group(self, index: int, positions: list[int]) -> None:
        try:
            partition = self._broker.partition(self._topic.name, index)
        except (UnknownTopic, UnknownPartition) as error:
            self._fail(positions, error)
            return
        if partition.settings.log.is_compacting:
            positions = self._refuse_keyless(positions)
        left = list(positions)
        next_offset = -1
        for chunk in _chunks(self._messages, positions, partition.settings.max_message_bytes):
            try:
                next_offset = self._append(partition, chunk)
            except InvalidRequest as error:  # these messages are bad; the ones behind them need not be
                self._fail(chunk, error)
            except PenstockError as error:
                self._fail(left, error)
                break
            del left[: len(chunk)]
        if next_offset >= 0:
            self._wait(partition, next_offset, positions)

    def _append(self, partition: Partition, chunk: list[int]) -> int:
        now_ms = self._now_ms
        messages = [self._messages[position] for position in chunk]
        records = [
            Record(
                delta,
                now_ms if message.timestamp_ms is None else message.timestamp_ms,
                message.key,
                message.value,
                message.headers,
            )
            for delta, message in enumerate(messages)
        ]
        batch = memoryview(encode_batch(records))
        begun = perf_counter()
        appended = partition.append(batch, now_ms, is_durable=self._broker.syncs_before_ack)
        self._broker.stats.append_latency.observe(perf_counter() - begun)
        topic, index = partition.id
        for position, record in zip(chunk, records, strict=True):
            timestamp_ms = record.timestamp if appended.append_time_ms < 0 else appended.append_time_ms
            self._outcomes[position] = Published(topic, index, appended.base_offset + record.offset, timestamp_ms)
        return appended.next_offset

    def _refuse_keyless(self, positions: list[int]) -> list[int]:
        keyless = [position for position in positions if self._messages[position].key is None]
        if keyless:
            self._fail(keyless, InvalidRecord(f"{self._topic.name!r} is compacted, so every message needs a key."))
        return [position for position in positions if self._messages[position].key is not None]

    def _wait(self, partition: Partition, offset: int, positions: list[int]) -> None:
        committed: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not committed.done():
                committed.set_result(error)

        partition.when_committed(offset, done)
        self._waiting.append((committed, positions))

    async def wait_committed(self, timeout_ms: int) -> None:
        """Wait until what was written is committed; what is not by then has timed out."""
        pending = [committed for committed, _ in self._waiting if not committed.done()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_ms / 1000)
        for committed, positions in self._waiting:
            error = committed.result() if committed.done() else _timed_out(timeout_ms)
            if error is not None:
                self._fail([at for at in positions if isinstance(self._outcomes[at], Published)], error)

    def _fail(self, positions: Sequence[int], error: PenstockError) -> None:
        for position in positions:
            self._outcomes[position] = error
        if positions and self._topic.name in self._broker.metadata.topics:
            self._broker.stats.topic(self._topic.name).count_error(error.code)

    def close(self) -> list[Outcome]:
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        assert len(outcomes) == len(self._messages), "every message has an outcome"
        return outcomes


def _chunks(messages: Sequence[Message], positions: list[int], batch_bytes_max: int) -> Iterator[list[int]]:
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


def _bytes_at_most(message: Message) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        size += _HEADER_OVERHEAD_BYTES + _UTF8_BYTES_MAX * len(name) + len(value or b"")
    return size


def _timed_out(timeout_ms: int) -> RequestTimedOut:
    return RequestTimedOut(
        f"The message was written but not committed within {timeout_ms} ms. It may still be; publishing it again may "
        "make it appear twice."
    )
