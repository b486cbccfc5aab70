"""The queues that this node leads: one shard for each partition of a companion topic, with the groups of one
partition.

A queue decides; the shard has it written and does what follows: consumers that wait hear of new messages, of retries
and of all that lets another message go; dead letters are written; failures are counted.

The journal: not every change has to be synced. A lease is committed before it is told, and that is enough: if power
fails everywhere at once it ends early, and the message is delivered once more. What says that a message is done with,
or how it failed, is as durable as the topic. A companion needs only what comes after the oldest snapshot in use, and
is trimmed to that; a group that rests gets a snapshot once the log behind its last one is much longer than that would
be.

Waiting: consumers stand in line, so that what comes is handed out in turn. A message wakes one of them, not all. The
one that was woken tries to receive and then passes the turn on. After one event each is woken once at most: if all
have as much in flight as they may, they sleep until the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from penstock.consensus.commands import CreateTopic
from penstock.consensus.metadata import Topic
from penstock.consensus.queue_config import QueueSettings
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import PenstockError, PolicyViolation, TopicExists
from penstock.features.dead_letters.letters import queue_settings_for
from penstock.features.queues.core import records
from penstock.features.queues.core.messages import TrimBefore
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.records import (
    EndCause,
    LeaseGranted,
    LeasesExtended,
    LeasesSettled,
    QueueChange,
    QueueEvent,
    QueueForgotten,
    QueueSnapshot,
)
from penstock.features.queues.leading.sources import (
    DecodedBatches,
    LabelIndexer,
    LedSource,
    MessageSource,
    RemoteSource,
)
from penstock.machines.clocks import SteadyClock
from penstock.machines.coordinator import Coordinator
from penstock.machines.journal import Decided, PartitionJournal, Written
from penstock.machines.messages import Outcome, ProducerIdentity
from penstock.machines.ports import Ports
from penstock.machines.shard import TransactionalShard
from penstock.model import is_internal, queue_parent, queue_state_topic
from penstock.partitions.partition import Partition
from penstock.partitions.topics import Topics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Figures:
    """Messages of one group of a topic."""

    received: int = 0  # deliveries, the first ones and the others
    redelivered: int = 0  # those of them that were not the first of their message
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    extended: int = 0
    expired: int = 0  # leases that ended without an answer: visibility timeouts
    dead_lettered: int = 0  # written to the dead letters

    def count(self, event: QueueEvent) -> None:
        """Note what a change that was applied is about."""
        match event:
            case LeaseGranted():
                for first, last, count in event.spans:
                    self.received += last - first + 1
                    if count > 1:
                        self.redelivered += last - first + 1
            case LeasesSettled():
                self._count_settled(event)
            case LeasesExtended():
                self.extended += sum(last - first + 1 for first, last in event.spans)

    def _count_settled(self, event: LeasesSettled) -> None:
        size = sum(last - first + 1 for first, last in event.acked)
        size += sum(last - first + 1 for first, last, _, _ in event.waiting)
        size += sum(last - first + 1 for _, first, last, _, _ in event.dying)
        match event.cause:
            case EndCause.ACK:
                self.acked += size
            case EndCause.NACK:
                self.nacked += size
            case EndCause.REJECT:
                self.rejected += size
            case EndCause.EXPIRY:
                self.expired += size
            case EndCause.BURIAL:
                self.dead_lettered += size
            case EndCause.GAP:
                pass


class AllFigures:
    """Those of every group that was led here."""

    def __init__(self) -> None:
        self._by_group: dict[tuple[str, str], Figures] = {}

    def of(self, topic: str, group: str) -> Figures:
        found = self._by_group.get((topic, group))
        if found is None:
            found = self._by_group[topic, group] = Figures()
        return found

    def items(self) -> list[tuple[tuple[str, str], Figures]]:
        """(topic, group) and the figures, in the order of their names."""
        return sorted(self._by_group.items(), key=lambda item: item[0])

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
        self._by_group = {key: figures for key, figures in self._by_group.items() if key[0] != topic}


class QueueJournal(PartitionJournal[QueueChange]):
    """One partition of a companion. ``needed`` tells from where on the records of each group are needed."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        super().__init__(partition, records, syncs=syncs)
        self.needed: dict[str, int] = {}
        self._prepared: tuple[QueueChange, bytearray] | None = None

    def prepare(self, change: QueueChange, at_ms: int) -> None:
        """Encode a change that is appended by itself soon. Runs in any thread, one at a time."""
        self._prepared = change, self.encode([change], at_ms)

    @property
    def epoch(self) -> int:
        """Of the leader who writes: no other has the same."""
        return self.partition.leader_epoch

    def append(self, changes: Sequence[QueueChange], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        prepared = self._prepared
        if prepared is not None and len(changes) == 1 and changes[0] is prepared[0]:
            batch, self._prepared = prepared[1], None
        else:
            batch = self.encode(changes, at_ms, producer)
        is_durable = self._syncs and not all(_may_be_lost(change.event) for change in changes)
        written = self.partition.append(memoryview(batch), at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            self.note(change, at)
        return written.next_offset

    def replay(self) -> Iterator[Written[QueueChange] | Decided]:
        """All that counts: of each group its last snapshot, and what is not in that.

        A snapshot may stand behind changes that came while it was made. It is told of where it belongs.
        """
        entries = list(self.read())
        snapshots: dict[str, tuple[int, Written[QueueChange]]] = {}
        for offset, entry in entries:
            if isinstance(entry, Written) and isinstance(entry.change.event, QueueSnapshot):
                snapshots[entry.change.group] = (_upto(entry.change.event, offset), entry)
        waiting = deque(sorted(snapshots.values(), key=itemgetter(0)))
        for offset, entry in entries:
            while waiting and waiting[0][0] <= offset:
                yield waiting.popleft()[1]
            if isinstance(entry, Decided):
                yield entry
            elif not isinstance(entry.change.event, QueueSnapshot):
                upto, _ = snapshots.get(entry.change.group, (0, None))
                if offset >= upto:
                    yield entry

    def note(self, change: QueueChange, offset: int) -> None:
        event = change.event
        if isinstance(event, QueueSnapshot):
            self.needed[change.group] = _upto(event, offset)
        elif isinstance(event, QueueForgotten):
            self.needed.pop(change.group, None)
        else:
            self.needed.setdefault(change.group, offset)


def _upto(snapshot: QueueSnapshot, offset: int) -> int:
    """Where what a snapshot stands for ends; it is itself at ``offset``."""
    return snapshot.upto if snapshot.upto >= 0 else offset


def _may_be_lost(event: QueueEvent) -> bool:
    """Whether losing the change with the power of all nodes costs no more than another delivery."""
    if isinstance(event, LeasesSettled):
        return event.cause is EndCause.EXPIRY and not event.dying
    return isinstance(event, (LeaseGranted, LeasesExtended))


class Waiter:
    """One call that waits, in as many rooms as it likes."""

    __slots__ = ("_rooms", "_woken")

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._rooms: dict[WaitingLine, None] = {}

    def enter(self, room: WaitingLine) -> None:
        """Get in line; one that is in line already keeps its place."""
        if room not in self._rooms:
            self._rooms[room] = None
            room.admit(self)

    def leave_all(self, *, is_passing_on: bool = True) -> None:
        """Wait no more, and let the others have their turn."""
        rooms, self._rooms = self._rooms, {}
        for room in rooms:
            room.dismiss(self, is_passing_on=is_passing_on)

    def pass_on(self) -> None:
        """There was nothing for this one; somebody else may be allowed to take it."""
        for room in self._rooms:
            room.pass_on()

    def wake(self) -> None:
        self._woken.set()

    async def sleep(self) -> None:
        """Return when there may be something, or has been since the last time."""
        await self._woken.wait()
        self._woken.clear()


class WaitingLine:
    """The line of one group at one partition. ``is_ready`` tells whether anything could be handed out now."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._line: dict[Waiter, int] = {}  # and after which event each was woken last
        self._events = 1

    def __len__(self) -> int:
        return len(self._line)

    def admit(self, waiter: Waiter) -> None:
        self._line[waiter] = 0

    def dismiss(self, waiter: Waiter, *, is_passing_on: bool) -> None:
        if self._line.pop(waiter, None) is not None and is_passing_on:
            self.pass_on()

    def notify(self) -> None:
        """There may be something now."""
        if self._line:
            self._events += 1
            self.pass_on()

    def pass_on(self) -> None:
        """Let the next one in line try, who has not since the last event."""
        if not self._line or not self._is_ready():
            return
        for waiter, woken_at in self._line.items():
            if woken_at < self._events:
                self._line[waiter] = self._events
                waiter.wake()
                return

    def wake_all(self) -> None:
        """Everybody has to look for themselves: nothing is handed out here any more."""
        for waiter in self._line:
            waiter.wake()


_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that could not be written
_WATCH_MS: Final = 1_000


class QueueShard(TransactionalShard[Queue, QueueChange]):
    """Queues by the name of their group."""

    def __init__(
        self, journal: QueueJournal, topic: str, partition: int, clock: SteadyClock, node: QueueCoordinator
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(journal, clock.now_ms, clock.now_ms, self._loop.call_soon)
        self.journal = journal
        self.topic = topic
        self.partition = partition
        self._node = node
        self._settings = node.settings_of(topic)
        self._seen_settings: TopicSettings | None = None
        self._source: MessageSource | None = None
        self._rooms: dict[str, WaitingLine] = {}
        self._snapshot_from_ms = 0
        self._snapshotting: asyncio.Task[None] | None = None
        self._one_snapshot = asyncio.Lock()
        self._watched: LedSource | None = None
        self._watching: asyncio.Task[None] | None = None
        self.indexer = LabelIndexer(self._loop, node.supervision)

    def __repr__(self) -> str:
        return f"<QueueShard of {self.topic}-{self.partition}, {len(self.machines)} groups>"

    # -- what they are ------------------------------------------------------------------------------------------------

    def make(self, name: str) -> Queue:
        return Queue(name, self.topic, self.partition, self._settings, self.journal.epoch)

    def name_of(self, change: QueueChange) -> str:
        return change.group

    def on_applied(self, machine: Queue, change: QueueChange) -> None:
        self._node.figures.of(self.topic, machine.id).count(change.event)

    def source(self) -> MessageSource:
        """The messages of the partition."""
        source = self._source = self._node.source_of(self.topic, self.partition, self._source)
        if isinstance(source, LedSource) and source.partition.settings is not self._seen_settings:
            self._seen_settings = source.partition.settings
            self.follow_settings()
        return source

    # -- life ---------------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[str, Queue]:
        queues = super().read_log()
        for queue in queues.values():
            queue.resume(self._now_ms())  # which may take long, and is quick when it is done again
        return queues

    def open(self, machines: dict[str, Queue]) -> None:
        super().open(machines)
        if self.is_ready:
            for queue in tuple(self.machines.values()):
                self._follow_up(queue)

    def close(self, error: PenstockError) -> None:
        super().close(error)
        if self._snapshotting is not None:
            self._snapshotting.cancel()
        self.indexer.close()
        self._unwatch()
        for room in self._rooms.values():
            room.wake_all()

    def follow_settings(self) -> None:
        """Go by the topic's settings as they are now."""
        settings = self._node.settings_of(self.topic)
        if settings == self._settings:
            return
        self._settings = settings
        for queue in self.machines.values():
            queue.configure(settings)
            self.note_deadline(queue)
        self.notify_all()

    # -- requests -----------------------------------------------------------------------------------------------------

    def perform(self, decisions: Sequence[tuple[Queue, Outcome[QueueChange]]]) -> None:
        super().perform(decisions)
        for queue, outcome in decisions:
            # Nothing follows from what could not be written: the ends of leases and the dead letters would have each
            # other tried again without a pause, for as long as the disk is full.
            if outcome.changes and not self._is_refused:
                self._follow_up(queue)

    def on_ended(self, machine: Queue, result: object) -> None:
        if isinstance(result, LeasesSettled):
            self.on_applied(machine, QueueChange(machine.id, result))
        self.note_deadline(machine)
        self._follow_up(machine)

    def _follow_up(self, queue: Queue) -> None:
        if self.machines.get(queue.id) is not queue:
            self._leave_rooms(queue.id)
            return
        if queue.is_snapshot_due and self._snapshotting is None and self.now_ms() >= self._snapshot_from_ms:
            self._snapshotting = self._loop.create_task(self._snapshot_due(queue))
        if queue.id in self._rooms:
            self._rooms[queue.id].notify()
        self._node.on_changed(self, queue)

    async def snapshot(self, queue: Queue) -> None:
        """Write all of a queue as one record; what is before it is needed no more.

        Of a large queue that takes long, so others go on meanwhile: the record stands for what was before it began.
        """
        async with self._one_snapshot:
            if self.machines.get(queue.id) is not queue:
                return
            finish = queue.draft_snapshot(self.journal.end_offset)
            change = await asyncio.to_thread(self._prepare, finish, self.now_ms())
            if self.machines.get(queue.id) is not queue:
                return  # led elsewhere, or forgotten meanwhile
            before = self.journal.needed.get(queue.id)
            super().perform([(queue, Outcome(changes=[change]))])
            if self.journal.needed.get(queue.id) == before:
                self._snapshot_from_ms = self.now_ms() + _SNAPSHOT_AGAIN_MS

    async def _snapshot_due(self, queue: Queue) -> None:
        try:
            await self.snapshot(queue)
        except Exception as error:  # the next change tries again
            self._node.supervision.note("snapshots of queues", error)
        finally:
            self._snapshotting = None

    def _prepare(self, finish: Callable[[], QueueChange], at_ms: int) -> QueueChange:
        change = finish()
        self.journal.prepare(change, at_ms)
        return change

    # -- time ---------------------------------------------------------------------------------------------------------

    def on_woken(self, machine: Queue) -> None:
        if machine.id in self._rooms:
            self._rooms[machine.id].notify()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def room(self, group: str) -> WaitingLine:
        """Where those wait who want messages for a group. Ask for it each time: it goes with the last of them."""
        room = self._rooms.get(group)
        if room is None:
            room = self._rooms[group] = WaitingLine(lambda: self.has_something(group))
        self._watch()
        return room

    def pass_on(self, group: str) -> None:
        """Let the next one in line try."""
        if group in self._rooms:
            self._rooms[group].pass_on()

    def has_something(self, group: str, consumer: str = "") -> bool:
        """Whether anything could be handed out to a consumer, or else to anybody, as far as is known."""
        queue = self.machines.get(group)
        if queue is None or self._source is None:
            return False
        end = self._source.known_end
        return queue.unseen(1, end) is not None or bool(queue.offer(consumer, 1, end, self.now_ms()))

    def notify_all(self) -> None:
        """There may be something for everybody."""
        for group, room in tuple(self._rooms.items()):
            if len(room):
                room.notify()
            else:
                del self._rooms[group]
        if not self._rooms:
            self._unwatch()

    def _leave_rooms(self, group: str) -> None:
        room = self._rooms.pop(group, None)
        if room is not None:
            room.wake_all()

    def _watch(self) -> None:
        """Hear of new messages, as long as somebody waits for them."""
        source = self.source()
        if isinstance(source, LedSource):
            if self._watched is not source:
                self._unwatch()
                self._watched = source
                source.partition.watch(self._on_moved)
        elif self._watching is None and isinstance(source, RemoteSource):
            self._unwatch()
            self._watching = self._loop.create_task(self._watch_remote(source))
            self._node.supervision.watch("watching for messages elsewhere", self._watching)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._watched.partition.unwatch(self._on_moved)
            self._watched = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _on_moved(self) -> None:
        if self._watched is not None and not self._watched.partition.is_leader:
            self._watch()
        self.notify_all()

    async def _watch_remote(self, source: RemoteSource) -> None:
        try:
            while self._rooms and self.is_ready and self.source() is source:
                await source.await_more(_WATCH_MS)
                try:
                    await source.reach()
                except PenstockError:
                    await asyncio.sleep(_WATCH_MS / 1000)
                self.notify_all()
        finally:
            if self._watching is asyncio.current_task():
                self._watching = None
        if self._rooms and self.is_ready:
            self._watch()


# Cutting costs a few writes, so it is done for that many records at a time.
_TRIM_RECORDS_MIN: Final = 5_000
# A group that rests gets a snapshot when the records since are this many, and so many times its rows.
_RESTING_RECORDS: Final = 20_000
_RESTING_ROWS: Final = 4


async def follow_start(shard: QueueShard) -> None:
    """Tell queues that retention has removed messages which they still counted on."""
    source = shard.source()
    if not isinstance(source, LedSource):
        return
    start = (await source.reach()).start
    for queue in tuple(shard.machines.values()):
        if queue.committed < start and shard.is_ready:
            await shard.request(queue.id, TrimBefore(start))


async def trim_companion(shard: QueueShard, topics: Topics) -> None:
    """Cut what no group needs any more off the companion log, once all that makes it needless is committed."""
    partition = shard.journal.partition
    log = partition.log
    if log.end_offset - log.start_offset < _TRIM_RECORDS_MIN:
        return
    await _move_resting(shard)
    needed = min(shard.journal.needed.values(), default=log.end_offset)
    if needed - log.start_offset < _TRIM_RECORDS_MIN:
        return
    await shard.settled()
    await topics.trim(partition, needed, lambda: shard.is_ready)


async def _move_resting(shard: QueueShard) -> None:
    end = shard.journal.end_offset
    for queue in tuple(shard.machines.values()):
        behind = end - shard.journal.needed.get(queue.id, end)
        if behind > max(_RESTING_RECORDS, _RESTING_ROWS * queue.row_count):
            await shard.snapshot(queue)


async def ensure_companion(ports: Ports, topic: str) -> Topic:
    """The companion of a topic, made when it is first needed.

    When it returns, the partitions that this node has of it are open here. A second caller finds what the first
    one made; a topic that is deleted meanwhile is an `UnknownTopic`.
    """
    if is_internal(topic):
        raise PolicyViolation(f"{topic!r} holds the broker's own state; it cannot be read as a queue.")
    name = queue_state_topic(topic)
    ports.metadata.topic(topic)
    if name not in ports.metadata.topics:
        try:
            await ports.topics.command(CreateTopic(name=name, topic_id=ports.new_id()))
        except TopicExists:
            pass  # another caller was faster
    return await ports.topics.opened(ports.metadata.topic(name))


class QueueCoordinator(Coordinator[tuple[str, int], QueueShard]):
    """Shards by topic and partition."""

    what = "queues"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports.clock, ports.supervision)
        self._ports = ports
        self._decoded = DecodedBatches()
        self.figures = AllFigures()
        # Something about a queue was written and applied just now. Called often; has to be quick.
        self.on_changed: Callable[[QueueShard, Queue], None] = lambda _shard, _queue: None
        self.on_ready: Callable[[str], None] = lambda _: None  # with the topic whose queues can be asked now

    def key_of(self, partition: Partition) -> tuple[str, int] | None:
        topic = queue_parent(partition.id.topic)
        return None if topic is None else (topic, partition.id.partition)

    def make_shard(self, partition: Partition) -> QueueShard:
        topic = queue_parent(partition.id.topic)
        assert topic is not None, "only companions keep queues"
        journal = QueueJournal(partition, syncs=self._ports.syncs_before_ack)
        return QueueShard(journal, topic, partition.id.partition, SteadyClock(self._ports.clock), self)

    def on_opened(self, shard: QueueShard) -> None:
        self.on_ready(shard.topic)

    def on_lost(self, key: tuple[str, int], shard: QueueShard | None) -> None:  # noqa: ARG002
        if key[0] not in self._ports.metadata.topics:
            self.figures.forget_topic(key[0])

    async def upkeep(self, shard: QueueShard) -> None:
        """What need not be done at once: settings taken over, the log's start followed, the companion trimmed."""
        if shard.topic in self._ports.metadata.topics:
            shard.follow_settings()
        await follow_start(shard)
        await trim_companion(shard, self._ports.topics)

    def end_transaction(self, topic: str, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction was written to a companion: its acks count now, or never will."""
        shard = self._shards.get((topic, partition))
        if shard is not None:
            shard.end_transaction(producer_id, is_commit=is_commit)

    def has_begun(self, topic: str, partition: int, group: str) -> bool:
        """Whether a group reads a partition whose queues are led here."""
        shard = self._shards.get((topic, partition))
        return shard is not None and shard.is_ready and group in shard.machines

    def settings_of(self, topic: str) -> QueueSettings:
        return queue_settings_for(topic, self._ports.topics.settings_of(topic).queue)

    def source_of(self, topic: str, partition: int, earlier: MessageSource | None) -> MessageSource:
        """Where the messages are now: here, as ever, or for a moment with another leader."""
        if isinstance(earlier, LedSource) and earlier.partition.is_leader:
            return earlier
        found = self._ports.partitions.local(topic, partition)
        if found is not None:
            return LedSource(found, self._decoded)
        if isinstance(earlier, RemoteSource):
            return earlier
        return RemoteSource(topic, partition, self._ports.partitions, self._decoded)
