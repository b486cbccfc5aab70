"""The client for programs without an event loop; any number of threads may share it.

Made from the async client by `./dev sync-client`; not to be edited.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from penstock.api import limits
from penstock.api.dead_letters import RedrivePlan
from penstock.api.groups import GroupDetail, GroupView, ResetResult
from penstock.api.limits import DEFAULT_GROUP, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, StartPoint
from penstock.api.operation import Packed, Request
from penstock.api.queues import QueueSummary
from penstock.api.schedules import MissedName, ScheduleState, ScheduleStats
from penstock.api.topics import TopicDetail, TopicView
from penstock.client.admin import AsyncGroups, AsyncTopics
from penstock.client.blocking import Blocking, BlockingClient
from penstock.client.client import BATCH_BYTES, BUFFER_BYTES, A, AsyncClient, Compression
from penstock.client.consuming import AsyncConsumer, Start
from penstock.client.leases import LeasedMessage, Refused, raise_refused
from penstock.client.login import LoginFile
from penstock.client.messages import Message, Published
from penstock.client.portal import Portal
from penstock.client.queue import AsyncQueue, DeadLetter, QueueCalls, QueueStats, Redrive
from penstock.client.schedules import PAGE_SIZE, AsyncSchedules, Schedule
from penstock.client.transactions import AsyncTransaction
from penstock.client.trust import TrustedFile
from penstock.client.values import DeliverAt, Draft, Duration, GivenHeaders, Key, Moment, Value
from penstock.model import TopicPartition


class QueueMessage(LeasedMessage, eq=False, gc=False):
    """A message of an `AsyncQueue`. Each method raises `LeaseLost` if the lease is over."""

    def ack(self) -> None:
        """Ack the message: it is done and is never delivered again."""
        raise_refused(self._lease.queue.ack((self,)))

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Have the message, which failed, delivered again after ``delay`` seconds, or after the group's backoff."""
        raise_refused(self._lease.queue.nack((self,), delay=delay, reason=reason))

    def reject(self, *, reason: str = "") -> None:
        """Send the message, which can never be processed, to the dead letters at once."""
        raise_refused(self._lease.queue.reject((self,), reason=reason))

    def extend(self, visibility_timeout: Duration | None = None) -> None:
        """Extend the lease to this many seconds from now; default: the group's visibility timeout."""
        raise_refused(self._lease.queue.extend((self,), visibility_timeout))


