"""The client for programs on asyncio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Literal

from penstock.client.admin import AsyncGroups, AsyncTopics
from penstock.client.consuming import AsyncConsumer, Membership
from penstock.client.drafts import Draft, outgoing_of, values_of
from penstock.client.later import DeliverAt, Later, when_of
from penstock.client.messages import Message, Published
from penstock.client.operations import LIST_QUEUES, QueueSummary, perform
from penstock.client.parcels import Outgoing, SingleParcel
from penstock.client.publishing import PublishConfig, Publisher
from penstock.client.queue import DEFAULT_GROUP, AsyncQueue
from penstock.client.reading import Start, read_pages
from penstock.client.schedules import AsyncSchedules
from penstock.client.topics import PartitionCounts
from penstock.client.transactions import AsyncTransaction
from penstock.client.transport import Transport
from penstock.client.values import (
    Duration,
    GivenHeaders,
    Key,
    Moment,
    Value,
    header_pairs,
    key_bytes,
    moment_ms,
    seconds_of,
    value_bytes,
)
from penstock.clock import SystemClock
from penstock.errors import InvalidRequest
from penstock.records import Codec

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

BATCH_BYTES: Final = 1_000_000  # a topic takes 1 MiB unless it is set otherwise
BUFFER_BYTES: Final = 32 * 1024 * 1024


class AsyncClient:
    """A client of a Penstock cluster.

    Give the URL of any node, or several: when one does not answer, the next is asked. A client belongs to the event
    loop it is used in; it may be used by any number of tasks.

    Durations, here and everywhere, are seconds or a `timedelta`.

    - ``timeout``: for how long a call is tried before it fails.
    - ``delivery_timeout``: the same for publishing.
    - ``linger``: for how long `send` lets messages gather. `publish` never waits for company.
    - ``batch_bytes``, ``compression``: how messages are packed.
    - ``buffer_bytes``: how much may wait to be published; whoever publishes more than that waits.
    - ``client_id``: a name to be shown where groups are described.
    - ``tls``: whom to trust at ``https://`` URLs; default: whom the system trusts.

    ``schedules`` are the messages for later, once or again and again: see `AsyncSchedules`. ``topics`` and ``groups``
    are what there is of these: see `AsyncTopics` and `AsyncGroups`.
    """

    def __init__(
        self,
        *urls: str,
        timeout: Duration = 30.0,
        delivery_timeout: Duration = 60.0,
        linger: Duration = 0.003,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        compression: Compression = "none",
        client_id: str = "penstock-python",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        linger_s, delivery_timeout_s = seconds_of(linger, "linger"), seconds_of(delivery_timeout, "delivery_timeout")
        if batch_bytes < 1 or buffer_bytes < 1 or not delivery_timeout_s:
            raise InvalidRequest("batch_bytes, buffer_bytes and delivery_timeout are above 0.")
        self._transport = Transport(urls, timeout_s=seconds_of(timeout, "timeout"), tls=tls)
        self._client_id = client_id
        self._consumers: set[AsyncConsumer] = set()
        config = PublishConfig(linger_s, batch_bytes, buffer_bytes, delivery_timeout_s, _codec(compression))
        self._publisher = Publisher(self._transport, PartitionCounts(self._transport), SystemClock(), config)
        self._later = Later(self._transport)
        self.schedules = AsyncSchedules(self._transport)
        self.topics = AsyncTopics(self._transport)
        self.groups = AsyncGroups(self._transport)
        self._is_closed = False

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: Moment = None,
        priority: str | None = None,
        delay: Duration | None = None,
        deliver_at: DeliverAt = None,
    ) -> Published:
        """Publish one message and return when it is safe.

        The value is bytes, text, None (a tombstone) or anything that JSON can hold. Messages of one key go to one
        partition and keep their order. Repeated after a failure it is still written once. ``priority`` (critical, high,
        normal, low or background) counts where a queue has lanes.

        With ``delay`` (seconds or a `timedelta`) or ``deliver_at`` (a datetime with a time zone, or milliseconds since
        1970) it is safe at once and in its topic then, and what is returned is `Scheduled`, with a ``schedule_id`` to
        cancel it by.
        """
        message = Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers, priority), moment_ms(timestamp))
        when = when_of(delay, deliver_at)
        if when is not None:
            return await self._later.publish(topic, message, partition, when)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        await self._publisher.send(topic, message, partition, SingleParcel(message, future), is_urgent=True)
        return await future

    async def send(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: Moment = None,
        priority: str | None = None,
        delay: Duration | None = None,
        deliver_at: DeliverAt = None,
    ) -> asyncio.Future[Published]:
        """Hand over one message and return as soon as there is room for it; the future tells when it is safe.

        Messages sent shortly after one another travel together: many at once are much faster than one by one.
        ``delay`` and ``deliver_at`` are as in `publish`.
        """
        message = Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers, priority), moment_ms(timestamp))
        when = when_of(delay, deliver_at)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if when is not None:
            await self._later.send(topic, message, partition, when, future)
            return future
        await self._publisher.send(topic, message, partition, SingleParcel(message, future), is_urgent=False)
        return future

    async def publish_many(
        self,
        topic: str,
        values: Iterable[Value | Draft],
        *,
        partition: int | None = None,
        priority: str | None = None,
        delay: Duration | None = None,
        deliver_at: DeliverAt = None,
    ) -> Sequence[Published]:
        """Publish many messages, values or `Draft`s, and return when all are safe, in their order.

        If one is refused this raises; others may have been written. ``priority`` is for those that have none of their
        own; messages of one priority in one call are the quickest for queues with lanes. ``delay`` and
        ``deliver_at`` are for all.
        """
        given = list(values)
        when = when_of(delay, deliver_at)
        if when is not None:
            return await self._later.publish_many(topic, outgoing_of(given, priority), partition, when)
        bare = values_of(given)
        if bare is not None:
            return await self._publisher.send_values(topic, bare, partition, header_pairs(None, priority))
        return await self._publisher.send_many(topic, outgoing_of(given, priority), partition)

    async def flush(self) -> None:
        """Return when everything that was sent before is safe or refused."""
        await self._publisher.flush()
        await self._later.flush()

    # -- reading ------------------------------------------------------------------------------------------------------

    def consume(
        self,
        *topics: str,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        auto_commit: bool = True,
        max_messages: int = 500,
        session_timeout: Duration = 30.0,
        instance_id: str | None = None,
    ) -> AsyncConsumer:
        """Read topics as a member of a consumer group: ``async for message in client.consume("orders", group="g")``.

        The group shares out partitions among its members. With ``auto_commit`` a message counts as done when the next
        one is asked for; without it, call `AsyncConsumer.commit`. ``start`` is where to begin in partitions of which
        the group has committed nothing. Close the consumer, or use it in ``async with``, to leave the group at once.
        """
        if not topics or any(not isinstance(topic, str) for topic in topics):
            raise InvalidRequest('Name the topics to read, such as consume("orders", "bills", group="billing").')
        session_timeout_s = seconds_of(session_timeout, "session_timeout")
        wish = Membership(
            topics, group, start, auto_commit, session_timeout_s, max_messages, instance_id, self._client_id
        )
        consumer = AsyncConsumer(self._transport, wish, self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    async def read(
        self, topic: str, partition: int = 0, start: Start = "earliest", *, follow: bool = False
    ) -> AsyncIterator[Message]:
        """Read one partition without a group, from an offset, an instant, ``earliest`` or ``latest``.

        Ends with the last message there is, or with ``follow`` waits for more, for ever.
        """
        async for page in read_pages(self._transport, topic, partition, start, follow=follow):
            for message in page:
                yield message

    def queue(self, topic: str, group: str = DEFAULT_GROUP, *, consumer: str = "") -> AsyncQueue:
        """A topic read as a queue. ``consumer`` names who receives, where a limit for each consumer should count."""
        return AsyncQueue(self._transport, topic, group, consumer)

    async def queues(self) -> Sequence[QueueSummary]:
        """The topics that are read as queues, and by which groups."""
        return (await perform(self._transport, LIST_QUEUES)).queues

    def transaction(self, *, timeout: Duration = 60.0) -> AsyncTransaction:
        """A transaction: ``async with client.transaction() as txn``. Committed at the end, aborted on an exception.

        It is kept open while the block runs; ``timeout`` is how long it outlives a client that has died.
        """
        return AsyncTransaction(self._transport, seconds_of(timeout, "timeout"))

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, replication_factor: int | None = None, **configs: Any
    ) -> None:
        """Create a topic. Settings have ``_`` in the place of ``.``: ``retention_ms=60_000``."""
        await self.topics.create(topic, partitions=partitions, replication_factor=replication_factor, configs=configs)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave groups, send what is left, and close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for consumer in list(self._consumers):
                await consumer.close()
            await self._publisher.close()
            await self._later.close()
        finally:
            self._publisher.abandon()
            self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._transport.urls)}>"


def _codec(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequest(f"Compression {name!r} is not known; use one of {names}.") from None
