"""The client for programs on asyncio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from penstock.api.limits import DEFAULT_GROUP, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS
from penstock.api.operation import Packed, Request
from penstock.api.queues import ListQueues, QueueSummary
from penstock.client.admin import AsyncGroups, AsyncTopics
from penstock.client.batching import PendingMessage
from penstock.client.consuming import AsyncConsumer, MembershipOptions, Start, read_pages
from penstock.client.login import Login, LoginFile
from penstock.client.messages import Message, Published
from penstock.client.publishing import PartitionCounts, PublishConfig, Publisher
from penstock.client.queue import AsyncQueue
from penstock.client.schedules import AsyncSchedules, DelayedPublisher, delivery_time
from penstock.client.transactions import AsyncTransaction
from penstock.client.transport import Transport
from penstock.client.trust import Trust, TrustedFile
from penstock.client.values import (
    DeliverAt,
    Draft,
    Duration,
    GivenHeaders,
    Key,
    Moment,
    Value,
    header_pairs,
    outgoing,
    outgoing_of,
    seconds_of,
    values_of,
)
from penstock.clock import SystemClock
from penstock.errors import InvalidRequest
from penstock.records import Codec

A = TypeVar("A")
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

BATCH_BYTES: Final = 1_000_000  # a topic takes 1 MiB unless it is set otherwise
BUFFER_BYTES: Final = 32 * 1024 * 1024


class AsyncClient:
    """A client of a Penstock cluster.

    Give the URL of any node, or several: when one does not answer, the next is asked.
    A client belongs to one event loop; any number of tasks may share it.

    Durations, here and everywhere, are seconds or a `timedelta`.

    - ``timeout``: for how long a call is tried before it fails.
    - ``delivery_timeout``: the same for publishing.
    - ``linger``: how long `send` waits for more messages to share a batch. `publish` does not wait.
    - ``batch_bytes``, ``compression``: how batches are made.
    - ``buffer_bytes``: how much may wait to be published; beyond it, publishing waits.
    - ``client_id``: a name to show where groups are described.
    - ``ca``: the file of the authorities to trust at ``https://`` URLs; default: ``PENSTOCK_CA``, or the system's.
    - ``certificate``, ``key``: the files of a certificate to show; ``PENSTOCK_CERTIFICATE`` and ``PENSTOCK_KEY``.
    - ``token``, ``token_file``: an API key or token that says who the client is; the file is read again when it
      changes. Default: ``PENSTOCK_TOKEN_FILE`` or ``PENSTOCK_TOKEN``.
    - ``user``, ``password``: the same with a password.
    - ``tls``: a context that decides all of that, in place of the files.

    ``schedules``, ``topics`` and ``groups`` are those of the cluster: `AsyncSchedules`, `AsyncTopics`, `AsyncGroups`.
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
        ca: TrustedFile | None = None,
        certificate: TrustedFile | None = None,
        key: TrustedFile | None = None,
        token: str | None = None,
        token_file: LoginFile | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        linger_s, delivery_timeout_s = seconds_of(linger, "linger"), seconds_of(delivery_timeout, "delivery_timeout")
        if batch_bytes < 1 or buffer_bytes < 1 or not delivery_timeout_s:
            raise InvalidRequest("batch_bytes, buffer_bytes and delivery_timeout must be above 0.")
        if tls is None and (ca, certificate, key) != (None, None, None):
            tls = Trust.of(ca, certificate, key).context()
        login = Login.of(token, token_file, user, password)
        self._transport = Transport(urls, timeout_s=seconds_of(timeout, "timeout"), tls=tls, login=login)
        self._client_id = client_id
        self._consumers: set[AsyncConsumer] = set()
        config = PublishConfig(linger_s, batch_bytes, buffer_bytes, delivery_timeout_s, _codec(compression))
        self._publisher = Publisher(self._transport, PartitionCounts(self._transport), SystemClock(), config)
        self._delayed = DelayedPublisher(self._transport)
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
        partition and keep their order. However often the client has to send it, it is written once. ``priority``
        (critical, high, normal, low or background) counts if the queue has priorities.

        With ``delay`` (seconds or a `timedelta`) or ``deliver_at`` (a datetime with a time zone, or milliseconds since
        1970) it is safe when this returns, and in its topic at that time. The result is then `Scheduled`, with a
        ``schedule_id`` by which it can be cancelled.
        """
        message = outgoing(value, key, headers, timestamp, priority)
        when = delivery_time(delay, deliver_at)
        if when is not None:
            return await self._delayed.publish(topic, message, partition, when)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        await self._publisher.send(topic, message, partition, PendingMessage(message, future), is_urgent=True)
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
        """Accept one message and return as soon as the buffer has room for it; the future is done when it is safe.

        Messages sent shortly after one another share a batch: sending many is much faster than one by one.
        ``delay`` and ``deliver_at`` are as in `publish`.
        """
        message = outgoing(value, key, headers, timestamp, priority)
        when = delivery_time(delay, deliver_at)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if when is not None:
            await self._delayed.send(topic, message, partition, when, future)
            return future
        await self._publisher.send(topic, message, partition, PendingMessage(message, future), is_urgent=False)
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

        If one is refused this raises; others may have been written. ``priority`` is for those without one of their own;
        queues with priorities are fastest with one priority per call. ``delay`` and ``deliver_at`` apply to all.
        """
        given = list(values)
        when = delivery_time(delay, deliver_at)
        if when is not None:
            return await self._delayed.publish_many(topic, outgoing_of(given, priority), partition, when)
        bare = values_of(given)
        if bare is not None:
            return await self._publisher.send_values(topic, bare, partition, header_pairs(None, priority))
        return await self._publisher.send_many(topic, outgoing_of(given, priority), partition)

    async def flush(self) -> None:
        """Return when everything that was sent before is safe or refused."""
        await self._publisher.flush()
        await self._delayed.flush()

    # -- reading ------------------------------------------------------------------------------------------------------

    def consume(
        self,
        *topics: str,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        auto_commit: bool = True,
        max_messages: int = 500,
        session_timeout: Duration = SESSION_TIMEOUT_MS / 1000,
        instance_id: str | None = None,
    ) -> AsyncConsumer:
        """Read topics as a member of a consumer group: ``async for message in client.consume("orders", group="g")``.

        The group assigns each partition to one member. With ``auto_commit`` a message counts as done when the next one
        is asked for; without it, call `AsyncConsumer.commit`. ``start`` is where to begin in partitions without a
        committed offset. Close the consumer, or use it in ``async with``, to leave the group at once.
        """
        if not topics or any(not isinstance(topic, str) for topic in topics):
            raise InvalidRequest('Name the topics to read, such as consume("orders", "bills", group="billing").')
        session_timeout_s = seconds_of(session_timeout, "session_timeout")
        options = MembershipOptions(
            topics, group, start, auto_commit, session_timeout_s, max_messages, instance_id, self._client_id
        )
        consumer = AsyncConsumer(self._transport, options, self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    async def read(
        self, topic: str, partition: int = 0, start: Start = "earliest", *, follow: bool = False
    ) -> AsyncIterator[Message]:
        """Read one partition without a group, from an offset, an instant, ``earliest`` or ``latest``.

        Ends at the last message of now or, with ``follow``, waits for more for ever.
        """
        async for page in self._read_pages(topic, partition, start, follow=follow):
            for message in page:
                yield message

    def _read_pages(self, topic: str, partition: int, start: Start, *, follow: bool) -> AsyncIterator[list[Message]]:
        return read_pages(self._transport, topic, partition, start, follow=follow)

    def queue(self, topic: str, group: str = DEFAULT_GROUP, *, consumer: str = "") -> AsyncQueue:
        """A topic read as a queue. ``consumer`` names this consumer, for groups with a limit per consumer."""
        return AsyncQueue(self._transport, topic, group, consumer)

    async def queues(self) -> Sequence[QueueSummary]:
        """The topics that are read as queues, and their queue groups."""
        return (await self._transport.call(ListQueues())).queues

    def transaction(self, *, timeout: Duration = TRANSACTION_TIMEOUT_MS / 1000) -> AsyncTransaction:
        """A transaction: ``async with client.transaction() as txn``. Committed at the end, aborted on an exception.

        It is kept open while the block runs; after ``timeout`` it ends if the client has died.
        """
        return AsyncTransaction(self._transport, seconds_of(timeout, "timeout"))

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, replication_factor: int | None = None, **configs: Any
    ) -> None:
        """Create a topic. Names of settings have ``_`` in place of ``.``: ``retention_ms=60_000``."""
        await self.topics.create(topic, partitions=partitions, replication_factor=replication_factor, configs=configs)

    async def call(self, request: Request[A | Packed]) -> A:
        """Perform any operation of `penstock.api`, such as ``DescribeCluster()``, and return its answer."""
        return await self._transport.call(request)

    # -- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave groups, send what is left, and close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for consumer in list(self._consumers):
                await consumer.close()
            await self._publisher.close()
            await self._delayed.close()
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
        raise InvalidRequest(f"Unknown compression {name!r}; use one of {names}.") from None