class Queue(Blocking[QueueCalls[QueueMessage]]):
    """The calls of a queue group. ``make`` is the class of its messages, and ``front`` the object that settles them."""

    def __init__(self, portal: Portal, queue: AsyncQueue) -> None:
        super().__init__(portal, queue._with_messages(QueueMessage, self))
        self.topic = self._async.topic
        self.group = self._async.group
        self.consumer = self._async.consumer

    def receive(
        self,
        max_messages: int = limits.RECEIVE_DEFAULT,
        *,
        wait: Duration = 0.0,
        visibility_timeout: Duration | None = None,
        ack: Iterable[LeasedMessage] = (),
    ) -> list[QueueMessage]:
        """Receive up to ``max_messages`` messages, leased for ``visibility_timeout`` seconds (default: the group's
        setting). If there is none, wait up to ``wait`` seconds for the first.

        ``ack`` acks earlier messages in the same round trip. If it is too late for one of them, this raises `LeaseLost`
        and receives nothing.
        """
        return self._portal.call(
            self._async.receive(max_messages, wait=wait, visibility_timeout=visibility_timeout, ack=ack)
        )

    def ack(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Ack messages: they are done and are never delivered again. Returns those for which it was too late."""
        return self._portal.call(self._async.ack(messages))

    def nack(
        self, messages: Iterable[LeasedMessage], *, delay: Duration | None = None, reason: str = ""
    ) -> list[Refused]:
        """Have failed messages delivered again after ``delay`` seconds, or after the group's backoff.

        Returns those for which it was too late.
        """
        return self._portal.call(self._async.nack(messages, delay=delay, reason=reason))

    def reject(self, messages: Iterable[LeasedMessage], *, reason: str = "") -> list[Refused]:
        """Send messages to the dead letters at once. Returns those for which it was too late."""
        return self._portal.call(self._async.reject(messages, reason=reason))

    def extend(self, messages: Iterable[LeasedMessage], visibility_timeout: Duration | None = None) -> list[Refused]:
        """Extend leases to this many seconds from now. Returns the messages for which it was too late."""
        return self._portal.call(self._async.extend(messages, visibility_timeout))

    def release(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        """Give messages back unprocessed: they are delivered again at once, and this delivery is not counted."""
        return self._portal.call(self._async.release(messages))

    def stats(self) -> QueueStats:
        """How many messages are ready, in flight and waiting for another try."""
        return self._portal.call(self._async.stats())

    def configure(self, **settings: Any) -> QueueStats:
        """Set this group's settings, such as ``tries=5``, and create the group if it does not exist.

        Settings that are not named go back to those of the topic. See docs/reference/topics.md.
        """
        return self._portal.call(self._async.configure(**settings))

    def pause(self, reason: str = "") -> QueueStats:
        """Deliver no messages until `resume`; leased ones can still be settled."""
        return self._portal.call(self._async.pause(reason))

    def resume(self) -> QueueStats:
        """Deliver messages again."""
        return self._portal.call(self._async.resume())

    def seek(self, to: StartPoint = None, *, since: datetime | None = None) -> QueueStats:
        """Continue from an offset, ``earliest``, ``latest`` or an instant. This ends all leases."""
        return self._portal.call(self._async.seek(to, since=since))

    def purge(self) -> QueueStats:
        """Ack everything that is in the topic now, for this group; other readers keep it."""
        return self._portal.call(self._async.purge())

    def delete(self) -> None:
        """Delete this group and its progress."""
        self._portal.call(self._async.delete())

    def dead_letters(self, max_letters: int = 100, *, reason: str | None = None) -> Sequence[DeadLetter]:
        """The first dead letters of this group, all of them or those with one reason."""
        return self._portal.call(self._async.dead_letters(max_letters, reason=reason))

    def redrive(
        self,
        *,
        reason: str | None = None,
        target: str | None = None,
        rate: float | None = None,
        limit: int | None = None,
        wait: Duration = 10.0,
    ) -> Redrive:
        """Send dead letters of this group back to where they came from, or to ``target``, ``rate`` a second.

        The cluster does this in the background; the call waits up to ``wait`` seconds for the end. If its answer is
        lost and the redrive still runs, the repeated call raises `RedriveRunning`; no message is sent back twice.
        """
        return self._portal.call(self._async.redrive(reason=reason, target=target, rate=rate, limit=limit, wait=wait))

    def plan_redrive(
        self, *, reason: str | None = None, target: str | None = None, limit: int | None = None
    ) -> RedrivePlan:
        """What `redrive` would do; nothing is sent."""
        return self._portal.call(self._async.plan_redrive(reason=reason, target=target, limit=limit))


class Consumer(Blocking[AsyncConsumer]):
    """Reads topics as one member of a group; made by `Client.consume`.

    Iterate over it, or ask for a `batch` at a time. With ``auto_commit`` a message counts as done when the next one is
    asked for; without it, when `commit` says so.
    """

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Message:
        # Most messages are here already: only a new page is worth a switch to the other thread.
        found = self._async._take()
        return self._portal.next(self._async) if found is None else found

    def batch(self) -> list[Message]:
        """The next messages, as many as come together; at least one. They count as done when more are asked for."""
        return self._portal.call(self._async.batch())

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that this member reads now."""
        return self._async.assignment

    def commit(self) -> None:
        """Commit everything handed out so far, including the last message.

        Raises an error if partitions have moved to another member since; that member reads their messages again.
        """
        self._portal.call(self._async.commit())

    def close(self) -> None:
        """Commit what is done if ``auto_commit`` is on, and leave the group."""
        self._portal.call(self._async.close())

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transaction(Blocking[AsyncTransaction]):
    """A transaction under way; made by `Client.transaction` and used with ``with``.

    After a failed call it can only be aborted, even if the block catches the error.
    """

    @property
    def id(self) -> str:
        """The transaction's id; other writers can publish into it with this."""
        return self._async.id

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
        """Publish a message that readers see after the commit."""
        return self._portal.call(
            self._async.publish(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp, priority=priority
            )
        )

    def publish_many(
        self, topic: str, values: Iterable[Value | Draft], *, partition: int | None = None, priority: str | None = None
    ) -> list[Published]:
        """Publish many messages, values or `Draft`s, that readers see after the commit."""
        return self._portal.call(self._async.publish_many(topic, values, partition=partition, priority=priority))

    def ack(self, messages: Iterable[LeasedMessage] | LeasedMessage) -> None:
        """Ack queue messages with the commit; if the transaction is aborted they are delivered again.

        Raises `LeaseLost` if one of the leases is over: let it leave the block.
        """
        self._portal.call(self._async.ack(messages))

    def __enter__(self) -> Transaction:
        self._portal.call(self._async.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._portal.call(self._async.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Commit: readers see the messages, and acks count. The end of the block does this by itself."""
        self._portal.call(self._async.commit())

    def abort(self) -> None:
        """Abort: readers never see the messages, and acks are void."""
        self._portal.call(self._async.abort())


class Topics(Blocking[AsyncTopics]):
    """The topics of a cluster; `Client.topics`. Names of settings may have ``_`` in place of ``.``."""

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDetail:
        """Create a topic; `TopicExists` if there is one. What is left out takes the cluster's default."""
        return self._portal.call(
            self._async.create(topic, partitions=partitions, replication_factor=replication_factor, configs=configs)
        )

    def list(self, *, include_internal: bool = False) -> Sequence[TopicView]:
        """All topics by name; the broker's own only with ``include_internal``."""
        return self._portal.call(self._async.list(include_internal=include_internal))

    def describe(self, topic: str) -> TopicDetail:
        """A topic with its partitions and settings; `UnknownTopic` if there is none."""
        return self._portal.call(self._async.describe(topic))

    def configure(self, topic: str, **configs: Any) -> TopicDetail:
        """Change settings, such as ``retention_ms=60_000``; None puts one back to its default."""
        return self._portal.call(self._async.configure(topic, **configs))

    def scale(self, topic: str, partitions: int) -> TopicDetail:
        """Grow a topic to this many partitions in all. New messages of a key may go to another partition."""
        return self._portal.call(self._async.scale(topic, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic and its messages."""
        self._portal.call(self._async.delete(topic))


class Groups(Blocking[AsyncGroups]):
    """The consumer groups of a cluster; `Client.groups`."""

    def list(self) -> Sequence[GroupView]:
        """All groups by name, of every kind."""
        return self._portal.call(self._async.list())

    def describe(self, group: str) -> GroupDetail:
        """A group with its members, offsets and lag; `GroupNotFound` if there is none."""
        return self._portal.call(self._async.describe(group))

    def reset(
        self,
        group: str,
        topic: str,
        *,
        to: StartPoint = None,
        since: datetime | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        create: bool = False,
    ) -> ResetResult:
        """Move the offsets of a group without members: ``to`` an offset, ``earliest`` or ``latest``, to the first
        message ``since`` an instant, or by ``shift`` messages. `GroupNotFound` if there is no such group, unless
        ``create`` is set.
        """
        return self._portal.call(
            self._async.reset(
                group, topic, to=to, since=since, shift=shift, partitions=partitions, dry_run=dry_run, create=create
            )
        )

    def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        self._portal.call(self._async.delete(group))


class Schedules(Blocking[AsyncSchedules]):
    """The schedules of a cluster; `Client.schedules`."""

    def add(
        self,
        topic: str,
        value: Value,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: MissedName = "once",
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        priority: str | None = None,
        id: str = "",
    ) -> Schedule:
        """Schedule a message and return when it is safe.

        It comes once, ``at`` a time (a datetime with a time zone, or milliseconds since 1970) or after ``delay``; or
        repeatedly, ``every`` so often or by ``cron`` in a ``time_zone``. ``missed`` says what to do about times that
        passed while no node led. With an ``id`` of your own it is added once, however often you call this, until it
        has come; `ScheduleExists` if the id belongs to another schedule.
        """
        return self._portal.call(
            self._async.add(
                topic,
                value,
                at=at,
                delay=delay,
                every=every,
                cron=cron,
                time_zone=time_zone,
                missed=missed,
                key=key,
                headers=headers,
                partition=partition,
                priority=priority,
                id=id,
            )
        )

    def list(
        self, *, topic: str | None = None, state: ScheduleState | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[Schedule]:
        """All schedules, or those of a topic or a state; fetched page by page."""
        return self._portal.each(self._async._list_pages(topic=topic, state=state, page_size=page_size))

    def show(self, schedule_id: str) -> Schedule:
        """One schedule; `ScheduleNotFound` if there is none, because it has come already or never existed."""
        return self._portal.call(self._async.show(schedule_id))

    def cancel(self, schedule_id: str) -> None:
        """Cancel a schedule; `ScheduleNotFound`, or `ScheduleBeingFired` if it is too late."""
        self._portal.call(self._async.cancel(schedule_id))

    def reschedule(
        self,
        schedule_id: str,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
    ) -> Schedule:
        """Change when a schedule comes."""
        return self._portal.call(
            self._async.reschedule(schedule_id, at=at, delay=delay, every=every, cron=cron, time_zone=time_zone)
        )

    def run(self, schedule_id: str) -> Schedule:
        """Deliver a schedule's message now; one that repeats goes on as planned."""
        return self._portal.call(self._async.run(schedule_id))

    def stats(self) -> ScheduleStats:
        """How many schedules are pending, fired, failed and cancelled, and how late they fired."""
        return self._portal.call(self._async.stats())


class Client(BlockingClient):
    """A client of a Penstock cluster.

    Give the URL of any node, or several: when one does not answer, the next is asked.
    Any number of threads may share it.

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

    ``schedules``, ``topics`` and ``groups`` are those of the cluster: `Schedules`, `Topics`, `Groups`.
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
        super().__init__(
            AsyncClient(
                *urls,
                timeout=timeout,
                delivery_timeout=delivery_timeout,
                linger=linger,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                compression=compression,
                client_id=client_id,
                ca=ca,
                certificate=certificate,
                key=key,
                token=token,
                token_file=token_file,
                user=user,
                password=password,
                tls=tls,
            )
        )
        self.schedules = Schedules(self._portal, self._async.schedules)
        self.topics = Topics(self._portal, self._async.topics)
        self.groups = Groups(self._portal, self._async.groups)

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
        """Publish one message and return when it is safe.

        The value is bytes, text, None (a tombstone) or anything that JSON can hold. Messages of one key go to one
        partition and keep their order. However often the client has to send it, it is written once. ``priority``
        (critical, high, normal, low or background) counts if the queue has priorities.

        With ``delay`` (seconds or a `timedelta`) or ``deliver_at`` (a datetime with a time zone, or milliseconds since
        1970) it is safe when this returns, and in its topic at that time. The result is then `Scheduled`, with a
        ``schedule_id`` by which it can be cancelled.
        """
        return self._portal.call(
            self._async.publish(
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
        """Publish many messages, values or `Draft`s, and return when all are safe, in their order.

        If one is refused this raises; others may have been written. ``priority`` is for those without one of their own;
        queues with priorities are fastest with one priority per call. ``delay`` and ``deliver_at`` apply to all.
        """
        return self._portal.call(
            self._async.publish_many(
                topic, values, partition=partition, priority=priority, delay=delay, deliver_at=deliver_at
            )
        )

    def consume(
        self,
        *topics: str,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        auto_commit: bool = True,
        max_messages: int = 500,
        session_timeout: Duration = SESSION_TIMEOUT_MS / 1000,
        instance_id: str | None = None,
    ) -> Consumer:
        """Read topics as a member of a consumer group: ``for message in client.consume("orders", group="g")``.

        The group assigns each partition to one member. With ``auto_commit`` a message counts as done when the next one
        is asked for; without it, call `Consumer.commit`. ``start`` is where to begin in partitions without a
        committed offset. Close the consumer, or use it in ``with``, to leave the group at once.
        """
        return Consumer(
            self._portal,
            self._async.consume(
                *topics,
                group=group,
                start=start,
                auto_commit=auto_commit,
                max_messages=max_messages,
                session_timeout=session_timeout,
                instance_id=instance_id,
            ),
        )

    def read(
        self, topic: str, partition: int = 0, start: Start = "earliest", *, follow: bool = False
    ) -> Iterator[Message]:
        """Read one partition without a group, from an offset, an instant, ``earliest`` or ``latest``.

        Ends at the last message of now or, with ``follow``, waits for more for ever.
        """
        return self._portal.each(self._async._read_pages(topic, partition, start, follow=follow))

    def queue(self, topic: str, group: str = DEFAULT_GROUP, *, consumer: str = "") -> Queue:
        """A topic read as a queue. ``consumer`` names this consumer, for groups with a limit per consumer."""
        return Queue(self._portal, self._async.queue(topic, group, consumer=consumer))

    def queues(self) -> Sequence[QueueSummary]:
        """The topics that are read as queues, and their queue groups."""
        return self._portal.call(self._async.queues())

    def transaction(self, *, timeout: Duration = TRANSACTION_TIMEOUT_MS / 1000) -> Transaction:
        """A transaction: ``with client.transaction() as txn``. Committed at the end, aborted on an exception.

        It is kept open while the block runs; after ``timeout`` it ends if the client has died.
        """
        return Transaction(self._portal, self._async.transaction(timeout=timeout))

    def create_topic(
        self, topic: str, *, partitions: int | None = None, replication_factor: int | None = None, **configs: Any
    ) -> None:
        """Create a topic. Names of settings have ``_`` in place of ``.``: ``retention_ms=60_000``."""
        self._portal.call(
            self._async.create_topic(topic, partitions=partitions, replication_factor=replication_factor, **configs)
        )

    def call(self, request: Request[A | Packed]) -> A:
        """Perform any operation of `penstock.api`, such as ``DescribeCluster()``, and return its answer."""
        return self._portal.call(self._async.call(request))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
