"""The companion log as a journal: not every change has to be synced, and not every record is needed for ever.

A lease is committed before it is told, and that is enough: if power fails everywhere at once it ends early, and the
message is delivered once more. What says that a message is done with, or how it failed, is as durable as the topic.

Whoever waits for messages of a group: in line, so that what comes is handed out in turn.

A message wakes one of them, not all. Whoever was woken tries to receive and then passes the turn on, so everything that
came is taken by somebody. After one event each is woken once at most: if all have as much in flight as they may, they
sleep until the next.

The queue groups of one partition, at the leader of its companion: time, waiting, snapshots and figures.

A queue decides; this has it written and does what follows from it. Consumers that wait hear of new messages, of retries
and of all that lets another message go.

What a shard needs now and then: the log's start is followed, and the companion log is kept short.

A companion needs only what comes after the oldest snapshot in use. A group that rests would hold on to a long log, so
it gets a snapshot too once the log behind its last one is much longer than that would be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final, Protocol

from penstock.consensus.queue_config import QueueSettings
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import CorruptRecords, PenstockError
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
from penstock.features.queues.leading.figures import AllFigures
from penstock.features.queues.leading.labels import LabelIndexer
from penstock.features.queues.leading.sources import LedSource, MessageSource, RemoteSource
from penstock.machines.clocks import SteadyClock
from penstock.machines.journal import Decided, PartitionJournal, Written
from penstock.machines.messages import Outcome, ProducerIdentity
from penstock.machines.shard import TransactionalShard
from penstock.partitions.partition import Partition
from penstock.partitions.topics import Topics
from penstock.records import Codec, decode_records, encode_batch, parse_header, read_marker
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_COMPRESS_FROM_BYTES: Final = 16 * 1024


class QueueJournal(PartitionJournal[QueueChange]):
    """One partition of a companion. ``needed`` tells from where on the records of each group are needed."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        super().__init__(partition, records, syncs=syncs)
        self.partition = partition
        self.needed: dict[str, int] = {}
        self._prepared: tuple[QueueChange, bytearray] | None = None

    def prepare(self, change: QueueChange, at_ms: int) -> None:
        """Encode a change that is appended by itself soon. Runs in any thread, one at a time."""
        self._prepared = change, _encode([change], at_ms)

    @property
    def epoch(self) -> int:
        """Of the leader who writes: no other has the same."""
        return self.partition.leader_epoch

    def append(self, changes: Sequence[QueueChange], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        prepared = self._prepared
        if prepared is not None and len(changes) == 1 and changes[0] is prepared[0]:
            batch, self._prepared = prepared[1], None
        else:
            batch = _encode(changes, at_ms, producer)
        is_durable = self._syncs and not all(_may_be_lost(change.event) for change in changes)
        written = self.partition.append(memoryview(batch), at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            self._note(change, at)
        return written.next_offset

    def replay(self) -> Iterator[Written[QueueChange] | Decided]:
        """All that counts: of each group its last snapshot, and what is not in that.

        A snapshot may stand behind changes that came while it was made. It is told of where it belongs.
        """
        entries = list(self._read())
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

    def _read(self) -> Iterator[tuple[int, Written[QueueChange] | Decided]]:
        stored = self.partition.log
        for batch in stored.batches(stored.start_offset):
            data = memoryview(batch.read())
            header = parse_header(data)
            if header.is_control:
                yield header.base_offset, Decided(header.producer_id, read_marker(data).is_commit)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in decode_records(data):
                if record.offset < stored.start_offset:
                    continue
                try:
                    change = records.from_record(record)
                except CorruptRecords as error:  # nobody should be held up by what somebody else wrote
                    log.error("%s is left out: %s", self.partition.id, error.message)
                    continue
                self._note(change, record.offset)
                yield record.offset, Written(change, record.timestamp, producer_id)

    def _note(self, change: QueueChange, offset: int) -> None:
        event = change.event
        if isinstance(event, QueueSnapshot):
            self.needed[change.group] = _upto(event, offset)
        elif isinstance(event, QueueForgotten):
            self.needed.pop(change.group, None)
        else:
            self.needed.setdefault(change.group, offset)


def _encode(changes: Sequence[QueueChange], at_ms: int, producer: ProducerIdentity | None = None) -> bytearray:
    rows = [records.to_record(change, at, at_ms) for at, change in enumerate(changes)]
    size = sum(len(row.value or b"") for row in rows)
    codec = Codec.ZSTD if size >= _COMPRESS_FROM_BYTES else Codec.NONE
    if producer is None:
        return encode_batch(rows, codec=codec)
    return encode_batch(
        rows, codec=codec, producer_id=producer.producer_id, producer_epoch=producer.epoch, is_transactional=True
    )


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
        """Get in line; whoever is in line already keeps the place."""
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


class Aftermath(Protocol):
    """Who does what follows from decisions but is no part of the queue: dead letters, breakers, offsets of groups."""

    def on_changed(self, shard: QueueShard, queue: Queue) -> None:
        """Something about a queue was written and applied just now. Called often; has to be quick."""


class Surrounding(Protocol):
    """What a shard needs to know of its node."""

    figures: AllFigures
    aftermath: Aftermath | None

    @property
    def supervision(self) -> Supervision: ...

    def settings_of(self, topic: str) -> QueueSettings: ...
    def source_of(self, topic: str, partition: int, earlier: MessageSource | None) -> MessageSource:
        """Where the messages are now, which may be where they were."""


class QueueShard(TransactionalShard[Queue, QueueChange]):
    """Queues by the name of their group."""

    def __init__(
        self, journal: QueueJournal, topic: str, partition: int, clock: SteadyClock, node: Surrounding
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
        self.lookout = LabelIndexer(self._loop, node.supervision)

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
        self.lookout.close()
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
            # Nothing follows from what could not be written: leases to be ended and letters to be buried would have
            # each other tried again without a pause, for as long as the disk is full.
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
        if self._node.aftermath is not None:
            self._node.aftermath.on_changed(self, queue)

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
