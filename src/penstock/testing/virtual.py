"""A broker on virtual time, with a disk that forgets what was not synced. The same seed is the same history.

It is the real broker on a simulated clock and a simulated disk, alone on its node and without doors: you call it, and
it has done what you asked for when the call returns. Time passes only where something has to be waited for, and when
you let it: `VirtualBroker.advance` ends leases and brings retries and schedules at once, however far away they are. A
crash keeps a part of what was not synced, as a real one may, and the seed says which.
"""

from __future__ import annotations

import asyncio
import os
import random
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import Surroundings
from penstock.config.settings import (
    ClusterSettings,
    GroupSettings,
    ScheduleSettings,
    TopicDefaults,
    TransactionSettings,
)
from penstock.consensus.controller import TopicSpec
from penstock.errors import PenstockError
from penstock.features.messages.publishing import OutgoingMessage, PublishedAt, publish_each
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import LeasedRecord, SettledReceipt
from penstock.features.queues.wire import GroupStats
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage
from penstock.network.tcp import TcpPeers
from penstock.records.batch import Headers
from penstock.testing.clock import SimulatedClock
from penstock.testing.disk import SimulatedCommit, SimulatedDisk
from penstock.testing.loop import Life, SimulatedLoop
from penstock.testing.reading import StoredMessage, read_committed

__all__ = ["BrokerDown", "StoredMessage", "VirtualBroker"]

ResultT = TypeVar("ResultT")
Text = str | bytes
_NODE: Final = 1
_DATA: Final = Path("/penstock")
_GROUP: Final = "default"
# What follows from the end of a lease takes a few syncs: so long is time allowed to pass as it does, each time.
_AFTERMATH_S: Final = 0.1
_FOREVER_MS: Final = 100 * 365 * 24 * 3_600_000


class BrokerDown(RuntimeError):
    """The broker has crashed. Call `VirtualBroker.restart` first."""


