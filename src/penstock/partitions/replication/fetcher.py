"""Copying from one leader node: one fetch at a time, which waits there until there is something to copy.

Under load each answer holds what gathered while the one before was being written, so fetches get larger and not more
frequent. What is done about an answer is decided by `Following`; this room does it, and tells the leader by the next
fetch, or at once where only a sync was missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from penstock.clock import Clock
from penstock.consensus.topic_config import is_listed
from penstock.errors import DiskFull, LogFailed, PenstockError
from penstock.network.port import Peers, Received
from penstock.partitions.damage import is_damaged
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.following import (
    Append,
    BeginAt,
    FetchProblem,
    Following,
    Ignore,
    LeaderAnswer,
    LocalLog,
    Truncate,
    Wait,
)
from penstock.partitions.replication.messages import (
    DURABLE,
    FETCH,
    NUDGE,
    Added,
    FetchReplica,
    Kept,
    Leaving,
    News,
    Nudge,
    Stable,
)
from penstock.partitions.replication.sessions import FollowerSession
from penstock.partitions.stats import ReplicationStats
from penstock.partitions.throttle import Throttle
from penstock.storage.epochs import EpochStart
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

MAX_WAIT_MS: Final = 500
ANSWER_BYTES: Final = 4 * 1024 * 1024
_THROTTLED_WAIT_MS: Final = 20
_CALL_TIMEOUT_S: Final = 10.0
_BACKOFF_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_DISK_BACKOFF_S: Final = 0.5
# The loop is let go after so many bytes were written, so that other tasks do not wait for a whole answer.
_BREATH_BYTES: Final = 1024 * 1024


class Copying:
    """What all fetchers of a node share."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        peers: Peers,
        clock: Clock,
        stats: ReplicationStats,
        throttle: Throttle,
        supervision: Supervision,
    ) -> None:
        self.supervision = supervision
        self.node_id = node_id
        self.replicas = replicas
        self.peers = peers
        self.clock = clock
        self.stats = stats
        self.throttle = throttle
        self._sessions = 0
        self.tasks: dict[asyncio.Task[None], None] = {}

    def next_session(self) -> int:
        """A number that no earlier session of this life has."""
        self._sessions += 1
        return self._sessions

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside the fetching, and remember it until it is done."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        self.supervision.watch("changing a copied log", task)

    def is_in_sync(self, partition: Partition) -> bool:
        assigned = self.replicas.assigned(partition)
        return assigned is not None and self.node_id in assigned.in_sync

    def may_lead(self, partition: Partition) -> bool:
        """Whether this copy counts as one that has everything, so that it can be elected without a further word."""
        assigned = self.replicas.assigned(partition)
        return assigned is not None and self.node_id in (*assigned.in_sync, *assigned.eligible)


