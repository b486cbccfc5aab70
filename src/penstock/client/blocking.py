"""The client for programs without an event loop: the asyncio one behind a thread, usable from any number of threads."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from penstock.client.admin import Groups, Topics
from penstock.client.client import BATCH_BYTES, BUFFER_BYTES, AsyncClient, Compression
from penstock.client.consuming import AsyncConsumer
from penstock.client.dead_letters import DeadLetter, QueueStats, Redrive, RedrivePlan
from penstock.client.drafts import Draft
from penstock.client.later import DeliverAt, when_of
from penstock.client.leases import LeasedMessage, QueueMessage, Refused
from penstock.client.messages import Message, Published
from penstock.client.operations import QueueSummary
from penstock.client.parcels import Outgoing, SingleParcel
from penstock.client.portal import Portal
from penstock.client.queue import DEFAULT_GROUP, QueueCalls
from penstock.client.reading import Start, read_pages
from penstock.client.schedules import Schedules
from penstock.client.transactions import AsyncTransaction
from penstock.client.values import (
    Duration,
    GivenHeaders,
    Key,
    Moment,
    Value,
    header_pairs,
    key_bytes,
    moment_ms,
    value_bytes,
)
from penstock.errors import ClientClosed, PenstockError
from penstock.model import TopicPartition

_INBOX_MAX: Final = 10_000  # messages on their way from other threads into the loop

T = TypeVar("T")


class Client:
    """A client of a Penstock cluster, for programs without an event loop. Any number of threads may share it.

    Takes what `AsyncClient` takes, and does the same; calls block until they are done.
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
        self._client = AsyncClient(
            *urls,
            timeout=timeout,
            delivery_timeout=delivery_timeout,
            linger=linger,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            compression=compression,
            client_id=client_id,
            tls=tls,
        )
        self._portal = Portal()
        self._inbox = _Inbox(self._client, self._portal)
        self.schedules = Schedules(self._portal, self._client.schedules)
        self.topics = Topics(self._portal, self._client.topics)
        self.groups = Groups(self._portal, self._client.groups)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(
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
        """Publish one message and return when it is safe; see `AsyncClient.publish`."""
        return self._portal.call(
            self._client.publish(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                priority=priority,
                delay=delay,
                deliver_at=deliver_at,
            )
        )

    def send(
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
    ) -> Future[Published]:
        """Hand over one message and return as soon as there is room for it; the future tells when it is safe."""
        message = Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers, priority), moment_ms(timestamp))
        when = when_of(delay, deliver_at)
        if when is not None:
            future: Future[Published] = Future()
            self._portal.call(self._client._later.send(topic, message, partition, when, future))
            return future
        return self._inbox.put(topic, message, partition)

    def publish_many(
        self,
        topic: str,
        values: Iterable[Value | Draft],
        *,
        partition: int | None = None,
        priority: str | None = None,
        delay: Duration | None = None,
        deliver_at: DeliverAt = None,
    ) -> Sequence[Published]:
        """Publish many messages and return when all are safe; see `AsyncClient.publish_many`."""
        return self._portal.call(
            self._client.publish_many(
                topic, values, partition=partition, priority=priority, delay=delay, deliver_at=deliver_at
            )
        )

    def flush(self) -> None:
        """Return when everything that was sent before, by any thread, is safe or refused."""
        self._portal.call(self._inbox.empty())
        self._portal.call(self._client.flush())

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
    ) -> Consumer:
        """Read topics as a member of a consumer group; see `AsyncClient.consume`."""
        consumer = self._client.consume(
            *topics,
            group=group,
            start=start,
            auto_commit=auto_commit,
            max_messages=max_messages,
            session_timeout=session_timeout,
            instance_id=instance_id,
        )
        return Consumer(self._portal, consumer)

    def read(
        self, topic: str, partition: int = 0, start: Start = "earliest", *, follow: bool = False
    ) -> Iterator[Message]:
        """Read one partition without a group; see `AsyncClient.read`."""
        pages = read_pages(self._client._transport, topic, partition, start, follow=follow)
        while (page := self._portal.call(_next_page(pages))) is not None:
            yield from page

    def queue(self, topic: str, group: str = DEFAULT_GROUP, *, consumer: str = "") -> Queue:
        """A topic read as a queue; see `AsyncClient.queue`."""
        return Queue(self._portal, self._client, topic, group, consumer)

    def queues(self) -> Sequence[QueueSummary]:
        """The topics that are read as queues, and by which groups."""
        return self._portal.call(self._client.queues())

    def transaction(self, *, timeout: Duration = 60.0) -> Transaction:
        """A transaction: ``with client.transaction() as txn``; see `AsyncClient.transaction`."""
        return Transaction(self._portal, self._client.transaction(timeout=timeout))

    def create_topic(
        self, topic: str, *, partitions: int | None = None, replication_factor: int | None = None, **configs: Any
    ) -> None:
        """Create a topic; see `AsyncClient.create_topic`."""
        self._portal.call(
            self._client.create_topic(topic, partitions=partitions, replication_factor=replication_factor, **configs)
        )

    def close(self) -> None:
        """Leave groups, send what is left, and close all connections."""
        if not self._portal.is_running:
            return
        try:
            self._portal.call(self._inbox.empty())
            self._portal.call(self._client.close())
        finally:
            self._portal.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._client).replace("AsyncClient", "Client")