class VirtualBroker:
    """One broker through all its lives. Use it as a context manager, or call `close` at the end.

    Topics are created when they are first published to, with one partition. It may be used in the middle of other
    event loops, as in asynchronous tests: its calls are plain ones and take no real time.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.lives = 0
        self._random = random.Random(f"virtual broker {seed}")
        self._entropy = random.Random(f"entropy {seed}")
        self._loop = SimulatedLoop(random.Random(f"loop {seed}"))
        self._disk = SimulatedDisk(self._random)
        self._clock = SimulatedClock(self._loop)
        self._life = Life("before its first life")
        self._broker: Broker | None = None
        self._is_closed = False
        self.restart()

    def __repr__(self) -> str:
        state = "down" if self._broker is None else f"in life {self.lives}"
        return f"<VirtualBroker of seed {self.seed}, {state}, {self.now:%Y-%m-%d %H:%M:%S}>"

    def __enter__(self) -> VirtualBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- lives --------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Start it with what is on the disk; if it still runs, it stops in good order first."""
        if self._broker is not None:
            self.stop()
        self.lives += 1
        self._life = Life(f"life {self.lives}")
        config = BrokerConfig(
            node_id=_NODE,
            data_dir=_DATA,
            topics=TopicDefaults(partitions=1),
            groups=GroupSettings(offsets_partitions=1),
            transactions=TransactionSettings(state_partitions=1),
            schedules=ScheduleSettings(partitions=1),
            # A node must not be given up because days of virtual time pass between two heartbeats.
            cluster=ClusterSettings(session_timeout_ms=_FOREVER_MS),
        )

        async def begin() -> Broker:
            peers = TcpPeers(_NODE, host="", port=None, token=None, clock=self._clock)
            surroundings = Surroundings(
                peers=peers,
                files=self._disk.files,
                clock=self._clock,
                random=random.Random(self._random.getrandbits(64)),
                open_commit=self._open_commit,
                boot_id=f"boot {self.lives}",
            )
            broker = Broker(config, surroundings)
            await broker.start()
            return broker

        self._broker = self._run(begin())

    def stop(self) -> None:
        """End it in good order, as by SIGTERM."""
        broker = self._running()

        async def end() -> None:
            await broker.leave()
            await broker.close()

        self._run(end())
        self._die(keeps_unsynced=True)

    def crash(self, *, keeps_unsynced: bool = False) -> None:
        """End it at once, whatever it is doing: nothing is closed, no client is told.

        What was not synced is lost in part, as when the power goes; the seed decides which part. With
        ``keeps_unsynced`` all that was written stays, as after ``kill -9``.
        """
        self._running()
        self._die(keeps_unsynced=keeps_unsynced)

    def close(self) -> None:
        """Be done with it; its disk is gone."""
        if not self._is_closed:
            self._is_closed = True
            self._broker = None
            self._life.end()
            with self._surrounded():
                self._loop.close()

    def _die(self, *, keeps_unsynced: bool) -> None:
        self._life.end()
        # Whatever it was at is kept until the end: letting go of it would run what a dead process does not.
        self._loop.keep((self._broker, self._disk.files, asyncio.all_tasks(self._loop)))
        self._broker = None
        self._disk.survive(keeps_unsynced=keeps_unsynced)

    def _running(self) -> Broker:
        if self._broker is None:
            raise BrokerDown("The broker is down. Call restart() to have it start with what is on its disk.")
        return self._broker

    def _open_commit(self, on_synced: Callable[..., None], **_: object) -> Any:
        return SimulatedCommit(on_synced, self._random, self._disk.spindle)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of day as the broker knows it."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass: leases end, retries and schedules come in their order, each at its time, in no real time."""
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        if span < 0:
            raise ValueError("Time does not go back.")
        until_s = self._loop.time() + span
        if self._broker is None:
            self._loop.leap(until_s)
        while self._loop.time() < until_s:
            next_s = min(self._next_s(), until_s - _AFTERMATH_S)
            self._loop.leap(next_s)
            self._run(asyncio.sleep(min(_AFTERMATH_S, until_s - self._loop.time())))

    def _next_s(self) -> float:
        """When the next lease ends or the next retry or schedule is due, on the loop's clock."""
        if self._broker is None:
            return float("inf")
        waits_ms = [
            queue.wake_ms - shard.now_ms()
            for shard in self._broker.queues.coordinator
            for queue in shard.machines.values()
        ]
        return self._loop.time() + min([*waits_ms, self._broker.schedules.coordinator.wait_ms]) / 1000

    # -- messages -----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic. ``configs`` are a topic's, as in ``{"queue.tries": "5"}``."""
        spec = TopicSpec(name=name, partitions=partitions, configs=dict(configs or {}))
        self.call(lambda broker: broker.create_topic(spec))

    def publish(
        self, topic: str, value: Text, *, key: Text | None = None, headers: Headers = (), partition: int | None = None
    ) -> PublishedAt:
        """Publish a message; it is durable when this returns."""
        message = _message(value, key, headers, partition)
        return self.call(lambda broker: _published(broker, topic, message))

    def publish_unconfirmed(
        self, topic: str, value: Text, *, key: Text | None = None, headers: Headers = (), partition: int | None = None
    ) -> None:
        """Publish a message and do not wait: after a crash it may be there or not, as the seed wants it."""
        broker, message = self._running(), _message(value, key, headers, partition)
        self._start(_published(broker, topic, message))
        self._run(asyncio.sleep(0))

    def publish_later(
        self,
        topic: str,
        value: Text,
        *,
        delay_s: float,
        key: Text | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> str:
        """Have a message come after a while, however long, as `advance` brings it; the id of its schedule."""
        later = ScheduledMessage(topic, partition, None if key is None else _bytes(key), _bytes(value), headers)
        new = ScheduleRequest(message=later, due_ms=self._clock.now_ms() + int(delay_s * 1000))

        async def schedule(broker: Broker) -> str:
            await broker.ensure_topic(topic)
            (placed,) = await broker.schedules.add([new])
            return placed.id

        return self.call(schedule)

    def cancel(self, schedule_id: str) -> bool:
        """Have a message that was published for later not come; False if it is there, or was cancelled, already."""
        (fate,) = self.call(lambda broker: broker.schedules.cancel([schedule_id]))
        return fate is ScheduleOutcome.DONE

    def receive(
        self,
        topic: str,
        group: str = _GROUP,
        *,
        max_messages: int = 1,
        wait_s: float = 0,
        visibility_timeout_s: float | None = None,
        consumer: str = "",
    ) -> list[LeasedRecord]:
        """Lease messages as a worker of a group. With ``wait_s`` virtual time passes until there is one."""
        timeout_ms = None if visibility_timeout_s is None else int(visibility_timeout_s * 1000)
        leases = self.call(
            lambda broker: broker.queues.receive(
                topic,
                group,
                consumer=consumer,
                max_messages=max_messages,
                wait_ms=int(wait_s * 1000),
                visibility_timeout_ms=timeout_ms,
            )
        )
        return [message for lease in leases for message in lease.messages()]

    def ack(self, *messages: LeasedRecord | str, group: str = _GROUP) -> list[ReceiptOutcome]:
        """These messages, or receipts, are done with."""
        return _fates(self.call(lambda broker: broker.queues.ack(group, _receipts(messages))))

    def nack(
        self, *messages: LeasedRecord | str, group: str = _GROUP, delay_s: float | None = None, reason: str = ""
    ) -> list[ReceiptOutcome]:
        """These failed and come again, after a delay of your own or the group's backoff."""
        delay_ms = None if delay_s is None else int(delay_s * 1000)
        return _fates(
            self.call(lambda broker: broker.queues.nack(group, _receipts(messages), delay_ms=delay_ms, reason=reason))
        )

    def reject(self, *messages: LeasedRecord | str, group: str = _GROUP, reason: str = "") -> list[ReceiptOutcome]:
        """These can never be processed: they become dead letters."""
        return _fates(self.call(lambda broker: broker.queues.reject(group, _receipts(messages), reason=reason)))

    def release(self, *messages: LeasedRecord | str, group: str = _GROUP) -> list[ReceiptOutcome]:
        """Give these back unread: they are delivered again, and this delivery does not count."""
        return _fates(self.call(lambda broker: broker.queues.release(group, _receipts(messages))))

    def extend(
        self, *messages: LeasedRecord | str, group: str = _GROUP, visibility_timeout_s: float | None = None
    ) -> list[ReceiptOutcome]:
        """Hold these for so long from now on."""
        timeout_ms = None if visibility_timeout_s is None else int(visibility_timeout_s * 1000)
        return _fates(
            self.call(lambda broker: broker.queues.extend(group, _receipts(messages), visibility_timeout_ms=timeout_ms))
        )

    def stats(self, topic: str, group: str = _GROUP) -> GroupStats:
        """How it is with a queue group."""
        (stats,) = self.call(lambda broker: broker.queues.stats(topic, group))
        return stats

    def messages(self, topic: str) -> list[StoredMessage]:
        """Every message of a topic that a reader of committed data sees, by partition and offset."""
        return self.call(lambda broker: read_committed(broker, topic))

    def dead_letters(self, topic: str) -> list[StoredMessage]:
        """The dead letters of a topic that has the usual topic for them."""
        name = f"{topic}.dlq"
        return self.messages(name) if name in self._running().metadata.topics else []

    # -- everything else ----------------------------------------------------------------------------------------------

    def call(self, work: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        """Have the broker do anything that it can, as in ``call(lambda broker: broker.queues.pause("a", "g"))``."""
        broker = self._running()

        async def do() -> ResultT:
            return await work(broker)

        return self._run(do())

    def fingerprint(self) -> str:
        """A hash of everything on the disk: the same for the same seed and the same calls, every time."""
        digest = blake2b(digest_size=8)
        for path in self._disk.files.paths():
            digest.update(str(path).encode() + b"\0")
            digest.update(self._disk.files.open(path).read(0, self._disk.files.size(path)))
        return digest.hexdigest()

    # -- how it runs --------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        with self._surrounded():
            task: asyncio.Task[ResultT] = self._life.run(self._loop.create_task, work)
            return task

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        task = self._start(work)
        with self._surrounded():
            return self._loop.run_until_complete(task)

    @contextmanager
    def _surrounded(self) -> Iterator[None]:
        """All chance from the seed, and no loop that runs already, for as long as this one runs."""
        running, urandom, state = events._get_running_loop(), os.urandom, random.getstate()
        events._set_running_loop(None)
        os.urandom = self._entropy.randbytes
        random.seed(self._entropy.getrandbits(64))
        try:
            yield
        finally:
            random.setstate(state)
            os.urandom = urandom
            events._set_running_loop(running)


async def _published(broker: Broker, topic: str, message: OutgoingMessage) -> PublishedAt:
    (outcome,) = await publish_each(broker.ports, topic, [message])
    if isinstance(outcome, PenstockError):
        raise outcome
    return outcome


def _message(value: Text, key: Text | None, headers: Headers, partition: int | None) -> OutgoingMessage:
    return OutgoingMessage(
        key=None if key is None else _bytes(key), value=_bytes(value), headers=headers, partition=partition
    )


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _receipts(messages: Sequence[LeasedRecord | str]) -> list[str]:
    return [message if isinstance(message, str) else message.receipt for message in messages]


def _fates(verdicts: Sequence[SettledReceipt]) -> list[ReceiptOutcome]:
    for verdict in verdicts:
        if verdict.error is not None:
            raise verdict.error
    return [verdict.fate for verdict in verdicts]