class Fetcher:
    """Everything that is copied from one leader node."""

    def __init__(self, leader_id: int, copying: Copying) -> None:
        self._leader_id = leader_id
        self._name = f"copying from node {leader_id}"
        self._copying = copying
        self._following: dict[Partition, Following] = {}
        self._attempts: dict[Partition, int] = {}
        self._session: FollowerSession[Partition] = FollowerSession(copying.next_session())
        self._epoch: int | None = None  # of the life that the session belongs to
        self._has_work = asyncio.Event()
        self._kept: dict[Partition, None] = {}
        self._leaving: dict[Partition, Following] = {}  # to be cut, as soon as the leader lets go of them
        self._asked_to_leave: tuple[tuple[Partition, Following], ...] = ()  # with the fetch that is open
        self._is_nudged = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._copying.supervision.start(self._name, self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for partition in tuple(self._following):
            self.leave(partition)

    # -- which partitions ---------------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Copy a partition in the leader epoch that it knows, from its end on."""
        known = self._following.get(partition)
        is_known = known is not None and known.leader_epoch == partition.leader_epoch
        if not is_known:
            self._following[partition] = Following(self._leader_id, partition.leader_epoch)
            self._attempts.pop(partition, None)
            partition.on_stable = partial(self._on_stable, partition)
        if is_damaged(partition.log) and not partition.is_held:
            self._refetch_damaged(partition)
        elif not is_known:
            self._add(partition)

    def _refetch_damaged(self, partition: Partition) -> None:
        """Copy a damaged log anew from the damage on, once it cannot be elected without what is cut off.

        Not to be in sync is not enough: the leader may have asked for that on the strength of what is here now. So it
        is told, again and again, until it says that nothing of the kind is on its way.
        """
        self._session.drop(partition)  # it tells nothing of itself before it is cut
        self._leaving[partition] = self._following[partition]
        self._has_work.set()
        if self._session.is_open:
            self._nudge()

    def _cut(self, partition: Partition, following: Following) -> None:
        """The leader has let go of a damaged log."""
        damage = partition.log.first_damage()
        if self._following.get(partition) is not following or self._copying.may_lead(partition):
            return  # it is looked at again soon, and asks again
        if damage is None:
            self._resume(partition, following)
        elif partition.log.failure is None:
            log.warning("%s is damaged from offset %d on; it is copied again from there.", partition.id, damage)
            self._rewrite(partition, following, partial(partition.log.truncate, damage))

    def leave(self, partition: Partition) -> None:
        if self._following.pop(partition, None) is not None:
            partition.on_stable = None
        self._leaving.pop(partition, None)
        self._kept.pop(partition, None)
        self._attempts.pop(partition, None)
        self._session.drop(partition)

    def lag(self, partition: Partition) -> int | None:
        """How many offsets a partition is behind its leader; None if it is not copied from here."""
        following = self._following.get(partition)
        return None if following is None else max(following.leader_end - partition.log.end_offset, 0)

    def _add(self, partition: Partition) -> None:
        self._session.add(partition)
        self._has_work.set()
        if self._session.is_open:
            self._nudge()

    def _nudge(self) -> None:
        """The fetch that waits does not know of something yet."""
        if not self._is_nudged:
            self._is_nudged = True
            self._copying.peers.tell(self._leader_id, NUDGE, Nudge(self._session.session))

    def _put_off(self, partition: Partition, following: Following, delay_s: float) -> None:
        """Copy nothing of a partition for a while."""
        self._session.drop(partition)
        asyncio.get_running_loop().call_later(delay_s, self._resume, partition, following)

    def _resume(self, partition: Partition, following: Following) -> None:
        if self._following.get(partition) is not following or partition in self._session:
            return
        if self._copying.replicas.disk.is_full:
            self._put_off(partition, following, _DISK_BACKOFF_S)
        else:
            self._add(partition)

    def _refuse(self, partition: Partition) -> None:
        """Copy nothing of a partition that cannot be written, and let the leader know now: others wait for it."""
        self._session.refuse(partition)
        if self._session.is_open:
            self._nudge()

    # -- what is kept here --------------------------------------------------------------------------------------------

    def _on_stable(self, partition: Partition) -> None:
        """More of a copy survives a crash now, or nothing more ever will: the leader waits for that."""
        if partition.log.failure is not None:
            self._refuse(partition)
            return
        if not self._kept:
            asyncio.get_running_loop().call_soon(self._report_durable)
        self._kept[partition] = None
        self._session.touch(partition)  # in case the message is lost

    def _report_durable(self) -> None:
        kept, self._kept = self._kept, {}
        stable = []
        for partition in kept:
            following, slot = self._following.get(partition), self._session.slot(partition)
            if following is not None and slot is not None and not partition.is_leader:
                stable.append(Stable(slot, following.leader_epoch, partition.stable_end))
        if stable and self._epoch is not None:
            self._copying.peers.tell(self._leader_id, DURABLE, Kept(self._epoch, self._session.session, tuple(stable)))

    # -- fetching -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._has_work.wait()
            epoch = self._copying.replicas.node_epoch
            if epoch is None:
                await asyncio.sleep(_BACKOFF_S[1])
                continue
            if epoch != self._epoch:
                self._epoch = epoch
                self._session.restart(self._copying.next_session())
            fetch = self._next_fetch(epoch)
            try:
                timeout_s = fetch.max_wait_ms / 1000 + _CALL_TIMEOUT_S
                received = await self._copying.peers.call(self._leader_id, FETCH, fetch, timeout_s=timeout_s)
                is_good = await self._take(received)
            except PenstockError as error:
                if not failures:
                    log.warning("Node %d cannot be fetched from: %s", self._leader_id, error.message)
                is_good = False
            except Exception as error:  # the session begins anew: no other task copies from that leader
                self._copying.supervision.note(self._name, error)
                is_good = False
            if is_good:
                failures = 0
                continue
            self._session.restart(self._copying.next_session())
            await asyncio.sleep(_backoff_s(failures))
            failures += 1

    def _next_fetch(self, epoch: int) -> FetchReplica:
        named = self._session.begin(self._describe)
        self._is_nudged = False
        leaving, self._leaving = self._leaving, {}
        self._asked_to_leave = tuple(leaving.items())
        if not len(self._session):
            self._has_work.clear()
        throttle = self._copying.throttle
        max_wait_ms, catch_up_bytes = MAX_WAIT_MS, -1
        if throttle.is_on:
            catch_up_bytes = max(throttle.available(self._copying.clock.monotonic()), 0)
            if not catch_up_bytes:
                max_wait_ms = _THROTTLED_WAIT_MS
        return FetchReplica(
            epoch,
            self._session.session,
            self._session.number,
            max_wait_ms,
            ANSWER_BYTES,
            catch_up_bytes,
            named.added,
            named.moved,
            named.dropped,
            named.refused,
            tuple(Leaving(each.topic_id, each.id.partition, how.leader_epoch) for each, how in self._asked_to_leave),
        )

    def _describe(self, partition: Partition, slot: int) -> Added:
        following = self._following[partition]
        asked = following.ask(partition.log.end_offset, partition.log.epochs)
        return Added(
            slot,
            partition.topic_id,
            partition.id.partition,
            following.leader_epoch,
            asked.offset,
            asked.last_epoch,
            partition.stable_end,
        )

    async def _take(self, received: Received) -> bool:
        """Do what an answer says, if it is to the fetch that is open."""
        if not self._session.accept(received.reply):
            return False
        for number in received.reply.let_go:
            self._cut(*self._asked_to_leave[number])
        at = unwritten = 0
        for news in received.reply.news:
            data = received.body[at : at + news.size]
            at += news.size
            unwritten += news.size
            partition = self._session.key(news.slot)
            if partition is not None:
                self._perform(partition, news, data)
            if unwritten >= _BREATH_BYTES:
                unwritten = 0
                await asyncio.sleep(0)
        return True

    # -- doing what is answered ---------------------------------------------------------------------------------------

    def _perform(self, partition: Partition, news: News, data: memoryview) -> None:
        following = self._following[partition]
        log_here = partition.log
        local = LocalLog(log_here.start_offset, log_here.end_offset, partition.high_watermark, log_here.epochs)
        match following.on_answer(_answer_of(news), local):
            case Append(high_watermark, log_start):
                self._attempts.pop(partition, None)
                self._append(partition, following, data, high_watermark, log_start)
            case Truncate(offset):
                log.warning("%s is cut back from %d to %d, where its leader agrees.", partition.id, local.end, offset)
                self._rewrite(partition, following, partial(log_here.truncate, offset))
            case BeginAt(offset):
                log.warning("%s begins anew at %d: its leader has nothing older.", partition.id, offset)
                self._rewrite(partition, following, partial(log_here.begin_at, offset))
            case Wait(reason):
                attempt = self._attempts.get(partition, 0)
                self._attempts[partition] = attempt + 1
                if attempt == len(_BACKOFF_S):
                    log.warning("%s cannot be copied from node %d: %s.", partition.id, self._leader_id, reason)
                self._put_off(partition, following, _backoff_s(attempt))
            case Ignore():
                self._session.touch(partition)

    def _append(
        self, partition: Partition, following: Following, data: memoryview, high_watermark: int, log_start: int
    ) -> None:
        if data:
            self._session.touch(partition)
            self._copying.stats.bytes_in += len(data)
            throttled = partition.settings.follower_throttled
            is_throttled = is_listed(throttled, partition.id.partition, self._copying.node_id)
            if is_throttled and not self._copying.is_in_sync(partition):
                self._copying.throttle.take(len(data))
            try:
                partition.append_stored(data, following.leader_epoch)
            except LogFailed:  # until a restart nothing more is written; the log has told why
                self._refuse(partition)
                return
            except DiskFull as error:
                log.error("%s cannot be copied now: %s", partition.id, error.message)
                self._refuse(partition)
                self._put_off(partition, following, _DISK_BACKOFF_S)
                return
            except PenstockError as error:
                log.error("%s cannot be copied now: %s", partition.id, error.message)
                self._put_off(partition, following, _DISK_BACKOFF_S)
                return
        partition.learn(high_watermark)
        start = min(log_start, partition.high_watermark)
        if start > partition.log.start_offset:
            self._copying.spawn(self._trim(partition, start))

    def _rewrite(self, partition: Partition, following: Following, change: Callable[[], None]) -> None:
        """Change a log where it lies, while nothing is copied to it."""
        self._session.drop(partition)
        end = partition.log.end_offset

        def is_wanted() -> bool:
            is_same = self._following.get(partition) is following and not partition.is_leader
            return is_same and partition.leader_epoch == following.leader_epoch and partition.log.end_offset == end

        def rewrite_log() -> None:
            change()
            partition.log.forget_doubt()  # it is out of sync, and counts again when it has caught up

        async def rewrite() -> None:
            if await self._copying.replicas.rewrite(partition, rewrite_log, is_wanted):
                self._copying.stats.truncations += 1
            if partition.log.failure is None:
                self._resume(partition, following)

        self._copying.spawn(rewrite())

    async def _trim(self, partition: Partition, start: int) -> None:
        """Let go of what the leader has let go of."""
        here = partition.log
        async with self._copying.replicas.upkeep(partition):
            if not here.start_offset < start <= here.end_offset:
                return
            try:
                await asyncio.to_thread(here.save_start, start)
                dropped = here.trim(start, is_saved=True) if here.start_offset < start <= here.end_offset else []
                await asyncio.to_thread(here.delete_files, dropped, self._copying.clock.now_ms())
            except PenstockError as error:
                log.error("%s could not be trimmed to %d: %s", partition.id, start, error.message)


def _answer_of(news: News) -> LeaderAnswer:
    parting = EpochStart(news.parting_epoch, news.parting_end) if news.is_parting else None
    return LeaderAnswer(
        news.leader_epoch,
        FetchProblem(news.problem),
        news.high_watermark,
        news.log_start,
        news.log_end,
        news.size,
        parting,
    )


def _backoff_s(attempt: int) -> float:
    return _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
