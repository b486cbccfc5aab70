"""The leaders' side of replication: fetches of followers are answered with slices of the files the batches lie in.

Followers read up to the end of the log, past the high watermark: it is by their having it that a record is committed. A
fetch that finds nothing waits for any of its partitions to get more; that costs nothing but a place in a dictionary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.consensus.topic_config import is_listed
from penstock.errors import PenstockError
from penstock.network.port import Nothing, Reply
from penstock.partitions.damage import is_misdated
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.following import (
    FAILED,
    GOOD,
    TRIMMED,
    FetchProblem,
    HistoryCheck,
    LogPosition,
    check_history,
)
from penstock.partitions.replication.messages import Added, Fetched, FetchReplica, Kept, Leaving, Moved, News, Nudge
from penstock.partitions.replication.sessions import LeaderSession
from penstock.partitions.stats import ReplicationStats
from penstock.partitions.throttle import Throttle
from penstock.storage.files import FileSlice

# What one partition gets in an answer even where many have something.
_SHARE_BYTES: Final = 64 * 1024
# That more is committed is told soon, but not at once: most often there is more to tell by then.
_WATERMARK_DELAY_S: Final = 0.02
_NOTHING: Final = Nothing()


class Throttled(NamedTuple):
    """Whether the follower's rate holds for a replica, and whether the leader's does."""

    follower: bool
    leader: bool


NOT_THROTTLED: Final = Throttled(follower=False, leader=False)


class FollowerPosition:
    """A follower's position in one partition. It is told of everything that is new there."""

    __slots__ = ("_node", "at", "history", "leader_epoch", "log_start", "partition", "slot", "watermark")

    def __init__(self, node: FollowerNode, slot: int, partition: Partition | None, leader_epoch: int) -> None:
        self._node = node
        self.slot = slot
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.at = LogPosition(0, -1)
        self.history: HistoryCheck = GOOD
        self.watermark = -1  # as it was told last
        self.log_start = -1

    def on_appended(self) -> None:
        self._node.note(self.slot, is_urgent=True)

    def on_advanced(self) -> None:
        self._node.note(self.slot, is_urgent=False)

    @property
    def problem(self) -> FetchProblem:
        """Why this partition cannot be fetched from, whatever the position."""
        partition = self.partition
        if partition is None:
            return FetchProblem.UNKNOWN
        if not partition.is_leader:
            return FetchProblem.NOT_LEADER
        if self.leader_epoch < partition.leader_epoch:
            return FetchProblem.FENCED
        if self.leader_epoch > partition.leader_epoch:
            return FetchProblem.UNKNOWN_EPOCH
        # It may have heard sooner than we that it is to be a replica. It has to ask again: it tells where it is only
        # when that changes, and what we do not take down now we would never hear of.
        is_replica = partition.followers is not None and partition.followers.has(self._node.node_id)
        return FetchProblem.NONE if is_replica else FetchProblem.UNKNOWN


