"""The queue groups of one partition, at the leader of its companion: time, waiting, snapshots and figures.

A queue decides; this has it written and does what follows from it. One timer rings when the first lease ends or the
first retry is due. Whoever waits hears of new messages, of retries and of all that lets another message go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from penstock.broker.coordination.messages import AnswerT, Outcome, Rejected, Request
from penstock.broker.queues.core.config import QueueSettings
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.records import Change
from penstock.broker.queues.leading.figures import AllFigures
from penstock.broker.queues.leading.journal import QueueJournal
from penstock.broker.queues.leading.lookout import Lookout
from penstock.broker.queues.leading.polling import WaitingRoom
from penstock.broker.queues.leading.sources import LedSource, RemoteSource, Source
from penstock.broker.queues.leading.steady import SteadyClock
from penstock.broker.queues.leading.undecided import UndecidedAcks
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_FAR_MS: Final = 3_600_000  # timers are not set further ahead than this
_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that could not be written
_WATCH_MS: Final = 1_000
_STUCK_MS: Final = 50  # until leases are ended again, where that could not be written


class Aftermath(Protocol):
    """Who does what follows from decisions but is no part of the queue: dead letters, breakers, offsets of groups."""

    def on_changed(self, shard: QueueShard, queue: Queue) -> None:
        """Something about a queue was written and applied just now. Called often; has to be quick."""


class Surrounding(Protocol):
    """What a shard needs to know of its node."""

    figures: AllFigures
    aftermath: Aftermath | None

    def settings_of(self, topic: str) -> QueueSettings: ...
    def source_of(self, topic: str, partition: int, earlier: Source | None) -> Source:
        """Where the messages are now, which may be where they were."""


class QueueShard(UndecidedAcks):
    """Queues by the name of their group."""

    def __init__(
        self, journal: QueueJournal, topic: str, partition: int, clock: SteadyClock, node: Surrounding
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(journal, clock.now_ms, clock.now_ms, self._loop.call_soon)
        self.journal = journal
        self.topic = topic
        self.partition = partition
        self._clock = clock
        self._node = node
        self._settings = node.settings_of(topic)
        self._seen_settings: TopicSettings | None = None
        self._source: Source | None = None
        self._rooms: dict[str, WaitingRoom] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float = inf
        self._snapshot_from_ms = 0
        self._snapshotting: asyncio.Task[None] | None = None
        self._one_snapshot = asyncio.Lock()
        self._watched: LedSource | None = None
        self._watching: asyncio.Task[None] | None = None
        self.lookout = Lookout(self._loop)

    def __repr__(self) -> str:
        return f"<QueueShard of {self.topic}-{self.partition}, {len(self.machines)} groups>"

    # -- what they are ------------------------------------------------------------------------------------------------

    def make(self, name: str) -> Queue:
        return Queue(name, self.topic, self.partition, self._settings, self.journal.epoch)

    def name_of(self, change: Change) -> str:
        return change.group

    def on_applied(self, machine: Queue, change: Change) -> None:
        self._node.figures.of(self.topic, machine.id).count(change.event)

    def now_ms(self) -> int:
        """The time that leases are measured by here."""
        return self._clock.now_ms()

    def source(self) -> Source:
        """The messages of the partition."""
        source = self._source = self._node.source_of(self.topic, self.partition, self._source)
        if isinstance(source, LedSource) and source.partition.settings is not self._seen_settings:
            self._seen_settings = source.partition.settings
            self.follow_settings()
        return source

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, machines: dict[str, Queue]) -> None:
        super().open(machines)
        if self.is_ready:
            self._ring_at(min((queue.wake_ms for queue in self.machines.values()), default=inf))
            for queue in tuple(self.machines.values()):
                self._follow_up(queue)

    def close(self, error: PenstockError) -> None:
        super().close(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        self.notify_all()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(
        self, group: str, request: Request[AnswerT], on_abandoned: Callable[[AnswerT], None] | None = None
    ) -> AnswerT:
        """The answer to a request, once it is committed; an error if it is refused.

        If whoever asks is cancelled, ``on_abandoned`` gets the answer in its place.
        """
        future: asyncio.Future[AnswerT | Rejected] = self._loop.create_future()
        self.ask(group, request, lambda answer: _answer(future, answer, on_abandoned))
        try:
            answer = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                _abandon(future.result(), on_abandoned)
            raise
        if isinstance(answer, Rejected):
            raise answer.error
        return answer

    def perform(self, decisions: Sequence[tuple[Queue, Outcome[Change]]]) -> None:
        super().perform(decisions)
        for queue, outcome in decisions:
            # Nothing follows from what could not be written: leases to be ended and letters to be buried would have
            # each other tried again without a pause, for as long as the disk is full.
            if outcome.changes and not self._is_refused:
                self._follow_up(queue)

    def on_ended(self, queue: Queue) -> None:
        self._follow_up(queue)

    def _follow_up(self, queue: Queue) -> None:
        if self.machines.get(queue.id) is not queue:
            self._leave_rooms(queue.id)
            return
        wake_ms = queue.wake_ms
        if wake_ms < self._timer_ms:
            self._ring_at(wake_ms)
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
        except Exception:  # the next change tries again
            log.exception("No snapshot of group %s of %s-%d.", queue.id, self.topic, self.partition)
        finally:
            self._snapshotting = None

    def _prepare(self, finish: Callable[[], Change], at_ms: int) -> Change:
        change = finish()
        self.journal.prepare(change, at_ms)
        return change

    # -- time ---------------------------------------------------------------------------------------------------------

    def _ring_at(self, wake_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = wake_ms
        if wake_ms < inf:
            away_ms = min(max(wake_ms - self.now_ms(), 0), _FAR_MS)
            self._timer = self._loop.call_later(away_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ms = -inf  # until all had their turn, nothing else sets it
        if not self.is_ready:
            return
        now_ms = self.now_ms()
        due = [queue for queue in self.machines.values() if queue.wake_ms <= now_ms]
        is_stuck = False
        for queue in due:
            is_stuck |= not self._tick(queue, now_ms)
        if self.is_ready:
            wake_ms = min((queue.wake_ms for queue in self.machines.values()), default=inf)
            self._ring_at(max(wake_ms, now_ms + _STUCK_MS) if is_stuck else wake_ms)
            for queue in due:
                if queue.id in self._rooms:
                    self._rooms[queue.id].notify()

    def _tick(self, queue: Queue, now_ms: int) -> bool:
        """Let time pass for one queue; False if what that led to could not be written."""
        if self.machines.get(queue.id) is not queue:
            return True
        try:
            outcome = queue.tick(now_ms)
            before = queue.in_flight
            self.perform([(queue, outcome)])
        except Exception:  # a bug in one queue must not stop time for all others
            log.exception("Time did not pass for group %s of %s-%d.", queue.id, self.topic, self.partition)
            return False
        return not outcome.changes or queue.in_flight < before

    # -- waiting ------------------------------------------------------------------------------------------------------

    def room(self, group: str) -> WaitingRoom:
        """Where those wait who want messages for a group. Ask for it each time: it goes with the last of them."""
        room = self._rooms.get(group)
        if room is None:
            room = self._rooms[group] = WaitingRoom(lambda: self.has_something(group))
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


def _answer(
    future: asyncio.Future[AnswerT | Rejected],
    answer: AnswerT | Rejected,
    on_abandoned: Callable[[AnswerT], None] | None,
) -> None:
    if not future.done():
        future.set_result(answer)
    else:
        _abandon(answer, on_abandoned)


def _abandon(answer: AnswerT | Rejected, on_abandoned: Callable[[AnswerT], None] | None) -> None:
    if on_abandoned is not None and not isinstance(answer, Rejected):
        on_abandoned(answer)