class Queue:
    """A topic read as a queue by one group; made by `Client.queue`. See `AsyncQueue` for what each verb does."""

    def __init__(self, portal: Portal, client: AsyncClient, topic: str, group: str, consumer: str) -> None:
        self._portal = portal
        self._calls = QueueCalls(client._transport, topic, group, QueueMessage, consumer=consumer, front=self)
        self.topic = topic
        self.group = group

    def receive(
        self,
        max_messages: int = 10,
        *,
        wait: Duration = 0.0,
        visibility_timeout: Duration | None = None,
        ack: Iterable[LeasedMessage] = (),
    ) -> list[QueueMessage]:
        """Up to ``max_messages`` messages; waits for the first up to ``wait`` seconds. ``ack`` acks earlier ones."""
        return self._portal.call(
            self._calls.receive(max_messages, wait=wait, visibility_timeout=visibility_timeout, ack=ack)
        )

    def ack(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """These are done and never come back. Returns those for which it was too late."""
        return self._portal.call(self._calls.ack(messages))

    def nack(
        self, messages: Iterable[LeasedMessage], *, delay: Duration | None = None, reason: str = ""
    ) -> list[Refused]:
        """These failed: deliver them again after ``delay`` seconds, or after the group's backoff."""
        return self._portal.call(self._calls.nack(messages, delay=delay, reason=reason))

    def reject(self, messages: Iterable[LeasedMessage], *, reason: str = "") -> list[Refused]:
        """These cannot be done: to the dead letters at once."""
        return self._portal.call(self._calls.reject(messages, reason=reason))

    def extend(self, messages: Iterable[LeasedMessage], visibility_timeout: Duration | None = None) -> list[Refused]:
        """Hold these for so many seconds from now on."""
        return self._portal.call(self._calls.extend(messages, visibility_timeout))

    def release(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Give these back unseen: they are delivered again at once, and this delivery does not count as a try."""
        return self._portal.call(self._calls.release(messages))

    def stats(self) -> QueueStats:
        """How many messages are ready, in flight and waiting for another try."""
        return self._portal.call(self._calls.stats())

    def configure(self, **settings: Any) -> QueueStats:
        """Set how this group works; see `AsyncQueue.configure`."""
        return self._portal.call(self._calls.configure(**settings))

    def pause(self, reason: str = "") -> QueueStats:
        """Hand out no messages until `resume`; those that are leased may still be settled."""
        return self._portal.call(self._calls.pause(reason))

    def resume(self) -> QueueStats:
        """Hand out messages again."""
        return self._portal.call(self._calls.resume())

    def seek(self, to: int | str | None = None, *, since: datetime | None = None) -> QueueStats:
        """Read on from an offset, from ``earliest`` or ``latest``, or from an instant on; leases are over then."""
        return self._portal.call(self._calls.seek(to, since=since))

    def purge(self) -> QueueStats:
        """Have everything that is there now count as done by this group; other readers keep it."""
        return self._portal.call(self._calls.purge())

    def delete(self) -> None:
        """Forget this group, and what it has done."""
        self._portal.call(self._calls.delete())

    def dead_letters(self, max_letters: int = 100, *, reason: str | None = None) -> Sequence[DeadLetter]:
        """The first messages of this group that could not be processed."""
        return self._portal.call(self._calls.dead_letters(max_letters, reason=reason))

    def redrive(
        self,
        *,
        reason: str | None = None,
        target: str | None = None,
        rate: float | None = None,
        limit: int | None = None,
        wait: Duration = 10.0,
    ) -> Redrive:
        """Send dead letters of this group back; see `AsyncQueue.redrive`."""
        return self._portal.call(self._calls.redrive(reason=reason, target=target, rate=rate, limit=limit, wait=wait))

    def plan_redrive(
        self, *, reason: str | None = None, target: str | None = None, limit: int | None = None
    ) -> RedrivePlan:
        """What `redrive` would do; nothing is sent."""
        return self._portal.call(self._calls.plan_redrive(reason=reason, target=target, limit=limit))

    def __repr__(self) -> str:
        return f"<Queue {self.topic} of group {self.group}>"


class Consumer:
    """Reads topics as one member of a group; made by `Client.consume`. Heartbeats never wait for its user."""

    def __init__(self, portal: Portal, consumer: AsyncConsumer) -> None:
        self._portal = portal
        self._consumer = consumer

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Message:
        # Most messages are there already: only a new page is worth the way to the other thread.
        message = self._consumer.take() or self._portal.call(_next_message(self._consumer))
        if message is None:
            raise StopIteration
        return message

    def batch(self) -> list[Message]:
        """The next messages, as many as come together; at least one."""
        return self._portal.call(self._consumer.batch())

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that this member reads now."""
        return self._consumer.assignment

    def commit(self) -> None:
        """Say that everything handed out so far is done, the message last got included."""
        self._portal.call(self._consumer.commit())

    def close(self) -> None:
        """Commit what is done, if that is automatic, and leave the group."""
        self._portal.call(self._consumer.close())

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transaction:
    """A transaction under way; made by `Client.transaction` and used with ``with``. See `AsyncTransaction`."""

    def __init__(self, portal: Portal, transaction: AsyncTransaction) -> None:
        self._portal = portal
        self._transaction = transaction

    @property
    def id(self) -> str:
        """The transaction's name; other writers may publish into it by this."""
        return self._transaction.id

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: Moment = None,
        priority: str | None = None,
    ) -> Published:
        """Publish a message that nobody sees before the commit."""
        return self._portal.call(
            self._transaction.publish(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp, priority=priority
            )
        )

    def publish_many(
        self,
        topic: str,
        values: Iterable[Value | Draft],
        *,
        partition: int | None = None,
        priority: str | None = None,
    ) -> list[Published]:
        """Publish many messages that nobody sees before the commit."""
        return self._portal.call(self._transaction.publish_many(topic, values, partition=partition, priority=priority))

    def ack(self, messages: Iterable[LeasedMessage] | LeasedMessage) -> None:
        """Ack queue messages with the commit; if the transaction is aborted they are delivered again."""
        self._portal.call(self._transaction.ack(messages))

    def commit(self) -> None:
        """End it: everybody sees what was published. At the end of the block this happens by itself."""
        self._portal.call(self._transaction.commit())

    def abort(self) -> None:
        """End it: nobody will see what was published."""
        self._portal.call(self._transaction.abort())

    def __enter__(self) -> Transaction:
        self._portal.call(self._transaction.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._portal.call(self._transaction.__aexit__(kind, error, trace))


class _Inbox:
    """Messages on their way from other threads to the publisher. The loop is woken once for many of them."""

    def __init__(self, client: AsyncClient, portal: Portal) -> None:
        self._client = client
        self._portal = portal
        self._waiting: deque[tuple[str, Outgoing, int | None, Future[Published]]] = deque()
        self._changed = threading.Condition()
        self._is_draining = False

    def put(self, topic: str, message: Outgoing, partition: int | None) -> Future[Published]:
        future: Future[Published] = Future()
        with self._changed:
            while len(self._waiting) >= _INBOX_MAX and self._portal.is_running:
                self._changed.wait(1.0)
            if not self._portal.is_running:
                raise ClientClosed()
            self._waiting.append((topic, message, partition, future))
            if self._is_draining:
                return future
            self._is_draining = True
        self._portal.submit(self._drain())
        return future

    async def _drain(self) -> None:
        """Hand over in order; the publisher's own bound holds this back, and this holds back who sends."""
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_draining = False
                    self._changed.notify_all()
                    return
                topic, message, partition, future = self._waiting.popleft()
                if len(self._waiting) == _INBOX_MAX // 2:
                    self._changed.notify_all()
            parcel = SingleParcel(message, future)
            try:
                await self._client._publisher.send(topic, message, partition, parcel, is_urgent=False)
            except PenstockError as error:
                parcel.fail(error)

    async def empty(self) -> None:
        """Return when everything was handed over."""
        while self._waiting or self._is_draining:  # noqa: ASYNC110  # what changes this are other threads
            await asyncio.sleep(0.001)


async def _next_message(consumer: AsyncConsumer) -> Message | None:
    try:
        return await consumer.__anext__()
    except StopAsyncIteration:
        return None


async def _next_page(pages: AsyncIterator[list[Message]]) -> list[Message] | None:
    return await anext(pages, None)
