"""A leader's work: bringing every follower's log to its own, and knowing what a majority has.

A follower is *probed* with one message at a time until it is known where its log agrees; then entries are sent ahead of
the answers. One that needs entries that are gone is sent the snapshot in pieces. Each heartbeat begins a round; a round
that a majority has answered proves that this leader was one when the round began, which is what reads wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

from penstock.consensus.raft.log import RaftLog
from penstock.consensus.raft.messages import (
    AppendEntries,
    AppendResponse,
    InstallSnapshot,
    Member,
    Members,
    RaftMessage,
    Snapshot,
    SnapshotResponse,
    TimeoutNow,
)


@dataclass(frozen=True, slots=True)
class RaftTiming:
    """An election begins after one to two election timeouts without a leader."""

    election_ms: int = 500
    heartbeat_ms: int = 100
    entries_at_once: int = 512
    bytes_at_once: int = 1024 * 1024
    messages_in_flight: int = 8
    piece_bytes: int = 256 * 1024

    @property
    def silence_ms(self) -> int:
        """How long a leader goes on without having heard of a majority. Answers wait for disks, so longer than others
        wait for it: it commits nothing meanwhile, and a leader elected instead is obeyed at once.
        """
        return 2 * self.election_ms


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower is, as its leader knows it."""

    directory_id: str
    next_index: int
    heard_ms: int
    matched: int = 0
    in_flight: int = 0
    is_probed: bool = True
    round: int = 0  # of the last answer
    snapshot: Snapshot | None = None  # being sent
    position: int = 0  # in its data

    def takes_more(self, pace: RaftTiming) -> bool:
        return self.in_flight < (1 if self.is_probed or self.snapshot else pace.messages_in_flight)


@dataclass(slots=True)
class Read:
    """A read of what is committed: wait for ``index`` to be applied, once ``round`` is confirmed."""

    token: object
    index: int
    round: int