class FollowerNode:
    """One follower node: its session, and the fetch of it that waits."""

    def __init__(self, node_id: int, serving: Serving) -> None:
        self.node_id = node_id
        self._serving = serving
        self._session: LeaderSession[FollowerPosition] | None = None
        self._fetch: FetchReplica | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._is_urgent = False
        self._let_go: tuple[int, ...] = ()

    # -- what the follower says ---------------------------------------------------------------------------------------

    def fetch(self, fetch: FetchReplica) -> Fetched | Reply | asyncio.Future[Reply]:
        session = self._session
        if session is None or not session.is_next(fetch):
            if fetch.number or (session is not None and not session.is_newer(fetch)):
                return Fetched(fetch.session, fetch.number, is_known=False)
            session = self._begin(fetch)
        elif self._waiting is not None:  # a follower sends no fetch before the last one is answered
            self.close()
            return Fetched(fetch.session, fetch.number, is_known=False)
        session.number = fetch.number
        self._fetch = fetch
        for slot in fetch.refused:
            position = session.positions.get(slot)
            if position is not None and position.partition is not None and position.problem is FetchProblem.NONE:
                wants_change = position.partition.on_refused(self.node_id, session.node_epoch)
                self._serving.on_report(position.partition, wants_change)
        self._let_go = tuple(at for at, leaving in enumerate(fetch.leaving) if self._lets_go(session, leaving))
        for slot in fetch.dropped:
            self._drop(slot)
        for added in fetch.added:
            self._add(session, added)
        for moved in fetch.moved:
            position = session.positions.get(moved.slot)
            if position is not None:
                self._place(session, position, moved)
        reply = self._gather()
        if reply.body or reply.reply.news or fetch.leaving or fetch.max_wait_ms <= 0:  # type: ignore[attr-defined]
            return reply
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._timer = loop.call_later(fetch.max_wait_ms / 1000, self._finish)
        return self._waiting

    def _lets_go(self, session: LeaderSession[FollowerPosition], leaving: Leaving) -> bool:
        """Count on a follower no more before it reports again; whether the in-sync set has dropped it too."""
        partition = self._serving.find(leaving)
        if partition is None or not partition.is_leader or partition.leader_epoch != leaving.leader_epoch:
            return False
        self._serving.on_report(partition, partition.on_refused(self.node_id, session.node_epoch))
        return partition.followers is not None and self.node_id not in partition.followers.maximal

    def _begin(self, fetch: FetchReplica) -> LeaderSession[FollowerPosition]:
        self.close()
        self._session = LeaderSession(fetch.node_epoch, fetch.session)
        return self._session

    def _add(self, session: LeaderSession[FollowerPosition], added: Added) -> None:
        self._drop(added.slot)
        partition = self._serving.find(added)
        position = FollowerPosition(self, added.slot, partition, added.leader_epoch)
        session.add(added.slot, position)
        if partition is not None:
            partition.listen(position)
        self._place(session, position, added)

    def _place(self, session: LeaderSession[FollowerPosition], position: FollowerPosition, at: Added | Moved) -> None:
        """The follower is there now. If that is a place in our own history, it counts."""
        session.note(position.slot)
        if position.problem is not FetchProblem.NONE:
            return
        partition = position.partition
        assert partition is not None
        log = partition.log
        position.at = LogPosition(at.offset, at.last_epoch)
        if is_misdated(log):  # this leader is replaced soon, or dates its batches anew: no follower may cut for that
            position.history = FAILED
            return
        position.history = check_history(position.at, log.epochs, log.start_offset, log.end_offset)
        if position.history is GOOD:
            self._serving.on_report(
                partition,
                partition.on_fetched(self.node_id, session.node_epoch, at.offset, at.stable, self._serving.now()),
            )

    def kept(self, kept: Kept) -> None:
        """The follower has synced what it has."""
        session = self._session
        if session is None or (kept.node_epoch, kept.session) != (session.node_epoch, session.session):
            return
        for stable in kept.stable:
            position = session.positions.get(stable.slot)
            if position is None or position.leader_epoch != stable.leader_epoch or position.history is not GOOD:
                continue
            partition = position.partition
            if partition is not None and position.problem is FetchProblem.NONE:
                self._serving.on_report(
                    partition,
                    partition.on_kept(self.node_id, session.node_epoch, stable.offset, self._serving.now()),
                )

    def nudge(self, nudge: Nudge) -> None:
        if self._session is not None and self._session.session == nudge.session:
            self._finish()

    # -- news ---------------------------------------------------------------------------------------------------------

    def note(self, slot: int, *, is_urgent: bool) -> None:
        """A partition has something new. A fetch that waits is answered at the end of this turn of the loop."""
        session = self._session
        if session is None:
            return
        session.note(slot)
        if self._waiting is None or (self._soon is not None and (self._is_urgent or not is_urgent)):
            return
        if self._soon is not None:
            self._soon.cancel()
        loop = asyncio.get_running_loop()
        self._is_urgent = is_urgent
        self._soon = (
            loop.call_soon(self._answer_if_news)
            if is_urgent
            else loop.call_later(_WATERMARK_DELAY_S, self._answer_if_news)
        )

    def _answer_if_news(self) -> None:
        self._soon = None
        if self._waiting is None:
            return
        reply = self._gather()
        if reply.reply.news:  # type: ignore[attr-defined]
            self._answer(reply)

    def _finish(self) -> None:
        """Answer the fetch that waits, if one does, with whatever there is."""
        if self._waiting is not None:
            self._answer(self._gather())

    def _answer(self, reply: Reply) -> None:
        waiting, self._waiting = self._waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def close(self) -> None:
        """The session is over."""
        self._answer(Reply(Fetched(0, 0, is_known=False)))
        if self._session is not None:
            for slot in tuple(self._session.positions):
                self._drop(slot)
            self._session = None

    def _drop(self, slot: int) -> None:
        position = None if self._session is None else self._session.drop(slot)
        if position is not None and position.partition is not None:
            position.partition.unlisten(position)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _gather(self) -> Reply:
        """Answer with what there is, as much as fits, beginning with those that have waited longest."""
        session, fetch = self._session, self._fetch
        assert session is not None
        assert fetch is not None
        left = fetch.max_bytes
        throttle = self._serving.throttle
        catch_up = left if fetch.catch_up_bytes < 0 else min(left, fetch.catch_up_bytes)
        sendable = max(throttle.available(self._serving.now()), 0) if throttle.is_on else left
        slots = session.news()
        share = max(_SHARE_BYTES, left // max(len(slots), 1))
        told: list[News] = []
        pieces: list[FileSlice] = []
        for slot in slots:
            if left <= 0:
                break
            position = session.positions[slot]
            is_in_sync = self._is_in_sync(position)
            throttled = NOT_THROTTLED if is_in_sync else self._throttled(position)
            room = min(share, left, catch_up if throttled.follower else left, sendable if throttled.leader else left)
            news, found = self._read_news(position, room)
            if news is not None:
                told.append(news)
            if found is not None:
                pieces.append(found)
                left -= found.size
                if throttled.follower:
                    catch_up -= found.size
                if throttled.leader:
                    sendable -= found.size
                    throttle.take(found.size)
            elif news is None and room <= 0:
                continue  # it has batches and may not have them yet
            session.settle(slot)
            if news is not None and news.problem and news.problem != FetchProblem.TRIMMED:
                self._drop(slot)
        self._serving.stats.bytes_out += fetch.max_bytes - left
        fetched = Fetched(session.session, session.number, is_known=True, news=tuple(told), let_go=self._let_go)
        return Reply(fetched, pieces)

    def _throttled(self, position: FollowerPosition) -> Throttled:
        """Which rates hold for a replica that is not in sync."""
        partition = position.partition
        if partition is None:
            return NOT_THROTTLED
        settings, index = partition.settings, partition.id.partition
        return Throttled(
            is_listed(settings.follower_throttled, index, self.node_id),
            is_listed(settings.leader_throttled, index, self._serving.node_id),
        )

    def _is_in_sync(self, position: FollowerPosition) -> bool:
        followers = None if position.partition is None else position.partition.followers
        return followers is not None and self.node_id in followers.in_sync

    def _read_news(self, position: FollowerPosition, room: int) -> tuple[News | None, FileSlice | None]:
        problem = position.problem
        partition = position.partition
        if problem is not FetchProblem.NONE or partition is None:
            return _problem(position, problem), None
        log = partition.log
        parting = position.history.parting
        found = None
        if parting is None and position.at.offset < log.end_offset and position.history is GOOD:
            if position.at.offset < log.start_offset:
                position.history = TRIMMED
            elif room <= 0:
                return None, None
            else:
                try:
                    found = log.read(position.at.offset, room, log.end_offset)
                except PenstockError:
                    return _problem(position, FetchProblem.FAILED), None
        has_moved = (partition.high_watermark, log.start_offset) != (position.watermark, position.log_start)
        if found is None and position.history is GOOD and not has_moved:
            return None, None
        position.watermark, position.log_start = partition.high_watermark, log.start_offset
        return (
            News(
                slot=position.slot,
                leader_epoch=position.leader_epoch,
                problem=position.history.problem.value,
                high_watermark=partition.high_watermark,
                log_start=log.start_offset,
                log_end=log.end_offset,
                size=0 if found is None else found.size,
                parting_epoch=-1 if parting is None else parting.epoch,
                parting_end=-1 if parting is None else parting.start_offset,
                is_parting=parting is not None,
            ),
            found,
        )


def _problem(position: FollowerPosition, problem: FetchProblem) -> News:
    return News(position.slot, position.leader_epoch, problem.value, -1, -1, -1)


class Serving:
    """All followers of what is led here."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        clock: Clock,
        stats: ReplicationStats,
        on_change: Callable[[Partition], None],
    ) -> None:
        self.node_id = node_id
        self.throttle = Throttle(0, clock.monotonic())  # of what is sent to replicas that are not in sync
        self._replicas = replicas
        self._clock = clock
        self.stats = stats
        self._on_change = on_change
        self._nodes: dict[int, FollowerNode] = {}

    def now(self) -> float:
        return self._clock.monotonic()

    def find(self, named: Added | Leaving) -> Partition | None:
        return self._replicas.find(named.topic_id, named.partition)

    def on_report(self, partition: Partition, wants_change: bool) -> None:
        if wants_change:
            self._on_change(partition)

    def fetch(self, node_id: int, fetch: FetchReplica, _body: memoryview) -> Fetched | Reply | asyncio.Future[Reply]:
        """Serve ``replication.fetch``."""
        return self._node(node_id).fetch(fetch)

    def kept(self, node_id: int, kept: Kept, _body: memoryview) -> Nothing:
        """Serve ``replication.durable``."""
        self._node(node_id).kept(kept)
        return _NOTHING

    def nudge(self, node_id: int, nudge: Nudge, _body: memoryview) -> Nothing:
        """Serve ``replication.nudge``."""
        self._node(node_id).nudge(nudge)
        return _NOTHING

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()

    def _node(self, node_id: int) -> FollowerNode:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = FollowerNode(node_id, self)
        return node