class LeaderState:
    """What a member knows and does only while it leads."""

    def __init__(
        self,
        me: Member,
        term: int,
        log: RaftLog,
        pace: RaftTiming,
        send: Callable[[RaftMessage], None],
    ) -> None:
        self._me = me
        self._term = term
        self._log = log
        self._pace = pace
        self._send = send
        self.first_index = log.last_index + 1  # of its own term
        self.durable = 0  # how far its own log is on disk
        self.round = 0
        self.reads: list[Read] = []
        self.successor: int | None = None  # the member that leadership is being handed to
        self.successor_until_ms = 0
        self.followers: dict[int, FollowerProgress] = {}
        self.members = Members({})

    def follow_members(self, members: Members, now_ms: int) -> None:
        """Begin with new members, forget those that are gone. One with another disk is new: nothing is known of it."""
        self.members = members
        known, self.followers = self.followers, {}
        for node_id in members.others(self._me.node_id):
            directory_id = members.directory_of(node_id)
            follower = known.get(node_id)
            if follower is None or follower.directory_id != directory_id:
                follower = FollowerProgress(directory_id, self._log.last_index + 1, heard_ms=now_ms)
            self.followers[node_id] = follower

    # -- sending ------------------------------------------------------------------------------------------------------

    def beat(self, commit: int) -> None:
        """Begin a new round: a heartbeat to every member."""
        self.round += 1
        for node_id, follower in self.followers.items():
            follower.in_flight = 0  # what was lost is sent again; what was not is taken twice without harm
            self._send_to(node_id, follower, commit)

    def send_news(self, commit: int) -> None:
        """Send entries to every member that takes more."""
        for node_id, follower in self.followers.items():
            while follower.takes_more(self._pace) and follower.next_index <= self._log.last_index:
                self._send_to(node_id, follower, commit)

    def send_commit(self, commit: int) -> None:
        """Tell every member at once what is committed: it takes effect there when the message arrives."""
        for node_id, follower in self.followers.items():
            if follower.takes_more(self._pace) and follower.snapshot is None:
                self._send_to(node_id, follower, commit)
        self.send_news(commit)

    def _send_to(self, node_id: int, follower: FollowerProgress, commit: int) -> None:
        previous = follower.next_index - 1
        previous_term = self._log.term_at(previous)
        follower.in_flight += 1
        if previous_term is None or follower.snapshot is not None:
            self._send_piece(node_id, follower)
            return
        entries = self._log.slice(follower.next_index, self._pace.entries_at_once, self._pace.bytes_at_once)
        self._send(
            AppendEntries(
                sender=self._me,
                to=node_id,
                term=self._term,
                previous_index=previous,
                previous_term=previous_term,
                entries=entries,
                commit=commit,
                round=self.round,
            )
        )
        if not follower.is_probed:
            follower.next_index += len(entries)

    def _send_piece(self, node_id: int, follower: FollowerProgress) -> None:
        if follower.snapshot is None:
            follower.snapshot, follower.position = self._log.snapshot, 0
        snapshot, position = follower.snapshot, follower.position
        piece = replace(snapshot, data=snapshot.data[position : position + self._pace.piece_bytes])
        self._send(
            InstallSnapshot(
                sender=self._me,
                to=node_id,
                term=self._term,
                snapshot=piece,
                position=position,
                size=len(snapshot.data),
                round=self.round,
            )
        )

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_response(self, message: AppendResponse | SnapshotResponse, now_ms: int) -> FollowerProgress | None:
        """Note who was heard of; None for a node that is no member, or no longer the one it was."""
        follower = self.followers.get(message.sender.node_id)
        if follower is None or not self.members.knows(message.sender):
            return None
        follower.heard_ms = now_ms
        follower.round = max(follower.round, message.round)
        return follower

    def on_appended(self, follower: FollowerProgress, appended: AppendResponse) -> None:
        follower.in_flight = max(0, follower.in_flight - 1)
        if appended.is_accepted:
            follower.matched = max(follower.matched, appended.index)
            follower.next_index = max(follower.next_index, appended.index + 1)
            follower.is_probed = False
            if follower.snapshot is not None and follower.matched >= follower.snapshot.index:
                follower.snapshot = None
        elif appended.index < follower.next_index - 1:
            follower.next_index = max(follower.matched, appended.index) + 1
            follower.is_probed = True
            follower.in_flight = 0

    def on_taken(self, follower: FollowerProgress, taken: SnapshotResponse) -> None:
        snapshot = follower.snapshot
        if snapshot is None or snapshot.index != taken.index or taken.position == follower.position:
            return  # an answer to a piece that was sent twice is not to be answered with another two
        follower.in_flight = 0
        follower.position = taken.position
        if taken.position >= len(snapshot.data):
            follower.snapshot = None
            follower.matched = max(follower.matched, taken.index)
            follower.next_index = max(follower.next_index, taken.index + 1)
            follower.is_probed = True

    def pump(self, node_id: int, follower: FollowerProgress, commit: int) -> None:
        """Send the follower that has just answered what it still lacks."""
        while follower.takes_more(self._pace) and (
            follower.snapshot is not None or follower.next_index <= self._log.last_index
        ):
            self._send_to(node_id, follower, commit)

    def hand_over(self) -> None:
        """Ask the successor, if there is one, to stand for election, as soon as it has everything."""
        if self.successor is not None and self.followers[self.successor].matched == self._log.last_index:
            self._send(TimeoutNow(sender=self._me, to=self.successor, term=self._term))

    # -- majorities ---------------------------------------------------------------------------------------------------

    def agreed_index(self) -> int:
        """The highest index that a majority of the voters has on disk."""
        return int(self._reached_by_majority(self.durable, lambda follower: follower.matched))

    def confirmed_round(self) -> int:
        """The latest round that a majority of the voters has answered."""
        return int(self._reached_by_majority(self.round, lambda follower: follower.round))

    def heard_majority_ms(self) -> float:
        """Since when a majority of the voters, this leader among them, has been heard of."""
        return self._reached_by_majority(inf, lambda follower: follower.heard_ms)

    def _reached_by_majority(self, own: float, of: Callable[[FollowerProgress], float]) -> float:
        reached = [
            own if node_id == self._me.node_id else of(self.followers[node_id]) for node_id in self.members.voters
        ]
        return sorted(reached, reverse=True)[self.members.majority - 1]

    def take_confirmed_reads(self) -> Iterable[Read]:
        confirmed = self.confirmed_round()
        ready = [read for read in self.reads if read.round <= confirmed]
        self.reads = [read for read in self.reads if read.round > confirmed]
        return ready
